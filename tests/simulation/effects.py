"""What handlers do to the world outside, and the log of it: the oracle that no recovery can talk away.

Nothing here knows what the kernel recorded. A handler begins, perhaps makes its effect, and perhaps answers.
"""

from collections import Counter
from dataclasses import dataclass, replace
from random import Random

import msgspec
from msgspec import Raw

from tenuto.kernel import facts as f
from tenuto.kernel.address import Phase, Ref, fan_of, idempotency_key
from tenuto.kernel.compensation import POLICIES, undo_policy
from tenuto.kernel.definition import ErrorClass
from tenuto.kernel.plan import Node
from tenuto.kernel.state import Execution, FanState, StepState

from .programs import Drafts
from .rules import require

FAILURES: tuple[ErrorClass, ...] = (
    "TRANSIENT",
    "RETRYABLE",
    "RATE_LIMITED",
    "DEPENDENCY_FAILED",
    "NON_RETRYABLE",
    "COMPENSATION_REQUIRED",
    "INDETERMINATE",
)
PROBE_TIMEOUT_MS = 30_000
LEASE_MS = 400


@dataclass(frozen=True)
class Habits:
    """How handlers of this seed behave: shares of their calls."""

    fails: float
    undo_fails: float
    hangs: float
    late: float
    slow: float
    classes: tuple[ErrorClass, ...]
    lasting: bool = False  # undos go on failing when all is calm


def draw_habits(rng: Random) -> Habits:
    classes = tuple(name for name in FAILURES if rng.random() < 0.5) or ("TRANSIENT",)
    return Habits(
        fails=rng.choice((0.0, 0.1, 0.3, 0.6)),
        undo_fails=rng.choice((0.0, 0.2, 0.7)),
        hangs=rng.choice((0.0, 0.05, 0.2)),
        late=rng.choice((0.0, 0.5, 1.0)),
        slow=rng.choice((0.1, 0.5)),
        classes=classes,
    )


def undone_in_vain(habits: Habits, rng: Random) -> Habits:
    """What goes forward mostly succeeds; what goes back often fails, and goes on so until people lose patience."""
    return replace(habits, fails=rng.choice((0.0, 0.05)), undo_fails=rng.choice((0.4, 0.6)), lasting=True)


@dataclass(eq=False)
class Call:
    """One call of a handler, as it will go if nobody interferes."""

    ref: Ref
    key: str
    outcome: f.Outcome
    applies: bool
    apply_after: int
    duration: int
    started_at: int = 0


class Oracle:
    """Begins and effects, by key. Steps that are not safe to repeat are judged here, not by the history."""

    def __init__(self) -> None:
        self.begins: Counter[tuple[str, Phase]] = Counter()
        self.refs: set[Ref] = set()
        self.applied: Counter[str] = Counter()
        self.results: dict[str, Raw] = {}
        self.keys: dict[str, tuple[str, Phase, int]] = {}

    def begin(self, ref: Ref, key: str, generation: int, *, unsafe: bool, clearances: int) -> None:
        meaning = (ref.path, ref.phase, generation)
        require(self.keys.setdefault(key, meaning) == meaning, "a key has one meaning", f"{meaning} {self.keys[key]}")
        self.begins[ref.path, ref.phase] += 1
        self.refs.add(ref)
        if unsafe and ref.phase == "forward":
            begun = self.begins[ref.path, ref.phase]
            require(begun <= 1 + clearances, "NOT_SAFE is not begun twice (oracle)", f"{ref}: {begun} begins")

    def apply(self, call: Call) -> None:
        self.applied[call.key] += 1
        if isinstance(call.outcome, f.Succeeded):
            self.results[call.key] = call.outcome.result


class Handlers:
    """Scripts for the calls of one execution."""

    def __init__(self, rng: Random, habits: Habits, oracle: Oracle, drafts: Drafts) -> None:
        self.rng = rng
        self.habits = habits
        self.oracle = oracle
        self.drafts = drafts
        self.calm = False

    def script(self, state: Execution, ref: Ref) -> Call:
        key = key_of(state, ref, ref.phase)
        match ref.phase:
            case "guard" | "reconcile":
                return self._probe(state, ref, key)
            case "plan":
                return self._plan(ref, key)
        outcome = self._outcome(self._undo_share() if ref.phase == "compensate" else self._share(self.habits.fails))
        succeeded = isinstance(outcome, f.Succeeded)
        vague = isinstance(outcome, f.Failed) and outcome.error_class in ("INDETERMINATE", "COMPENSATION_REQUIRED")
        applies = succeeded or (vague and self.rng.random() < 0.5)
        duration = self._duration()
        if self.rng.random() < self._share(self.habits.hangs):
            duration, applies = 1_000_000, self.rng.random() < 0.5
        return Call(ref, key, outcome, applies, self.rng.randint(0, min(duration, 3_000)), duration)

    def _share(self, share: float) -> float:
        return share / 3 if self.calm else share

    def _undo_share(self) -> float:
        return self.habits.undo_fails if self.habits.lasting else self._share(self.habits.undo_fails)

    def _duration(self) -> int:
        if self.rng.random() < self.habits.slow:
            return self.rng.randint(100, 2_500)
        return self.rng.randint(0, 40)

    def _outcome(self, fails: float) -> f.Outcome:
        usage = self.rng.choice((0, 1, 4, 15))
        if self.rng.random() >= fails:
            return f.Succeeded(result=self._result(), usage=usage)
        error_class = self.rng.choice(self.habits.classes)
        return f.Failed(
            error_class=error_class,
            code="scripted",
            retry_after_ms=self.rng.choice((None, 10, 2_500)),
            partial_effect=self.rng.random() < 0.1,
            usage=usage,
        )

    def _result(self) -> Raw:
        value = {
            "ok": self.rng.random() < 0.7,
            "n": self.rng.randrange(4),
            "items": [{"name": f"r{i}"} for i in range(self.rng.randrange(4))],
        }
        return Raw(msgspec.json.encode(value))

    def _probe(self, state: Execution, ref: Ref, key: str) -> Call:
        """What the outside says about an effect is true when it is said, if it says anything."""
        forward = key_of(state, ref, "forward")
        truth: f.Outcome = f.NotDone()
        if self.oracle.applied[forward]:
            truth = f.Done(result=self.oracle.results.get(forward, self._result()))
        evasions: tuple[f.Outcome, ...] = (
            f.Pending(retry_after_ms=self.rng.choice((None, 0, 100, 1_000))),
            f.Unknown(reason="nobody knows"),
            f.Failed(error_class="TRANSIENT", code="scripted"),
            f.Failed(error_class="NON_RETRYABLE", code="scripted"),
            f.TimedOut(),
        )
        evades = self.rng.random() < (0.1 if self.calm else 0.45)
        outcome = self.rng.choice(evasions) if evades else truth
        return Call(ref, key, outcome, False, 0, self._duration())

    def _plan(self, ref: Ref, key: str) -> Call:
        outcome: f.Outcome = f.Planned(children=self.drafts.propose(), usage=self.rng.choice((0, 1)))
        if self.rng.random() < self._share(self.habits.fails):
            outcome = f.Failed(error_class=self.rng.choice(self.habits.classes), code="scripted")
        return Call(ref, key, outcome, False, 0, self._duration())


# -- What a runtime reads from the state for a call --------------------------------------------------------------------


def node_of(state: Execution, path: str) -> Node:
    clone = fan_of(path)
    return state.nodes[clone[0] if clone is not None else path].node


def generation_of(state: Execution, path: str) -> int:
    clone = fan_of(path)
    node = state.nodes[clone[0] if clone is not None else path]
    if isinstance(node, FanState):
        assert clone is not None
        live = node.live.get(clone[1])
        return live.generation if live is not None else node.generations.get(clone[1], 1)
    return node.generation if isinstance(node, StepState) else 1


def key_of(state: Execution, ref: Ref, phase: Phase) -> str:
    return idempotency_key(state.tenant, state.id, ref.path, phase, generation_of(state, ref.path))


def timeout_of(state: Execution, ref: Ref) -> int:
    if ref.phase in ("plan", "guard", "reconcile"):
        return PROBE_TIMEOUT_MS
    step = node_of(state, ref.path).step
    if ref.phase == "compensate":
        return undo_policy(step, POLICIES[state.plan.definition.policies.compensation].max_attempts).timeout_ms
    return step.retry_policy.timeout_ms

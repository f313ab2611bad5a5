"""Drives one execution through the kernel: facts in, entries out, every law asserted after every decision.

A test says what is given, what happens, and exactly which events that leads to:

    run = given(step("reserve", undo=True), step("pay", tries=1))
    run.start()
    run.succeed("reserve")
    run.fail("pay", "TRANSIENT")
    run.expect('''
        started + reserve/1
        ok reserve/1 + pay/1
        failed pay/1 TRANSIENT -> fail
        …
    ''')

`expect` compares all that was recorded since the last `expect`, so that nothing more can have happened unnoticed. Time
stands still until a test moves it; it is counted in milliseconds from the start.
"""

from collections.abc import Callable
from textwrap import dedent
from typing import Any

import msgspec
from msgspec import Raw

from tenuto.kernel import facts as f
from tenuto.kernel.address import Phase, Ref, lease_id
from tenuto.kernel.codec import decode_entry, decode_fact, decode_snapshot, encode_entry, encode_fact, encode_snapshot
from tenuto.kernel.decide import Decision, decide
from tenuto.kernel.definition import JSON, CancelMode, Definition, ErrorClass, Node
from tenuto.kernel.events import Entry, Resolution
from tenuto.kernel.evolve import find_step, fold
from tenuto.kernel.plan import Plan
from tenuto.kernel.state import Execution, FanState, ScopeState, StepState
from tests.checking.mailbox_facts import Mailed

from . import laws
from .build import definition
from .rendering import START, ref_text, render_all

EXECUTION = "x1"
TENANT = "acme"
ANYTHING = f.Authority(permissions=None)

# Facts that may be delivered twice: the second time they change nothing.
REPEATABLE = (
    f.Start,
    f.Begun,
    f.Reported,
    f.Dispatched,
    f.DispatchRefused,
    f.Acked,
    f.Taken,
    f.Lost,
    f.Returned,
    f.Tick,
    f.Decide,
    f.Pause,
    f.Resume,
    f.Cancel,
    f.Retry,
    f.Admitted,
    f.HoldGranted,
    f.HoldRefused,
)
# What a terminal execution still listens to: all that opens its next run or prevents it, and reviews that outlive it.
HEARD_WHEN_TERMINAL = (f.Retry, f.HoldGranted, f.HoldRefused, f.Cancel, f.Decide)


def raw(value: JSON) -> Raw:
    return Raw(msgspec.json.encode(value))


class Driver:
    def __init__(self, made: Definition, check_output: Callable[[JSON], str | None] | None = None) -> None:
        self.definition = made
        self.plan = Plan(made, check_output)
        self.state = Execution(self.plan)
        self.history: list[Entry] = []
        self.decisions: list[list[Entry]] = []
        self.now = START
        self._folded = Execution(self.plan)
        self._snapshot = encode_snapshot(self.state)
        self._ledger = laws.Ledger()
        self._mailed = Mailed()
        self._told = 0
        self._signals = 0

    # -- What it looks like --------------------------------------------------------------------------------------------

    @property
    def status(self) -> str:
        return self.state.status

    @property
    def elapsed(self) -> int:
        return self.now - START

    @property
    def wake_at(self) -> int | None:
        """When it wants to be woken, in milliseconds from the start."""
        return None if self.state.wake_at is None else self.state.wake_at - START

    def step(self, path: str) -> StepState:
        found = find_step(self.state, path)
        assert found is not None, f"{path} has no object: {list(self.state.nodes)}"
        return found

    def scope(self, path: str = "") -> ScopeState:
        found = self.state.nodes[path]
        assert isinstance(found, ScopeState)
        return found

    def fan(self, path: str) -> FanState:
        found = self.state.nodes[path]
        assert isinstance(found, FanState)
        return found

    def statuses(self) -> dict[str, str]:
        """Every step and clone that was ever reached, with its status."""
        found = laws.statuses(self.state)
        return {path: status for (table, path), status in found.items() if table in ("step", "fan_out")}

    def undone(self) -> dict[str, str]:
        """The status of every undo that was begun."""
        found = laws.statuses(self.state)
        return {path: status for (table, path), status in found.items() if table == "compensation" and status != "none"}

    def open(self) -> list[str]:
        """The attempts that a runtime must have in hand, as text."""
        return [ref_text(key) for key in self.state.agenda if isinstance(key, Ref)]

    def reviews(self) -> list[str]:
        return [f"{review.kind} {review.path}".rstrip() for review in self.state.reviews.values()]

    def lines(self) -> list[str]:
        """The whole history, as text."""
        return render_all(self.history)

    def new_lines(self) -> list[str]:
        fresh = self.lines()[self._told :]
        self._told = len(self.history)
        return fresh

    def expect(self, text: str) -> None:
        """Exactly these events were recorded since the last time, and nothing after them."""
        expected = [line for line in dedent(text).strip().splitlines() if line.strip()]
        assert self.new_lines() == expected
        assert encode_snapshot(fold(Execution(self.plan), self.history)) == self._snapshot

    def skip_lines(self) -> None:
        """What happened so far is not this test's matter."""
        self._told = len(self.history)

    # -- What happens --------------------------------------------------------------------------------------------------

    def start(
        self,
        input: JSON = None,
        *,
        hold: int = 0,
        each: dict[str, int] | None = None,
        variables: dict[str, JSON] | None = None,
        key: str | None = None,
        admitted: bool = True,
        owned: bool = True,
        actor: str | None = None,
    ) -> f.Answer:
        return self.tell(
            f.Start(
                at=self.now,
                actor=actor,
                execution=EXECUTION,
                tenant=TENANT,
                input=raw(input),
                hold=hold,
                by_step=each is not None,
                each=each or {},
                variables={name: raw(value) for name, value in (variables or {}).items()},
                concurrency_key=key,
                admitted=admitted,
                owned=owned,
            )
        )

    def report(
        self, path: str, outcome: f.Outcome, *, phase: Phase | None = None, number: int = 0, lease: str | None = None
    ) -> f.Answer:
        """An attempt ended: the open one, unless another is named."""
        ref = self.ref(path, phase, number)
        return self.tell(f.Reported(at=self.now, ref=ref, outcome=outcome, started_at=START, worker="w", lease=lease))

    def ref(self, path: str, phase: Phase | None = None, number: int = 0) -> Ref:
        if number:
            return Ref(path, phase or "forward", number)
        holder = self.state.nodes.get(path) if phase == "plan" else find_step(self.state, path)
        assert isinstance(holder, StepState | ScopeState), f"{path} was not reached"
        assert holder.open is not None, f"{path} has no open attempt: {self.open()}"
        assert phase in (None, holder.open.ref.phase), f"{holder.open.ref} is open"
        return holder.open.ref

    def succeed(self, *paths: str, result: JSON = None, usage: int = 0, number: int = 0) -> f.Answer:
        answer: f.Answer = f.APPLIED
        for path in paths:
            outcome = f.Succeeded(result=raw(result), usage=usage)
            answer = self.report(path, outcome, phase="forward", number=number)
        return answer

    def fail(
        self,
        path: str,
        error_class: ErrorClass = "NON_RETRYABLE",
        *,
        retry_after: int | None = None,
        partial: bool = False,
        usage: int = 0,
        number: int = 0,
    ) -> f.Answer:
        outcome = f.Failed(
            error_class=error_class,
            code=error_class.lower(),
            retry_after_ms=retry_after,
            partial_effect=partial,
            usage=usage,
        )
        return self.report(path, outcome, phase="forward", number=number)

    def time_out(self, path: str, *, usage: int = 0) -> f.Answer:
        return self.report(path, f.TimedOut(usage=usage), phase="forward")

    def undo(self, *paths: str) -> f.Answer:
        answer: f.Answer = f.APPLIED
        for path in paths:
            answer = self.report(path, f.Succeeded(), phase="compensate")
        return answer

    def undo_fails(self, path: str, error_class: ErrorClass = "NON_RETRYABLE") -> f.Answer:
        return self.report(path, f.Failed(error_class=error_class, code=error_class.lower()), phase="compensate")

    def done(self, path: str, result: JSON = None) -> f.Answer:
        """A guard or a reconcile handler found the effect."""
        return self.report(path, f.Done(result=raw(result)))

    def not_done(self, path: str) -> f.Answer:
        return self.report(path, f.NotDone())

    def pending(self, path: str, retry_after: int | None = None) -> f.Answer:
        return self.report(path, f.Pending(retry_after_ms=retry_after))

    def unknown(self, path: str) -> f.Answer:
        return self.report(path, f.Unknown(reason="cannot tell"))

    def planned(self, *children: Node, scope: str = "", usage: int = 0) -> f.Answer:
        documents = tuple(msgspec.json.decode(msgspec.json.encode(child)) for child in children)
        return self.report(scope, f.Planned(children=documents, usage=usage), phase="plan")

    def plan_fails(self, error_class: ErrorClass = "NON_RETRYABLE", *, scope: str = "") -> f.Answer:
        return self.report(scope, f.Failed(error_class=error_class, code=error_class.lower()), phase="plan")

    def begin(self, path: str) -> f.Answer:
        return self.tell(f.Begun(at=self.now, ref=self.ref(path), worker="w"))

    def dispatch(self, path: str) -> f.Answer:
        return self.tell(f.Dispatched(at=self.now, ref=self.ref(path), lane=3, routing_key=TENANT))

    def refuse_dispatch(self, path: str, error_class: ErrorClass = "TRANSIENT") -> f.Answer:
        failure = f.Failed(error_class=error_class, code="broker")
        return self.tell(f.DispatchRefused(at=self.now, ref=self.ref(path), failure=failure))

    def ack(self, path: str, *, number: int = 0, workspace: str = "") -> f.Answer:
        ref = self.ref(path, number=number)
        return self.tell(f.Acked(at=self.now, ref=ref, lease=lease_id(EXECUTION, ref), workspace=workspace))

    def answer(self, path: str, outcome: f.Outcome, *, number: int = 0) -> f.Answer:
        """A result from outside, with the attempt's lease."""
        ref = self.ref(path, number=number)
        return self.report(path, outcome, number=ref.number, lease=lease_id(EXECUTION, ref))

    def crash_and_wait(self, times: int) -> None:
        """Each time when what was lost before is under way again."""
        for _ in range(times):
            self.crash()
            waits = [due for (kind, _), due in self.state.timers.items() if kind in ("retry", "probe")]
            self.tick_to(max([*waits, self.now]) - START)

    def crash(self, lease_ms: int = 15_000) -> f.Answer:
        """The worker is gone; another one takes the execution over."""
        return self.tell(f.Taken(at=self.now, epoch=self.state.epoch + 1, lease_ms=lease_ms))

    def lose(self, *paths: str) -> f.Answer:
        """The worker of a queue that had these is gone."""
        return self.tell(f.Lost(at=self.now, refs=tuple(self.ref(path) for path in paths)))

    def give_back(self, *paths: str) -> f.Answer:
        return self.tell(f.Returned(at=self.now, refs=tuple(self.ref(path) for path in paths)))

    def tick_to(self, elapsed: int) -> f.Answer:
        assert elapsed >= self.elapsed, "time does not go back"
        self.now = START + elapsed
        return self.tell(f.Tick(at=self.now))

    def tick(self) -> f.Answer:
        """To the next moment at which something is due."""
        assert self.wake_at is not None, "nothing is due"
        return self.tick_to(max(self.wake_at, self.elapsed))

    def signal(self, name: str, payload: JSON = None, id: str | None = None) -> f.Answer:
        self._signals += 1
        return self.tell(f.Signal(at=self.now, name=name, id=id or f"s{self._signals}", payload=raw(payload)))

    def approve(self, path: str) -> f.Answer:
        return self.tell(f.Decide(at=self.now, resolution="approved", path=path, actor="ann", authority=ANYTHING))

    def reject(self, path: str) -> f.Answer:
        return self.tell(
            f.Decide(at=self.now, resolution="rejected", path=path, reason="no", actor="ann", authority=ANYTHING)
        )

    def resolve(
        self, path: str, resolution: Resolution, *, result: JSON = None, again: bool = False, kind: str | None = None
    ) -> f.Answer:
        """A person's word on the review that is open on this path."""
        found = [
            review.id for review in self.state.reviews.values() if review.path == path and kind in (None, review.kind)
        ]
        assert len(found) == 1, self.reviews()
        return self.tell(
            f.Decide(
                at=self.now,
                resolution=resolution,
                review=found[0],
                result=raw(result),
                again=again,
                actor="ann",
                authority=ANYTHING,
            )
        )

    def pause(self) -> f.Answer:
        return self.tell(f.Pause(at=self.now, reason="maintenance", actor="ann"))

    def resume(self) -> f.Answer:
        return self.tell(f.Resume(at=self.now, actor="ann"))

    def cancel(self, mode: CancelMode | None = None) -> f.Answer:
        return self.tell(f.Cancel(at=self.now, mode=mode, actor="ann"))

    def retry(
        self,
        *,
        start: str | None = None,
        again: bool = False,
        hold: int = 0,
        admitted: bool = True,
        owned: bool = True,
    ) -> f.Answer:
        return self.tell(
            f.Retry(
                at=self.now,
                reason="mended",
                start=start,
                again=again,
                hold=hold,
                admitted=admitted,
                owned=owned,
                actor="ann",
            )
        )

    def admit(self, run: int = 0) -> f.Answer:
        assert self.state.concurrency_key is not None
        return self.tell(f.Admitted(at=self.now, key=self.state.concurrency_key, run=run))

    def grant_hold(self, amount: int) -> f.Answer:
        return self.tell(f.HoldGranted(at=self.now, amount=amount))

    def refuse_hold(self) -> f.Answer:
        return self.tell(f.HoldRefused(at=self.now))

    def run_out(self, limit: int = 1_000) -> str:
        """Every open attempt succeeds, every timer fires, until there is nothing left to do by itself."""
        for _ in range(limit):
            ref = next((key for key in self.state.agenda if isinstance(key, Ref)), None)
            if ref is not None:
                outcome: f.Outcome = f.Done() if ref.phase in ("guard", "reconcile") else f.Succeeded()
                self.report(ref.path, outcome, phase=ref.phase)
            elif self.wake_at is not None:
                self.tick()
            else:
                return self.status
        raise AssertionError(f"still not over: {self.lines()[-20:]}")

    # -- The laws ------------------------------------------------------------------------------------------------------

    def tell(self, fact: f.Fact) -> f.Answer:
        """Decides one fact, and asserts everything that must be true whatever it was."""
        before, finished, agenda = self._snapshot, self.state.finished, dict(self.state.agenda)
        self.state.changed.clear()
        decision = decide(self.state, fact, self.now)
        self._record(decision.entries)
        self._mailed.decided(self.state.id, fact, decision)
        self._snapshot = encode_snapshot(self.state)
        assert self._snapshot == encode_snapshot(self._folded), "the history folds to the state that decided it"
        self._check_twin(before, fact, decision)
        self._check_snapshot()
        changed = {key for key in {**agenda, **self.state.agenda} if agenda.get(key) != self.state.agenda.get(key)}
        assert changed <= set(self.state.changed), "the runtime is told of every change of the agenda"
        laws.check_state(self.state)
        if not isinstance(decision.answer, f.Applied):
            self._check_unchanged(before, fact, decision)
        elif isinstance(fact, REPEATABLE) and not (isinstance(fact, f.Retry) and self.status == "failed"):
            self._check_repeated(fact)
        if finished is not None and not isinstance(fact, HEARD_WHEN_TERMINAL):
            assert not decision.entries, "a terminal execution does not change"
        return decision.answer

    def _record(self, entries: list[Entry]) -> None:
        if entries:
            self.decisions.append(entries)
        for entry in entries:
            assert entry.seq == len(self.history) + 1, "a history has no gaps"
            if self.history:
                assert entry.at >= self.history[-1].at, "time does not go back"
                assert entry.epoch >= self.history[-1].epoch
            stored = decode_entry(encode_entry(entry))
            assert stored == entry
            open_before = {key for key in self._folded.agenda if isinstance(key, Ref)}
            laws.check_transitions(laws.step_by_step(self._folded, stored))
            self._ledger.check(self._folded, stored, open_before)
            self.history.append(stored)

    def _check_twin(self, before: bytes, fact: f.Fact, decision: Decision) -> None:
        """A state that was stored and loaded decides the same, also a fact that came by mail."""
        twin = decode_snapshot(self.plan, before)
        assert twin is not None
        assert decide(twin, decode_fact(encode_fact(fact)), self.now) == decision
        assert encode_snapshot(twin) == self._snapshot

    def _check_snapshot(self) -> None:
        loaded = decode_snapshot(self.plan, self._snapshot)
        assert loaded is not None
        assert encode_snapshot(loaded) == self._snapshot
        assert loaded.agenda == self.state.agenda
        assert loaded.wake_at == self.state.wake_at

    def _check_unchanged(self, before: bytes, fact: f.Fact, decision: Decision) -> None:
        """Refused or ignored: nothing happened but what would have happened anyway."""
        if not decision.entries:
            assert self._snapshot == before
            return
        other = decode_snapshot(self.plan, before)
        assert other is not None
        decide(other, f.Tick(at=fact.at), self.now)
        assert encode_snapshot(other) == self._snapshot

    def _check_repeated(self, fact: f.Fact) -> None:
        if self.state.wake_at is not None and self.state.wake_at <= self.now and self.state.pause is None:
            return  # the turn left timers for the next one
        again = decode_snapshot(self.plan, self._snapshot)
        assert again is not None
        assert decide(again, fact, self.now).entries == [], f"told twice, {type(fact).__name__} acts twice"


def given(*nodes: Node, check_output: Callable[[JSON], str | None] | None = None, **fields: Any) -> Driver:
    """An execution of a definition made of these nodes; the rest as in `build.definition`."""
    return Driver(definition(*nodes, **fields), check_output)

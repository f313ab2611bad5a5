"""Small worlds: every tree and every dag of up to four steps, and an execution of it that is played to its end.

A world is a shape, what becomes of each step, and how the definition deals with it. Playing it is deterministic: the
oldest (or the newest) open attempt is answered next, and time moves only when nothing is open.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations, pairwise, product
from typing import Literal

from msgspec import Raw

from tenuto.kernel import events as e
from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref
from tenuto.kernel.codec import decode_snapshot, encode_snapshot
from tenuto.kernel.decide import decide
from tenuto.kernel.definition import Definition, FailureMode, Node, Policies, RetryPolicy, Scheduling, Scope, Step
from tenuto.kernel.evolve import fold
from tenuto.kernel.plan import Plan
from tenuto.kernel.state import Execution

from . import laws

# What becomes of a step.
#   ok        it succeeds
#   flaky     it fails once with a retryable error, then succeeds
#   refused   it fails for good
#   slow      it never answers in time
#   lost      the worker that has it is lost once, with all else that it had, then it succeeds
Fate = Literal["ok", "flaky", "refused", "slow", "lost"]
FATES: tuple[Fate, ...] = ("ok", "flaky", "refused", "slow", "lost")
GOOD: tuple[Fate, ...] = ("ok", "flaky", "lost")
MAX_ATTEMPTS = 2
MAX_ROUNDS = 2

# A tree is a leaf's name, or ("sequence" | "parallel", children).
Tree = str | tuple[Literal["sequence", "parallel"], tuple["Tree", ...]]


def trees(leaves: tuple[str, ...]) -> Iterator[Tree]:
    """All nestings of these leaves, in this order, in scopes of at least two children."""
    if len(leaves) == 1:
        yield leaves[0]
        return
    for parts in _cuts(leaves):
        for children in product(*(list(trees(part)) for part in parts)):
            yield "sequence", children
            yield "parallel", children


def _cuts(leaves: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], ...]]:
    """All ways to cut a row into two or more parts."""
    for count in range(1, len(leaves)):
        for places in combinations(range(1, len(leaves)), count):
            edges = (0, *places, len(leaves))
            yield tuple(leaves[a:b] for a, b in pairwise(edges))


Edges = frozenset[tuple[int, int]]


def dags(size: int) -> Iterator[Edges]:
    """All dags of this many nodes whose edges go from a lower number to a higher one."""
    pairs = list(combinations(range(size), 2))
    for count in range(len(pairs) + 1):
        for chosen in combinations(pairs, count):
            yield frozenset(chosen)


def leaf(id: str, *, undo: bool, after: tuple[str, ...] = ()) -> Step:
    return Step(
        id=id,
        handler=id,
        depends_on=after,
        compensation_handler=f"undo_{id}" if undo else None,
        retry_policy=RetryPolicy(max_attempts=MAX_ATTEMPTS, jitter=0),
    )


def tree_definition(tree: Tree, mode: FailureMode, *, undo: bool) -> Definition:
    def node(tree: Tree, number: list[int]) -> Node:
        if isinstance(tree, str):
            return leaf(tree, undo=undo)
        number[0] += 1
        id = f"s{number[0]}"
        children = tuple(node(child, number) for child in tree[1])
        return Scope(id=id, mode=tree[0], children=children, failure_mode=mode, max_rounds=MAX_ROUNDS)

    root = (tree,) if isinstance(tree, str) else tree[1]
    count = [0]
    return Definition(
        name="tree",
        mode="sequence" if isinstance(tree, str) else tree[0],
        steps=tuple(node(child, count) for child in root),
        policies=Policies(failure_mode=mode, max_rounds=MAX_ROUNDS),
    )


def dag_definition(size: int, edges: Edges, mode: FailureMode, scheduling: Scheduling) -> Definition:
    steps = tuple(
        leaf("abcd"[index], undo=True, after=tuple("abcd"[a] for a, b in sorted(edges) if b == index))
        for index in range(size)
    )
    policies = Policies(failure_mode=mode, max_rounds=MAX_ROUNDS, compensation="GROUPED_PARALLEL")
    return Definition(name="dag", mode="dag", scheduling=scheduling, steps=steps, policies=policies)


@dataclass
class World:
    """One execution, played to its end."""

    plan: Plan
    fates: dict[str, Fate]
    newest_first: bool = False
    state: Execution = field(init=False)
    history: list[e.Entry] = field(default_factory=list)
    reports: dict[str, int] = field(default_factory=dict)
    losses: dict[str, int] = field(default_factory=dict)

    def play(self) -> "World":
        self.state = Execution(self.plan)
        self._tell(f.Start(at=1_000, execution="x", tenant="t", input=Raw(b"null")))
        for _ in range(1_000):
            if self.state.finished is not None:
                break
            self._next()
        assert self.state.finished is not None, "it never ends"
        text = encode_snapshot(self.state)
        assert encode_snapshot(fold(Execution(self.plan), self.history)) == text
        loaded = decode_snapshot(self.plan, text)
        assert loaded is not None
        assert encode_snapshot(loaded) == text
        return self

    def _next(self) -> None:
        refs = [key for key in self.state.agenda if isinstance(key, Ref)]
        if not refs:
            assert self.state.wake_at is not None, "it waits for nothing"
            self._tell(f.Tick(at=self.state.wake_at))
            return
        ref = refs[-1 if self.newest_first else 0]
        if ref.phase == "compensate":
            self._report(ref, f.Succeeded())
            return
        name = ref.path.rpartition("/")[2]
        fate = self.fates[name]
        if fate == "lost" and not self.losses.get(name):
            for other in refs:
                self.losses[other.path.rpartition("/")[2]] = self.losses.get(other.path.rpartition("/")[2], 0) + 1
            self._tell(f.Taken(at=self.state.at, epoch=self.state.epoch + 1))
            return
        seen = self.reports[name] = self.reports.get(name, 0) + 1
        if fate == "slow":
            self._report(ref, f.TimedOut())
        elif fate == "refused":
            self._report(ref, f.Failed(error_class="NON_RETRYABLE", code="no"))
        elif fate == "flaky" and seen == 1:
            self._report(ref, f.Failed(error_class="TRANSIENT", code="later"))
        else:
            self._report(ref, f.Succeeded())

    def _report(self, ref: Ref, outcome: f.Outcome) -> None:
        self._tell(f.Reported(at=self.state.at, ref=ref, outcome=outcome))

    def _tell(self, fact: f.Fact) -> None:
        self.history += decide(self.state, fact, fact.at).entries
        laws.check_state(self.state)

    # -- What it came to -----------------------------------------------------------------------------------------------

    def completions(self) -> list[str]:
        """The steps whose effect was made, in the order in which it was made last."""
        last: dict[str, int] = {}
        for entry in self.history:
            if isinstance(entry.event, e.AttemptSucceeded) and entry.event.phase == "forward":
                last[entry.event.path] = entry.seq
        return sorted(last, key=last.__getitem__)

    def undone(self) -> list[str]:
        return [
            entry.event.path
            for entry in self.history
            if isinstance(entry.event, e.AttemptSucceeded) and entry.event.phase == "compensate"
        ]

    def groups(self) -> tuple[tuple[str, ...], ...]:
        found = [entry.event.groups for entry in self.history if isinstance(entry.event, e.CompensationStarted)]
        assert len(found) <= 1
        return found[0] if found else ()

    def statuses(self) -> dict[str, str]:
        found = laws.statuses(self.state)
        return {path.rpartition("/")[2]: status for (table, path), status in found.items() if table == "step"}

    def granted(self) -> list[str]:
        """The steps in the order in which their attempts were granted."""
        return [
            grant.path.rpartition("/")[2]
            for entry in self.history
            for grant in entry.grants
            if grant.phase == "forward"
        ]

"""What is true of every execution after every decision, whatever happened. The driver asserts all of it, every time."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from tenuto.kernel import events as e
from tenuto.kernel.address import Ref, clone_path, fan_of, parent_of
from tenuto.kernel.codec import agenda_of
from tenuto.kernel.evolve import HOLD, apply, apply_grant, enter
from tenuto.kernel.plan import Node
from tenuto.kernel.state import (
    CLONE_CANCELED,
    CLONE_PENDING,
    CLONE_SKIPPED,
    CLONE_SUCCEEDED,
    CLONE_UNDONE,
    Execution,
    FanState,
    ScopeState,
    StepState,
)
from tenuto.kernel.transitions import (
    COMPENSATION_TRANSITIONS,
    EXECUTION_TRANSITIONS,
    FAN_OUT_TRANSITIONS,
    SCOPE_TRANSITIONS,
    STEP_TRANSITIONS,
)

# -- The shape of a state ----------------------------------------------------------------------------------------------


def check_state(state: Execution) -> None:
    assert state.agenda == agenda_of(state), "the agenda is what the rest of the state asks for"
    assert _wake_at(state) == state.wake_at
    _check_moving(state)
    _check_slots(state)
    _check_reviews(state)
    if state.hold:
        assert 0 <= state.charged <= state.hold, "what is charged was reserved"
    if state.finished is not None:
        assert not state.timers, "nothing is due in a terminal execution"
        assert set(state.agenda) <= {HOLD}, "a terminal execution asks for nothing but credits for its next run"
        assert state.moving == 0
        assert state.charged + state.refunded == state.hold, "the hold is settled"
    elif state.seq:
        assert _can_go_on(state), "it waits for nothing and nobody, and is not over"


def _can_go_on(state: Execution) -> bool:
    asks = bool(state.agenda) or state.wake_at is not None
    return asks or bool(state.reviews) or bool(state.waits) or state.pause is not None


def _wake_at(state: Execution) -> int | None:
    goes_on = ("ack", "result", "pause")
    counted = [due for (kind, _), due in state.timers.items() if state.pause is None or kind in goes_on]
    return min(counted, default=None)


def steps_of(state: Execution) -> Iterator[StepState]:
    """Every step that has an object: those of fan-outs only while they run, wait or after they failed."""
    for node in state.nodes.values():
        if isinstance(node, FanState):
            yield from node.live.values()
        elif isinstance(node, StepState):
            yield node


def _check_moving(state: Execution) -> None:
    scopes = [node for node in state.nodes.values() if isinstance(node, ScopeState)]
    moving = [step.path for step in steps_of(state) if step.moving] + [scope.path for scope in scopes if scope.moving]
    assert state.moving == len(moving), moving
    for step in steps_of(state):
        assert not step.open or step.moving, f"{step.path} has an attempt, so it can go on by itself"


def _check_slots(state: Execution) -> None:
    busy: dict[str, int] = {}
    for step in steps_of(state):
        if step.in_slot:
            busy[parent_of(step.path)] = busy.get(parent_of(step.path), 0) + 1
    for node in state.nodes.values():
        if isinstance(node, ScopeState) and node.in_slot:
            busy[parent_of(node.path)] = busy.get(parent_of(node.path), 0) + 1
    for path, node in state.nodes.items():
        if isinstance(node, ScopeState):
            assert node.busy == busy.get(path, 0), f"{path or 'root'} counts its slots"
            assert not node.node.limit or node.busy <= node.node.limit, f"{path or 'root'} is over its limit"
            assert node.remaining >= 0
        elif isinstance(node, FanState):
            assert node.busy == sum(step.in_slot for step in node.live.values()), f"{path} counts its slots"
            assert node.busy <= node.node.limit, f"{path} is over its limit"


def _check_reviews(state: Execution) -> None:
    for step in steps_of(state):
        assert step.review is None or step.review in state.reviews or state.finished, f"{step.path} asks nobody"
    if state.finished is None:
        waiting = {step.review for step in steps_of(state)}
        for id, review in state.reviews.items():
            assert id in waiting or review.kind == "escalation", f"nothing waits for {review}"


# -- What may follow what ----------------------------------------------------------------------------------------------


Table = Literal["execution", "step", "compensation", "scope", "fan_out"]


class Transition(NamedTuple):
    table: Table
    before: str
    after: str


Statuses = dict[tuple[Table, str], str]
INITIAL: dict[Table, str] = {
    "execution": "running",
    "step": "pending",
    "compensation": "none",
    "scope": "open",
    "fan_out": "pending",
}


def statuses(state: Execution) -> Statuses:
    found: Statuses = {}
    if state.seq:
        found["execution", ""] = state.status
    for path, node in state.nodes.items():
        if isinstance(node, StepState):
            found["step", path] = node.status
            found["compensation", path] = node.undo
        elif isinstance(node, ScopeState):
            found["scope", path] = node.status
        else:
            found["fan_out", path] = node.status
            for index, mark in enumerate(node.marks):
                at = clone_path(path, index)
                step = node.live.get(index)
                found["step", at] = step.status if step is not None else _COMPACT[mark]
                compensated = "done" if mark == CLONE_UNDONE else "none"
                found["compensation", at] = step.undo if step is not None else compensated
    return found


_COMPACT = {
    CLONE_PENDING: "pending",
    CLONE_SUCCEEDED: "succeeded",
    CLONE_UNDONE: "succeeded",
    CLONE_SKIPPED: "skipped",
    CLONE_CANCELED: "canceled",
}


def step_by_step(state: Execution, entry: e.Entry) -> list[Transition]:
    """Applies an entry as `evolve` does, and tells every change of a status on the way."""
    enter(state, entry.seq, entry.at, entry.epoch, entry.actor)
    before = statuses(state) if entry.seq > 1 else {}
    apply(state, entry.event)
    after = statuses(state)
    changes = _changes(before, after)
    for grant in entry.grants:
        apply_grant(state, grant)
        before, after = after, statuses(state)
        changes += _changes(before, after)
    return changes


def _changes(before: Statuses, after: Statuses) -> list[Transition]:
    changes: list[Transition] = []
    for (table, path), new in after.items():
        old = before.get((table, path), INITIAL[table])
        if old == new:
            continue
        # One event enters the rollback of a step and starts its compensation.
        if table == "compensation" and old == "none" and new != "pending":
            changes.append(Transition(table, old, "pending"))
            old = "pending"
        changes.append(Transition(table, old, new))
    return changes


ALLOWED: frozenset[Transition] = frozenset(
    [Transition("execution", old, new) for old, news in EXECUTION_TRANSITIONS.items() for new in news]
    + [Transition("step", old, new) for old, news in STEP_TRANSITIONS.items() for new in news]
    + [Transition("compensation", old, new) for old, news in COMPENSATION_TRANSITIONS.items() for new in news]
    + [Transition("scope", old, new) for old, news in SCOPE_TRANSITIONS.items() for new in news]
    + [Transition("fan_out", old, new) for old, news in FAN_OUT_TRANSITIONS.items() for new in news]
)


def check_transitions(changes: list[Transition]) -> None:
    illegal = [change for change in changes if change not in ALLOWED]
    assert not illegal, illegal


# -- Attempts ----------------------------------------------------------------------------------------------------------


def granted_paths(grant: e.Grant) -> list[str]:
    if grant.first < 0:
        return [grant.path]
    return [clone_path(grant.path, index) for index in range(grant.first, grant.last + 1)]


class Ledger:
    """Every attempt that was ever granted, and what permits the next one."""

    def __init__(self) -> None:
        self.newest: dict[tuple[str, str], int] = {}
        self.reviews: dict[str, str] = {}
        self.spent: dict[str, None] = {}  # unsafe steps that were attempted, with no leave to be attempted again

    def check(self, state: Execution, entry: e.Entry, open_before: set[Ref]) -> None:
        self._note_leave(entry.event)
        for path in _tried(entry.event):
            if _is_unsafe(state, path):
                self.spent[path] = None
        for grant in entry.grants:
            for path in granted_paths(grant):
                self._check_grant(state, Ref(path, grant.phase, grant.number), open_before)

    def _check_grant(self, state: Execution, ref: Ref, open_before: set[Ref]) -> None:
        path, phase, number = ref.parts
        if ref in open_before:
            return  # granted again as it was: its owner left without beginning it
        newest = self.newest.get((path, phase), 0)
        assert number > newest, f"{ref} was granted before: numbers rise for ever"
        self.newest[path, phase] = number
        assert state.pause is None, f"{ref} started although the execution is paused"
        if phase == "forward":
            assert state.cancel is None, f"{ref} started although the execution is cancelled"
            assert state.undo is None, f"{ref} started although its execution is being undone"
            assert path not in self.spent, f"{ref} is not safe to retry, and nobody said that it was not done"
            if _is_unsafe(state, path) and node_of(state, path).outside:
                self.spent[path] = None  # it may have left before that is recorded

    def _note_leave(self, event: e.Event) -> None:
        """What makes another attempt of an unsafe step legitimate: a verdict, a person, a send that did not happen."""
        match event:
            case e.ProbeAnswered(answer="not_done") | e.DispatchFailed():
                self.spent.pop(event.path, None)
            case e.ReviewOpened():
                self.reviews[event.id] = event.path
            case e.ReviewResolved(verdict="retry"):
                self.spent.pop(self.reviews[event.id], None)
            case e.RunOpened() if event.reason != "automatic retry":
                self.spent.clear()
            case e.RunOpened():
                for path, _ in event.redo:
                    self.spent.pop(path, None)
            case e.AttemptSucceeded(phase="compensate"):
                self.spent.pop(event.path, None)
            case e.AttemptsReturned():  # it was granted, and so nothing was spent before; and it was not begun
                for ref in event.refs:
                    self.spent.pop(ref.path, None)


def _tried(event: e.Event) -> list[str]:
    """The steps of which this says that an attempt was begun."""
    match event:
        case e.AttemptBegun() | e.AttemptFailed(phase="forward") | e.AttemptTimedOut(phase="forward"):
            return [event.path]
        case e.AttemptLost():
            return [loss.path for loss in event.losses if loss.phase == "forward"]
    return []


def _is_unsafe(state: Execution, path: str) -> bool:
    return node_of(state, path).step.safety == "NOT_SAFE_TO_RETRY"


def node_of(state: Execution, path: str) -> Node:
    clone = fan_of(path)
    return state.nodes[clone[0] if clone is not None else path].node

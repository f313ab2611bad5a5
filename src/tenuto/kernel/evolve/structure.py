"""Applies events about steps, scopes and fan-outs."""

from array import array

from tenuto.kernel import events as e
from tenuto.kernel.address import ROOT, fan_of, segments
from tenuto.kernel.plan import Node
from tenuto.kernel.state import (
    CLONE_CANCELED,
    CLONE_PENDING,
    CLONE_SKIPPED,
    CLONE_SUCCEEDED,
    CLONE_UNDONE,
    ClosedStatus,
    Execution,
    FanState,
    ScopeState,
    StepState,
    TimerKind,
)
from tenuto.kernel.transitions import set_compensation, set_fan_out_status, set_scope_status, set_status

from .attempts import end_attempt, end_plan
from .nodes import (
    add_children,
    close_fan,
    close_step,
    enter,
    fill_ready,
    fold_clone,
    leave_queue,
    leave_scope,
    locate,
    open_fan,
    open_scope,
    opened,
    release,
)
from .parts import (
    STEP_TIMERS,
    clear_timer,
    fan_at,
    find_step,
    note_usage,
    scope_above,
    scope_at,
    set_moving,
    set_scope_moving,
    set_timer,
    step_at,
)
from .people import stop_waiting

RUN_TIMERS: tuple[TimerKind, ...] = ("execution", "pending", "opening", "retrying", "resuming")


def step_expired(state: Execution, event: e.StepExpired) -> None:
    step = step_at(state, event.path)
    end_attempt(state, step)
    stop_waiting(state, step)
    leave_queue(state, step)
    step.failure = event.failure
    for kind in STEP_TIMERS:
        clear_timer(state, kind, event.path)
    if event.verdict == "review":
        set_moving(state, step, False)
        set_status(step, "awaiting_approval")
    else:
        close_step(state, step, "skipped" if event.verdict == "skip" else "timed_out")


def step_refused(state: Execution, event: e.StepRefused) -> None:
    scope, node = locate(state, event.path)
    status: ClosedStatus = "skipped" if event.verdict == "skip" else "failed"
    optional = not node.is_scope and node.step.failure_mode == "continue"
    poison = event.verdict == "skip" and not optional
    if node.is_scope:
        close_scope(state, open_scope(state, scope, node, event.path), status, event.failure, poison=poison)
    elif node.is_fan or node.id in state.each:
        fan = open_fan(state, scope, node, event.path)
        fan.failure = event.failure
        close_fan(state, fan, status, poison=poison)
    else:
        step = opened(state, event.path)
        step.failure = event.failure
        close_step(state, step, status)


def steps_ready(state: Execution, event: e.StepsReady) -> None:
    for path in event.paths:
        node = state.nodes.get(path)
        if isinstance(node, ScopeState):
            node.waiting_round = False
            clear_timer(state, "round", path)
            set_scope_moving(state, node, False)
            continue
        clear_timer(state, "retry", path)
        clone = fan_of(path)
        if clone is None:
            step = step_at(state, path)
            scope_above(state, path).ready.appendleft(step.node.index)
        else:
            fan = fan_at(state, clone[0])
            fan.queue.append(clone[1])
            scope_above(state, path).fans[fan.path] = None


def branch_taken(state: Execution, event: e.BranchTaken) -> None:
    scope, node = locate(state, event.path)
    decides = not node.is_scope and node.step.type == "decision"
    if (
        decides and scope.current != event.path
    ):  # otherwise it is closed: its condition failed, and this is the edge for that
        step = opened(state, event.path)
        step.done = True
        step.done_seq = state.seq
        close_step(state, step, "succeeded")
    scope.taken = event.target


def expanded(state: Execution, event: e.Expanded) -> None:
    scope, node = locate(state, event.path)
    fan = open_fan(state, scope, node, event.path)
    kept = [index for index, mark in enumerate(fan.marks[: event.count]) if mark == CLONE_SUCCEEDED]
    size = min(fan.count, event.count)
    fan.marks = fan.marks[:size] + bytearray(event.count - size)
    fan.done_seq = fan.done_seq[:size] + array("I", bytes(4 * (event.count - size)))
    fan.count = event.count
    fan.labels = event.labels
    fan.remaining = event.count - len(kept)
    fan.succeeded = len(kept)
    fan.skipped = fan.cursor = fan.active = 0
    fan.end = 1 + max((i for i in range(event.count - 1, -1, -1) if fan.marks[i] != CLONE_SUCCEEDED), default=-1)
    set_fan_out_status(fan, "running")
    fan.kept = False
    if fan.remaining:
        scope.fans[event.path] = None


def children_added(state: Execution, event: e.ChildrenAdded) -> None:
    scope = scope_at(state, event.scope)
    end_plan(state, scope)
    note_usage(state, event)
    if scope.added:
        scope.replans += 1
    for path in event.superseded:
        scope.superseded[path] = None
        scope.failed -= 1
        node = state.nodes[path]
        if (node.outcome if isinstance(node, ScopeState) else node.status) != "skipped":
            release(scope, node.node, poison=True)  # dependents of a skipped child were released when it was skipped
    scope.plan_tries = scope.plan_losses = scope.inner_failed = 0
    add_children(scope, event.specs)


def nodes_closed(state: Execution, event: e.NodesClosed) -> None:
    status: ClosedStatus = {  # type: ignore[assignment]  # the values are StepStatus literals
        "skipped": "skipped",
        "failed_upstream": "skipped",
        "canceled": "canceled",
        "reused": "succeeded",
        "marked": "skipped",
    }[event.status]
    for path in event.paths:
        step = find_step(state, path)
        if step is not None:
            stop_waiting(state, step)
            end_attempt(state, step)
            close_step(state, opened(state, path), status, poison=event.status == "failed_upstream")
            continue
        scope, node = locate(state, path)
        existing = state.nodes.get(path)
        if isinstance(existing, ScopeState) or node.is_scope:
            nested = existing if isinstance(existing, ScopeState) else open_scope(state, scope, node, path)
            enter(scope, node, path)
            close_scope(state, nested, status, None, poison=event.status == "failed_upstream")
        elif node.is_fan or node.id in state.each:
            fan = open_fan(state, scope, node, path)
            close_fan(state, fan, status, poison=event.status == "failed_upstream")
        else:
            close_step(state, opened(state, path), status, poison=event.status == "failed_upstream")


def scope_opened(state: Execution, event: e.ScopeOpened) -> None:
    parent, node = locate(state, event.path)
    scope = open_scope(state, parent, node, event.path)
    scope.in_slot = True
    parent.busy += 1
    begin_flow(state, scope, event.start, event.visits)
    if event.deadline is not None:
        set_timer(state, "scope", event.path, event.deadline)


def begin_flow(state: Execution, scope: ScopeState, start: str | None, visits: dict[str, int]) -> None:
    """Sets the start of a flow. Visits completed in an earlier run are not repeated."""
    scope.start = start
    scope.visits = dict(visits)
    for path in scope.touched if visits else ():
        node = state.nodes[path]
        if not is_before(path, visits):
            continue
        if isinstance(node, StepState) and node.done:
            set_status(node, "succeeded")
        elif isinstance(node, FanState) and node.kept:
            set_fan_out_status(node, "succeeded")


def is_before(path: str, visits: dict[str, int]) -> bool:
    """Returns whether a visit of a flow lies before the point where the flow restarts."""
    segment = segments(path)[-1]
    return (segment.visit or 1) <= visits.get(segment.id, 0)


def scope_closing(state: Execution, event: e.ScopeClosing) -> None:
    node = state.nodes[event.path]
    if isinstance(node, FanState):
        node.closing = True
        node.failure = node.failure or event.failure
        return
    scope = scope_at(state, event.path)
    set_scope_status(scope, "closing")
    scope.outcome = event.outcome
    scope.failure = event.failure
    clear_timer(state, "scope", event.path)
    if event.path == ROOT and event.outcome != "retry":  # the next round has the same deadline
        for kind in RUN_TIMERS:
            clear_timer(state, kind, "")
        state.opens_at = 0
    if scope.waiting_round:
        scope.waiting_round = False
        clear_timer(state, "round", event.path)
        set_scope_moving(state, scope, False)
    if scope.open is None:
        clear_timer(state, "retry", event.path)
        set_scope_moving(state, scope, False)


def scope_closed(state: Execution, event: e.ScopeClosed) -> None:
    node = state.nodes[event.path]
    status: ClosedStatus = "failed" if event.outcome == "retry" else event.outcome
    poison = event.outcome == "skipped" and event.failure is not None
    if isinstance(node, FanState):
        node.failure = event.failure
        close_fan(state, node, status, poison=poison)
    else:
        close_scope(state, scope_at(state, event.path), status, event.failure, poison=poison)


def close_scope(
    state: Execution, scope: ScopeState, status: ClosedStatus, failure: e.Failure | None, *, poison: bool
) -> None:
    set_scope_status(scope, "closed")
    scope.outcome = status
    scope.failure = failure
    scope.kept = status == "succeeded"
    clear_timer(state, "scope", scope.path)
    clear_timer(state, "round", scope.path)
    set_scope_moving(state, scope, False)
    parent = scope_above(state, scope.path)
    if scope.in_slot:
        scope.in_slot = False
        parent.busy -= 1
    leave_scope(state, parent, scope.node, scope.path, status, poison=poison)


def scope_repeated(state: Execution, event: e.ScopeRepeated) -> None:
    """Ends a visit; the next one follows. For its parent, the scope stays open."""
    scope = scope_at(state, event.path)
    parent = scope_above(state, event.path)
    set_scope_status(scope, "closed")
    scope.outcome = "succeeded"
    clear_timer(state, "scope", event.path)
    scope.in_slot = False
    parent.busy -= 1
    del parent.active[event.path]


def scope_restarted(state: Execution, event: e.ScopeRestarted) -> None:
    scope = scope_at(state, event.path)
    reset_children(state, scope, whole_scopes=False)
    set_scope_status(scope, "open")
    scope.outcome = None
    scope.failure = None
    scope.round = event.round
    scope.plan_tries = scope.plan_losses = 0
    scope.succeeded = scope.failed = scope.skipped = scope.inner_failed = 0
    scope.current = scope.taken = None
    scope.visits = {}
    scope.poisoned = {}
    state.budget_left = event.budget_left
    fill_ready(scope)
    if scope.node.scope.timeout_ms is not None and event.path != ROOT:
        set_timer(state, "scope", event.path, state.at + scope.node.scope.timeout_ms)
    scope.waiting_round = True
    set_scope_moving(state, scope, True)
    set_timer(state, "round", event.path, event.not_before)


def reset_children(
    state: Execution, scope: ScopeState, *, whole_scopes: bool, visits: dict[str, int] | None = None
) -> None:
    """Resets all touched nodes of a scope to pending. Results stay known.

    In a new run (`whole_scopes`) all completed work is kept; in a new round only work that must not or need not be
    repeated. Visits of a flow before its restart point (`visits`) stay unchanged.
    """
    for path in [path for path in scope.touched if path not in scope.superseded]:
        if visits and is_before(path, visits):
            continue
        node = state.nodes[path]
        if isinstance(node, ScopeState):
            node.kept = whole_scopes and node.kept and not node.undone
            if node.kept:
                forget_tries(state, node)
            else:
                reset_children(state, node, whole_scopes=whole_scopes)
                node.undone = False
        elif isinstance(node, FanState):
            reset_fan(node, keep=whole_scopes or repeats_nothing(node.node))
        else:
            reset_step(node, keep=whole_scopes or repeats_nothing(node.node))


def forget_tries(state: Execution, scope: ScopeState) -> None:
    """Resets the attempt counts of kept steps for the new run."""
    for path in scope.touched:
        node = state.nodes[path]
        if isinstance(node, ScopeState):
            forget_tries(state, node)
        else:
            for step in node.live.values() if isinstance(node, FanState) else (node,):
                step.tries = step.losses = step.refused_dispatches = 0


def repeats_nothing(node: Node) -> bool:
    return node.step.safety == "NOT_SAFE_TO_RETRY" or node.step.reusable


def reset_step(step: StepState, *, keep: bool) -> None:
    if step.status != "pending":
        set_status(step, "pending")
    step.tries = step.losses = step.refused_dispatches = step.undo_tries = step.undo_losses = 0
    step.opened_at = 0
    step.failure = None
    step.late = None
    step.unknown_since = 0
    step.done = step.done and keep
    if step.undo in ("done", "skipped"):
        set_compensation(step, "none")
        step.undo_failure = None


def reset_fan(fan: FanState, *, keep: bool) -> None:
    fan.kept = keep and fan.status == "succeeded" and CLONE_PENDING not in fan.marks and CLONE_UNDONE not in fan.marks
    set_fan_out_status(fan, "pending")
    fan.failure = None
    fan.closing = False
    fan.busy = fan.cursor = 0
    fan.queue.clear()
    for index, mark in enumerate(fan.marks):
        if mark in (CLONE_UNDONE, CLONE_SKIPPED, CLONE_CANCELED) or (mark == CLONE_SUCCEEDED and not keep):
            repeat_clone(fan, index)
    for index, step in list(fan.live.items()):
        reset_step(step, keep=keep)
        if index < fan.count:
            fan.marks[index] = CLONE_SUCCEEDED if step.done else CLONE_PENDING
        fan.numbers[index] = step.number
        if step.undo == "none" and not step.half_done:
            fold_clone(fan, index)


def repeat_clone(fan: FanState, index: int) -> None:
    """Reopens a closed clone. Its attempt numbers continue, and its earlier effect is still to be compensated."""
    mark = fan.marks[index]
    fan.marks[index] = CLONE_PENDING
    if mark in (CLONE_SUCCEEDED, CLONE_UNDONE):
        fan.numbers.setdefault(index, 1)
    if mark == CLONE_SUCCEEDED and fan.node.compensable and index not in fan.spared:
        fan.owed[index] = fan.done_seq[index]

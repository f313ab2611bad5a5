"""What must be true of a state, whatever led to it: its counters, its timers, and that somebody will go on with it."""

from tenuto.kernel.address import ROOT, Ref, fan_of, parent_of
from tenuto.kernel.decide.turn import may_start
from tenuto.kernel.state import (
    CLONE_LIVE,
    CLOSED,
    Execution,
    FanState,
    NodeState,
    ScopeState,
    StepState,
    TimerKind,
)

from .rules import require


def steps_of(state: Execution) -> list[StepState]:
    found: list[StepState] = []
    for node in state.nodes.values():
        if isinstance(node, StepState):
            found.append(node)
        elif isinstance(node, FanState):
            found.extend(node.live.values())
    return found


def check_state(state: Execution) -> None:
    steps = steps_of(state)
    check_counters(state, steps)
    check_timers(state)
    if state.finished is None:
        check_steps_go_on(state, steps)
        check_no_idle_slot(state)
        check_wake_source(state)
    else:
        check_is_over(state, steps)


# -- Counters ----------------------------------------------------------------------------------------------------------


def check_counters(state: Execution, steps: list[StepState]) -> None:
    scopes = [node for node in state.nodes.values() if isinstance(node, ScopeState)]
    moving = sum(step.moving for step in steps) + sum(scope.moving for scope in scopes)
    require(state.moving == moving, "counters equal counts", f"moving {state.moving}, counted {moving}")
    busy: dict[str, int] = {}
    for step in steps:
        if step.in_slot:
            holders = [parent_of(step.path)]
            clone = fan_of(step.path)
            if clone is not None:
                holders.append(clone[0])
            for holder in holders:
                busy[holder] = busy.get(holder, 0) + 1
    for scope in scopes:
        if scope.in_slot:
            busy[parent_of(scope.path)] = busy.get(parent_of(scope.path), 0) + 1
    for path, node in state.nodes.items():
        if not isinstance(node, StepState):
            counted = busy.get(path, 0)
            require(node.busy == counted, "counters equal counts", f"{path!r}: busy {node.busy}, counted {counted}")
        if isinstance(node, FanState):
            check_fan(node)


def check_fan(fan: FanState) -> None:
    if fan.status != "running":
        return
    active = sum(step.status not in (*CLOSED, "pending") for step in fan.live.values())
    require(fan.active == active, "counters equal counts", f"{fan.path}: active {fan.active}, counted {active}")
    marks = sum(fan.marks[i] == CLONE_LIVE for i in range(fan.count))
    require(marks >= active, "counters equal counts", f"{fan.path}: {marks} live marks, {active} active clones")


# -- Timers ------------------------------------------------------------------------------------------------------------


def check_timers(state: Execution) -> None:
    """Every timer belongs to something that still waits for it."""
    for (kind, path), due in state.timers.items():
        require(_is_awaited(state, kind, path), "a timer belongs to what waits for it", f"{kind} of {path!r} at {due}")


def _is_awaited(state: Execution, kind: TimerKind, path: str) -> bool:
    match kind:
        case "execution":
            return state.finished is None and state.undo is None
        case "pending":
            return state.finished is None
        case "pause":
            return state.pause is not None
        case "review":
            return path in state.reviews
    node = _holder(state, path)
    if isinstance(node, ScopeState):
        match kind:
            case "scope":
                return node.status == "open"
            case "round":
                return node.waiting_round
            case "retry":
                return node.status == "open" and node.open is None
        return False
    if not isinstance(node, StepState):
        return False
    match kind:
        case "ack" | "result":
            return node.open is not None and (node.open.dispatched_at > 0 or node.open.acked)
        case "retry":
            return node.open is None and (node.undo == "retrying" or node.status == "retrying")
        case "probe":
            return node.open is None and node.status == "retrying"
        case "wait":
            return node.status == "running" and node.open is None
        case "reconcile":
            return node.status in ("retrying", "running", "awaiting_approval")
        case "deadline":
            return node.status not in CLOSED
    return False


def _holder(state: Execution, path: str) -> NodeState | None:
    node = state.nodes.get(path)
    clone = fan_of(path)
    if node is None and clone is not None:
        fan = state.nodes.get(clone[0])
        return fan.live.get(clone[1]) if isinstance(fan, FanState) else None
    return node


# -- Progress ----------------------------------------------------------------------------------------------------------


def check_steps_go_on(state: Execution, steps: list[StepState]) -> None:
    """Nothing is left in the middle: whatever is not closed has an attempt, a timer, a place in a queue or a person."""
    for step in steps:
        require(_goes_on(state, step), "every step can go on", f"{step.path} is {step.status}, undo {step.undo}")


def _goes_on(state: Execution, step: StepState) -> bool:
    if step.open is not None:
        return True
    path = step.path
    match step.undo:
        case "retrying":
            return ("retry", path) in state.timers
        case "awaiting_approval" | "failed":
            return step.review in state.reviews
        case "running":
            return False
    match step.status:
        case "retrying":
            return ("retry", path) in state.timers or ("probe", path) in state.timers or _is_queued(state, step)
        case "awaiting_approval":
            return step.review in state.reviews
        case "running":
            return step.waits_for is not None or ("wait", path) in state.timers
    return True


def _is_queued(state: Execution, step: StepState) -> bool:
    clone = fan_of(step.path)
    parent = state.nodes[parent_of(step.path)]
    assert isinstance(parent, ScopeState)
    if clone is None:
        return step.node.index in parent.ready
    fan = state.nodes[clone[0]]
    return isinstance(fan, FanState) and clone[1] in fan.queue


def check_no_idle_slot(state: Execution) -> None:
    """What could start has started: no slot is free while somebody is ready for it."""
    if not may_start(state):
        return
    for path, node in state.nodes.items():
        if isinstance(node, ScopeState) and node.status == "open" and _is_live(state, path):
            limit = node.node.limit
            waits = node.waiting_round or (node.node.scope.planner is not None and not node.added)
            free = not waits and (not limit or node.busy < limit)
            require(not free or not node.ready, "no slot stays idle", f"{path!r}: ready {list(node.ready)}")
        elif isinstance(node, FanState) and node.status == "running" and not node.closing:
            _check_fan_is_busy(state, node)


def _is_live(state: Execution, path: str) -> bool:
    """Whether this scope belongs to what runs now, and is not left over from an earlier round or run."""
    while path != ROOT:
        parent = state.nodes[parent_of(path)]
        if not isinstance(parent, ScopeState) or path not in parent.active or parent.status != "open":
            return False
        path = parent.path
    return True


def _check_fan_is_busy(state: Execution, fan: FanState) -> None:
    scope = state.nodes[parent_of(fan.path)]
    assert isinstance(scope, ScopeState)
    if scope.status != "open" or not _is_live(state, scope.path) or fan.path not in scope.active:
        return
    free = fan.busy < fan.node.limit and (not scope.node.limit or scope.busy < scope.node.limit)
    waiting = [i for i in range(fan.count) if fan.marks[i] == 0] or list(fan.queue)
    require(not (free and waiting), "no slot stays idle", f"{fan.path!r}: clones {waiting} wait")


def check_wake_source(state: Execution) -> None:
    """Somebody will go on with it: an attempt, a timer, a signal, a person, or whoever asked for the pause."""
    if state.pause is not None or state.agenda or state.wake_at is not None or state.waits:
        return
    require(bool(state.reviews), "every execution has a wake source", f"{state.status}, nothing is awaited")


def check_is_over(state: Execution, steps: list[StepState]) -> None:
    attempts = [key for key in state.agenda if isinstance(key, Ref)]
    require(not attempts, "nothing is open after the end", attempts)
    require(not state.timers, "nothing is open after the end", state.timers)
    require(state.wake_at is None, "nothing is open after the end", state.wake_at)
    open_steps = [step.path for step in steps if step.open is not None]
    require(not open_steps, "nothing is open after the end", open_steps)

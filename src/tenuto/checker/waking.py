"""Progress: every unfinished execution has something that will wake it. Checked on the folded state."""

from tenuto.kernel import events as e
from tenuto.kernel.address import ROOT, Ref, fan_of, parent_of
from tenuto.kernel.plan import Node
from tenuto.kernel.state import CLONE_PENDING, CLOSED, Execution, FanState, NodeState, ScopeState, StepState, TimerKind

from .dues import Kind
from .invariants import Family, require
from .lifecycle import G5
from .model import Model

EXPIRED: dict[str, Kind] = {  # codes of steps that exceeded a time limit
    "deadline": "deadline",
    "reconcile_timeout": "reconcile",
    "approval_timeout": "review",
    "pending_timeout": "pending",
    "resume_timeout": "resuming",
}
OF_EXECUTION = ("pending_timeout", "resume_timeout")
CLOSED_BY: dict[str, Kind] = {
    "scope_timeout": "scope",
    "deadline": "execution",
    "pending_timeout": "pending",
    "resume_timeout": "resuming",
    "retry_timeout": "retrying",
}

family = Family("Progress and time")

V1 = family("V1", "Every timer belongs to a wait, and every wait with a due time has a timer.")
V2 = family(
    "V2", "Every unfinished execution has something that will wake it, and every step that can start has started."
)
V3 = family("V3", "Time in a history never decreases.")
V4 = family(
    "V4",
    "A timeout of an execution, scope, step, approval, wait, callback or pause is recorded only after it has passed; "
    "a pause extends deadlines by its length.",
)


def recorded(model: Model, entry: e.Entry) -> None:
    require(entry.at >= model.at, V3, f"entry {entry.seq} is of {entry.at}, the one before it of {model.at}")
    if (found := _time_out(model, entry)) is not None:
        kind, path = found
        due = model.dues.of(kind, path)
        in_time = due is not None and due <= entry.at
        require(in_time, V4, f"the time of {kind} {path!r} was over at {entry.at}, and should be at {due}")
    elif isinstance(entry.event, e.Resumed):
        lasted = None if model.paused_at is None else entry.at - model.paused_at
        require(entry.event.shift == lasted, V4, f"a pause of {lasted} moved times by {entry.event.shift}")


def _time_out(model: Model, entry: e.Entry) -> tuple[Kind, str] | None:
    """Returns the time limit that an entry claims to be over.

    The duration of an attempt is measured by its worker's clock.
    """
    match entry.event:
        case e.CancelRequested(reason="pause_limit") if entry.cause == "timer:pause":
            return "pause", ROOT
        case e.WaitEnded(path=path) if model.dues.of("wait", path) is not None:  # otherwise it waited for a signal
            return "wait", path
        case e.AttemptTimedOut(path=path, kind="ack" | "result" as kind):
            return kind, path
        case e.StepExpired(path=path, failure=e.Failure(code=code)) if code in EXPIRED:
            return EXPIRED[code], path if code not in OF_EXECUTION else ROOT
        case e.ScopeClosing(path=path, outcome="timed_out", failure=e.Failure(code=code)) if code in CLOSED_BY:
            return CLOSED_BY[code], path
    return None


def steps_of(state: Execution) -> list[StepState]:
    found: list[StepState] = []
    for node in state.nodes.values():
        if isinstance(node, StepState):
            found.append(node)
        elif isinstance(node, FanState):
            found.extend(node.live.values())
    return found


def at_rest(state: Execution) -> None:
    """Checks the state between two decisions."""
    _timers_are_awaited(state)
    if state.finished is None:
        _steps_go_on(state, steps_of(state))
        _no_slot_is_idle(state)
        _has_wake_source(state)
    else:
        _is_over(state)


# -- Timers ------------------------------------------------------------------------------------------------------------


def _timers_are_awaited(state: Execution) -> None:
    for (kind, path), due in state.timers.items():
        require(_is_awaited(state, kind, path), V1, f"nothing waits for the timer {kind} of {path!r} at {due}")


def _is_awaited(state: Execution, kind: TimerKind, path: str) -> bool:
    match kind:
        case "execution":
            return state.finished is None and state.undo is None
        case "pending":
            return state.finished is None
        case "opening":
            return state.opens_at > 0
        case "retrying":
            return state.opens_at > 0 or not state.admitted
        case "resuming":
            return state.unclaimed == "resume"
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


def _steps_go_on(state: Execution, steps: list[StepState]) -> None:
    """Requires that every step that is not closed has an attempt, a timer, a place in a queue or a review."""
    for step in steps:
        require(
            _goes_on(state, step), V2, f"{step.path} is {step.status}, its undo {step.undo}, and nothing is awaited"
        )


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


def _no_slot_is_idle(state: Execution) -> None:
    """Requires that no slot is free while a step is ready for it."""
    stopped = state.pause is not None or state.cancel is not None or state.undo is not None or not state.admitted
    if stopped or state.opens_at:
        return
    for path, node in state.nodes.items():
        if isinstance(node, ScopeState) and node.status == "open" and _is_live(state, path):
            limit = node.node.limit
            waits = node.waiting_round or (node.node.scope.planner is not None and not node.added)
            free = not waits and (not limit or node.busy < limit)
            stands = not free or not node.ready or _waits_for_credits(state, node.children[node.ready[0]])
            require(stands, V2, f"{len(node.ready)} are ready in {path!r}, and nothing holds them")
        elif isinstance(node, FanState) and node.status == "running" and not node.closing:
            _check_fan_is_busy(state, node)


def _waits_for_credits(state: Execution, node: Node) -> bool:
    """Returns whether the hold covers this step's estimate only when open attempts have ended."""
    if node.is_scope or not state.hold:
        return False
    open_refs = [key for key in state.agenda if isinstance(key, Ref) and key.phase in ("forward", "plan")]
    set_aside = sum(_estimate_of(state, ref) for ref in open_refs)
    return set_aside > 0 and node.step.estimate > state.hold - state.charged - set_aside


def _estimate_of(state: Execution, ref: Ref) -> int:
    if ref.phase == "plan":
        return 0 if state.plan.run is None else state.plan.run.planner_estimate
    holder = _holder(state, ref.path)
    return holder.node.step.estimate if isinstance(holder, StepState) else 0


def _is_live(state: Execution, path: str) -> bool:
    """Returns whether a scope belongs to the current round and run."""
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
    waiting = bool(fan.queue) or (free and CLONE_PENDING in fan.marks[: fan.count])
    waiting = waiting and not _waits_for_credits(state, fan.node)
    require(not (free and waiting), V2, f"clones of {fan.path!r} are ready, and nothing holds them")


def _has_wake_source(state: Execution) -> None:
    """Requires a wake source: an attempt, a timer, a signal, a review, or a pause."""
    if state.pause is not None or state.agenda or state.wake_at is not None or state.waits:
        return
    require(bool(state.reviews), V2, f"it is {state.status}, and nothing is awaited")


def _is_over(state: Execution) -> None:
    attempts = [key for key in state.agenda if isinstance(key, Ref)]
    require(not attempts, G5, f"it is over, and {attempts[:3]} are open")
    require(not state.timers, V1, f"it is over, and {len(state.timers)} timers are set")

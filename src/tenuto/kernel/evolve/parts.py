"""Lookups and small state changes that several events share."""

import heapq
import re
from typing import Final

from msgspec import Raw

from tenuto.kernel import events as e
from tenuto.kernel.address import Ref, fan_of, parent_of
from tenuto.kernel.state import (
    Execution,
    FanState,
    ScopeState,
    StepState,
    TimerKind,
)

ADMISSION: Final = "admission"
HOLD: Final = "hold"


def scope_at(state: Execution, path: str) -> ScopeState:
    scope = state.nodes[path]
    assert isinstance(scope, ScopeState)
    return scope


def scope_above(state: Execution, path: str) -> ScopeState:
    """Returns the scope that contains a node or a clone."""
    scope = state.nodes[parent_of(path)]
    assert isinstance(scope, ScopeState)
    return scope


def fan_at(state: Execution, path: str) -> FanState:
    fan = state.nodes[path]
    assert isinstance(fan, FanState)
    return fan


def find_step(state: Execution, path: str) -> StepState | None:
    """Returns the step at this path, if it has an object. Closed clones have none."""
    node = state.nodes.get(path)
    if node is None:
        clone = fan_of(path)
        if clone is None:
            return None
        fan = state.nodes.get(clone[0])
        return fan.live.get(clone[1]) if isinstance(fan, FanState) else None
    return node if isinstance(node, StepState) else None


def holder_of(state: Execution, ref: Ref) -> StepState | ScopeState | None:
    """Returns the holder of an attempt: the scope that it plans, or the step."""
    if ref.phase == "plan":
        node = state.nodes.get(ref.path)
        return node if isinstance(node, ScopeState) else None
    return find_step(state, ref.path)


def last_completed(state: Execution) -> StepState | FanState | None:
    """Returns the step or fan-out with the latest result, the output of a definition without an output template."""
    steps = [node for node in state.nodes.values() if not isinstance(node, ScopeState) and node.status == "succeeded"]
    return max(steps, key=_done_seq, default=None)


def _done_seq(node: StepState | FanState) -> int:
    return max(node.done_seq, default=0) if isinstance(node, FanState) else node.done_seq


def step_at(state: Execution, path: str) -> StepState:
    step = find_step(state, path)
    assert step is not None, path
    return step


STEP_TIMERS: tuple[TimerKind, ...] = ("retry", "probe", "deadline", "reconcile", "wait")
PROBE_TIMERS: tuple[TimerKind, ...] = ("retry", "probe", "reconcile")


def set_moving(state: Execution, step: StepState, moving: bool) -> None:
    if step.moving is not moving:
        step.moving = moving
        state.moving += 1 if moving else -1


def set_scope_moving(state: Execution, scope: ScopeState, moving: bool) -> None:
    if scope.moving is not moving:
        scope.moving = moving
        state.moving += 1 if moving else -1


def take_slot(state: Execution, step: StepState) -> None:
    step.in_slot = True
    scope_above(state, step.path).busy += 1
    clone = fan_of(step.path)
    if clone is not None:
        fan_at(state, clone[0]).busy += 1


def free_slot(state: Execution, step: StepState) -> None:
    step.in_slot = False
    scope_above(state, step.path).busy -= 1
    clone = fan_of(step.path)
    if clone is not None:
        fan_at(state, clone[0]).busy -= 1


def set_timer(state: Execution, kind: TimerKind, path: str, due: int) -> None:
    state.timers[kind, path] = due
    heapq.heappush(state.timer_heap, (due, kind, path))


def clear_timer(state: Execution, kind: TimerKind, path: str) -> None:
    if state.timers:
        state.timers.pop((kind, path), None)


def drop_marks(state: Execution, path: str) -> None:
    """Removes the key mark of a step that was undone or is to be repeated, so that the key no longer counts as done."""
    for key in [key for key, marked in state.marks.items() if marked == path]:
        del state.marks[key]


def note_usage(
    state: Execution, event: e.AttemptSucceeded | e.AttemptFailed | e.AttemptTimedOut | e.ChildrenAdded
) -> None:
    state.charged += event.charge
    state.usage += event.usage
    state.tokens += event.tokens


def estimate_of(state: Execution, ref: Ref) -> int:
    """Returns the credits that are set aside for an attempt while it is open."""
    if not state.hold or ref.phase not in ("forward", "plan"):
        return 0
    if ref.phase == "plan":
        run = state.plan.run
        return run.planner_estimate if run is not None else 0
    clone = fan_of(ref.path)
    return state.nodes[clone[0] if clone is not None else ref.path].node.step.estimate


_VISIT = re.compile(r"@[0-9]+")


def latest_key(scope: str, id: str) -> str:
    """Returns the key of a step in `state.latest`. All visits of a scope share one."""
    return f"{_VISIT.sub('', scope)}:{id}" if scope else id


def note_latest(state: Execution, path: str, id: str) -> None:
    """Records where a step that expressions read was last closed, in each scope around it."""
    scope = path
    while scope:
        scope = parent_of(scope)
        state.latest[latest_key(scope, id)] = path


def leave_pending(state: Execution) -> None:
    if state.timers:
        state.timers.pop(("pending", ""), None)


def watch(state: Execution, id: str, payload: Raw) -> None:
    plan = state.plan
    if plan.watches_all or id in plan.watched:
        state.payloads[state.seq] = payload

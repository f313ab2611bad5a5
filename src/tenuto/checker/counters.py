"""Counters in the state equal the counts of what they count."""

from tenuto.kernel.address import fan_of, parent_of
from tenuto.kernel.state import CLONE_LIVE, CLOSED, Execution, FanState, ScopeState, StepState

from .invariants import require
from .lifecycle import G6
from .waking import steps_of


def at_rest(state: Execution) -> None:
    steps = steps_of(state)
    scopes = [node for node in state.nodes.values() if isinstance(node, ScopeState)]
    moving = sum(step.moving for step in steps) + sum(scope.moving for scope in scopes)
    require(state.moving == moving, G6, f"moving is {state.moving}, counted {moving}")
    busy = _busy(steps, scopes)
    for path, node in state.nodes.items():
        if not isinstance(node, StepState):
            counted = busy.get(path, 0)
            require(node.busy == counted, G6, f"busy in {path!r} is {node.busy}, counted {counted}")
        if isinstance(node, FanState):
            _fan(node)


def _busy(steps: list[StepState], scopes: list[ScopeState]) -> dict[str, int]:
    """Returns the slots in use per scope and fan-out."""
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
    return busy


def _fan(fan: FanState) -> None:
    if fan.status != "running":
        return
    active = sum(step.status not in (*CLOSED, "pending") for step in fan.live.values())
    marks = sum(fan.marks[i] == CLONE_LIVE for i in range(fan.count))
    agree = fan.active == active <= marks
    require(agree, G6, f"active in {fan.path!r} is {fan.active}, counted {active}, and {marks} are marked as live")

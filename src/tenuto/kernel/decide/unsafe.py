"""What a retry would try again although that is not safe: whoever asks for it needs more than the right to retry."""

from collections.abc import Iterator

from tenuto.kernel.address import step_id
from tenuto.kernel.evolve.structure import is_before
from tenuto.kernel.state import CLONE_SUCCEEDED, CLONE_UNDONE, Execution, FanState, ScopeState, StepState

from .runs import child_with
from .scopes import restart_point


def unsafe_again(state: Execution, start: str | None) -> list[str]:
    """The steps that are not safe to retry, were tried, and are tried again by a new run that begins at `start`.

    A new run opens everything that is not done, not only what follows `start`. What was done and then undone is made
    anew under a new key: that is no retry.
    """
    visits: dict[str, int] = {}
    if state.plan.root.is_flow:
        at = child_with(state, step_id(start)) if start is not None else None
        visits = restart_point(state, "", at)[1]
    return [node.path for node in _reopened(state, state.root, visits) if _is_unsafe(node)]


def _reopened(state: Execution, scope: ScopeState, visits: dict[str, int]) -> Iterator[StepState | FanState]:
    for path in scope.touched:
        if path in scope.superseded or (visits and is_before(path, visits)):
            continue
        node = state.nodes[path]
        if isinstance(node, ScopeState):
            yield from _reopened(state, node, {})
        else:
            yield node


def _is_unsafe(node: StepState | FanState) -> bool:
    if node.node.step.safety != "NOT_SAFE_TO_RETRY":
        return False
    return _was_tried(node) if isinstance(node, StepState) else _has_tried_clone(node)


def _was_tried(step: StepState) -> bool:
    taken_back = step.undo == "done" and step.failure is None
    return step.number > 0 and not step.done and not taken_back


def _has_tried_clone(fan: FanState) -> bool:
    for index, mark in enumerate(fan.marks):
        live = fan.live.get(index)
        if live is not None and _was_tried(live):
            return True
        if live is None and fan.numbers.get(index) and mark not in (CLONE_SUCCEEDED, CLONE_UNDONE):
            return True
    return False

"""Where a flow goes next, and where it begins again in a new run."""

from tenuto.kernel.address import segments, step_id
from tenuto.kernel.definition import SUCCEED
from tenuto.kernel.state import CLONE_SUCCEEDED, Execution, FanState, NodeState, ScopeState, StepState


def flow_target(state: Execution, scope: ScopeState) -> str:
    """The child that a flow goes to next, or how it ends."""
    if scope.current is None:
        return scope.start or scope.children[0].id
    if scope.taken is not None:
        return scope.taken
    # It succeeded or was passed over: of one that failed the edge was recorded, or it closed the flow.
    return scope.by_id[step_id(scope.current)].spec.on_success or SUCCEED


def restart_point(state: Execution, path: str, at: str | None = None) -> tuple[str | None, dict[str, int]]:
    """Where a flow begins again in a new run: as told, else at its earliest undone visit, else where it failed.

    Visits completed before that point keep their numbers, so that a later loop is a new visit; the others are met
    again, and taken from the record or made anew.
    """
    scope = state.nodes.get(path)
    if not isinstance(scope, ScopeState) or scope.current is None:
        return at, {}
    reached = list(scope.touched)  # in the order of the visits
    if at is not None:
        begin = next((path for path in reversed(reached) if step_id(path) == at), None)
    else:
        failed = scope.last_failed or scope.current
        begin = next(path for path in reached if path == failed or _is_unmade(state, state.nodes[path]))
    before = reached if begin is None else reached[: reached.index(begin)]
    visits = {segment.id: segment.visit or 1 for segment in (segments(path)[-1] for path in before)}
    return at if begin is None else step_id(begin), visits


def _is_unmade(state: Execution, node: NodeState) -> bool:
    """Whether anything in this node was completed and is to be made again: it was undone, or an operator said so."""
    if isinstance(node, StepState):
        return not node.done and (node.done_seq > 0 or node.undo_seq > 0)
    if isinstance(node, FanState):
        return any(seq and mark != CLONE_SUCCEEDED for mark, seq in zip(node.marks, node.done_seq, strict=True))
    return any(_is_unmade(state, state.nodes[path]) for path in node.touched)

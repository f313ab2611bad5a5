"""Whether a scope has ended and how, where a flow goes next, and when a planner is asked."""

from tenuto.kernel.address import segments, step_id
from tenuto.kernel.decide.turn import Turn, refusal
from tenuto.kernel.definition import FAIL, SUCCEED
from tenuto.kernel.events import Failure, ScopeOutcome
from tenuto.kernel.state import CLONE_SUCCEEDED, Execution, FanState, NodeState, ScopeState, StepState


def has_ended(state: Execution, scope: ScopeState) -> bool:
    if scope.status == "closed" or state.finished is not None or state.undo is not None:
        return False
    return scope.open is None and not scope.waiting_round and _is_exhausted(state, scope)


def _is_exhausted(state: Execution, scope: ScopeState) -> bool:
    if scope.status == "closing":
        return True
    if needs_plan(scope) or ("retry", scope.path) in state.timers:
        return False
    if scope.node.is_flow:
        return flow_target(state, scope) in (SUCCEED, FAIL)
    return scope.remaining == 0


def outcome_of(state: Execution, scope: ScopeState) -> tuple[ScopeOutcome, Failure | None]:
    if scope.status == "closing":
        assert scope.outcome is not None
        if scope.outcome == "retry" and state.cancel is not None:
            return "canceled", None
        if scope.outcome == "retry" and state.budget_left <= 0:
            return "failed", scope.failure
        return scope.outcome, scope.failure
    if scope.node.is_flow:
        if flow_target(state, scope) == SUCCEED:
            return "succeeded", None
        assert scope.current is not None
        failure = state.nodes[scope.current].failure
        return "failed", failure or refusal(scope.current, "flow_failed", "the flow ended in $fail")
    if scope.failed and scope.succeeded == 0 and scope.node.scope.planner is not None:
        return "failed", refusal(scope.path, "all_children_failed", "no child succeeded")
    if scope.succeeded or not scope.children:
        return "succeeded", None
    if scope.node.scope.fail_if_empty:
        return "failed", refusal(
            scope.path, "nothing_done", "all children were skipped, which this scope does not allow"
        )
    return "skipped", None


def flow_target(state: Execution, scope: ScopeState) -> str:
    """Returns the next child of a flow, or how the flow ends."""
    if scope.current is None:
        return scope.start or scope.children[0].id
    if scope.taken is not None:
        return scope.taken
    # It succeeded or was skipped. For a failed child, the edge was recorded, or the flow closed.
    return scope.by_id[step_id(scope.current)].spec.on_success or SUCCEED


def restart_point(state: Execution, path: str, at: str | None = None) -> tuple[str | None, dict[str, int]]:
    """Returns where a flow restarts in a new run: at `at`, else at its earliest undone visit, else where it failed.

    Visits completed before that point keep their numbers, so that a later loop is a new visit. The others are visited
    again; their results are kept or made again.
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
    """Returns whether a completed part of this node is to be made again: it was undone, or an operator requested it."""
    if isinstance(node, StepState):
        return not node.done and (node.done_seq > 0 or node.undo_seq > 0)
    if isinstance(node, FanState):
        return any(seq and mark != CLONE_SUCCEEDED for mark, seq in zip(node.marks, node.done_seq, strict=True))
    return any(_is_unmade(state, state.nodes[path]) for path in node.touched)


REPLAN_INNER_FAILURES = 10


def needs_plan(scope: ScopeState) -> bool:
    return scope.node.has_planner and not scope.added


def needs_new_plan(state: Execution, scope: ScopeState, failing: int = 0) -> bool:
    """Returns whether so many children or grandchildren failed that the planner should make a new plan.

    `failing`: how many more are about to fail. A scope that continues after failures plans when its last child ended.
    """
    spec = scope.node.scope
    if spec.planner is None or scope.status != "open" or scope.replans >= spec.max_replans or state.cancel is not None:
        return False
    if state.plan.run is not None and spec.failure_mode == "continue" and scope.remaining:
        return False
    standing = len(scope.children) - len(scope.superseded)
    return (scope.failed + failing) * 2 > standing or scope.inner_failed + failing > REPLAN_INNER_FAILURES


def ask_planner(turn: Turn, scope: ScopeState) -> None:
    if scope.open is None and not scope.moving:
        turn.grant(scope.path, "plan", scope.plan_number + 1)

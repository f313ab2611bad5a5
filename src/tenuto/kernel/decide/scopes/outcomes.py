"""Whether a scope has come to its end, and how."""

from tenuto.kernel.decide.turn import refusal
from tenuto.kernel.definition import FAIL, SUCCEED
from tenuto.kernel.events import Failure, ScopeOutcome
from tenuto.kernel.state import Execution, ScopeState

from .flows import flow_target
from .planners import needs_plan


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

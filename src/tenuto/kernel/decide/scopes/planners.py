"""Scopes whose children a planner proposes: when it is asked, and when it is asked again."""

from tenuto.kernel.decide.turn import Turn
from tenuto.kernel.state import Execution, ScopeState

REPLAN_INNER_FAILURES = 10


def needs_plan(scope: ScopeState) -> bool:
    return scope.node.has_planner and not scope.added


def needs_new_plan(state: Execution, scope: ScopeState) -> bool:
    """Most children failed, or many of theirs: another decomposition may do better."""
    spec = scope.node.scope
    if spec.planner is None or scope.status != "open" or state.replans >= spec.max_replans or state.cancel is not None:
        return False
    standing = len(scope.children) - len(scope.superseded)
    return scope.failed * 2 > standing or scope.inner_failed > REPLAN_INNER_FAILURES


def ask_planner(turn: Turn, scope: ScopeState) -> None:
    if scope.open is None and not scope.moving:
        turn.grant(scope.path, "plan", scope.plan_number + 1)

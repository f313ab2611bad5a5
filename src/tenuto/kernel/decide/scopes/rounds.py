"""Repeats a scope: a new round after a failure, a new visit until its condition is met."""

from tenuto.errors import ExpressionError
from tenuto.kernel.address import child_path, parent_of, segments
from tenuto.kernel.decide.ending import end
from tenuto.kernel.decide.turn import Turn, refusal
from tenuto.kernel.definition import RetryPolicy
from tenuto.kernel.events import NodesClosed, ScopeOpened, ScopeRepeated, ScopeRestarted
from tenuto.kernel.retry import delay_ms
from tenuto.kernel.state import Execution, FanState, ScopeState, StepState

from .closing import close_scope, restarts_as_run
from .opening import is_kept

ROUND_POLICY = RetryPolicy()


def tried_in_vain(state: Execution, scope: ScopeState) -> bool:
    """Returns whether a step in this scope that is not safe to retry was tried without completing."""
    for path in scope.touched:
        node = state.nodes[path]
        if isinstance(node, ScopeState):
            if tried_in_vain(state, node):
                return True
        elif node.node.step.safety == "NOT_SAFE_TO_RETRY":
            steps = node.live.values() if isinstance(node, FanState) else (node,)
            if any(_may_have_begun(step) for step in steps):
                return True
    return False


def _may_have_begun(step: StepState) -> bool:
    """Returns whether an unfinished attempt of this round may have begun, for a step that is not safe to retry."""
    gave_up = step.number > 0 and step.status in ("failed", "timed_out", "skipped")
    return not step.done and (step.tries + step.losses > 0 or gave_up)


def restart(turn: Turn, scope: ScopeState) -> None:
    """Starts the next round of a failed scope."""
    state = turn.state
    if restarts_as_run(state, scope):
        if state.pause is None:
            end(turn, "retry", scope.failure)
        return
    delay = delay_ms(ROUND_POLICY, "TRANSIENT", scope.round, None, state.id, scope.path)
    turn.emit(ScopeRestarted(scope.path, scope.round + 1, state.budget_left - 1, turn.now + delay))


def is_over(turn: Turn, scope: ScopeState) -> bool:
    """Returns whether a repeating scope has met its condition. If it cannot be evaluated, the scope fails."""
    condition = scope.node.repeat_until
    if condition is None:
        return True
    try:
        if turn.evaluation.true(condition, scope.path):
            return True
    except ExpressionError as error:
        close_scope(turn, scope, "failed", refusal(scope.path, error.code, str(error)))
        return False
    visit = segments(scope.path)[-1].visit or 1
    if visit >= scope.node.scope.max_visits:
        failure = refusal(scope.path, "loop_limit", f"the condition was not met in {visit} visits, the limit")
        close_scope(turn, scope, "failed", failure)
    return False


def repeat(turn: Turn, scope: ScopeState) -> bool:
    """Opens the next visit.

    Returns false if an earlier run completed it: its result is used, and the repetition ends.
    """
    path = next_visit(scope)
    timeout = scope.node.scope.timeout_ms
    turn.emit(ScopeRepeated(scope.path))
    if is_kept(turn.state, path):
        turn.emit(NodesClosed((path,), "reused"))
        return False
    turn.emit(ScopeOpened(path, None if timeout is None else turn.now + timeout))
    return True


def next_visit(scope: ScopeState) -> str:
    visit = (segments(scope.path)[-1].visit or 1) + 1
    return child_path(parent_of(scope.path), scope.node.id, visit=visit)

"""Closes scopes and fan-outs: cancels or awaits children, and passes failures up."""

from typing import Literal

from tenuto.kernel.address import ROOT, step_id
from tenuto.kernel.decide.turn import Turn, is_unowned
from tenuto.kernel.events import (
    AttemptAbandoned,
    BranchTaken,
    Failure,
    NodesClosed,
    ReviewResolved,
    ScopeClosed,
    ScopeClosing,
    ScopeOutcome,
)
from tenuto.kernel.evolve import scope_above
from tenuto.kernel.plan import Node
from tenuto.kernel.retry import MATRIX, needs_begin
from tenuto.kernel.state import Execution, FanState, ScopeState, StepState

from .outcomes import has_ended, needs_new_plan, outcome_of


def disposition(scope: ScopeState, node: Node) -> Literal["skip", "fail"]:
    """Returns whether a permanently failed child is skipped or makes its scope fail."""
    if scope.status == "closing":
        return "fail"
    if not node.is_scope and node.step.failure_mode == "continue":
        return "skip"
    return "skip" if scope.node.scope.failure_mode == "continue" and not scope.node.is_flow else "fail"


def fail_child(turn: Turn, scope: ScopeState, failure: Failure) -> None:
    """Handles a permanently failed child that is not skipped."""
    if scope.status != "open":
        return
    if scope.node.is_flow and scope.current is not None:
        spec = scope.by_id[step_id(scope.current)].spec
        timed_out = _closed_status(turn.state, scope.current) == "timed_out"
        edge = spec.on_timeout if timed_out else spec.on_failure
        if edge is not None:
            turn.emit(BranchTaken(scope.current, edge))
            return
    if scope.open is not None or needs_new_plan(turn.state, scope):
        return  # its planner is called, now or by `advance`
    fail_scope(turn, scope, failure)


def _closed_status(state: Execution, path: str) -> str | None:
    node = state.nodes[path]
    return node.outcome if isinstance(node, ScopeState) else node.status


def fail_scope(turn: Turn, scope: ScopeState, failure: Failure) -> None:
    if scope.status == "open":
        close_scope(turn, scope, "retry" if _may_restart(turn.state, scope, failure) else "failed", failure)


def _may_restart(state: Execution, scope: ScopeState, failure: Failure) -> bool:
    spec = scope.node.scope
    rounds, limit = scope.round, spec.max_rounds
    if restarts_as_run(state, scope):
        rounds, limit = state.run, state.max_attempts or limit
    return (
        spec.failure_mode == "retry"
        and MATRIX[failure.error_class].retried
        and rounds < limit
        and state.budget_left > 0
        and state.cancel is None
    )


def escalates_when_spent(state: Execution, step: StepState, failure: Failure) -> bool:
    """Returns whether a person decides on a step that would fail the run because its attempts are spent."""
    policy = state.plan.definition.policies.escalation
    if state.plan.run is None or policy is None or policy.on_spent is False or state.cancel is not None:
        return False
    return MATRIX[failure.error_class].retried and _reaches_run(state, scope_above(state, step.path), failure)


def _reaches_run(state: Execution, scope: ScopeState, failure: Failure) -> bool:
    """Returns whether a failed child of this scope fails the run: no scope skips, repeats or plans it anew."""
    while scope.status == "open" and not _may_restart(state, scope, failure):
        if scope.path == ROOT:
            return True
        parent = scope_above(state, scope.path)
        if disposition(parent, scope.node) == "skip" or needs_new_plan(state, scope, failing=1):
            return False
        if parent.node.has_planner and needs_new_plan(state, parent, failing=1):
            return False
        scope = parent
    return False


def restarts_as_run(state: Execution, scope: ScopeState) -> bool:
    """Returns whether the scope is repeated as a new run.

    Work paid with credits needs credits of its own for each run.
    """
    return scope.path == ROOT and (state.hold > 0 or state.plan.run is not None)


def close_scope(turn: Turn, scope: ScopeState, outcome: ScopeOutcome, failure: Failure | None) -> None:
    """Closes a scope with a known outcome: nothing new starts, waiting children close, running ones are awaited."""
    turn.emit(ScopeClosing(scope.path, outcome, failure))
    if is_unowned(scope):
        give_up_planning(turn, scope)
    for path in list(scope.active):
        _stop_child(turn, path)


def give_up_planning(turn: Turn, scope: ScopeState) -> None:
    """Gives up a call of the planner that has not begun."""
    assert scope.open is not None
    turn.emit(AttemptAbandoned((scope.open.ref,), "settled"))


def _stop_child(turn: Turn, path: str) -> None:
    node = turn.state.nodes[path]
    if isinstance(node, ScopeState):
        if node.status == "open" or node.outcome == "retry":
            close_scope(turn, node, "canceled", None)
        _settle_closing(turn, node)
    elif isinstance(node, FanState):
        _stop_clones(turn, node)
        settle_fan(turn, node)
    elif not must_be_awaited(node):
        cancel_step(turn, node)


def _settle_closing(turn: Turn, scope: ScopeState) -> None:
    if not scope.active and has_ended(turn.state, scope):
        conclude(turn, scope, *outcome_of(turn.state, scope))


def must_be_awaited(step: StepState) -> bool:
    """Returns whether a running attempt, or one with an unknown outcome, must be awaited.

    Approvals, delays and signals are not awaited. Neither is an attempt that no worker has begun, because it will never
    begin. Probes of an earlier attempt are awaited.
    """
    open = step.open
    if open is None:
        return step.status in ("retrying", "awaiting_approval") and _is_unknown(step)
    if open.ref.phase != "forward":
        return True
    if not step.node.outside and needs_begin(step.node, open.ref):
        return open.begun_at > 0
    return not is_unowned(step)


def _is_unknown(step: StepState) -> bool:
    safety = step.node.step.safety
    if step.status == "awaiting_approval":
        is_decided = safety == "SAFE_TO_RETRY" and step.unknown_since == 0
        is_spent = is_decided and step.failure is not None and MATRIX[step.failure.error_class].retried
        return step.node.step.type != "human_approval" and not is_spent
    return safety != "SAFE_TO_RETRY" and step.unknown_since > 0


def cancel_step(turn: Turn, step: StepState) -> None:
    if step.review is not None:
        turn.emit(ReviewResolved(step.review, "dismiss", "close", reason="closed with its scope"))
    turn.emit(NodesClosed((step.path,), "canceled"))


def conclude(turn: Turn, scope: ScopeState, outcome: ScopeOutcome, failure: Failure | None) -> None:
    """Ends the scope and informs its parent."""
    parent = scope_above(turn.state, scope.path)
    if outcome in ("failed", "timed_out") and disposition(parent, scope.node) == "skip":
        outcome = "skipped"
    turn.emit(ScopeClosed(scope.path, outcome, failure))
    if outcome in ("failed", "timed_out") and failure is not None:
        fail_child(turn, parent, failure)


def settle_fan(turn: Turn, fan: FanState) -> bool:
    """Closes a fan-out when all clones are closed or, after a failure, when the running ones are."""
    if fan.status != "running":  # already closed by its scope
        return False
    state = turn.state
    scope = scope_above(state, fan.path)
    halted = fan.closing or scope.status != "open"
    if fan.remaining and not (halted and fan.active == 0):
        return False
    if fan.closing:
        verdict = disposition(scope, fan.node)
        outcome: ScopeOutcome = "skipped" if verdict == "skip" else "failed"
        failure = fan.failure
        turn.emit(ScopeClosed(fan.path, outcome, failure))
        if verdict == "fail" and failure is not None:
            fail_child(turn, scope, failure)
    elif fan.remaining or fan.failure is not None:
        turn.emit(ScopeClosed(fan.path, "canceled"))
    else:
        turn.emit(ScopeClosed(fan.path, "succeeded" if fan.succeeded else "skipped"))
    return True


def fail_clone(turn: Turn, fan: FanState, failure: Failure) -> None:
    """Handles a permanently failed clone: no further clones start, and a scope that fails fast closes."""
    if fan.closing or fan.status != "running":
        return
    scope = scope_above(turn.state, fan.path)
    turn.emit(ScopeClosing(fan.path, "failed", failure))
    _stop_clones(turn, fan)
    if not scope.node.is_flow and scope.status == "open" and disposition(scope, fan.node) == "fail":
        fail_child(turn, scope, failure)


def _stop_clones(turn: Turn, fan: FanState) -> None:
    for step in active_clones(fan):
        if not must_be_awaited(step):
            cancel_step(turn, step)


def active_clones(fan: FanState) -> list[StepState]:
    return [step for step in fan.live.values() if step.status in ("running", "retrying", "awaiting_approval")]

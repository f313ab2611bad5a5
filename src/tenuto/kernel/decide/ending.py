"""Ends an execution: compensates group by group, then records the last event."""

from typing import Literal

from msgspec import Raw

from tenuto.errors import ExpressionError
from tenuto.kernel.address import fan_of
from tenuto.kernel.compensation import rollback, undo_groups, undo_policy
from tenuto.kernel.definition import FAN_OUT_CONCURRENCY, JSON
from tenuto.kernel.events import (
    NULL,
    CompensationStarted,
    CompensationStopped,
    ExecutionFinished,
    Failure,
    ReviewOpened,
    ReviewResolved,
    ScopeClosing,
    ScopeOutcome,
)
from tenuto.kernel.evolve import fan_at, find_step, step_at
from tenuto.kernel.plan import Node
from tenuto.kernel.state import Execution, FanState, ScopeState, StepState, UndoState

from .evaluation import last_result
from .turn import Turn, refusal


def end(turn: Turn, outcome: ScopeOutcome, failure: Failure | None) -> None:
    """Ends the execution after its root scope closed: compensates if necessary, then finishes. A pause delays this."""
    state = turn.state
    assert state.undo is None
    assert state.finished is None
    if outcome in ("succeeded", "skipped"):
        _succeed(turn)
    elif outcome == "canceled":
        if state.cancel is not None and state.cancel.mode == "compensate":
            _undo_or_finish(turn, "canceled", None)
        else:
            finish(turn, "canceled", None)
    else:
        _undo_or_finish(turn, "failed", failure)


def _succeed(turn: Turn) -> None:
    state = turn.state
    template, check = state.plan.output, state.plan.check_output
    output: JSON = None
    encoded = NULL
    try:
        if template is not None:
            output, encoded = turn.evaluation.output(template)
    except ExpressionError as error:
        _fail_at_the_end(turn, refusal("", error.code, str(error)))
        return
    if check is not None:
        flaw = check(output if template is not None else last_result(state))
        if flaw is not None:
            _fail_at_the_end(turn, refusal("", "invalid_output", flaw))
            return
    finish(turn, "succeeded", None, encoded)


def _fail_at_the_end(turn: Turn, failure: Failure) -> None:
    """Fails an execution whose steps are all done but whose output is invalid. Like any failure, it is compensated."""
    turn.emit(ScopeClosing("", "failed", failure))
    _undo_or_finish(turn, "failed", failure)


def _undo_or_finish(turn: Turn, cause: Literal["failed", "canceled"], failure: Failure | None) -> None:
    groups = undo_groups(turn.state)
    if groups:
        turn.emit(CompensationStarted(cause, groups, failure))
        advance_undo(turn)
    else:
        finish(turn, cause, failure)


def finish(
    turn: Turn,
    status: Literal["succeeded", "failed", "canceled"],
    failure: Failure | None,
    output: Raw = NULL,
) -> None:
    state = turn.state
    # If the run may be repeated, the same credits are requested again. The next run begins when they are granted.
    retries = status == "failed" and state.root.outcome == "retry" and state.cancel is None
    retry_hold = state.hold if retries else 0
    for review in [r for r in state.reviews.values() if r.kind == "escalation"]:
        turn.emit(ReviewResolved(review.id, "dismiss", "close", reason="the execution ended"))
    if status == "failed":
        path = failure.path if failure is not None else ""
        step = find_step(state, path) if path else None
        attempts = step.number if step is not None else 0
        reason = failure.code if failure is not None else "failed"
        id = turn.new_review()
        turn.emit(ReviewOpened(id, "dead_letter", path, reason, failure=failure, attempts=attempts))
    refunded = state.hold - state.charged
    outcome = _outcome(state) if status == "succeeded" else ""
    output_seq = state.last_done if status == "succeeded" and state.plan.output is None else 0
    turn.emit(
        ExecutionFinished(status, outcome, output, failure, state.charged, refunded, retry_hold, output_seq, retries)
    )


def _outcome(state: Execution) -> str:
    """Returns `skipped` if there was nothing to do, `partial` if a failure was tolerated."""
    root = state.root
    if state.plan.run is not None:
        root = _agents_scope(state)
    if root.node.is_flow:
        return ""
    if root.succeeded == 0 and root.skipped:
        return "skipped"
    stood = [path for path in root.touched if path not in root.superseded]
    return "partial" if any(_was_passed_over(state, path) for path in stood) else ""


def _agents_scope(state: Execution) -> ScopeState:
    """Returns the scope of a run's agents: its first child."""
    scope = state.nodes[state.root.children[0].id]
    assert isinstance(scope, ScopeState)
    return scope


def _was_passed_over(state: Execution, path: str) -> bool:
    node = state.nodes[path]
    if isinstance(node, FanState):
        return any(step.failure is not None for step in node.live.values())
    if isinstance(node, ScopeState) and (node.outcome == "skipped" or state.plan.run is not None):
        return node.failure is not None or any(_was_passed_over(state, child) for child in node.touched)
    return node.failure is not None


# Compensation ---------------------------------------------------------------------------------------------------


def advance_undo(turn: Turn) -> None:
    """Starts the compensations that may start now; stops or finishes if there are none."""
    state = turn.state
    undo = state.undo
    if undo is None or state.pause is not None or state.finished is not None:
        return
    limit = state.plan.root.limit or FAN_OUT_CONCURRENCY
    while undo.group < len(undo.groups):
        if undo.stopped is not None:
            return
        reason = _why_stop(turn)
        if reason is not None:
            if not undo.open:
                turn.emit(CompensationStopped(reason, _pending(state)))
            return
        group = undo.groups[undo.group]
        if _tried_again(undo):
            return
        if undo.cursor == len(group) or (limit and len(undo.open) >= limit):
            return
        _start_undo(turn, group[undo.cursor])
    if not undo.open and not undo.failed:
        finish(turn, undo.cause, undo.failure)


def _tried_again(undo: UndoState) -> bool:
    """Returns whether an open compensation belongs to an earlier group: a person had it retried, so it comes first."""
    return undo.cursor == 0 and bool(undo.open)


def _node_of(state: Execution, path: str) -> Node:
    clone = fan_of(path)
    return state.nodes[clone[0] if clone is not None else path].node


def _start_undo(turn: Turn, path: str) -> None:
    step = find_step(turn.state, path)  # a closed clone has no object, but its fan-out has the node
    node = _node_of(turn.state, path)
    if node.step.compensation_policy == "manual":
        id = turn.new_review()
        reason = "the step's compensation needs a person's consent"
        turn.emit(ReviewOpened(id, "compensation", path, reason, node.step.permission or ""))
        return
    if step is not None:
        turn.grant(path, "compensate", step.undo_number + 1)
        return
    clone = fan_of(path)
    assert clone is not None
    turn.grant(path, "compensate", fan_at(turn.state, clone[0]).undo_numbers.get(clone[1], 0) + 1)


def _why_stop(turn: Turn) -> Literal["failed", "circuit_open"] | None:
    state = turn.state
    undo = state.undo
    assert undo is not None
    if not undo.failed:
        return None
    match rollback(state).on_failure:
        case "stop":
            started = undo.cursor > 0
            return None if started and rollback(state).order == "layers" else "failed"
        case "break_if_critical":
            critical = any(step_at(state, path).node.step.compensation_critical for path in undo.failed)
            return "circuit_open" if critical else None
        case "go_on":
            return None


def _pending(state: Execution) -> tuple[str, ...]:
    undo = state.undo
    assert undo is not None
    rest = [path for group in undo.groups[undo.group + 1 :] for path in group]
    return (*undo.groups[undo.group][undo.cursor :], *rest) if undo.group < len(undo.groups) else ()


def undo_max_attempts(state: Execution, step: StepState) -> int:
    return undo_policy(step.node.step, rollback(state).max_attempts).max_attempts


def open_undo_failure(turn: Turn, step: StepState) -> None:
    """Opens a review for a failed compensation at once, whatever happens to the rest of the rollback."""
    id = turn.new_review()
    critical = " (critical)" if step.node.step.compensation_critical else ""
    reason = f"the compensation of this step failed{critical}"
    turn.emit(
        ReviewOpened(id, "compensation_failed", step.path, reason, failure=step.undo_failure, attempts=step.undo_number)
    )

"""Cancels an execution: closes waiting steps, awaits running ones; a termination awaits nothing."""

from tenuto.kernel.address import Ref, fan_of
from tenuto.kernel.definition import CancelMode
from tenuto.kernel.events import (
    AttemptAbandoned,
    CancelRequested,
    CompensationStopped,
    Failure,
    HoldChanged,
    Resumed,
    ReviewOpened,
    ReviewResolved,
    ScopeClosing,
)
from tenuto.kernel.evolve import step_at
from tenuto.kernel.facts import APPLIED, Answer, Cancel, Fail, Refused
from tenuto.kernel.state import Execution, FanState, StepState

from .control import over
from .ending import finish
from .scopes import active_clones, advance_all, cancel_step, close_scope, open_scopes
from .turn import Turn, may_have_been_made

_FORCE: dict[CancelMode, int] = {"drain": 0, "compensate": 1, "terminate": 2}


def cancel(turn: Turn, fact: Cancel) -> Answer:
    state = turn.state
    if state.finished == "canceled":
        return APPLIED
    if state.finished is not None:
        if state.retries:  # the next run is canceled, too
            turn.emit(HoldChanged(state.run, 0, refused=True))
            return APPLIED
        return over(state)
    mode: CancelMode = fact.mode or state.plan.definition.policies.cancel
    if state.cancel is not None and _FORCE[mode] <= _FORCE[state.cancel.mode]:
        return APPLIED
    request_cancel(turn, mode, fact.reason)
    return APPLIED


def request_cancel(turn: Turn, mode: CancelMode, reason: str) -> None:
    state = turn.state
    if state.pause is not None:
        turn.emit(Resumed(turn.now - state.pause.since))
    turn.emit(CancelRequested(mode, reason))
    if mode == "terminate":
        _terminate(turn)
    else:
        if state.undo is None and state.root.status == "open":
            close_scope(turn, state.root, "canceled", None)
        advance_all(turn)


def fail(turn: Turn, fact: Fail) -> Answer:
    """Ends a run as failed. Its open attempts are lost, and its agents end."""
    state = turn.state
    if state.plan.run is None:
        return Refused("invalid_transition", "only runs can be ended as failed", "cancel the execution")
    if state.finished is not None:
        return over(state)
    if state.pause is not None:
        turn.emit(Resumed(turn.now - state.pause.since))
    summary = fact.reason or "no worker sent a heartbeat in time"
    unknown = _stop_everything(turn)
    failure = Failure("NON_RETRYABLE", fact.code, summary)
    if state.root.status == "open":
        close_scope(turn, state.root, "failed", failure)
    _open_unknown(turn, unknown)
    finish(turn, "failed", failure)
    return APPLIED


def _terminate(turn: Turn) -> None:
    """Ends at once. An unsafe effect that may be in progress leaves a review for a person."""
    _open_unknown(turn, _stop_everything(turn))
    finish(turn, "canceled", None)


def _open_unknown(turn: Turn, unknown: list[StepState]) -> None:
    for step in unknown:
        id = turn.new_review()
        reason = "terminated while this effect may have been under way"
        turn.emit(ReviewOpened(id, "indeterminate", step.path, reason, failure=step.failure, attempts=step.number))


def _stop_everything(turn: Turn) -> list[StepState]:
    """Abandons open attempts and closes what is active. Returns the steps whose outcome is unknown and unsafe."""
    state = turn.state
    open_refs: list[Ref] = []
    unknown: list[StepState] = []
    for step in _active_steps(state):
        if step.open is not None:
            open_refs.append(step.open.ref)
        if step.node.step.safety == "NOT_SAFE_TO_RETRY" and may_have_been_made(step):
            unknown.append(step)
    open_refs.extend(scope.open.ref for scope in open_scopes(state) if scope.open is not None)
    if open_refs:
        turn.emit(AttemptAbandoned(tuple(open_refs), "terminated"))
    if state.undo is not None:
        rest = [path for group in state.undo.groups[state.undo.group :] for path in group]
        pending = tuple(path for path in rest if path in state.compensable or fan_of(path) is not None)
        turn.emit(CompensationStopped("terminated", pending))
    else:
        for step in _active_steps(state):
            cancel_step(turn, step)
        for scope in [scope for scope in open_scopes(state) if scope.moving]:  # waits for its next round or plan
            turn.emit(ScopeClosing(scope.path, "canceled"))
    for review in list(state.reviews.values()):
        turn.emit(ReviewResolved(review.id, "dismiss", "close", reason="terminated"))
    return unknown


def _active_steps(state: Execution) -> list[StepState]:
    if state.undo is not None:
        return [step_at(state, path) for path in state.undo.open]
    steps: list[StepState] = []
    for scope in open_scopes(state):
        for path in scope.active:
            node = state.nodes[path]
            if isinstance(node, StepState):
                steps.append(node)
            elif isinstance(node, FanState):
                steps.extend(active_clones(node))
    return steps


def expire_root(turn: Turn, code: str, summary: str) -> None:
    """Closes the root scope as failed because the execution's deadline passed. Running attempts are awaited."""
    state = turn.state
    close_scope(turn, state.root, "timed_out", Failure("NON_RETRYABLE", code, summary))
    advance_all(turn)

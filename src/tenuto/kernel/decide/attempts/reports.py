"""Reports on attempts: whether a report still counts, and the rules for compensations and probes."""

from typing import Literal

from tenuto.kernel.address import Ref, fan_of, lease_id
from tenuto.kernel.compensation import rollback, undo_policy
from tenuto.kernel.decide.ending import advance_undo, open_undo_failure, undo_max_attempts
from tenuto.kernel.decide.scopes import advance, advance_waiting
from tenuto.kernel.decide.turn import Turn, may_repeat
from tenuto.kernel.definition import RetryPolicy
from tenuto.kernel.events import AttemptFailed, AttemptSucceeded, Failure, ProbeAnswered
from tenuto.kernel.evolve import holder_of, scope_above
from tenuto.kernel.facts import (
    APPLIED,
    Answer,
    Done,
    Failed,
    Ignored,
    NotDone,
    Outcome,
    Pending,
    Reported,
    Succeeded,
    TimedOut,
    Unknown,
)
from tenuto.kernel.retry import delay_ms, judge_undo, may_try_again
from tenuto.kernel.state import CLONE_SUCCEEDED, Execution, FanState, ScopeState, StepState

from .forward import forward_reported
from .proposals import plan_reported
from .steps import (
    failure_of,
    follow,
    go_on,
    mark_of,
    open_review,
    staleness,
    step_disposition,
    trace_of,
    try_again,
    wanted_delay,
)

_SUCCEEDED = bytes([CLONE_SUCCEEDED])


def reported(turn: Turn, fact: Reported) -> Answer:
    state = turn.state
    ref = fact.ref
    holder = holder_of(state, ref)
    stale = _why_stale(state, holder, fact)
    if stale is not None:
        return stale
    assert holder is not None
    if isinstance(holder, ScopeState):
        plan_reported(turn, holder, fact)
    elif ref.phase == "compensate":
        undo_reported(turn, holder, fact)
    elif ref.phase == "forward":
        forward_reported(turn, holder, fact)
    else:
        probe_reported(turn, holder, fact)
    advance_waiting(turn)
    return APPLIED


def _why_stale(state: Execution, holder: StepState | ScopeState | None, fact: Reported) -> Ignored | None:
    """Returns why a report no longer counts.

    Only the holder may report; late reports count until the outcome is known.
    """
    ref = fact.ref
    if fact.lease is not None and fact.lease != lease_id(state.id, ref):
        return Ignored("stale_lease")
    if state.finished is not None:
        return Ignored("terminal")
    if holder is None:
        return Ignored("duplicate" if _was_closed_clone(state, ref) else "unknown")
    if holder.open is not None and holder.open.ref == ref:
        return None
    if isinstance(holder, StepState) and holder.late == ref and not _tells_nothing(fact.outcome):
        return None
    return Ignored(staleness(holder, ref))


def _tells_nothing(outcome: Outcome) -> bool:
    """Returns whether an outcome adds nothing, because it is again unknown."""
    return isinstance(outcome, TimedOut) or (isinstance(outcome, Failed) and outcome.error_class == "INDETERMINATE")


def _was_closed_clone(state: Execution, ref: Ref) -> bool:
    clone = fan_of(ref.path)
    fan = state.nodes.get(clone[0]) if clone is not None else None
    return isinstance(fan, FanState) and clone is not None and fan.marks[clone[1] : clone[1] + 1] == _SUCCEEDED


def undo_reported(turn: Turn, step: StepState, fact: Reported) -> None:
    state = turn.state
    path, phase, number = fact.ref.parts
    if isinstance(fact.outcome, Succeeded):
        turn.emit(
            AttemptSucceeded(path, phase, number, fact.started_at, fact.worker, fact.outcome.result, build=fact.build)
        )
        advance_undo(turn)
        return
    failure = failure_of(fact.outcome, path, "handler")
    tries = step.undo_tries + 1
    verdict = judge_undo(failure.error_class, tries, step.undo_losses, undo_max_attempts(state, step), lost=False)
    retry_at, wanted = None, wanted_delay(fact.outcome)
    if verdict == "retry":
        policy = undo_policy(step.node.step, rollback(state).max_attempts)
        retry_at = turn.now + delay_ms(policy, failure.error_class, tries, wanted, state.id, path, phase)
    said, trace = (fact.started_at, fact.worker, failure), trace_of(fact.outcome)
    event = AttemptFailed(
        path, phase, number, *said, verdict, retry_at, build=fact.build, retry_after_ms=wanted, trace=trace
    )
    turn.emit(event)
    if verdict == "review":
        open_undo_failure(turn, step)
    advance_undo(turn)


PROBE_POLICY = RetryPolicy(initial_delay_ms=1_000, max_delay_ms=60_000)


def probe_reported(turn: Turn, step: StepState, fact: Reported) -> None:
    state = turn.state
    path, phase, number = fact.ref.parts
    spec = step.node.step

    def answer(
        said: Literal["done", "not_done", "pending", "unknown"],
        verdict: Literal["succeed", "retry", "again", "skip", "fail", "review"],
        **more: object,
    ) -> None:
        turn.emit(
            ProbeAnswered(path, phase, number, said, verdict, fact.started_at, fact.worker, **more)  # type: ignore[arg-type]
        )

    match fact.outcome:
        case Done():
            result, mark = fact.outcome.result, mark_of(state, step.node, path)
            answer("done", "succeed", result=result, variable=spec.set_variable, key=mark)
            go_on(turn, step)
        case NotDone() if may_repeat(state, step) and may_try_again(spec, step.tries, step.losses, _reported(step)):
            answer("not_done", "retry")
            try_again(turn, step)
        case NotDone():
            failure = step.failure or Failure("NON_RETRYABLE", "not_done", "the effect was not made", path)
            verdict = step_disposition(state, step)
            answer("not_done", verdict, failure=failure)
            follow(turn, step, verdict, failure, None)
        case Pending():
            answer("pending", "again", again_at=turn.now + _probe_delay(turn, step, fact))
        case Unknown():
            _probe_gave_up(turn, step, fact, fact.outcome.reason)
        case Failed(error_class="NON_RETRYABLE"):
            _probe_gave_up(turn, step, fact, fact.outcome.summary)
        case _:
            failure, wanted = failure_of(fact.outcome, path, "probe"), wanted_delay(fact.outcome)
            retry_at = turn.now + _probe_delay(turn, step, fact)
            said, trace = (fact.started_at, fact.worker, failure), trace_of(fact.outcome)
            turn.emit(AttemptFailed(path, phase, number, *said, "probe", retry_at, retry_after_ms=wanted, trace=trace))


def _reported(step: StepState) -> Failure | None:
    """Returns what the last attempt reported; None if it was lost."""
    failure = step.failure
    return None if failure is not None and failure.code == "worker_lost" else failure


def _probe_gave_up(turn: Turn, step: StepState, fact: Reported, reason: str) -> None:
    path, phase, number = fact.ref.parts
    failure = Failure("INDETERMINATE", "outcome_unknown", reason, path)
    said, trace = (fact.started_at, fact.worker), trace_of(fact.outcome)
    turn.emit(ProbeAnswered(path, phase, number, "unknown", "review", *said, failure=failure, trace=trace))
    open_review(turn, step, "indeterminate", failure)
    advance(turn, scope_above(turn.state, path))


def _probe_delay(turn: Turn, step: StepState, fact: Reported) -> int:
    wanted = wanted_delay(fact.outcome)
    if wanted is not None:
        return wanted
    tries = min(fact.ref.number, 16)
    return delay_ms(PROBE_POLICY, "TRANSIENT", tries, None, turn.state.id, step.path, fact.ref.phase)

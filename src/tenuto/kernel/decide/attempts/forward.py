"""Forward attempts that ended: succeeded, failed, or timed out."""

from typing import Literal

import msgspec

from tenuto.kernel.decide.credits import charge
from tenuto.kernel.decide.scopes import escalates_when_spent
from tenuto.kernel.decide.turn import Turn, may_repeat
from tenuto.kernel.definition import ErrorClass
from tenuto.kernel.events import (
    AttemptAbandoned,
    AttemptFailed,
    AttemptSucceeded,
    AttemptTimedOut,
    Failure,
    Paused,
    ReviewKind,
    ReviewOpened,
    ReviewResolved,
    Verdict,
)
from tenuto.kernel.facts import Failed, Outcome, Reported, Succeeded, TimedOut
from tenuto.kernel.retry import Judgement, delay_ms, judge, uncapped_delay_ms
from tenuto.kernel.state import StepState

from .steps import ends_with_its_attempt, follow, go_on, mark_of, open_review, step_disposition, stop_for_credits

SETTLED_BY_ITSELF = "the attempt's own answer came after all"


def forward_reported(turn: Turn, step: StepState, fact: Reported) -> None:
    if step.open is None or step.open.ref != fact.ref:
        _settle_without_probe(turn, step)
        fact = msgspec.structs.replace(fact, outcome=_without_usage(fact.outcome))
    match fact.outcome:
        case Succeeded():
            _succeed(turn, step, fact)
        case Failed():
            _fail(turn, step, fact, fact.outcome)
        case TimedOut():
            time_out(turn, step, "attempt", fact.started_at, fact.worker, fact.outcome, fact.build)
        case _:
            outcome = Failed(error_class="NON_RETRYABLE", code="bad_report", summary="this outcome is for probes only")
            _fail(turn, step, fact, outcome)


def _without_usage(outcome: Outcome) -> Outcome:
    """The usage of a late report is not charged: the attempt was recorded before, with what it had reported."""
    return msgspec.structs.replace(outcome, usage=0, tokens=0) if isinstance(outcome, Succeeded | Failed) else outcome


def _settle_without_probe(turn: Turn, step: StepState) -> None:
    """Ends an open probe and review, because a late report has settled the step."""
    if step.open is not None:
        turn.emit(AttemptAbandoned((step.open.ref,), "settled"))
    if step.review is not None:
        turn.emit(ReviewResolved(step.review, "dismiss", "close", reason=SETTLED_BY_ITSELF))


def _succeed(turn: Turn, step: StepState, fact: Reported) -> None:
    outcome = fact.outcome
    assert isinstance(outcome, Succeeded)
    ref = fact.ref
    state = turn.state
    charged, exhausted = charge(state, outcome.usage)
    node = step.node
    turn.emit(
        AttemptSucceeded(
            ref.path,
            "forward",
            ref.number,
            fact.started_at,
            fact.worker,
            outcome.result,
            charged,
            node.step.set_variable,
            mark_of(state, node, step.path),
            fact.build,
            fact.workspace,
            outcome.usage,
            outcome.tokens,
        )
    )
    if exhausted:
        stop_for_credits(turn, step.path)
    go_on(turn, step)


def _fail(turn: Turn, step: StepState, fact: Reported, outcome: Failed) -> None:
    state = turn.state
    ref = fact.ref
    spec = step.node.step
    failure = Failure(outcome.error_class, outcome.code, outcome.summary, ref.path)
    tries = step.tries + (ref.number > step.tried)  # a late report of a timed-out attempt is already counted
    charged, exhausted = charge(state, outcome.usage)
    judgement = judge(
        spec,
        "failed",
        outcome.error_class,
        tries=tries,
        losses=step.losses,
        may_repeat=may_repeat(state, step) and not exhausted,
        partial_effect=outcome.partial_effect,
        code=outcome.code,
    )
    verdict, review = _disposed(turn, step, judgement, failure, exhausted=exhausted)
    retry_at = _next_at(turn, step, verdict, outcome.error_class, tries, outcome.retry_after_ms)
    turn.emit(
        AttemptFailed(
            ref.path,
            "forward",
            ref.number,
            fact.started_at,
            fact.worker,
            failure,
            verdict,
            retry_at,
            judgement.half_done,
            charged,
            fact.build,
            outcome.retry_after_ms,
            outcome.trace,
            fact.workspace,
            outcome.usage,
            outcome.tokens,
        )
    )
    _carry_out(turn, step, verdict, failure, review, exhausted=exhausted)


def _disposed(
    turn: Turn, step: StepState, judgement: Judgement, failure: Failure, *, exhausted: bool
) -> tuple[Verdict, ReviewKind | None]:
    """Returns the verdict, after the failure mode of the scope and the escalation policy of a run."""
    state = turn.state
    if judgement.verdict == "review" and ends_with_its_attempt(state, step):
        return step_disposition(state, step), judgement.review
    if judgement.verdict != "fail":
        return judgement.verdict, judgement.review
    verdict = step_disposition(state, step)
    if verdict == "fail" and not exhausted and escalates_when_spent(state, step, failure):
        return "review", "escalation"
    return verdict, None


_AWAITED = {"attempt": "answer from the handler", "ack": "acknowledgement", "result": "result"}


def time_out(
    turn: Turn,
    step: StepState,
    kind: Literal["attempt", "ack", "result"],
    started_at: int,
    worker: str,
    outcome: TimedOut,
    build: str = "",
) -> None:
    """Handles a timeout. If the step is not safe to retry, its outcome is unknown."""
    state = turn.state
    assert step.open is not None
    ref = step.open.ref
    spec = step.node.step
    safe = spec.safety == "SAFE_TO_RETRY"
    error_class: ErrorClass = "INDETERMINATE"
    if safe:  # of an external receiver, the author may say that nothing more is to be tried
        error_class = "TRANSIENT" if kind == "attempt" else spec.classify.get("TimeoutError", "TRANSIENT")
    failure = Failure(error_class, f"{kind}_timeout", f"no {_AWAITED[kind]} in time", ref.path)
    tries = step.tries + 1
    charged, exhausted = charge(state, outcome.usage)
    repeat = may_repeat(state, step) and not exhausted
    judgement = judge(spec, "timed_out", error_class, tries=tries, losses=step.losses, may_repeat=repeat)
    verdict, review = _disposed(turn, step, judgement, failure, exhausted=exhausted)
    retry_at = _next_at(turn, step, verdict, error_class, tries, None)
    turn.emit(
        AttemptTimedOut(
            ref.path,
            "forward",
            ref.number,
            started_at,
            worker,
            kind,
            failure,
            verdict,
            retry_at,
            judgement.half_done,
            charged,
            build,
            outcome.usage,
            outcome.tokens,
        )
    )
    _carry_out(turn, step, verdict, failure, review, exhausted=exhausted)


def _next_at(
    turn: Turn, step: StepState, verdict: Verdict, error_class: ErrorClass, tries: int, retry_after_ms: int | None
) -> int | None:
    """Returns when the step is attempted or probed again. An unknown outcome is probed at once."""
    state = turn.state
    if verdict == "retry" or (verdict == "probe" and error_class != "INDETERMINATE"):
        policy = step.node.step.retry_policy
        return turn.now + delay_ms(policy, error_class, tries, retry_after_ms, state.id, step.path)
    return turn.now if verdict == "probe" and state.pause is not None else None  # probed on resume


def _carry_out(
    turn: Turn, step: StepState, verdict: Verdict, failure: Failure, review: ReviewKind | None, *, exhausted: bool
) -> None:
    if exhausted:
        stop_for_credits(turn, step.path)
    if review == "escalation" and turn.state.pause is None:
        pause_escalated(turn)
    if review is not None and verdict != "review":  # the step is closed all the same
        open_review(turn, step, review, failure)
    follow(turn, step, verdict, failure, review)
    if verdict in ("retry", "probe"):
        _escalate(turn, step, failure)


def _escalate(turn: Turn, step: StepState, failure: Failure) -> None:
    """Pauses and asks a person if errors accumulate, before the credits are spent."""
    state = turn.state
    policy = state.plan.definition.policies.escalation
    if policy is None or state.pause is not None or state.finished is not None:
        return
    since = turn.now - policy.window_ms
    errors = sum(at > since for at in state.error_times)
    total = errors + sum(at > since for at in state.ok_times)
    wanted, cap = uncapped_delay_ms(step.node.step.retry_policy, failure.error_class, step.tries)
    too_many = policy.errors is not None and errors > policy.errors
    too_often = policy.error_rate is not None and total >= policy.min_sample and errors / total > policy.error_rate
    if too_many or too_often or wanted > cap:
        reason = "too many errors" if too_many else "error rate too high" if too_often else "backoff beyond its limit"
        id = turn.new_review()
        turn.emit(ReviewOpened(id, "escalation", step.path, reason, failure=failure))
        pause_escalated(turn)


def pause_escalated(turn: Turn) -> None:
    limit = turn.state.plan.definition.policies.pause_limit_ms
    turn.emit(Paused("escalated", None if limit is None else turn.now + limit))

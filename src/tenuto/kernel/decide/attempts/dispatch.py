"""Dispatch of attempts: begun, sent, refused, acknowledged."""

from typing import Literal

from tenuto.kernel.address import Ref, lease_id
from tenuto.kernel.decide.ending import advance_undo, open_undo_failure
from tenuto.kernel.decide.turn import Turn, may_repeat
from tenuto.kernel.definition import RetryPolicy
from tenuto.kernel.events import AttemptAcked, AttemptBegun, AttemptDispatched, DispatchFailed, Failure, Verdict
from tenuto.kernel.evolve import find_step, holder_of
from tenuto.kernel.facts import APPLIED, Acked, Answer, Begun, Dispatched, DispatchRefused, Ignored, Reported
from tenuto.kernel.retry import MAX_DISPATCHES, delay_ms, judge
from tenuto.kernel.state import Execution, ScopeState, StepState

from .proposals import plan_failed
from .steps import ends_with_its_attempt, follow, open_holder, open_review, staleness, step_disposition

SEND_POLICY = RetryPolicy()


def begun(turn: Turn, fact: Begun) -> Answer:
    holder = holder_of(turn.state, fact.ref)
    if holder is None or holder.open is None or holder.open.ref != fact.ref:
        return Ignored("stale_attempt")
    if holder.open.begun_at:
        return Ignored("duplicate")
    if fact.ref.phase == "plan":
        return APPLIED
    turn.emit(AttemptBegun(*fact.ref.parts, fact.worker, fact.build))
    return APPLIED


def dispatched(turn: Turn, fact: Dispatched) -> Answer:
    step = find_step(turn.state, fact.ref.path)
    if step is None or step.open is None or step.open.ref != fact.ref:
        return Ignored("stale_attempt")
    if step.open.dispatched_at:
        return Ignored("duplicate")
    spec = step.node.step
    ack_due = result_due = None
    if spec.completion == "callback" and fact.ref.phase == "forward" and not step.open.acked:
        ack_due = None if spec.ack_timeout_ms is None else turn.now + spec.ack_timeout_ms
        if ack_due is None:
            assert spec.result_timeout_ms is not None  # a callback step has at least one of them
            result_due = turn.now + spec.result_timeout_ms
    turn.emit(AttemptDispatched(*fact.ref.parts, fact.lane, fact.routing_key, ack_due, result_due))
    return APPLIED


def dispatch_refused(turn: Turn, fact: DispatchRefused) -> Answer:
    """Handles a publish that was not confirmed: a new attempt and lease, with a limit of its own."""
    state = turn.state
    ref = fact.ref
    holder = open_holder(state, ref)
    if holder is None:
        return Ignored("stale_attempt")
    failure = Failure(fact.failure.error_class, fact.failure.code, fact.failure.summary, ref.path)
    if isinstance(holder, ScopeState):
        plan_failed(turn, holder, Reported(at=fact.at, ref=ref, outcome=fact.failure), failure)
        return APPLIED
    verdict, review = _after_refusal(state, holder, ref, failure)
    retry_at, wanted = None, fact.failure.retry_after_ms
    if verdict in ("retry", "probe"):
        tries = holder.refused_dispatches + 1
        retry_at = turn.now + delay_ms(SEND_POLICY, failure.error_class, tries, wanted, state.id, ref.path, "send")
    turn.emit(DispatchFailed(*ref.parts, failure, verdict, retry_at, wanted, fact.failure.trace))
    if ref.phase != "compensate":
        if review is not None and verdict != "review":
            open_review(turn, holder, review, failure)
        follow(turn, holder, verdict, failure, review)
    elif verdict == "review":
        open_undo_failure(turn, holder)
        advance_undo(turn)
    return APPLIED


def _after_refusal(
    state: Execution, step: StepState, ref: Ref, failure: Failure
) -> tuple[Verdict, Literal["compensation", "indeterminate"] | None]:
    """Decides after a failed dispatch.

    INDETERMINATE means that the directive may have arrived, so unsafe steps are not repeated.
    """
    again = step.refused_dispatches + 1 < MAX_DISPATCHES and failure.error_class != "NON_RETRYABLE"
    if ref.phase == "compensate":
        return ("retry" if again else "review"), None
    if ref.phase != "forward":
        return ("probe", None) if again else ("review", "indeterminate")
    spec = step.node.step
    if failure.error_class == "INDETERMINATE" and spec.safety != "SAFE_TO_RETRY":
        repeat = may_repeat(state, step)
        judgement = judge(spec, "failed", "INDETERMINATE", tries=step.tries, losses=step.losses, may_repeat=repeat)
        if judgement.verdict == "review" and ends_with_its_attempt(state, step):
            return step_disposition(state, step), judgement.review
        return judgement.verdict, judgement.review
    return ("retry" if again and may_repeat(state, step) else step_disposition(state, step)), None


def acked(turn: Turn, fact: Acked) -> Answer:
    state = turn.state
    step = holder_of(state, fact.ref)
    if fact.lease != lease_id(state.id, fact.ref):
        return Ignored("stale_lease")
    if state.finished is not None:
        return Ignored("terminal")
    if not isinstance(step, StepState):
        return Ignored("unknown")
    if step.open is None or step.open.ref != fact.ref:
        return Ignored(staleness(step, fact.ref))
    if step.open.acked:
        return Ignored("duplicate")
    timeout = step.node.step.result_timeout_ms
    due = None if timeout is None else turn.now + timeout
    turn.emit(AttemptAcked(*fact.ref.parts, fact.workspace, due))
    return APPLIED

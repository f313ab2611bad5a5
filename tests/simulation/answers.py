"""What whoever brought a fact must be told, and what must have come of it: looked at before the entries are applied."""

from tenuto.checker.model import Model
from tenuto.kernel import events as e
from tenuto.kernel import facts as f
from tenuto.kernel.address import lease_id
from tenuto.kernel.decide import Decision
from tenuto.kernel.state import Execution

from .rules import HONOURS_RETRY_AFTER, require


def check_answer(before: Execution, model: Model, fact: f.Fact, decision: Decision) -> None:
    match fact:
        case f.Signal() if decision.answer == f.APPLIED:
            _check_signal(before, fact, decision)
        case f.Decide():
            _check_decision(before, fact, decision)
        case f.Reported() | f.Acked():
            _check_holder(before, fact, decision)
    if isinstance(fact, f.Reported):
        _check_late_truth(before, model, fact, decision)
        _check_retry_after(fact, decision)


def _arrived_in_time(before: Execution, fact: f.Fact) -> bool:
    """No timer was due when it arrived, however late it is handled."""
    return before.wake_at is None or before.wake_at > fact.at


def _check_signal(before: Execution, fact: f.Signal, decision: Decision) -> None:
    """A signal that was accepted is used, or kept for whoever will wait for it."""
    events = [entry.event for entry in decision.entries]
    used = any(isinstance(event, e.WaitEnded) and event.by == fact.id for event in events)
    kept = any(isinstance(event, e.SignalKept) and event.id == fact.id for event in events)
    known = fact.id in before.heard or fact.id in [signal.id for signal in before.signals.get(fact.name, ())]
    require(used or kept or known, "a signal is used or kept", fact)
    if fact.name in before.waits and fact.id not in before.heard and _arrived_in_time(before, fact):
        require(used, "a signal wakes who waits", fact)


def _check_decision(before: Execution, fact: f.Decide, decision: Decision) -> None:
    """One that came in time counts; one that came after the deadline does not."""
    if fact.review not in before.reviews or before.finished is not None:
        return
    resolved = [
        (event, entry.at)
        for entry in decision.entries
        if isinstance(event := entry.event, e.ReviewResolved) and event.id == fact.review
    ]
    if _arrived_in_time(before, fact):
        misplaced = isinstance(decision.answer, f.Refused) and decision.answer.code == "bad_resolution"
        require(resolved or misplaced, "a decision that came in time counts", fact)
    due = before.timers.get(("review", fact.review))
    if before.pause is None and due is not None and due <= fact.at:
        heard = [
            event for event, at in resolved if event.verdict != "close" and at >= due
        ]  # the clock may have gone back
        require(not heard, "a decision that came too late does not count", fact)


def _check_holder(before: Execution, fact: f.Reported | f.Acked, decision: Decision) -> None:
    if fact.lease is not None and fact.lease != lease_id(before.id, fact.ref):
        require(decision.answer == f.Ignored("stale_lease"), "only the holder of the lease is heard", fact)


def _check_late_truth(before: Execution, model: Model, fact: f.Reported, decision: Decision) -> None:
    """The answer of an attempt that timed out or was lost applies, until something else is known."""
    step = model.steps.get(fact.ref.path)
    forged = fact.lease is not None and fact.lease != lease_id(before.id, fact.ref)
    if step is None or step.late != fact.ref or forged or before.finished is not None or before.wake_at is not None:
        return
    if isinstance(fact.outcome, f.Succeeded):
        require(decision.answer == f.APPLIED, "late truth applies", fact)


def _check_retry_after(fact: f.Reported, decision: Decision) -> None:
    if not isinstance(fact.outcome, f.Failed) or fact.outcome.error_class not in HONOURS_RETRY_AFTER:
        return
    wanted = fact.outcome.retry_after_ms or 0
    for entry in decision.entries:
        if isinstance(entry.event, e.AttemptFailed) and entry.event.retry_at is not None:
            require(entry.event.retry_at >= entry.at + wanted, "Retry-After is honoured", fact)

"""Retries and safety: what may be repeated, when, and after which decision.

The delays are copied from the documentation. If the rules read the engine's own table, they could not detect an error
in it.
"""

from tenuto.kernel import events as e
from tenuto.kernel.address import Ref
from tenuto.kernel.definition import ErrorClass, RetryPolicy

from .invariants import Family, require
from .model import Model, ModelScope, ModelStep, effective
from .order import started_by

MAX_LOSSES = 3
MAX_DISPATCHES = 10
DELAYS: dict[ErrorClass, tuple[int, int]] = {  # the first and the longest delay
    "TRANSIENT": (100, 30_000),
    "RETRYABLE": (100, 30_000),
    "INDETERMINATE": (100, 30_000),
    "RATE_LIMITED": (1_000, 300_000),
    "DEPENDENCY_FAILED": (5_000, 300_000),
}

RESPECTED: tuple[ErrorClass, ...] = ("RATE_LIMITED", "DEPENDENCY_FAILED")  # these may specify a delay

family = Family("Retry and safety")

R1 = family("R1", "Failures, losses, dispatches and rounds are bounded, unless a person granted more.")
R2 = family("R2", "Only the error classes that the step allows are retried.")
R3 = family(
    "R3",
    "A step that is not safe to retry begins again only if its effect is known not to have happened, or a person says "
    "so.",
)
R4 = family("R4", "A guarded step is repeated only after its guard or a person reported that it is not done.")
R5 = family(
    "R5", "If the outcome of an unsafe step is unknown, it is looked up first, and only after the attempt's timeout."
)
R6 = family(
    "R6",
    "No attempt starts before its delay is over, and no delay is shorter than its policy or a `Retry-After` that the "
    "step honours.",
)
R8 = family("R8", "Every failed run has exactly one dead letter.")
R9 = family("R9", "An attempt that never began is neither lost nor counted.")


def granted(model: Model, ref: Ref, entry: e.Entry) -> None:
    if ref in model.open_refs:
        return
    if ref.phase == "plan":
        _planned(model, ref, entry)
        return
    step = model.step(ref.path)
    require(entry.at >= step.not_before, R6, f"{ref} was granted at {entry.at}, and due at {step.not_before}")
    if ref.phase == "forward":
        _round_has_begun(model.ancestors(ref.path), ref, entry)
        _repeated(step, ref)


def _planned(model: Model, ref: Ref, entry: e.Entry) -> None:
    scope = model.scopes[ref.path]
    losses, due = scope.plan_losses, scope.plan_not_before
    require(losses <= MAX_LOSSES, R1, f"{ref} was granted after {losses} losses")
    require(entry.at >= due, R6, f"{ref} was granted at {entry.at}, and due at {due}")
    _round_has_begun([scope, *model.ancestors(ref.path)], ref, entry)


def _round_has_begun(scopes: list[ModelScope], what: object, entry: e.Entry) -> None:
    for scope in scopes:
        due = scope.not_before
        require(entry.at >= due, R6, f"{what} started at {entry.at}, and the round of {scope.path!r} begins at {due}")


def _repeated(step: ModelStep, ref: Ref) -> None:
    spec = step.node.step
    require(not step.unsafe or not step.is_unsafe, R3, f"{ref} was granted after an attempt that had begun")
    require(step.refusals < MAX_DISPATCHES, R1, f"{ref} was granted after {step.refusals} refused dispatches")
    if not step.last or step.last == "undispatched":
        return
    allowed = step.retry_policy.max_attempts + step.human
    failures = len(step.failures)
    require(failures < allowed or step.last == "lost", R1, f"{ref} was granted after {failures} failures of {allowed}")
    require(step.losses <= MAX_LOSSES or step.human, R1, f"{ref} was granted after {step.losses} losses")
    if step.guarded:
        listed = not step.is_unsafe or step.human > 0 or step.last == "timed_out" or _may_follow(step)
        require(listed, R2, f"{ref} was granted after {step.last}")
        return
    require(spec.safety != "SAFE_TO_RETRY_WITH_GUARD", R4, f"{ref} was granted and no guard was asked")
    require(_may_follow(step), R2, f"{ref} was granted after {step.last}")


def _may_follow(step: ModelStep) -> bool:
    classes = step.retry_policy.retry_on_classes
    if step.last == "timed_out":
        return "TRANSIENT" in classes
    return step.last in classes or step.last in ("lost", "INDETERMINATE")


def recorded(model: Model, entry: e.Entry) -> None:
    event = entry.event
    for path in started_by(model, event):
        _round_has_begun(model.ancestors(path), path, entry)
    match event:
        case e.AttemptBegun():
            begun = model.step(event.path).begun
            require(not begun, R3, f"{Ref(event.path, event.phase, event.number)} began twice")
        case e.AttemptFailed() | e.AttemptTimedOut():
            if isinstance(event, e.AttemptFailed):
                _left_alone(event, entry.at)
            if event.phase == "forward":
                _failed(model, entry.at, event)
            elif event.phase == "compensate" and event.verdict == "retry":
                _undone_later(model, entry.at, event)
        case e.DispatchFailed():
            _left_alone(event, entry.at)
            _sent_later(model, entry.at, event)
        case e.AttemptLost():
            for loss in event.losses:
                if loss.phase != "plan":
                    _lost(model.step(loss.path), loss)
        case e.ProbeAnswered() if event.verdict == "retry":
            ref = Ref(event.path, event.phase, event.number)
            require(event.answer == "not_done", R3, f"{ref} answered {event.answer}, and the step was repeated")
        case e.ScopeRestarted():
            _restarted(model, event)
        case e.ExecutionFinished() if event.status == "failed":
            count = model.dead_letters
            require(count == 1, R8, f"run {model.run} failed with {count} dead letters")


def _failed(model: Model, at: int, event: e.AttemptFailed | e.AttemptTimedOut) -> None:
    step = model.step(event.path)
    spec = effective(step.node.step, event.override)
    ref = Ref(event.path, event.phase, event.number)
    tries = len(step.failures | {event.number})
    allowed = spec.retry_policy.max_attempts + step.human
    most = max(allowed, step.retry_policy.max_attempts + step.human)  # it was granted under the previous policy
    require(tries <= most + step.losses, R1, f"{ref} is failure {tries} of {most}")
    if event.verdict == "retry":
        require(spec.safety == "SAFE_TO_RETRY", R3, f"{ref} is simply retried, and the step is {spec.safety}")
        require(tries < allowed, R1, f"{ref} is retried after {tries} failures of {allowed}")
    if event.verdict == "retry" or (event.verdict == "probe" and event.failure.error_class != "INDETERMINATE"):
        _waits(event, at + _least_delay(spec.retry_policy, event.failure.error_class, tries))


Failed = e.AttemptFailed | e.AttemptTimedOut | e.DispatchFailed


def _waits(event: Failed, due: int) -> None:
    ref, planned = Ref(event.path, event.phase, event.number), event.retry_at
    require(planned is not None and planned >= due, R6, f"{ref} is to be retried at {planned}, before {due}")


def _left_alone(event: e.AttemptFailed | e.DispatchFailed, at: int) -> None:
    """Requires that a retry does not start before the time that the receiver asked for."""
    again = event.retry_at is not None and event.failure.error_class in RESPECTED
    if again and event.retry_after_ms is not None:
        _waits(event, at + event.retry_after_ms)


def _undone_later(model: Model, at: int, event: e.AttemptFailed | e.AttemptTimedOut) -> None:
    step = model.step(event.path)
    spec = effective(step.node.step, event.override)
    policy = RetryPolicy(initial_delay_ms=spec.compensation_backoff_ms, jitter=spec.retry_policy.jitter)
    _waits(event, at + _least_delay(policy, event.failure.error_class, step.undo_failures + 1))


def _sent_later(model: Model, at: int, event: e.DispatchFailed) -> None:
    if event.verdict in ("retry", "probe"):
        tries = model.step(event.path).refusals + 1
        _waits(event, at + _least_delay(RetryPolicy(), event.failure.error_class, tries))


def _least_delay(policy: RetryPolicy, error_class: ErrorClass, tries: int) -> int:
    first, longest = DELAYS.get(error_class, (0, 0))
    initial = first if policy.initial_delay_ms is None else policy.initial_delay_ms
    most = max(longest, initial) if policy.max_delay_ms is None else policy.max_delay_ms
    factor = 2 ** min(tries - 1, 40) if policy.backoff_strategy == "exponential" else 1
    return int(min(initial * factor, most) * (1 - policy.jitter))


def _lost(step: ModelStep, loss: e.Loss) -> None:
    ref = Ref(loss.path, loss.phase, loss.number)
    require(not step.returned, R9, f"{ref} was lost, and had been handed back")
    outside = step.node.outside if loss.phase == "forward" else step.node.queue is not None
    require(step.epoch > 0 or outside, R9, f"{ref} was lost without an owner")
    if loss.phase != "forward":
        return
    require(not step.never_begins, R9, f"{ref} was lost, and never began")
    if step.is_unsafe and loss.verdict == "probe":
        due = step.since + step.node.step.retry_policy.timeout_ms
        waited = loss.retry_at is not None and loss.retry_at >= due
        require(waited, R5, f"{ref} is to be looked up at {loss.retry_at}, and may go on until {due}")
    simple = loss.verdict == "retry" and step.node.step.safety != "SAFE_TO_RETRY"
    require(not simple, R3, f"{ref} was lost and is simply retried, and the step is {step.node.step.safety}")
    require(step.losses <= MAX_LOSSES + step.human, R1, f"{ref} was lost after {step.losses} losses")


def _restarted(model: Model, event: e.ScopeRestarted) -> None:
    scope = model.scopes[event.path]
    bounded = event.round == scope.round + 1 <= scope.node.scope.max_rounds
    require(bounded, R1, f"round {event.round} of {event.path!r} follows {scope.round}")
    left = f"{event.budget_left} of the retry budget is left after {model.budget}"
    require(event.budget_left == model.budget - 1 >= 0, R1, left)

"""Retry and safety: what may be tried again, when, and after whose word.

The delays are written down once more, from the documentation: a rule that read the engine's own table would believe
whatever that says.
"""

from tenuto.kernel import events as e
from tenuto.kernel.address import Ref
from tenuto.kernel.definition import ErrorClass, RetryPolicy

from .books import Books
from .invariants import Family, require
from .order import started_by
from .tracks import Frame, Track

MAX_LOSSES = 3
MAX_DISPATCHES = 10
DELAYS: dict[ErrorClass, tuple[int, int]] = {  # the first delay and the longest
    "TRANSIENT": (100, 30_000),
    "RETRYABLE": (100, 30_000),
    "INDETERMINATE": (100, 30_000),
    "RATE_LIMITED": (1_000, 300_000),
    "DEPENDENCY_FAILED": (5_000, 300_000),
}

RESPECTED: tuple[ErrorClass, ...] = ("RATE_LIMITED", "DEPENDENCY_FAILED")  # they may say when to come again

family = Family("Retry and safety")

R1 = family("R1", "Failures, losses, dispatches and rounds are bounded, unless a person granted more.")
R2 = family("R2", "Only the error classes that the step allows are retried.")
R3 = family(
    "R3", "A step that is not safe to retry never begins twice, unless it is known not to be done, or a person says so."
)
R4 = family("R4", "A guarded step is repeated only after its guard, or a person, said that it is not done.")
R5 = family("R5", "An unknown outcome of a step that is not safe is looked up first, and not before its time is over.")
R6 = family(
    "R6",
    "Nothing is tried before its delay is over; no delay is shorter than its policy, or than whoever was asked too "
    "often wants it to be.",
)
R8 = family("R8", "Every run that failed has left one dead letter.")
R9 = family("R9", "What never began is neither lost nor counted.")


def granted(books: Books, ref: Ref, entry: e.Entry) -> None:
    if ref in books.open_refs:
        return
    if ref.phase == "plan":
        _planned(books, ref, entry)
        return
    track = books.track(ref.path)
    require(entry.at >= track.not_before, R6, f"{ref} was granted at {entry.at}, and due at {track.not_before}")
    if ref.phase == "forward":
        _round_has_begun(books.ancestors(ref.path), ref, entry)
        _repeated(track, ref)


def _planned(books: Books, ref: Ref, entry: e.Entry) -> None:
    frame = books.frames[ref.path]
    losses, due = frame.plan_losses, frame.plan_not_before
    require(losses <= MAX_LOSSES, R1, f"{ref} was granted after {losses} losses")
    require(entry.at >= due, R6, f"{ref} was granted at {entry.at}, and due at {due}")
    _round_has_begun([frame, *books.ancestors(ref.path)], ref, entry)


def _round_has_begun(frames: list[Frame], what: object, entry: e.Entry) -> None:
    for frame in frames:
        due = frame.not_before
        require(entry.at >= due, R6, f"{what} started at {entry.at}, and the round of {frame.path!r} begins at {due}")


def _repeated(track: Track, ref: Ref) -> None:
    step = track.node.step
    require(not track.unsafe or not track.is_unsafe, R3, f"{ref} was granted after an attempt that had begun")
    require(track.refusals < MAX_DISPATCHES, R1, f"{ref} was granted after {track.refusals} refused dispatches")
    if not track.last or track.last == "undispatched":
        return
    allowed = step.retry_policy.max_attempts + track.human
    failures = len(track.failures)
    require(failures < allowed or track.last == "lost", R1, f"{ref} was granted after {failures} failures of {allowed}")
    require(track.losses <= MAX_LOSSES or track.human, R1, f"{ref} was granted after {track.losses} losses")
    if track.guarded:
        return
    require(step.safety != "SAFE_TO_RETRY_WITH_GUARD", R4, f"{ref} was granted and no guard was asked")
    require(_may_follow(track), R2, f"{ref} was granted after {track.last}")


def _may_follow(track: Track) -> bool:
    classes = track.node.step.retry_policy.retry_on_classes
    if track.last == "timed_out":
        return "TRANSIENT" in classes
    return track.last in classes or track.last in ("lost", "INDETERMINATE")


def recorded(books: Books, entry: e.Entry) -> None:
    event = entry.event
    for path in started_by(books, event):
        _round_has_begun(books.ancestors(path), path, entry)
    match event:
        case e.AttemptBegun():
            begun = books.track(event.path).begun
            require(not begun, R3, f"{Ref(event.path, event.phase, event.number)} began twice")
        case e.AttemptFailed() | e.AttemptTimedOut():
            if isinstance(event, e.AttemptFailed):
                _left_alone(event, entry.at)
            if event.phase == "forward":
                _failed(books, entry.at, event)
            elif event.phase == "compensate" and event.verdict == "retry":
                _undone_later(books, entry.at, event)
        case e.DispatchFailed():
            _left_alone(event, entry.at)
            _sent_later(books, entry.at, event)
        case e.AttemptLost():
            for loss in event.losses:
                if loss.phase != "plan":
                    _lost(books.track(loss.path), loss)
        case e.ProbeAnswered() if event.verdict == "retry":
            ref = Ref(event.path, event.phase, event.number)
            require(event.answer == "not_done", R3, f"{ref} answered {event.answer}, and the step was repeated")
        case e.ScopeRestarted():
            _restarted(books, event)
        case e.ExecutionFinished() if event.status == "failed":
            count = books.dead_letters
            require(count == 1, R8, f"run {books.run} failed with {count} dead letters")


def _failed(books: Books, at: int, event: e.AttemptFailed | e.AttemptTimedOut) -> None:
    track = books.track(event.path)
    step = track.node.step
    ref = Ref(event.path, event.phase, event.number)
    tries = len(track.failures | {event.number})
    allowed = step.retry_policy.max_attempts + track.human
    require(tries <= allowed + track.losses, R1, f"{ref} is failure {tries} of {allowed}")
    if event.verdict == "retry":
        require(step.safety == "SAFE_TO_RETRY", R3, f"{ref} is simply retried, and the step is {step.safety}")
        require(tries < allowed, R1, f"{ref} is retried after {tries} failures of {allowed}")
        _waits(event, at + _least_delay(step.retry_policy, event.failure.error_class, tries))


Failed = e.AttemptFailed | e.AttemptTimedOut | e.DispatchFailed


def _waits(event: Failed, due: int) -> None:
    ref, planned = Ref(event.path, event.phase, event.number), event.retry_at
    require(planned is not None and planned >= due, R6, f"{ref} is to be retried at {planned}, before {due}")


def _left_alone(event: e.AttemptFailed | e.DispatchFailed, at: int) -> None:
    """Whoever said when to come again is left alone until then."""
    again = event.retry_at is not None and event.failure.error_class in RESPECTED
    if again and event.retry_after_ms is not None:
        _waits(event, at + event.retry_after_ms)


def _undone_later(books: Books, at: int, event: e.AttemptFailed | e.AttemptTimedOut) -> None:
    track = books.track(event.path)
    step = track.node.step
    policy = RetryPolicy(initial_delay_ms=step.compensation_backoff_ms, jitter=step.retry_policy.jitter)
    _waits(event, at + _least_delay(policy, event.failure.error_class, track.undo_failures + 1))


def _sent_later(books: Books, at: int, event: e.DispatchFailed) -> None:
    if event.verdict in ("retry", "probe"):
        tries = books.track(event.path).refusals + 1
        _waits(event, at + _least_delay(RetryPolicy(), event.failure.error_class, tries))


def _least_delay(policy: RetryPolicy, error_class: ErrorClass, tries: int) -> int:
    first, longest = DELAYS.get(error_class, (0, 0))
    initial = first if policy.initial_delay_ms is None else policy.initial_delay_ms
    most = max(longest, initial) if policy.max_delay_ms is None else policy.max_delay_ms
    factor = 2 ** min(tries - 1, 40) if policy.backoff_strategy == "exponential" else 1
    return int(min(initial * factor, most) * (1 - policy.jitter))


def _lost(track: Track, loss: e.Loss) -> None:
    ref = Ref(loss.path, loss.phase, loss.number)
    require(not track.returned, R9, f"{ref} was lost, and had been handed back")
    outside = track.node.outside if loss.phase == "forward" else track.node.queue is not None
    require(track.epoch > 0 or outside, R9, f"{ref} was lost, and nobody had it")
    if loss.phase != "forward":
        return
    require(not track.never_begins, R9, f"{ref} was lost, and never began")
    if track.is_unsafe and loss.verdict == "probe":
        due = track.since + track.node.step.retry_policy.timeout_ms
        waited = loss.retry_at is not None and loss.retry_at >= due
        require(waited, R5, f"{ref} is to be looked up at {loss.retry_at}, and may go on until {due}")
    simple = loss.verdict == "retry" and track.node.step.safety != "SAFE_TO_RETRY"
    require(not simple, R3, f"{ref} was lost and is simply retried, and the step is {track.node.step.safety}")
    require(track.losses <= MAX_LOSSES + track.human, R1, f"{ref} was lost after {track.losses} losses")


def _restarted(books: Books, event: e.ScopeRestarted) -> None:
    frame = books.frames[event.path]
    bounded = event.round == frame.round + 1 <= frame.node.scope.max_rounds
    require(bounded, R1, f"round {event.round} of {event.path!r} follows {frame.round}")
    left = f"{event.budget_left} of the retry budget is left after {books.budget}"
    require(event.budget_left == books.budget - 1 >= 0, R1, left)

"""Determines why an execution is blocked."""

from collections.abc import Callable
from typing import Literal

from tenuto.kernel import events as e
from tenuto.kernel.address import Ref
from tenuto.kernel.effects import DispatchAttempt
from tenuto.kernel.evolve import find_step
from tenuto.kernel.naming import shown_step
from tenuto.kernel.state import Execution, FanState, Review, StepState, TimerKind

from .finding import earliest
from .shapes import NOTHING_UNDER_WAY, Activity, Blocked, BlockedReason, time_text


def blocked(state: Execution, activity: Activity = NOTHING_UNDER_WAY) -> Blocked | None:
    """Returns the most important reason why an execution is blocked; None if it proceeds or has finished."""
    if state.finished is not None:
        return None
    for ask in _REASONS:
        if (found := ask(state, activity)) is not None:
            return found
    return None


def _blocked(
    reason: BlockedReason,
    commands: list[str],
    *,
    since: int | None = None,
    waiting_for: str | None = None,
    next_check: int | None = None,
    review_id: str | None = None,
) -> Blocked:
    return {
        "reason": reason,
        "review_id": review_id,
        "since": time_text(since),
        "waiting_for": waiting_for,
        "next_check": time_text(next_check),
        "commands": commands,
    }


def _by_unusable_history(state: Execution, activity: Activity) -> Blocked | None:
    if not activity.set_aside:
        return None
    return _blocked("incompatible", ["pause", "cancel"], since=state.at)


def _by_pause(state: Execution, activity: Activity) -> Blocked | None:
    pause = state.pause
    if pause is None:
        return None
    review = next((review for review in state.reviews.values() if review.kind == "escalation"), None)
    # approvals can be answered during a pause
    asked = any(review.kind == "approval" for review in state.reviews.values())
    return _blocked(
        "paused",
        ["resume", *(_REVIEW_COMMANDS["approval"] if asked else ()), "cancel"],
        since=pause.since,
        waiting_for=pause.reason or None,
        next_check=pause.limit_at,
        review_id=None if review is None else review.id,
    )


def _by_key(state: Execution, activity: Activity) -> Blocked | None:
    if state.admitted:
        return None
    return _blocked("concurrency_key", ["cancel"], since=state.at, waiting_for=state.concurrency_key)


_REVIEW_COMMANDS: dict[e.ReviewKind, list[str]] = {
    "approval": ["approve", "reject"],
    "compensation": ["resolve:compensate", "resolve:completed", "resolve:not_completed", "resolve:retry"],
    "compensation_failed": ["resolve:retry", "resolve:completed", "resolve:dismiss"],
    "indeterminate": ["resolve:completed", "resolve:not_completed", "resolve:compensate"],
    "escalation": ["resolve:completed", "resume"],
    "dead_letter": ["retry", "resolve:dismiss"],
}


def _by_person(state: Execution, activity: Activity) -> Blocked | None:
    open = [review for review in state.reviews.values() if review.kind != "dead_letter"]
    if not open or state.moving:
        return None
    # Reviews that the engine opened come before approvals, which the author planned.
    review = min(open, key=lambda review: (review.kind == "approval", review.opened_at))
    return _blocked(
        _reason_of(state, review),
        [*_answers_to(state, review), "cancel"],
        since=review.opened_at,
        waiting_for=shown_step(state, review.path),
        next_check=review.due_at,
        review_id=review.id,
    )


def _answers_to(state: Execution, review: Review) -> list[str]:
    """Returns the commands that a review accepts. `compensate` is listed only if some step has a compensation."""
    answers = _REVIEW_COMMANDS[review.kind]
    if "resolve:compensate" not in answers or any(node.compensable for node in state.plan.root.walk()):
        return answers
    # reviews of this kind already offer `not_completed`, which does the same
    given_up = [] if review.kind == "compensation" else ["resolve:dismiss"]
    return [answer for answer in answers if answer != "resolve:compensate"] + given_up


def _reason_of(state: Execution, review: Review) -> BlockedReason:
    if review.kind == "approval":
        return "approval"
    step = find_step(state, review.path)
    failure = step.failure if step is not None else None
    required = failure is not None and failure.error_class == "COMPENSATION_REQUIRED"
    return "compensation_required" if review.kind == "compensation" and required else "review"


def _by_work(reason: Literal["incompatible", "no_worker", "bus", "limit", "slot"]) -> Callable[..., Blocked | None]:
    def ask(state: Execution, activity: Activity) -> Blocked | None:
        if activity.running or not activity.waiting:
            return None
        found = next(((ref, w) for ref, w in activity.waiting.items() if w.reason == reason), None)
        if found is None:
            return None
        ref, waiting = found
        return _blocked(
            reason,
            ["pause", "cancel"],
            since=_granted_at(state, ref),
            waiting_for=waiting.what or shown_step(state, ref.path),
        )

    return ask


def _granted_at(state: Execution, ref: Ref) -> int | None:
    holder = state.nodes.get(ref.path) if ref.phase == "plan" else find_step(state, ref.path)
    if isinstance(holder, FanState) or holder is None or holder.open is None:
        return None
    return holder.open.granted_at


def _by_callback(state: Execution, activity: Activity) -> Blocked | None:
    for key, effect in state.agenda.items():
        if not isinstance(effect, DispatchAttempt) or effect.ref in activity.waiting:
            continue
        step = find_step(state, effect.ref.path)
        if step is not None and step.open is not None and step.open.dispatched_at:
            assert isinstance(key, Ref)
            due = earliest(state, ("ack", "result"), key.path)
            return _blocked(
                "callback",
                ["cancel"],
                since=step.open.dispatched_at,
                waiting_for=shown_step(state, key.path),
                next_check=due,
            )
    return None


def _by_delay(state: Execution, activity: Activity) -> Blocked | None:
    kinds: tuple[TimerKind, ...] = ("retry", "probe", "round")
    due, kind, path = min(
        ((due, kind, path) for (kind, path), due in state.timers.items() if kind in kinds), default=(0, "", "")
    )
    if not due:
        return None
    node = find_step(state, path) or state.nodes.get(path)
    step = node if isinstance(node, StepState) else None
    lost = step is not None and step.failure is not None and step.failure.code == "worker_lost"
    reason: BlockedReason = "worker_lost" if lost else "retry"
    if kind == "probe" and step is not None and step.node.step.safety == "NOT_SAFE_TO_RETRY":
        reason = "reconcile"  # whatever happened to the attempt, it is not simply made again
    # No attempt runs, so the execution has been blocked since its last event.
    return _blocked(reason, ["pause", "cancel"], since=state.at, waiting_for=shown_step(state, path), next_check=due)


def _by_signal(state: Execution, activity: Activity) -> Blocked | None:
    for name, paths in state.waits.items():
        path = next(iter(paths))
        step = find_step(state, path)
        since = step.opened_at if step is not None else None
        due = state.timers.get(("deadline", path))
        return _blocked("signal", ["signal", "cancel"], since=since, waiting_for=name, next_check=due)
    return None


def _by_timer(state: Execution, activity: Activity) -> Blocked | None:
    due, path = min(((due, path) for (kind, path), due in state.timers.items() if kind == "wait"), default=(0, ""))
    if not due:
        return None
    step = find_step(state, path)
    since = step.opened_at if step is not None else None
    return _blocked("timer", ["pause", "cancel"], since=since, waiting_for=shown_step(state, path), next_check=due)


def _unless_running(ask: Callable[[Execution, Activity], Blocked | None]) -> Callable[..., Blocked | None]:
    return lambda state, activity: None if activity.running else ask(state, activity)


_REASONS: tuple[Callable[..., Blocked | None], ...] = (
    _by_unusable_history,
    _by_pause,
    _by_key,
    _by_person,
    _by_work("incompatible"),
    _by_work("no_worker"),
    _by_work("bus"),
    _unless_running(_by_callback),
    _by_work("limit"),
    _by_work("slot"),
    _unless_running(_by_delay),
    _unless_running(_by_signal),
    _unless_running(_by_timer),
)

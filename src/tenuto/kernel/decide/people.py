"""Decisions on reviews, and signals."""

from typing import Literal, NamedTuple

from tenuto.kernel.definition import MAX_EARLY_SIGNAL_BYTES, MAX_EARLY_SIGNALS
from tenuto.kernel.events import (
    NULL,
    Failure,
    Resolution,
    ReviewResolved,
    SignalKept,
    WaitEnded,
)
from tenuto.kernel.evolve import find_step, step_at
from tenuto.kernel.facts import APPLIED, Answer, Decide, Refused, Signal
from tenuto.kernel.retry import may_try_again
from tenuto.kernel.state import Execution, Review, StepState

from . import authority
from .attempts import fail_step, go_on, mark_of, step_disposition, try_again
from .control import lift_pause
from .ending import advance_undo, finish
from .length import refused_when_long
from .open_reviews import find_review
from .scopes import advance_all
from .turn import Turn, encode, may_repeat

Effect = Literal["succeed", "retry", "fail", "undo", "skip", "close"]


class Meaning(NamedTuple):
    """The effect of a resolution on a waiting forward step, and on a waiting compensation."""

    forward: Effect | None
    undo: Effect | None


# The resolutions that each kind of review accepts, and their effects. Dead letters and escalations are separate.
RESOLUTIONS: dict[str, dict[Resolution, Meaning]] = {
    "approval": {
        "approved": Meaning("succeed", None),
        "rejected": Meaning("fail", None),
    },
    "compensation": {
        "compensate": Meaning("undo", "retry"),
        "completed": Meaning("succeed", "succeed"),
        "not_completed": Meaning("fail", "skip"),
        "retry": Meaning("retry", "retry"),
        "dismiss": Meaning("fail", "skip"),
    },
    "indeterminate": {
        "completed": Meaning("succeed", None),
        "not_completed": Meaning("retry", None),
        "retry": Meaning("retry", None),
        "compensate": Meaning("undo", None),
        "dismiss": Meaning("fail", None),
    },
    "compensation_failed": {
        "retry": Meaning(None, "retry"),
        "compensate": Meaning(None, "retry"),
        "completed": Meaning(None, "succeed"),
        "dismiss": Meaning(None, "skip"),
    },
    "escalation": {
        "completed": Meaning("close", None),
        "retry": Meaning("close", None),
        "not_completed": Meaning("fail", None),
        "dismiss": Meaning("close", None),
    },
    "dead_letter": {
        "completed": Meaning("close", None),
        "dismiss": Meaning("close", None),
    },
}
# `completed` and `not_completed` also decide approvals; `approve` and `reject` also decide compensation reviews.
_SYNONYMS: dict[tuple[str, Resolution], Resolution] = {
    ("approval", "completed"): "approved",
    ("approval", "not_completed"): "rejected",
    ("compensation", "approved"): "compensate",
    ("compensation", "rejected"): "dismiss",
}


def decided(turn: Turn, fact: Decide) -> Answer:
    state = turn.state
    review = find_review(state, fact)
    if isinstance(review, Refused):
        return review
    if (denied := authority.denied(state, review, fact)) is not None:
        return denied
    resolution = _SYNONYMS.get((review.kind, fact.resolution), fact.resolution)
    meaning = RESOLUTIONS[review.kind].get(resolution)
    if meaning is None:
        allowed = ", ".join(RESOLUTIONS[review.kind])
        return Refused("bad_resolution", f"a review of kind {review.kind} cannot be resolved as {resolution}", allowed)
    if fact.again and resolution == "retry" and not _tries_step_again(state, review, meaning):
        text = "`again` applies to the effect of a step, not to its compensation"
        return Refused("bad_resolution", text, "retry without `again`")
    if review.kind == "escalation" and state.finished is None:
        return _decide_escalation(turn, fact, review, resolution)
    if meaning.forward == "close" or state.finished is not None:
        turn.emit(ReviewResolved(review.id, resolution, "close", fact.reason, fact.result))
        return APPLIED
    step = step_at(state, review.path)
    if step.undo in ("awaiting_approval", "failed"):
        assert meaning.undo is not None
        _decide_undo(turn, fact, review, step, resolution, meaning.undo)
    else:
        assert meaning.forward is not None
        _decide_forward(turn, fact, review, step, resolution, meaning.forward)
    return APPLIED


def _decide_escalation(turn: Turn, fact: Decide, review: Review, resolution: Resolution) -> Answer:
    """Resumes the execution. A step whose attempts are spent gets a new round of them, or fails for good."""
    state = turn.state
    step = find_step(state, review.path)
    spent = step is not None and step.review == review.id
    if resolution == "not_completed" and not spent:
        allowed = "completed, retry, dismiss"
        return Refused("bad_resolution", "the step that escalated is still being attempted", allowed)
    if resolution == "dismiss" and spent:
        return Refused("bad_resolution", "a step waits for this decision", "retry, completed, not_completed")
    failure = step.failure if step is not None and resolution == "not_completed" else None
    verdict: Literal["fail", "retry", "close"] = "fail" if failure is not None else "retry" if spent else "close"
    turn.emit(ReviewResolved(review.id, resolution, verdict, fact.reason, fact.result, failure))
    if resolution == "dismiss":
        return APPLIED
    if state.pause is not None:
        lift_pause(turn, owned=True)
    if step is not None and spent:
        if failure is not None:
            fail_step(turn, step, failure)
        else:
            try_again(turn, step)
    advance_all(turn)
    return APPLIED


def _tries_step_again(state: Execution, review: Review, meaning: Meaning) -> bool:
    """Returns whether the step itself is retried.

    A compensation keeps its key, which belongs to the original effect.
    """
    step = find_step(state, review.path)
    is_undo = step is not None and step.undo in ("awaiting_approval", "failed")
    return meaning.forward == "retry" and not is_undo and state.finished is None


def _decide_forward(
    turn: Turn, fact: Decide, review: Review, step: StepState, resolution: Resolution, effect: Effect
) -> None:
    state = turn.state
    effect = _possible(state, step, resolution, effect)
    failure: Failure | None = None
    result = fact.result
    if effect in ("fail", "undo", "skip"):
        failure = step.failure or Failure("NON_RETRYABLE", resolution, fact.reason or resolution, step.path)
    if review.kind == "approval" and effect == "succeed":
        result = encode({"approved": True, "by": fact.actor, "comment": fact.reason}) if result == NULL else result
    variable, mark = None, None
    if effect == "succeed":
        variable, mark = step.node.step.set_variable, mark_of(state, step.node, step.path)
    turn.emit(ReviewResolved(review.id, resolution, effect, fact.reason, result, failure, fact.again, variable, mark))
    match effect:
        case "succeed" | "skip":
            go_on(turn, step)
        case "retry":
            try_again(turn, step)
        case _:
            assert failure is not None
            fail_step(turn, step, failure)


def _possible(state: Execution, step: StepState, resolution: Resolution, effect: Effect) -> Effect:
    """Adjusts the effect of a resolution. After a cancel, nothing is attempted again."""
    spent = resolution == "not_completed" and not may_try_again(step.node.step, step.tries)
    if effect == "retry" and (spent or not may_repeat(state, step)):
        effect = "fail"
    if effect == "undo" and not step.node.compensable:
        effect = "fail"
    return step_disposition(state, step) if effect == "fail" else effect


def _decide_undo(
    turn: Turn, fact: Decide, review: Review, step: StepState, resolution: Resolution, effect: Effect
) -> None:
    state = turn.state
    undo = state.undo
    assert undo is not None
    breaker_open = undo.stopped == "circuit_open"
    turn.emit(ReviewResolved(review.id, resolution, effect, fact.reason, fact.result))
    if effect == "retry":
        if state.pause is None:
            turn.grant(step.path, "compensate", step.undo_number + 1)
    elif breaker_open and effect == "skip" and not undo.failed and not undo.open and state.pause is None:
        finish(turn, undo.cause, undo.failure)  # the breaker stays open: skipped compensations stay skipped
    else:
        advance_undo(turn)


def signaled(turn: Turn, fact: Signal) -> Answer:
    state = turn.state
    if _was_heard(state, fact):
        return APPLIED
    if (refused := refused_signal(state, fact)) is not None:
        return refused
    waiting = state.waits.get(fact.name)
    if waiting:
        step = step_at(state, next(iter(waiting)))
        turn.emit(WaitEnded(step.path, fact.id, fact.payload, step.node.step.set_variable, fact.name))
        go_on(turn, step)
    else:
        turn.emit(SignalKept(fact.name, fact.id, fact.payload))
    return APPLIED


def refused_signal(state: Execution, fact: Signal) -> Refused | None:
    """Returns why the execution refuses this signal; None if it accepts it, or did before."""
    if _was_heard(state, fact):
        return None
    if state.finished is not None:
        return Refused("terminal", f"the execution is {state.finished}: it accepts no signals", "")
    if fact.name in state.waits:
        return refused_when_long(state)
    kept = sum(len(signals) for signals in state.signals.values())
    size = state.signal_bytes + len(fact.id) + len(fact.payload)
    if kept < MAX_EARLY_SIGNALS and size <= MAX_EARLY_SIGNAL_BYTES:
        return refused_when_long(state)
    limit = f"{MAX_EARLY_SIGNALS:,} signals and {MAX_EARLY_SIGNAL_BYTES:,} bytes"
    return Refused(
        "too_many_signals",
        f"no step waits for {fact.name!r} yet, and an execution keeps at most {limit} that come early",
        "send it again when a step waits for it",
    )


def _was_heard(state: Execution, fact: Signal) -> bool:
    if fact.id in state.heard:
        return True
    return state.finished is None and any(signal.id == fact.id for kept in state.signals.values() for signal in kept)

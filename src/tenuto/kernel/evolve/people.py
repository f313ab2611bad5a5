"""Applies events about waits, signals and reviews."""

from collections import deque

from tenuto.kernel import events as e
from tenuto.kernel.state import Execution, KeptSignal, Review, StepState
from tenuto.kernel.transitions import set_compensation, set_status

from .nodes import close_step, complete, not_made, opened, reached
from .parts import clear_timer, find_step, set_moving, set_timer, step_at
from .undo import close_undo, enter_undo

MAX_HEARD = 1_000


def wait_opened(state: Execution, event: e.WaitOpened) -> None:
    step = opened(state, event.path)
    step.opened_at = step.opened_at or state.at
    set_status(step, "running")
    set_moving(state, step, True)
    if event.kind == "signal":
        step.waits_for = event.name
        state.waits.setdefault(event.name, {})[event.path] = None
    if event.due_at is not None:
        set_timer(state, "wait", event.path, event.due_at)
    if event.deadline is not None:
        set_timer(state, "deadline", event.path, event.deadline)


def wait_ended(state: Execution, event: e.WaitEnded) -> None:
    step = step_at(state, event.path)
    name = step.waits_for
    stop_waiting(state, step)
    if name is not None:
        _hear(state, event.by)
        kept = state.signals.get(name)
        if kept and kept[0].id == event.by:
            state.signal_bytes -= kept.popleft().size
            if not kept:
                del state.signals[name]
    complete(state, step, event.payload, event.variable, None)


def _hear(state: Execution, id: str) -> None:
    state.heard[id] = None
    if len(state.heard) > MAX_HEARD:
        del state.heard[next(iter(state.heard))]


def stop_waiting(state: Execution, step: StepState) -> None:
    if step.waits_for is not None:
        waiting = state.waits[step.waits_for]
        del waiting[step.path]
        if not waiting:
            del state.waits[step.waits_for]
        step.waits_for = None


def signal_kept(state: Execution, event: e.SignalKept) -> None:
    signal = KeptSignal(event.id, state.seq, event.payload)
    state.signals.setdefault(event.name, deque()).append(signal)
    state.signal_bytes += signal.size


def review_opened(state: Execution, event: e.ReviewOpened) -> None:
    state.reviews[event.id] = Review(
        event.id, event.kind, event.path, state.at, event.due_at, event.reason, event.permission
    )
    if event.due_at is not None:
        set_timer(state, "review", event.id, event.due_at)
    if event.kind == "dead_letter":
        return
    if event.kind == "escalation":
        spent = find_step(state, event.path)
        if spent is not None and spent.status == "awaiting_approval":  # it waits for the decision itself
            spent.review = event.id
        return
    if event.kind == "approval":
        step = opened(state, event.path)
        step.opened_at = state.at
        set_status(step, "awaiting_approval")
    else:
        step = reached(state, event.path)
        if event.kind == "compensation" and state.undo is not None:
            set_compensation(step, "awaiting_approval")
            enter_undo(state.undo, event.path)
    step.review = event.id


def review_resolved(state: Execution, event: e.ReviewResolved) -> None:
    review = state.reviews.pop(event.id)
    clear_timer(state, "review", event.id)
    step = find_step(state, review.path)
    if step is not None and step.review == event.id:
        step.review = None
    if event.verdict == "close":
        return
    assert step is not None
    if step.undo in ("awaiting_approval", "failed"):
        resolve_undo(state, step, event)
        return
    match event.verdict:
        case "succeed":
            complete(state, step, event.result, event.variable, event.key)
        case "retry":
            step.late = None
            step.unknown_since = 0
            clear_timer(state, "reconcile", step.path)
            set_status(step, "retrying")  # immediately, or on resume
            set_moving(state, step, True)
            if event.again:
                step.generation += 1
            if review.kind == "escalation":  # a new round of attempts
                step.tries = step.losses = 0
        case "skip" | "fail" | "undo":
            step.failure = event.failure or step.failure
            if event.verdict == "undo":
                step.half_done = state.seq
            elif event.resolution == "not_completed":
                not_made(state, step)
            close_step(state, step, "skipped" if event.verdict == "skip" else "failed")


def resolve_undo(state: Execution, step: StepState, event: e.ReviewResolved) -> None:
    if event.verdict == "succeed":
        step.undo_seq = state.seq
        close_undo(state, step, "done")
    elif event.verdict == "skip":
        close_undo(state, step, "skipped")
    else:
        set_compensation(step, "retrying")  # immediately, or on resume
        step.undo_tries = step.undo_losses = 0
        set_moving(state, step, True)
        set_timer(state, "retry", step.path, state.at)

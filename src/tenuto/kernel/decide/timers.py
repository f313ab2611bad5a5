"""Fires due timers in the order of their times. A pause holds back timers that would start an attempt."""

from tenuto.kernel.address import Ref, fan_of
from tenuto.kernel.events import AttemptAbandoned, Failure, ReviewResolved, StepExpired, StepsReady, WaitEnded
from tenuto.kernel.evolve import fan_at, find_step, scope_above, scope_at, step_at
from tenuto.kernel.facts import TimedOut
from tenuto.kernel.state import HELD_BY_PAUSE, SHIFTED_BY_PAUSE, Execution, ScopeState, StepState, TimerKind

from .attempts import fail_step, go_on, grant_probe, open_review, step_disposition, time_out, try_again
from .cancel import expire_root, request_cancel
from .runs import queue_attempt
from .scopes import advance, close_scope, settle_fan
from .turn import Turn, may_have_been_made


def fire_due(turn: Turn, until: int) -> None:
    """Fires due timers in order. After half of the budget is used, ends of waits are left for the next turn.

    A wait lasts at least as long as specified, and no fact competes with its end. Timeouts and deadlines always fire.
    """
    state = turn.state
    while not turn.is_spent and (due := _next_due(state, until)) is not None:
        _fire_one(turn, due, until)
    if turn.is_spent:
        for due in sorted((key for key, at in state.timers.items() if at <= until), key=lambda key: state.timers[key]):
            is_due = state.timers.get(due, until + 1) <= until  # earlier timers may have removed or moved it
            if is_due and due[0] not in _PATIENT and not _is_held(state, due[0]):
                _fire_one(turn, due, until)


_PATIENT: tuple[TimerKind, ...] = ("wait", "round")


def _fire_one(turn: Turn, due: tuple[TimerKind, str], until: int) -> None:
    kind, path = due
    turn.cause = f"timer:{kind}"
    _fire(turn, kind, path)
    left = turn.state.timers.get(due, until + 1)
    assert left > until or _is_held(turn.state, kind), f"timer {due} did not act"


def _is_held(state: Execution, kind: TimerKind) -> bool:
    return state.pause is not None and (kind in HELD_BY_PAUSE or kind in SHIFTED_BY_PAUSE)


def _next_due(state: Execution, until: int) -> tuple[TimerKind, str] | None:
    wake_at = state.wake_at
    if wake_at is None or wake_at > until:
        return None
    if state.pause is None:
        _, kind, path = state.timer_heap[0]
        return kind, path
    return min(
        (key for key, due in state.timers.items() if due <= until and not _is_held(state, key[0])),
        key=lambda key: state.timers[key],
        default=None,
    )


def _fire(turn: Turn, kind: TimerKind, path: str) -> None:
    state = turn.state
    match kind:
        case "retry":
            _retry(turn, path)
        case "probe":
            grant_probe(turn, step_at(state, path))
        case "round":
            turn.emit(StepsReady((path,)))
            advance(turn, scope_at(state, path))
        case "wait":
            step = step_at(state, path)
            turn.emit(WaitEnded(path, "timer", signal=""))
            go_on(turn, step)
        case "ack" | "result":
            step = step_at(state, path)
            assert step.open is not None
            time_out(turn, step, kind, step.open.dispatched_at, "", TimedOut())
        case "deadline":
            _expire_step(turn, step_at(state, path), "deadline", "the step's deadline passed")
        case "reconcile":
            _expire_step(turn, step_at(state, path), "reconcile_timeout", "it could not be found out in time")
        case "scope":
            scope = scope_at(state, path)
            failure = Failure("NON_RETRYABLE", "scope_timeout", "the scope's time is over", path)
            close_scope(turn, scope, "timed_out", failure)
            advance(turn, scope)
        case "execution":
            expire_root(turn, "deadline", "the execution's deadline passed")
        case "pending":
            _abandon_all(turn, "pending_timeout", "no worker took the execution in time")
            expire_root(turn, "pending_timeout", "no worker took the execution in time")
        case "opening":
            queue_attempt(turn)
        case "retrying":
            expire_root(turn, "retry_timeout", "the attempt could not be queued in time")
        case "resuming":
            _abandon_all(turn, "resume_timeout", "no worker claimed the resumed run in time")
            expire_root(turn, "resume_timeout", "no worker claimed the resumed run in time")
        case "review":
            step = step_at(state, state.reviews[path].path)
            _expire_step(turn, step, "approval_timeout", "nobody decided in time")
        case "pause":
            turn.actor = "system"
            request_cancel(turn, state.plan.definition.policies.cancel, "pause_limit")


def _retry(turn: Turn, path: str) -> None:
    state = turn.state
    node = state.nodes.get(path)
    if isinstance(node, ScopeState):
        turn.grant(path, "plan", node.plan_number + 1)
        return
    step = step_at(state, path)
    if step.undo == "retrying":
        turn.grant(path, "compensate", step.undo_number + 1)
    else:
        try_again(turn, step)


def _expire_step(turn: Turn, step: StepState, code: str, summary: str) -> None:
    """Handles an expired step. If the outcome is unknown, a person decides; otherwise the step is timed out."""
    state = turn.state
    unknown = step.node.step.safety != "SAFE_TO_RETRY" and may_have_been_made(step)
    failure = Failure("INDETERMINATE" if unknown else "TRANSIENT", code, summary, step.path)
    if step.open is not None:
        turn.emit(AttemptAbandoned((step.open.ref,), "expired"))
    if unknown or (step.review is not None and state.reviews[step.review].kind != "approval"):
        turn.emit(StepExpired(step.path, "review", failure))
        if step.review is not None:  # a review is already open
            return
        open_review(turn, step, "indeterminate", failure)
        advance(turn, scope_above(state, step.path))
        return
    if step.review is not None:
        turn.emit(ReviewResolved(step.review, "dismiss", "close", reason=summary))
    verdict = step_disposition(state, step)
    turn.emit(StepExpired(step.path, verdict, failure))
    if verdict == "fail":
        fail_step(turn, step, failure)
    else:
        go_on(turn, step)


def _abandon_all(turn: Turn, code: str, summary: str) -> None:
    refs = tuple(sorted(key for key in turn.state.agenda if isinstance(key, Ref)))
    if refs:
        turn.emit(AttemptAbandoned(refs, "expired"))
    for path in [ref.path for ref in refs]:
        step = find_step(turn.state, path)
        if step is not None:
            failure = Failure("TRANSIENT", code, summary, path)
            turn.emit(StepExpired(path, "fail", failure))
    for path in [ref.path for ref in refs]:
        clone = fan_of(path)
        if clone is not None:
            settle_fan(turn, fan_at(turn.state, clone[0]))

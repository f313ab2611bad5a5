"""Applies events about attempts: granted, begun, reported, lost."""

from tenuto.kernel import events as e
from tenuto.kernel.address import Phase, Ref
from tenuto.kernel.effects import DispatchAttempt, RunAttempt
from tenuto.kernel.state import Execution, OpenAttempt, ScopeState, StepState
from tenuto.kernel.transitions import set_compensation, set_status

from .nodes import close_step, complete, leave_queue, not_made, opened, reached, unqueue
from .parts import (
    PROBE_TIMERS,
    clear_timer,
    estimate_of,
    free_slot,
    leave_pending,
    note_usage,
    scope_above,
    scope_at,
    set_moving,
    set_scope_moving,
    set_timer,
    step_at,
    take_slot,
)
from .undo import close_undo, enter_undo


def grant(state: Execution, ref: Ref) -> None:
    phase = ref.phase
    if phase == "plan":
        grant_plan(state, ref)
        return
    path = ref.path
    step = opened(state, path) if phase == "forward" else reached(state, path)
    open = step.open
    # returned by its worker, or never begun: granted again with the same number
    if open is not None and open.ref == ref:
        open.epoch = state.epoch
        open.granted_at = state.at
        return
    step.open = OpenAttempt(ref, state.epoch, state.at)
    state.set_aside += estimate_of(state, ref)
    set_moving(state, step, True)
    if state.timers:
        clear_timer(state, "retry", path)
    if phase == "forward":
        grant_forward(state, step, ref)
    elif phase == "compensate":
        step.undo_number = ref.number
        set_compensation(step, "running")
        assert state.undo is not None
        enter_undo(state.undo, path)
    else:
        if phase == "guard":
            step.guard_number = ref.number
        else:
            step.reconcile_number = ref.number
        clear_timer(state, "probe", path)
    node = step.node
    outside = node.outside if phase == "forward" else node.queue is not None
    state.agenda[ref] = DispatchAttempt(ref) if outside else RunAttempt(ref)
    state.changed.append(ref)


def grant_forward(state: Execution, step: StepState, ref: Ref) -> None:
    if step.status != "pending":
        unqueue(scope_above(state, ref.path), step.node.index)
    step.number = ref.number
    step.late = None
    step.unknown_since = 0
    set_status(step, "running")
    take_slot(state, step)
    if step.opened_at == 0:
        step.opened_at = state.at
        timeout_ms = step.node.step.timeout_ms
        if timeout_ms is not None:
            set_timer(state, "deadline", ref.path, state.at + timeout_ms)


def grant_plan(state: Execution, ref: Ref) -> None:
    scope = scope_at(state, ref.path)
    if scope.open is not None and scope.open.ref == ref:
        scope.open.epoch = state.epoch
        return
    scope.open = OpenAttempt(ref, state.epoch, state.at)
    state.set_aside += estimate_of(state, ref)
    scope.plan_number = ref.number
    clear_timer(state, "retry", ref.path)
    set_scope_moving(state, scope, True)
    state.agenda[ref] = DispatchAttempt(ref) if scope.node.outside else RunAttempt(ref)
    state.changed.append(ref)


def end_attempt(state: Execution, step: StepState) -> None:
    open = step.open
    if open is None:
        return
    step.open = None
    state.set_aside -= estimate_of(state, open.ref)
    del state.agenda[open.ref]
    state.changed.append(open.ref)
    if open.dispatched_at or open.acked:
        clear_timer(state, "ack", step.path)
        clear_timer(state, "result", step.path)
    if open.ref.phase == "forward":
        free_slot(state, step)


def end_plan(state: Execution, scope: ScopeState, retry_at: int | None = None) -> None:
    open = scope.open
    assert open is not None
    scope.open = None
    state.set_aside -= estimate_of(state, open.ref)
    del state.agenda[open.ref]
    state.changed.append(open.ref)
    set_scope_moving(state, scope, retry_at is not None)
    if retry_at is not None:
        set_timer(state, "retry", scope.path, retry_at)


def attempts_granted(state: Execution, event: e.AttemptsGranted) -> None:
    leave_pending(state)


def attempt_begun(state: Execution, event: e.AttemptBegun) -> None:
    open = step_at(state, event.path).open
    assert open is not None
    open.begun_at = state.at
    leave_pending(state)


def attempt_dispatched(state: Execution, event: e.AttemptDispatched) -> None:
    open = step_at(state, event.path).open
    assert open is not None
    open.dispatched_at = state.at
    step_at(state, event.path).refused_dispatches = 0
    leave_pending(state)
    if event.ack_due is not None:
        set_timer(state, "ack", event.path, event.ack_due)
    if event.result_due is not None:
        set_timer(state, "result", event.path, event.result_due)


def dispatch_failed(state: Execution, event: e.DispatchFailed) -> None:
    step = step_at(state, event.path)
    end_attempt(state, step)
    step.refused_dispatches += 1
    # the directive may have been received
    if event.phase == "forward" and event.failure.error_class == "INDETERMINATE":
        step.late = Ref(event.path, event.phase, event.number)
        step.unknown_since = step.unknown_since or state.at
    after_failure(state, step, event.phase, event.failure, event.verdict, event.retry_at)


def attempt_acked(state: Execution, event: e.AttemptAcked) -> None:
    step = step_at(state, event.path)
    assert step.open is not None
    step.open.acked = True
    note_workspace(state, step, event.workspace)
    clear_timer(state, "ack", event.path)
    if event.result_due is not None:
        set_timer(state, "result", event.path, event.result_due)


def note_workspace(state: Execution, step: StepState, workspace: str) -> None:
    """Keeps where a receiver left its work: the next directive of the execution names it."""
    if workspace:
        step.workspace = state.workspace = workspace


def attempt_succeeded(state: Execution, event: e.AttemptSucceeded) -> None:
    step = step_at(state, event.path)
    note_workspace(state, step, event.workspace)
    leave_pending(state)
    end_attempt(state, step)
    note_usage(state, event)
    state.ok_times.append(state.at)
    if event.phase == "compensate":
        step.undo_seq = state.seq
        close_undo(state, step, "done")
    else:
        complete(state, step, event.result, event.variable, event.key)


def attempt_failed(state: Execution, event: e.AttemptFailed | e.AttemptTimedOut) -> None:
    note_usage(state, event)
    leave_pending(state)
    state.error_times.append(state.at)
    if event.phase == "plan":
        scope = scope_at(state, event.path)
        scope.plan_tries += 1
        end_plan(state, scope, event.retry_at)
        return
    step = step_at(state, event.path)
    ref = Ref(event.path, event.phase, event.number)
    if isinstance(event, e.AttemptFailed):
        note_workspace(state, step, event.workspace)
    end_attempt(state, step)
    if event.phase == "forward":
        if event.number > step.tried:  # each attempt is counted once
            step.tries += 1
            step.tried = event.number
        if event.half_done:
            step.half_done = state.seq
        if isinstance(event, e.AttemptTimedOut) or event.failure.error_class == "INDETERMINATE":
            step.late = ref
            step.unknown_since = step.unknown_since or state.at
        elif event.verdict == "probe" and step.node.step.safety == "NOT_SAFE_TO_RETRY":
            _await_reconciliation(state, step, event.retry_at)
        else:
            step.late = None
            step.unknown_since = 0
    elif event.phase == "compensate":
        step.undo_tries += 1
    timed_out = isinstance(event, e.AttemptTimedOut)
    after_failure(state, step, event.phase, event.failure, event.verdict, event.retry_at, timed_out=timed_out)


def _await_reconciliation(state: Execution, step: StepState, asked_at: int | None) -> None:
    """The attempt has reported, so no late answer counts. Its effect is looked up from `asked_at` on."""
    assert asked_at is not None
    step.late = None
    step.unknown_since = step.unknown_since or state.at
    set_timer(state, "reconcile", step.path, asked_at + step.node.step.reconcile_timeout_ms)


def attempt_lost(state: Execution, event: e.AttemptLost) -> None:
    for loss in event.losses:
        failure = e.Failure("TRANSIENT", "worker_lost", "the worker that ran this attempt is gone", loss.path)
        if loss.phase == "plan":
            scope = scope_at(state, loss.path)
            scope.plan_losses += 1
            end_plan(state, scope, loss.retry_at)
            continue
        step = step_at(state, loss.path)
        begun_at = step.open.begun_at if step.open is not None else 0
        end_attempt(state, step)
        if loss.phase == "forward":
            step.losses += 1
            step.late = Ref(loss.path, loss.phase, loss.number)
            step.unknown_since = begun_at or state.at
            if loss.half_done:
                step.half_done = state.seq
        elif loss.phase == "compensate":
            step.undo_losses += 1
        after_failure(state, step, loss.phase, failure, loss.verdict, loss.retry_at)


def after_failure(
    state: Execution,
    step: StepState,
    phase: Phase,
    failure: e.Failure,
    verdict: e.Verdict,
    retry_at: int | None,
    *,
    timed_out: bool = False,
) -> None:
    if phase == "compensate":
        step.undo_failure = failure
        if verdict == "retry":
            assert retry_at is not None
            set_compensation(step, "retrying")
            set_timer(state, "retry", step.path, retry_at)
        else:
            close_undo(state, step, "failed")
        return
    if phase == "forward":
        step.failure = failure
        leave_queue(state, step)
    match verdict:
        case "retry" | "probe":
            set_status(step, "retrying")
            if retry_at is not None:
                set_timer(state, "retry" if verdict == "retry" else "probe", step.path, retry_at)
            if verdict == "probe" and ("reconcile", step.path) not in state.timers:
                set_timer(state, "reconcile", step.path, state.at + step.node.step.reconcile_timeout_ms)
        case "review":
            await_person(state, step)
        case "skip":
            close_step(state, step, "skipped")
        case "fail":
            close_step(state, step, "timed_out" if timed_out else "failed")


def await_person(state: Execution, step: StepState) -> None:
    for kind in PROBE_TIMERS:
        clear_timer(state, kind, step.path)
    set_moving(state, step, False)
    set_status(step, "awaiting_approval")


def attempts_returned(state: Execution, event: e.AttemptsReturned) -> None:
    for ref in event.refs:
        holder = scope_at(state, ref.path) if ref.phase == "plan" else step_at(state, ref.path)
        assert holder.open is not None
        holder.open.epoch = 0
        holder.open.begun_at = 0  # its start was recorded, but did not happen


def attempt_abandoned(state: Execution, event: e.AttemptAbandoned) -> None:
    for ref in event.refs:
        if ref.phase == "plan":
            end_plan(state, scope_at(state, ref.path))
        else:
            step = step_at(state, ref.path)
            end_attempt(state, step)
            if event.why == "terminated":
                set_moving(state, step, False)


def probe_answered(state: Execution, event: e.ProbeAnswered) -> None:
    step = step_at(state, event.path)
    end_attempt(state, step)
    match event.verdict:
        case "succeed":
            complete(state, step, event.result, event.variable, event.key)
        case "retry":
            step.late = None
            step.unknown_since = 0
            clear_timer(state, "reconcile", event.path)
            set_status(step, "retrying")
        case "again":
            assert event.again_at is not None
            set_status(step, "retrying")
            set_timer(state, "probe", event.path, event.again_at)
        case "skip" | "fail":
            not_made(state, step)
            step.failure = event.failure or step.failure
            close_step(state, step, "skipped" if event.verdict == "skip" else "failed")
        case "review":
            step.failure = event.failure or step.failure
            await_person(state, step)

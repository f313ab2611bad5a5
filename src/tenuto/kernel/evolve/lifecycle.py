"""Applies events about the execution itself: runs, pauses, cancel and end."""

from typing import Literal

from tenuto.kernel import events as e
from tenuto.kernel.address import ROOT, fan_of
from tenuto.kernel.effects import RequestAdmission, RequestHold
from tenuto.kernel.state import SHIFTED_BY_PAUSE, CancelState, Execution, PauseState, ScopeState
from tenuto.kernel.transitions import check_execution

from .nodes import open_scope
from .parts import ADMISSION, HOLD, clear_timer, drop_marks, fan_at, set_timer, step_at
from .structure import begin_flow, repeat_clone, reset_children
from .undo import mark_ancestors_undone


def execution_started(state: Execution, event: e.ExecutionStarted) -> None:
    state.id = event.execution
    state.tenant = event.tenant
    state.rules = event.rules
    state.input = event.input
    state.by_step = event.by_step
    state.each = event.each
    state.variables = dict(event.variables)
    state.correlation_id = event.correlation_id or event.execution
    state.priority = event.priority
    state.concurrency_key = event.concurrency_key
    run = state.plan.run
    if run is not None:
        state.max_attempts = event.max_attempts or run.max_attempts
        claim_or_wait(state, "start", owned=state.epoch > 0)
    open_run(state, event)
    open_scope(state, None, state.plan.root, ROOT)


def open_run(state: Execution, event: e.ExecutionStarted | e.RunOpened) -> None:
    state.hold = event.hold
    state.charged = state.refunded = state.usage = state.tokens = 0
    state.budget_left = state.plan.definition.policies.retry_budget
    state.admitted = event.admitted
    if not event.admitted:
        assert state.concurrency_key is not None
        state.agenda[ADMISSION] = RequestAdmission(state.concurrency_key)
        state.changed.append(ADMISSION)
    if event.deadline is not None:
        set_timer(state, "execution", "", event.deadline)
    if event.pending_until is not None:
        set_timer(state, "pending", "", event.pending_until)


def claim_or_wait(state: Execution, waits_for: Literal["start", "resume"], *, owned: bool) -> None:
    """Records whether a worker has the run, or has to claim it first."""
    state.unclaimed = "" if owned else waits_for
    if owned and waits_for == "start":
        state.running_at = state.at


def run_entered(state: Execution, event: e.RunEntered) -> None:
    state.opens_at = 0
    for kind in ("opening", "retrying"):
        clear_timer(state, kind, "")
    if event.status == "pending":
        state.unclaimed = "start"
        if event.pending_until is not None:
            set_timer(state, "pending", "", event.pending_until)
        return
    if state.unclaimed != "resume":
        state.running_at = state.at
    state.unclaimed = ""
    clear_timer(state, "pending", "")
    clear_timer(state, "resuming", "")
    if event.deadline is not None:
        set_timer(state, "execution", "", event.deadline)


def execution_admitted(state: Execution, event: e.ExecutionAdmitted) -> None:
    state.admitted = True
    del state.agenda[ADMISSION]
    state.changed.append(ADMISSION)


def run_opened(state: Execution, event: e.RunOpened) -> None:
    check_execution(state, "running")
    state.run = event.run
    state.finished = None
    state.outcome = ""
    state.failure = None
    state.cancel = None
    state.undo = None
    if state.agenda.pop(HOLD, None) is not None:
        state.changed.append(HOLD)
    state.retry_hold = 0
    state.retries = False
    for path, generation in event.redo:
        redo(state, path, generation)
    open_run(state, event)
    if state.plan.run is not None:
        open_attempt_of_run(state, event)
    root = state.root
    reset_children(state, root, whole_scopes=True, visits=event.visits)
    begin_flow(state, open_scope(state, None, root.node, ROOT), event.start, event.visits)
    for node in state.nodes.values():
        if isinstance(node, ScopeState):
            node.replans = 0


def open_attempt_of_run(state: Execution, event: e.RunOpened) -> None:
    state.running_at = None
    state.opens_at = event.not_before
    if event.not_before:
        set_timer(state, "opening", "", event.not_before)
    else:
        claim_or_wait(state, "start", owned=event.owned)
    if event.retry_until is not None:
        set_timer(state, "retrying", "", event.retry_until)


def redo(state: Execution, path: str, generation: int) -> None:
    """Marks an effect to be made again, under a new key if the generation rose."""
    drop_marks(state, path)
    clone = fan_of(path)
    if clone is not None:
        fan = fan_at(state, clone[0])
        fan.generations[clone[1]] = generation
        repeat_clone(fan, clone[1])
        live = fan.live.get(clone[1])
        if live is not None:
            live.generation, live.done = generation, False
        return
    step = step_at(state, path)
    step.generation = generation
    step.done = False
    mark_ancestors_undone(state, path)


def execution_finished(state: Execution, event: e.ExecutionFinished) -> None:
    check_execution(state, event.status)
    state.finished = event.status
    state.outcome = event.outcome
    state.failure = event.error
    state.refunded = event.refunded
    state.timers.clear()
    state.timer_heap.clear()
    state.pause = None
    state.retry_hold = event.retry_hold
    state.retries = event.retries or event.retry_hold > 0
    state.opens_at = 0
    state.unclaimed = ""
    if state.retries:
        state.agenda[HOLD] = RequestHold(event.retry_hold, state.run + 1)
        state.changed.append(HOLD)
    if state.agenda.pop(ADMISSION, None) is not None:
        state.changed.append(ADMISSION)


def paused(state: Execution, event: e.Paused) -> None:
    check_execution(state, "paused")
    state.pause = PauseState(state.at, event.reason, event.limit_at)
    if event.limit_at is not None:
        set_timer(state, "pause", "", event.limit_at)


def resumed(state: Execution, event: e.Resumed) -> None:
    check_execution(state, "running")
    if state.pause is not None and state.pause.reason == "escalated":
        state.error_times.clear()  # a person has reviewed the errors, so counting starts again
        state.ok_times.clear()
    state.pause = None
    clear_timer(state, "pause", "")
    if event.resume_until is not None:
        state.unclaimed = "resume"
    for key, due in list(state.timers.items()):
        if key[0] in SHIFTED_BY_PAUSE:
            set_timer(state, key[0], key[1], due + event.shift)
    if event.resume_until is not None:
        set_timer(state, "resuming", "", event.resume_until)


def cancel_requested(state: Execution, event: e.CancelRequested) -> None:
    state.cancel = CancelState(event.mode, event.reason)


def hold_changed(state: Execution, event: e.HoldChanged) -> None:
    """Records that credits for another run were refused, or are no longer needed."""
    state.hold += event.delta
    state.retry_hold = 0
    state.retries = False
    del state.agenda[HOLD]
    state.changed.append(HOLD)

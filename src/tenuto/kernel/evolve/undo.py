"""Applies events about the rollback in progress."""

from tenuto.kernel import events as e
from tenuto.kernel.address import fan_of, parent_of
from tenuto.kernel.state import CLONE_UNDONE, CompensationStatus, Execution, StepState, UndoState
from tenuto.kernel.transitions import set_compensation

from .nodes import fold_clone
from .parts import clear_timer, drop_marks, fan_at, scope_at, set_moving, step_at


def compensation_started(state: Execution, event: e.CompensationStarted) -> None:
    state.undo = UndoState(event.cause, event.groups, event.failure)
    clear_timer(state, "execution", "")
    clear_timer(state, "pending", "")


def compensation_stopped(state: Execution, event: e.CompensationStopped) -> None:
    undo = state.undo
    assert undo is not None
    undo.stopped = event.reason
    if event.reason == "terminated":  # running compensations are not awaited
        for path in (*undo.open, *undo.failed):
            step = step_at(state, path)
            set_compensation(step, "skipped")
            set_moving(state, step, False)


def enter_undo(undo: UndoState, path: str) -> None:
    if path in undo.failed:
        del undo.failed[path]
    elif path not in undo.open:
        undo.cursor += 1
    undo.open[path] = None


def close_undo(state: Execution, step: StepState, status: CompensationStatus) -> None:
    undo = state.undo
    assert undo is not None
    set_compensation(step, status)
    set_moving(state, step, False)
    undo.open.pop(step.path, None)
    if status == "failed":
        undo.failed[step.path] = None
    else:
        undo.failed.pop(step.path, None)
        if not undo.failed:
            undo.stopped = None
        forget_undone(state, step, undone=status == "done")
    if not undo.open and undo.group < len(undo.groups) and undo.cursor == len(undo.groups[undo.group]):
        undo.group += 1
        undo.cursor = 0


def forget_undone(state: Execution, step: StepState, *, undone: bool) -> None:
    """Removes a step from the compensation list, because it was undone or a person gave it up."""
    step.half_done = 0
    if undone:
        step.done = False
        drop_marks(state, step.path)
    clone = fan_of(step.path)
    if clone is None:
        state.compensable.pop(step.path, None)
        step.spared = not undone
    else:
        fan = fan_at(state, clone[0])
        fan.owed.pop(clone[1], None)
        if not undone:
            fan.spared[clone[1]] = None
        elif clone[1] < fan.count:
            fan.marks[clone[1]] = CLONE_UNDONE
        if undone and step.undo_failure is None and step.failure is None:
            fold_clone(fan, clone[1])
    if undone:
        mark_ancestors_undone(state, step.path)


def mark_ancestors_undone(state: Execution, path: str) -> None:
    while path:
        path = parent_of(path)
        scope = scope_at(state, path)
        scope.undone = True

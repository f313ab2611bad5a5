"""Applies events to the state and keeps the agenda up to date. There is no policy here.

Law 1: whatever was decided is in the event or its grants; nothing is decided again.
Law 2: applying costs time proportional to what changes. A restart of a scope touches what was touched in it, no more.
Law 3: the plan is read for structure (edges, layers, declared deadlines), never for a choice.
"""

from collections.abc import Callable

import msgspec

from tenuto.kernel import events as e
from tenuto.kernel.address import Ref, clone_path
from tenuto.kernel.state import Execution

from . import attempts, lifecycle, people, structure, undo
from .nodes import restore_node
from .parts import (
    ADMISSION,
    HOLD,
    estimate_of,
    fan_at,
    find_step,
    holder_of,
    last_completed,
    latest_key,
    scope_above,
    scope_at,
    set_timer,
    step_at,
)

__all__ = [
    "ADMISSION",
    "HOLD",
    "apply",
    "apply_grant",
    "enter",
    "estimate_of",
    "evolve",
    "fan_at",
    "find_step",
    "fold",
    "holder_of",
    "last_completed",
    "latest_key",
    "restore_node",
    "scope_above",
    "scope_at",
    "set_timer",
    "step_at",
]


def evolve(state: Execution, entry: e.Entry) -> None:
    """Applies one entry to `state` in place. The caller owns `state`."""
    assert entry.seq == state.seq + 1, "a history has no gaps"
    enter(state, entry.seq, entry.at, entry.epoch, entry.actor)
    apply(state, entry.event)
    for grant in entry.grants:
        apply_grant(state, grant)


def enter(state: Execution, seq: int, at: int, epoch: int, actor: str | None) -> None:
    """Records the position of the entry that is applied next. The actor of the first entry started the execution."""
    state.seq = seq
    state.at = at
    state.epoch = epoch
    if seq == 1:
        state.started_by = actor


def apply(state: Execution, event: e.Event) -> None:
    kind = type(event)
    _APPLY[kind](state, event)
    for name in _SIZED[kind]:
        state.size += len(getattr(event, name))
    if isinstance(event, e.ExecutionStarted):
        state.size += sum(len(value) for value in (*event.headers.values(), *event.variables.values()))


def apply_grant(state: Execution, grant: e.Grant) -> None:
    if grant.first >= 0:
        for index in range(grant.first, grant.last + 1):
            attempts.grant(state, Ref(clone_path(grant.path, index), grant.phase, grant.number))
    else:
        attempts.grant(state, Ref(grant.path, grant.phase, grant.number))


def fold(state: Execution, history: list[e.Entry]) -> Execution:
    for entry in history:
        evolve(state, entry)
    return state


_APPLY: dict[type, Callable[..., None]] = {  # type: ignore[explicit-any]  # each takes its own event
    e.ExecutionStarted: lifecycle.execution_started,
    e.ExecutionAdmitted: lifecycle.execution_admitted,
    e.RunOpened: lifecycle.run_opened,
    e.ExecutionFinished: lifecycle.execution_finished,
    e.Paused: lifecycle.paused,
    e.Resumed: lifecycle.resumed,
    e.CancelRequested: lifecycle.cancel_requested,
    e.HoldChanged: lifecycle.hold_changed,
    e.AttemptsGranted: attempts.attempts_granted,
    e.AttemptBegun: attempts.attempt_begun,
    e.AttemptDispatched: attempts.attempt_dispatched,
    e.DispatchFailed: attempts.dispatch_failed,
    e.AttemptAcked: attempts.attempt_acked,
    e.AttemptSucceeded: attempts.attempt_succeeded,
    e.AttemptFailed: attempts.attempt_failed,
    e.AttemptTimedOut: attempts.attempt_failed,
    e.AttemptLost: attempts.attempt_lost,
    e.AttemptsReturned: attempts.attempts_returned,
    e.AttemptAbandoned: attempts.attempt_abandoned,
    e.ProbeAnswered: attempts.probe_answered,
    e.StepExpired: structure.step_expired,
    e.StepRefused: structure.step_refused,
    e.StepsReady: structure.steps_ready,
    e.BranchTaken: structure.branch_taken,
    e.Expanded: structure.expanded,
    e.ChildrenAdded: structure.children_added,
    e.NodesClosed: structure.nodes_closed,
    e.ScopeOpened: structure.scope_opened,
    e.ScopeClosing: structure.scope_closing,
    e.ScopeClosed: structure.scope_closed,
    e.ScopeRepeated: structure.scope_repeated,
    e.ScopeRestarted: structure.scope_restarted,
    e.WaitOpened: people.wait_opened,
    e.WaitEnded: people.wait_ended,
    e.SignalKept: people.signal_kept,
    e.ReviewOpened: people.review_opened,
    e.ReviewResolved: people.review_resolved,
    e.CompensationStarted: undo.compensation_started,
    e.CompensationStopped: undo.compensation_stopped,
    e.RunEntered: lifecycle.run_entered,
}
# Fields of each event whose length users determine: payloads, reasons, names.
_SIZED = {
    kind: tuple(field.name for field in msgspec.structs.fields(kind) if field.type in (str, msgspec.Raw))
    for kind in _APPLY
}

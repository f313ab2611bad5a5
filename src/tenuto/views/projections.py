"""Rows derived from entries: execution status, reviews, tasks, audit. Pure.

All rows follow from the entries and the resulting state, and are written in the transaction that records the entries.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from msgspec import Struct

from tenuto.kernel import events as e
from tenuto.kernel.address import Phase, Ref
from tenuto.kernel.effects import DispatchAttempt, RunAttempt
from tenuto.kernel.events import Entry, ExecutionStarted, ReviewOpened, ReviewResolved, RunOpened
from tenuto.kernel.evolve import holder_of
from tenuto.kernel.naming import shown_step
from tenuto.kernel.plan import handler_name
from tenuto.kernel.state import TERMINAL, Execution

PRIORITIES = {"normal": 0, "high": 1}
UNDO = 2  # compensations come first, because half-done work may block other executions

Line: TypeAlias = tuple[str, str, str]  # the queue for a concurrency key: tenant, definition, key


class Standing(Struct, frozen=True, kw_only=True, gc=False):
    """The columns of an execution's row after a decision. `release` is true if the owner gives up the execution.

    `epoch` is that of the owner. It makes older rows of the same owner invalid if it claims the execution again.
    """

    id: str
    epoch: int
    status: str
    run: int
    seq: int
    wake_at: int | None
    release: bool
    ended_at: int | None
    cancel_requested: bool
    error_class: str
    parked: str = ""
    admission: Literal["", "request", "release"] = ""
    line: Line | None = None


class ReviewRow(Struct, frozen=True, kw_only=True):
    id: str
    execution: str
    tenant: str
    definition: str
    kind: str
    path: str
    step: str
    reason: str
    permission: str
    error_class: str
    error_summary: str
    attempts: int
    opened_at: int
    due_at: int | None


class ReviewClosed(Struct, frozen=True):
    execution: str
    id: str
    resolution: str
    actor: str
    closed_at: int


class TaskRow(Struct, frozen=True, kw_only=True):
    """An attempt for the workers of a queue."""

    execution: str
    path: str
    phase: Phase
    number: int
    tenant: str
    plan: str
    queue: str
    handler: str
    priority: int
    created_at: int


class TaskEnded(Struct, frozen=True):
    execution: str
    path: str
    phase: str
    number: int


class TaskWithdrawn(Struct, frozen=True):
    """A task that no longer needs to start.

    If `sends` is true, it is a directive, which its worker may have sent already.
    """

    execution: str
    path: str
    phase: Phase
    number: int
    sends: bool


class OutboxRow(Struct, frozen=True):
    execution: str
    seq: int
    tenant: str
    kind: str
    body: bytes
    created_at: int


class AuditRow(Struct, frozen=True, kw_only=True):
    """An audit row: an action, its actor and its object."""

    tenant: str
    at: int
    actor: str
    action: str
    object_type: str
    object_id: str
    reason: str = ""


def standing(state: Execution, entries: Sequence[Entry], epoch: int, *, release: bool) -> Standing:
    status = state.status
    ended = status in TERMINAL
    over = ended and not state.retries  # until its next run is open or refused, an owner has to see to it
    admission: Literal["", "request", "release"] = ""
    if state.concurrency_key is not None:
        if ended:
            admission = "release"
        elif any(isinstance(entry.event, ExecutionStarted | RunOpened) for entry in entries):
            admission = "request"
    return Standing(
        id=state.id,
        epoch=epoch,
        status=status,
        run=state.run,
        seq=state.seq,
        wake_at=_wake_at(state) if release and not over else None,
        release=release or over,
        ended_at=state.at if ended else None,
        cancel_requested=state.cancel is not None,
        error_class=state.failure.error_class if state.failure is not None else "",
        admission=admission,
        line=(state.tenant, state.plan.definition.name, state.concurrency_key or "") if admission else None,
    )


def _wake_at(state: Execution) -> int | None:
    """Returns when a released execution must be claimed: at once if it has work, otherwise at its next timer."""
    return state.at if has_work(state) or state.retries else state.wake_at


def has_work(state: Execution) -> bool:
    return next(work_of(state), None) is not None


def work_of(state: Execution) -> Iterator[Ref]:
    """Yields the attempts that the owner itself runs or dispatches. Queued or dispatched attempts need no owner."""
    for effect in state.agenda.values():
        if isinstance(effect, RunAttempt) or (isinstance(effect, DispatchAttempt) and _is_unsent(state, effect.ref)):
            yield effect.ref


def _is_unsent(state: Execution, ref: Ref) -> bool:
    holder = holder_of(state, ref)
    if holder is None or holder.open is None or holder.open.dispatched_at:
        return False
    return holder.node.queue is None or handler_name(holder.node.spec, ref.phase) is None


def reviews(state: Execution, entries: Sequence[Entry]) -> Iterator[ReviewRow | ReviewClosed]:
    for entry in entries:
        event = entry.event
        if isinstance(event, ReviewOpened):
            yield ReviewRow(
                id=event.id,
                execution=state.id,
                tenant=state.tenant,
                definition=state.plan.definition.name,
                kind=event.kind,
                path=event.path,
                step=shown_step(state, event.path),
                reason=event.reason,
                permission=event.permission,
                error_class=event.failure.error_class if event.failure is not None else "",
                error_summary=event.failure.summary if event.failure is not None else "",
                attempts=event.attempts,
                opened_at=entry.at,
                due_at=event.due_at,
            )
        elif isinstance(event, ReviewResolved):
            yield ReviewClosed(state.id, event.id, event.resolution, entry.actor or "", entry.at)


def tasks(state: Execution, changed: Sequence[object]) -> Iterator[TaskRow | TaskEnded]:
    """Yields the tasks to insert for granted attempts, and the tasks to delete because their attempts are over."""
    for key in changed:
        if not isinstance(key, Ref):
            continue
        effect = state.agenda.get(key)
        if isinstance(effect, DispatchAttempt):
            holder = holder_of(state, key)
            assert holder is not None
            handler = handler_name(holder.node.spec, key.phase)
            if holder.node.queue is not None and handler is not None:
                yield TaskRow(
                    execution=state.id,
                    path=key.path,
                    phase=key.phase,
                    number=key.number,
                    tenant=state.tenant,
                    plan=f"{state.plan.definition.name}/{state.plan.definition.version}",
                    queue=holder.node.queue,
                    handler=handler,
                    priority=UNDO if key.phase == "compensate" else PRIORITIES[state.priority],
                    created_at=state.at,
                )
        elif effect is None and not _is_local(state, key):
            yield TaskEnded(state.id, *key.parts)


def withdrawn(state: Execution) -> Iterator[TaskWithdrawn]:
    """Yields the queued tasks of a canceled execution that may be withdrawn. Compensations and probes stay queued."""
    for key, effect in state.agenda.items():
        if isinstance(effect, DispatchAttempt) and isinstance(key, Ref) and key.phase in ("forward", "plan"):
            holder = holder_of(state, key)
            assert holder is not None
            if holder.node.queue is not None and handler_name(holder.node.spec, key.phase) is not None:
                sends = key.phase == "forward" and holder.node.step.completion == "callback"
                yield TaskWithdrawn(state.id, *key.parts, sends)


def _is_local(state: Execution, ref: Ref) -> bool:
    holder = holder_of(state, ref)
    return holder is not None and holder.node.queue is None


def audit(state: Execution, entries: Sequence[Entry], started_by: str | None) -> list[AuditRow]:
    """Returns audit rows for commands and compensation.

    Start and end are audited if the execution has a `started_by`.
    """
    rows: list[AuditRow] = []
    for entry in entries:
        describe = _AUDITED.get(type(entry.event))
        if describe is None:
            continue
        action = describe(entry.event)
        if not _is_audited(action, entry.actor, started_by):
            continue
        rows.append(
            AuditRow(
                tenant=state.tenant,
                at=entry.at,
                actor=entry.actor or "system",
                action=action.name,
                object_type="review" if action.review else "execution",
                object_id=action.review or state.id,
                reason=action.reason,
            )
        )
    return rows


def _is_audited(action: "_Action", actor: str | None, started_by: str | None) -> bool:
    match action.when:
        case "always":
            return True
        case "named":
            return actor is not None
        case "started":
            return started_by is not None
        case "never":
            return False


def execution_of(row: AuditRow) -> str:
    """Returns the execution of an audit row. The id of a review begins with that of its execution."""
    return row.object_id.rpartition(".")[0] if row.object_type == "review" else row.object_id


class _Action(NamedTuple):
    name: str
    reason: str = ""
    review: str = ""
    when: Literal["always", "named", "started", "never"] = "always"


def _waited(event: e.WaitEnded) -> _Action:
    """Audits a received signal. A kept signal was audited on arrival, and a timer has no actor.

    Events of earlier releases have no `signal`, so for them any named actor counts.
    """
    if event.signal is None:
        return _Action("execution.signaled", event.by, when="named")
    return _Action("execution.signaled", event.signal, when="named" if event.signal else "never")


_AUDITED: dict[type, Callable[[Any], _Action]] = {
    e.ExecutionStarted: lambda event: _Action("execution.started", when="started"),
    e.ExecutionFinished: lambda event: _Action(f"execution.{event.status}", when="started"),
    e.RunOpened: lambda event: _Action("execution.retried", event.reason),
    e.Paused: lambda event: _Action("execution.paused", event.reason),
    e.Resumed: lambda event: _Action("execution.resumed"),
    e.CancelRequested: lambda event: _Action("execution.cancel_requested", event.reason),
    e.ReviewResolved: lambda event: _Action(f"review.{event.resolution}", event.reason, review=event.id),
    e.CompensationStarted: lambda event: _Action("compensation.started", event.cause),
    e.CompensationStopped: lambda event: _Action("compensation.stopped", event.reason),
    e.SignalKept: lambda event: _Action("execution.signaled", event.name, when="named"),
    e.WaitEnded: _waited,
}
AUDITED = frozenset(_AUDITED)
"""The types of events that can cause audit rows."""

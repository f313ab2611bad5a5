"""Rows beside the history: each matches the history and belongs to the execution that it names."""

from collections.abc import Iterable

import msgspec
from msgspec import Struct

from tenuto.kernel import events as e
from tenuto.kernel.address import Ref
from tenuto.kernel.codec import SNAPSHOT_FORMAT, encode_snapshot
from tenuto.kernel.effects import DispatchAttempt
from tenuto.kernel.evolve import holder_of
from tenuto.kernel.plan import handler_name
from tenuto.kernel.state import TERMINAL, Execution
from tenuto.storage.port import SnapshotRow
from tenuto.storage.shared.queries import CLOCKS_MS
from tenuto.storage.shared.records import AdmissionRow, ExecutionRecord, NoticeRecord, ReviewRecord, TaskRecord
from tenuto.views.projections import PRIORITIES, ReviewClosed, ReviewRow, TaskRow, has_work, standing, tasks

from .invariants import Family, require
from .model import Model
from .waking import V1, V2

family = Family("Rows and their history")

G4 = family("G4", "Every stored column that derives from the history equals the fold of the history.")
H1 = family("H1", "An execution that is waiting for a person is listed as waiting.")
I1 = family("I1", "All rows of an execution belong to one tenant.")
K8 = family("K8", "Among the executions with one concurrency key, only the first in the queue is admitted.")
M1 = family("M1", "The stored reviews and tasks are those that the history opened and did not close.")

STANDING = ("ended_at", "cancel_requested", "error_class")
OF_TASK = ("tenant", "plan", "queue", "handler", "priority")


def row_is_fold(row: ExecutionRecord, state: Execution, model: Model, soon: int) -> None:
    require(row.status == state.status, G4, f"the row says {row.status}, the history {state.status}")
    require(row.run == state.run, G4, f"the row says run {row.run}, the history {state.run}")
    ended = row.ended_at is not None
    require(ended == (state.status in TERMINAL), G4, f"the row's end is {row.ended_at}, its status {state.status}")
    require(row.seq <= state.seq, G4, f"the row is at entry {row.seq}, the history ends at {state.seq}")
    # The owner, or the last owner before it died, wrote the history and not yet the row. Otherwise the execution is due
    # to be claimed.
    at_hand = row.owner is not None or row.parked or (row.wake_at is not None and row.wake_at <= soon)
    require(at_hand or row.seq == state.seq, G4, f"the row is at entry {row.seq}, the history at {state.seq}")
    require(row.epoch >= state.epoch, G4, f"the row has epoch {row.epoch}, the history {state.epoch}")
    assert model.started is not None
    require(row.tenant == model.started.tenant, I1, "the tenant of the row is not the history's")


def row_was_started(row: ExecutionRecord, started: e.Entry) -> None:
    """Compares the columns of the start, which never change. The key and its digest are only in the row."""
    event = started.event
    assert isinstance(event, e.ExecutionStarted)
    kind, target = event.target or ("", "")
    wanted = {
        "priority": PRIORITIES[event.priority],
        "correlation_id": event.correlation_id,
        "target_type": kind,
        "target_id": target,
        "concurrency_key": event.concurrency_key,
    }
    _same(row, wanted, "the start")
    early = started.at - row.created_at
    require(abs(early) <= CLOCKS_MS, G4, f"the row was made at {row.created_at}, the history began at {started.at}")


def row_stands(row: ExecutionRecord, state: Execution) -> None:
    """Compares the columns with the state, when the fold has reached the row's entry."""
    made = standing(state, (), row.epoch, release=False)
    _same(row, {name: getattr(made, name) for name in STANDING}, f"the history at entry {row.seq}")


def _same(row: Struct, wanted: dict[str, object], whose: str) -> None:
    for name, value in wanted.items():
        told = getattr(row, name)
        require(told == value, G4, f"the row says {name} {told!r}, {whose} {value!r}")


def wakes(row: ExecutionRecord, state: Execution, unread: int, soon: int) -> None:
    """Requires that an execution without an owner is due at its first timer, or at once.

    A worker that died may have held it beyond its timer. Then it is due from the time the death was noticed.
    """
    if row.owner is not None or row.parked:
        return
    require(not unread or row.wake_at is not None, V2, f"it has no owner and {unread} unread messages, and is not due")
    if state.finished is not None:
        return
    require(not has_work(state) or row.wake_at is not None, V2, "it has no owner and attempts to run, and is not due")
    going_on = ("ack", "result", "pause")
    paused = state.pause is not None
    due = min((at for (kind, _), at in state.timers.items() if not paused or kind in going_on), default=None)
    in_time = due is None or (row.wake_at is not None and row.wake_at <= max(due, soon))
    require(in_time, V1, f"its first timer is due at {due}, and it wakes at {row.wake_at}")


def snapshot_is_fold(snapshot: SnapshotRow, state: Execution) -> None:
    """Compares a snapshot with the state at its entry. Snapshots of another format are ignored."""
    stored, *_ = msgspec.json.decode(snapshot.body)  # followed by the entries where fan-outs were expanded
    if stored.get("format") == SNAPSHOT_FORMAT:
        folded = msgspec.json.decode(encode_snapshot(state))
        differing = sorted(name for name in folded if folded[name] != stored.get(name))
        require(not differing, G4, f"the snapshot at entry {snapshot.seq} differs from the fold in {differing}")


class Reviews:
    """The rows of reviews, derived from the history."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[ReviewRow, ReviewClosed | None]] = {}

    def take(self, made: Iterable[ReviewRow | ReviewClosed]) -> None:
        for one in made:
            if isinstance(one, ReviewRow):
                self._rows[one.id] = (one, None)
            elif one.id in self._rows:
                self._rows[one.id] = (self._rows[one.id][0], one)

    def are_listed(self, rows: list[ReviewRecord], row: ExecutionRecord) -> None:
        stored = {review.id: review for review in rows}
        missing = sorted(self._rows.keys() - stored.keys())[:3]
        foreign = sorted(stored.keys() - self._rows.keys())[:3]
        require(not missing, M1, f"reviews {missing} are in the history, and have no row")
        require(not foreign, M1, f"reviews {foreign} have a row, and are not in the history")
        for id, review in stored.items():
            require(review.tenant == row.tenant, I1, f"review {id} is of another tenant")
            self._is_as_made(review)

    def _is_as_made(self, review: ReviewRecord) -> None:
        opened, closed = self._rows[review.id]
        wanted: dict[str, object] = {name: getattr(opened, name) for name in ReviewRow.__struct_fields__}
        if not review.step:  # written before the column existed
            del wanted["step"]
        wanted["resolution"] = None if closed is None else closed.resolution
        wanted["resolved_by"] = None if closed is None else closed.actor
        wanted["resolved_at"] = None if closed is None else closed.closed_at
        differing = [name for name, value in wanted.items() if getattr(review, name) != value]
        require(not differing, G4, f"review {review.id} differs from the history in {differing}")


def person_is_asked(row: ExecutionRecord, rows: list[ReviewRecord]) -> None:
    asks = any(review.kind != "dead_letter" and review.resolution is None for review in rows)
    require(asks or row.status != "waiting_approval", H1, "it waits for a person, and no open review says so")


def tasks_are_listed(state: Execution, rows: list[TaskRecord], unread: int) -> None:
    """Requires that every queued attempt has a task, or a message about its end, and that there are no other tasks."""
    refs = for_queues(state)
    wanted = {ref.parts for ref in refs}
    stored = {(task.path, task.phase, task.number): task for task in rows}
    missing, foreign = sorted(wanted - stored.keys())[:3], sorted(stored.keys() - wanted)[:3]
    require(not missing or unread > 0, V2, f"{missing} wait for a queue, and have no task")
    require(not foreign, M1, f"tasks {foreign} are of attempts that are not open")
    for made in tasks(state, refs):
        assert isinstance(made, TaskRow)
        task = stored.get((made.path, made.phase, made.number))
        if task is not None:
            require(task.tenant == made.tenant, I1, f"the task of {made.path} is of another tenant")
            differing = [name for name in OF_TASK if getattr(task, name) != getattr(made, name)]
            require(not differing, G4, f"the task of {made.path} differs from the history in {differing}")


def notice_is_of_execution(notice: NoticeRecord, row: ExecutionRecord) -> None:
    require(notice.tenant == row.tenant, I1, f"a notification of {notice.path} is of another tenant")


def for_queues(state: Execution) -> list[Ref]:
    refs = [effect.ref for effect in state.agenda.values() if isinstance(effect, DispatchAttempt)]
    return [ref for ref in refs if _is_for_queue(state, ref)]


def _is_for_queue(state: Execution, ref: Ref) -> bool:
    """Returns whether a worker of a queue has to run it.

    Attempts that were sent, or are fetched by their receiver, need none.
    """
    holder = holder_of(state, ref)
    if holder is None or holder.open is None or holder.node.queue is None:
        return False
    return handler_name(holder.node.spec, ref.phase) is not None and not holder.open.dispatched_at


def admission_is_in_turn(
    row: ExecutionRecord, state: Execution, place: AdmissionRow | None, unread: dict[str, None]
) -> None:
    if state.concurrency_key is None or state.finished is not None:
        require(place is None, K8, "it is over, or has no key, and still stands in line")
        return
    require(place is not None, K8, "it has a concurrency key, and does not stand in line")
    assert place is not None
    require(place.tenant == row.tenant, I1, "its place in line is of another tenant")
    line, wanted = (place.definition, place.key), (row.definition, state.concurrency_key)
    require(line == wanted, K8, f"it stands in line {line}, and should in {wanted}")
    require(not state.admitted or place.ahead == 0, K8, f"it is admitted, and {place.ahead} stand before it")
    told = f"admit:{row.id}:{state.run}" in unread
    require(state.admitted or place.ahead > 0 or told, V2, "it is the first in line, and was not told")

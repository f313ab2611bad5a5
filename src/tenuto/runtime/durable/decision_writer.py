"""Turns decisions into the rows of a commit.

A decision goes to the committer as one `DecisionWrite`. When its fate is known, its `settler` continues.
"""

from typing import Protocol

import msgspec

from tenuto.kernel import facts as f
from tenuto.kernel.codec import encode_answer, encode_entries
from tenuto.kernel.effects import EffectKey
from tenuto.kernel.events import CancelRequested, Entry, ReviewOpened, ReviewResolved
from tenuto.kernel.state import Execution
from tenuto.runtime.executor.held_execution import Record
from tenuto.runtime.executor.worker import Then
from tenuto.runtime.shared.job_rows import add_job_rows
from tenuto.storage.port import Append, Basis, Batch, MailVerdict, NewExecution
from tenuto.views.jobs import CallbackRow
from tenuto.views.ledger import bookings
from tenuto.views.messages import Announced
from tenuto.views.projections import (
    AUDITED,
    AuditRow,
    ReviewClosed,
    ReviewRow,
    TaskEnded,
    TaskRow,
    audit,
    reviews,
    standing,
    tasks,
    withdrawn,
)

from . import snapshots
from .committer import Fate, Write
from .session import CurrentSession
from .unread_mail import UnreadMail

PROJECTED = AUDITED | {ReviewOpened, ReviewResolved}  # events that other tables may show


class Settler(Protocol):
    def settle(self, write: "DecisionWrite", fate: Fate) -> None: ...


class DecisionWrite(Write, gc=False):
    """A decision on its way into the database, and what follows once it is committed."""

    settler: Settler
    record: Record
    entries: list[Entry]
    changed: list[EffectKey]
    rank: int | None
    answer: f.Answer
    then: Then | None

    def settle(self, fate: Fate) -> None:
        self.settler.settle(self, fate)


class DecisionWriter:
    """Fills in what a decision writes, and hands it to the committer."""

    def __init__(self, current: CurrentSession, unread_mail: UnreadMail, announced: Announced | None) -> None:
        self._current = current
        self._unread_mail = unread_mail
        self._announced = announced
        self.smallest_tail = snapshots.SMALLEST_TAIL

    def write(
        self,
        write: DecisionWrite,
        message: str | None = None,
        *,
        release: bool = False,
        parked: tuple[str, int] | None = None,
        callback: CallbackRow | None = None,
    ) -> None:
        """`message`: the mail that was decided. `callback`: the row of a callback that was.

        `parked`: why the execution is parked, and until when.
        """
        record = write.record
        state = record.state
        entries = write.entries
        if entries:
            body = encode_entries(entries)
            write.append = Append(state.id, entries[0].seq, len(entries), body)
            record.tail += len(body)
        if write.start is None:
            write.after = Basis(record.epoch, state.seq - len(entries))
        verdict = None if message is None else MailVerdict(state.id, message, encode_answer(write.answer))
        started_by = record.history[0].actor
        write.extra = self.extra_rows(state, entries, write.changed, started_by, verdict, callback, write.start)
        if record.tail > self.smallest_tail and record.tail > record.longest_tail and state.finished is None:
            write.extra = Batch(session=None) if write.extra is None else write.extra
            write.extra.snapshots.append(snapshots.take(record))
        status = state.status
        if status != record.kept_status or release or write.start is not None or state.cancel is not None:
            record.kept_status = status
            where = standing(state, entries, record.epoch, release=release)
            if where.release and state.id in self._unread_mail.unchecked:  # it is due: its mail has not been read
                del self._unread_mail.unchecked[state.id]
                where = msgspec.structs.replace(where, wake_at=state.at)
            if parked is not None:
                where = msgspec.structs.replace(where, parked=parked[0], wake_at=parked[1])
            write.standing = where
            record.owned = not where.release
        self._current.committer.add(write)

    def extra_rows(
        self,
        state: Execution,
        entries: list[Entry],
        changed: list[EffectKey],
        started_by: str | None,
        verdict: MailVerdict | None = None,
        callback: CallbackRow | None = None,
        start: NewExecution | None = None,
    ) -> Batch | None:
        """Rows beside the entries. Most decisions have none."""
        review_rows: list[ReviewRow | ReviewClosed] = []
        audit_rows: list[AuditRow] = []
        for entry in entries:
            if type(entry.event) in PROJECTED:
                review_rows = list(reviews(state, entries))
                audit_rows = audit(state, entries, started_by)
                break
        outbox_rows = [] if self._announced is None else self._announced.rows(state, entries)
        has_queues = state.plan.has_queues
        booked = bookings(state, entries) if state.hold or state.plan.run is not None else None
        has_bookings = booked is not None and any(booked)
        rare = review_rows or audit_rows or outbox_rows or callback is not None or has_bookings
        if verdict is None and not rare and not has_queues:
            return None
        extra = Batch(session=None, audit=audit_rows, outbox=outbox_rows)
        if booked is not None:
            extra.credit_entries, extra.settlements, extra.reserves = booked
        for row in review_rows:
            if isinstance(row, ReviewRow):
                extra.reviews.append(row)
            else:
                extra.closed.append(row)
        for task in tasks(state, changed) if has_queues else ():
            if isinstance(task, TaskRow):
                extra.tasks.append(task)
            else:
                assert isinstance(task, TaskEnded)
                extra.tasks_ended.append(task)
        if has_queues and any(type(entry.event) is CancelRequested for entry in entries):
            extra.withdrawn.extend(withdrawn(state))
        if verdict is not None:
            extra.mail.append(verdict)
        add_job_rows(extra, state, entries, callback, None if start is None else start.key)
        return extra

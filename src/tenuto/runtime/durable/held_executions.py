"""What is decided here is kept, and acted upon when it is kept.

A decision goes to the committer as one `Kept`. When its commit is acknowledged, what it grants is begun, whoever waits
for it is told, and an execution that has nothing more to do leaves memory. When it is refused, the state that it led to
never came to be.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import partial

import msgspec

from tenuto.authoring.program import CompileStored
from tenuto.errors import (
    StorageError,
)
from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref
from tenuto.kernel.codec import encode_answer, encode_entries
from tenuto.kernel.effects import EffectKey, RequestHold
from tenuto.kernel.events import AttemptsGranted, AttemptsReturned, CancelRequested, Entry, ReviewOpened, ReviewResolved
from tenuto.kernel.evolve import holder_of
from tenuto.kernel.state import Execution
from tenuto.runtime.clock import Environment
from tenuto.runtime.executor import Performer
from tenuto.runtime.executor.held_execution import Record, Ticket
from tenuto.runtime.executor.slots import RESUME
from tenuto.runtime.executor.worker import Then, WorkerOptions
from tenuto.runtime.shared.outbox_relay import Relay
from tenuto.runtime.supervision import report
from tenuto.storage.caller_connections import caller_of
from tenuto.storage.inbox import note_once
from tenuto.storage.permits import Ask, Dealt
from tenuto.storage.port import NEWS, WORK, Append, Basis, Batch, MailVerdict, Store, mail_for
from tenuto.views import Waiting
from tenuto.views.messages import Announced
from tenuto.views.projections import (
    AUDITED,
    AuditRow,
    ReviewClosed,
    ReviewRow,
    TaskEnded,
    TaskRow,
    audit,
    has_work,
    reviews,
    standing,
    tasks,
    withdrawn,
    work_of,
)

from . import snapshots
from .committer import Fate, Told, Write
from .late_reports import LateReports
from .parked_executions import LONGEST_PARKED_MS, PARKED_MS, ParkedExecutions, Parking
from .permits import Permits
from .progress import ProgressWriter
from .queued_attempts import has_queued
from .restoration import Restorer
from .session import CurrentSession
from .task_worker import TaskWorker
from .tenant_admission import TenantAdmission
from .unread_mail import UnreadMail
from .wakeups import Owners, Wakeups

logger = logging.getLogger("tenuto.durable")

EVICT_MS = 2_000  # a wait longer than this is spent outside of memory
COMMITS_LOST = (
    "The database has lost commits of execution %s, which goes on from what is stored. See the durability guide."
)
UNREADABLE = "Execution {} cannot be read by this release; it is set aside."
STANDING_STILL = (AttemptsGranted, AttemptsReturned)  # all that is recorded each time it is looked at
PROJECTED = AUDITED | {ReviewOpened, ReviewResolved}  # events that other tables may show


class Kept(Write, gc=False):
    """A decision on its way into the database, and what follows when it is there."""

    runtime: "HeldExecutions"
    record: Record
    entries: list[Entry]
    changed: list[EffectKey]
    rank: int | None
    answer: f.Answer
    then: Then | None

    def settle(self, fate: Fate) -> None:
        self.runtime.settle(self, fate)


class Started(Kept, gc=False):
    fate: asyncio.Future[Fate]

    def settle(self, fate: Fate) -> None:
        start = self.start
        assert start is not None
        self.runtime.admission.leave(start.tenant)
        try:
            if start.owner is not None:
                self.runtime.settle(self, fate)
            elif fate == "committed":
                self.runtime.tell_observers(self.record, self.entries)
        finally:  # whatever follows from it, it is started
            if not self.fate.done():
                self.fate.set_result(fate)


class Released(Kept, gc=False):
    """An execution was let go of: nothing follows here."""

    def settle(self, fate: Fate) -> None:
        self.runtime.has_left(self.execution)
        if fate == "stale":
            self.runtime.load_again(self.record)


class Parked(Released, gc=False):
    """An execution was let go of that this release cannot go on with. It is looked at again after a while."""

    def settle(self, fate: Fate) -> None:
        super().settle(fate)
        self.runtime.is_parked(self.execution)


class HandedOver(Released, gc=False):
    """An execution was let go of for others to run: they are told that there is work."""

    def settle(self, fate: Fate) -> None:
        super().settle(fate)
        self.runtime.announce_work_elsewhere()


class HeldExecutions(TaskWorker):
    """A worker that holds executions for as long as they have work, and records all that is decided."""

    def __init__(
        self,
        environment: Environment,
        store: Store,
        current: CurrentSession,
        wakeups: Wakeups,
        owners: Owners,
        parked_executions: ParkedExecutions,
        restorer: Restorer,
        late_reports: LateReports,
        progress: ProgressWriter,
        admission: TenantAdmission,
        options: WorkerOptions,
        compile: CompileStored,
        announced: Announced | None,
        relay: Relay | None,
        *,
        read_only: bool,
    ) -> None:
        super().__init__(
            environment, store, current, wakeups, owners, parked_executions, restorer, late_reports, options, compile
        )
        self.progress = progress
        self._read_only = read_only
        self.admission = admission
        self._announced = announced
        self._relay = relay
        self._smallest_tail = snapshots.SMALLEST_TAIL
        self.callers: dict[Record, list[asyncio.Future[f.Answer]]] = {}  # callers who wait for a commit
        self.unread_mail = UnreadMail()
        self.mail_unchecked: dict[
            str, None
        ] = {}  # there may be mail that nobody has looked for: they are not let go of before
        self.mail_in_hand: str | None = None
        self._loaded_again: set[str] = set()  # and nothing was committed for them since
        self._lingering: dict[str, int] = {}
        self.releasing: Counter[str] = Counter()  # let go of, and that is not recorded yet

    def _make_limits(self) -> Permits:
        self.permits = Permits(self.environment.clock, self._exchange_permits, self._wanted, self._pump)
        return self.permits

    async def _exchange_permits(self, ask: Ask) -> Dealt | None:
        session = self._current.session
        if not session.may_start:
            return None
        dealt = await self._store.limits.exchange(session.id, ask)
        if dealt is None and session is self._current.session:
            session.lose()
        return None if session is not self._current.session else dealt

    def runs(self, performer: Performer) -> bool:
        return self.works and self.cache.can_run(performer)

    def _may_start(self) -> bool:
        return self._current.session.may_start

    def check_open(self) -> None:
        super().check_open()
        if self._read_only:
            raise StorageError("the engine was opened to read only", code="read_only", hint="open it without read_only")

    def _has_to_read(self, ticket: Ticket) -> bool:
        return self._restorer.fetch_missing(ticket, self.enter_again)

    @asynccontextmanager
    async def inbox(self, consumer: str, id: str, connection: object) -> AsyncIterator[bool]:
        yield await note_once(caller_of(connection), consumer, id, self.now())

    def clear(self) -> None:
        """The session is lost, and others own the executions now. Handlers that are not safe to retry continue."""
        records = list(self.records.values())
        self.records.clear()
        for record in records:
            self.forget_work(record)
            record.wake_at = None
            self.fail_waiters(record, Moved())
        self.mail_unchecked.clear()
        self.unread_mail.clear()
        self.progress.clear()
        self.forget_visits()
        self.permits.forget()

    def apply(self, record: Record, fact: f.Fact, rank: int | None = None, then: Then | None = None) -> f.Answer:
        state = record.state
        if self.records.get(state.id) is not record:
            return f.Ignored("stale_lease")  # given up, or let go of: whoever has it now decides
        decision = self.decide(record, fact)
        entries, answer = decision.entries, decision.answer
        if entries:
            changed, state.changed = state.changed, []
            record.uncommitted += 1
            kept = Kept(self, record, entries, changed, rank, answer, then, execution=state.id)
            try:
                self.write(kept)
            except Exception as error:  # what was decided cannot be written, and nothing may be decided on top of it
                self.mail_in_hand = None
                self._break(record, error)
                raise
        elif then is not None and record.uncommitted:
            # An answer may rest on what is not kept yet: it waits for that.
            tell = partial(self._answer_when_kept, record, then, answer)
            self._current.committer.add(Told(execution=state.id, tell=tell, record=record))
        elif then is not None:
            then(answer)
        if state.timers or record.wake_at is not None:
            self.alarms.set(record)
        return answer

    def _answer_when_kept(self, record: Record, then: Then, answer: f.Answer, fate: Fate) -> None:
        if fate == "committed":
            then(answer)
        else:
            self.give_up(record, fate)

    def write(self, kept: "Kept", *, release: bool = False) -> None:
        record = kept.record
        state = record.state
        entries = kept.entries
        if entries:
            body = encode_entries(entries)
            kept.append = Append(state.id, entries[0].seq, len(entries), body)
            record.tail += len(body)
        if kept.start is None:
            kept.after = Basis(record.epoch, state.seq - len(entries))
        kept.extra = self.extra_rows(state, entries, kept.changed, kept.answer, record.history[0].actor)
        if record.tail > self._smallest_tail and record.tail > record.longest_tail and state.finished is None:
            kept.extra = Batch(session=None) if kept.extra is None else kept.extra
            kept.extra.snapshots.append(snapshots.take(record))
        status = state.status
        if status != record.kept_status or release or kept.start is not None or state.cancel is not None:
            record.kept_status = status
            where = standing(state, entries, record.epoch, release=release)
            if where.release and state.id in self.mail_unchecked:  # nobody has looked for its mail: it is due
                del self.mail_unchecked[state.id]
                where = msgspec.structs.replace(where, wake_at=state.at)
            if isinstance(kept, Parked):
                where = msgspec.structs.replace(where, parked=_why_aside(record), wake_at=self._look_again_at(record))
            kept.standing = where
            record.owned = not where.release
        self._current.committer.add(kept)

    def extra_rows(
        self, state: Execution, entries: list[Entry], changed: list[EffectKey], answer: f.Answer, by: str | None
    ) -> Batch | None:
        """What is seldom written: most decisions only append. `by` is who started the execution."""
        mail, self.mail_in_hand = self.mail_in_hand, None
        shown: list[ReviewRow | ReviewClosed] = []
        noted: list[AuditRow] = []
        for entry in entries:
            if type(entry.event) in PROJECTED:
                shown = list(reviews(state, entries))
                noted = audit(state, entries, by)
                break
        told = [] if self._announced is None else self._announced.rows(state, entries)
        if mail is None and not shown and not noted and not told and not state.plan.has_queues:
            return None
        extra = Batch(session=None, audit=noted, outbox=told)
        for row in shown:
            if isinstance(row, ReviewRow):
                extra.reviews.append(row)
            else:
                extra.closed.append(row)
        for task in tasks(state, changed) if state.plan.has_queues else ():
            if isinstance(task, TaskRow):
                extra.tasks.append(task)
            else:
                assert isinstance(task, TaskEnded)
                extra.tasks_ended.append(task)
        if state.plan.has_queues and any(type(entry.event) is CancelRequested for entry in entries):
            extra.withdrawn.extend(withdrawn(state))
        if mail is not None:
            extra.mail.append(MailVerdict(state.id, mail, encode_answer(answer)))
        return extra

    def settle(self, kept: "Kept", fate: Fate) -> None:
        record = kept.record
        if fate != "committed":
            self.give_up(record, fate)
            return
        record.uncommitted -= 1
        if self._loaded_again:
            self._loaded_again.discard(kept.execution)
        try:
            self._act(record, kept.entries, kept.changed, kept.rank)
        except Exception as error:  # it is recorded: whoever reads it again follows it
            report(f"Execution {kept.execution} could not go on; it is set aside.", error)
            self.park_broken(record)
        if kept.then is not None:
            kept.then(kept.answer)
        if record.state.finished is not None or record.state.reviews:
            self._store.notify(NEWS)
            if record.state.finished is not None:
                self.admission.ended(record.state.tenant)
                if record.state.concurrency_key is not None:
                    self.announce_work()  # whoever waited for its key
            if record.waiters:
                self._tell_waiters(record)
        if self._relay is not None and kept.extra is not None and kept.extra.outbox:
            self._relay.nudge()
        if kept.extra is not None and kept.extra.withdrawn and self.records.get(kept.execution) is record:
            self.mail_unchecked[kept.execution] = (
                None  # mail tells what was withdrawn, and nobody else may come to read it
            )
            self._wakeups.notify(mail_for(self._current.session.id))
        if not record.jobs:
            self.release_if_idle(record)

    def follow_agenda(self, record: Record, changed: list[EffectKey], rank: int | None) -> None:
        """What was granted to this process; not what another may have by now, though its record was on the way."""
        if self.records.get(record.state.id) is record:
            super().follow_agenda(record, changed, rank)

    def give_up(self, record: Record, fate: Fate) -> None:
        """What was decided is not recorded: that state never came to be, and whoever waits for it is told."""
        self.lose(record)
        self.fail_waiters(record, Moved())
        if fate == "stale":
            self.load_again(record)
        for answered in self.callers.pop(record, ()):
            if not answered.done():
                answered.set_exception(not_kept(record.state.id, fate))

    def load_again(self, record: Record) -> None:
        """The database lost commits that it had acknowledged. What it has now is the truth, and is taken over.

        If that was done, and nothing could be committed on it either, then what is stored is not a history that this
        release can go on with. It is set aside.
        """
        id = record.state.id
        if id in self._parked_executions.to_park:
            return  # two writes were refused together
        if id in self._loaded_again:
            self._loaded_again.discard(id)
            self._parked_executions.to_park[id] = Parking(
                self._current.session, record.epoch, "incompatible", PARKED_MS
            )
        else:
            self._loaded_again.add(id)
            logger.error(COMMITS_LOST, id, extra={"action": "commits_lost", "execution_id": id})
            self._parked_executions.to_park[id] = Parking(self._current.session, record.epoch, "", 0)
        self._parked_executions.look_for_lost_claims()
        self._wakeups.notify(WORK)

    def forget_caller(self, record: Record, answered: "asyncio.Future[f.Answer]") -> None:
        left = [other for other in self.callers.get(record, ()) if other is not answered]
        if left:
            self.callers[record] = left
        else:
            self.callers.pop(record, None)

    def lose(self, record: Record) -> None:
        id = record.state.id
        if self.records.get(id) is record:
            del self.records[id]
            self.unread_mail.left(id)
            self.mail_unchecked.pop(id, None)
            if record.shown and record.state.finished is None:
                self.progress.leave(id)
        record.wake_at = None
        self.forget_work(record)

    def _break(self, record: Record, error: Exception) -> None:
        """Nothing more is decided on what it made of the state. What is recorded is sound, and is set aside."""
        super()._break(record, error)
        self.park_broken(record)

    def park_broken(self, record: Record) -> None:
        """It is set aside, when all that was decided for it is recorded. Whoever waits for it asks the database."""
        id, session = record.state.id, self._current.session
        if self.records.get(id) is record:
            self.lose(record)
            self.fail_waiters(record, Moved())
            self.releasing[id] += 1

            def set_aside(_: Fate) -> None:
                self.has_left(id)
                self._parked_executions.to_park[id] = Parking(session, record.epoch, "incompatible", PARKED_MS)
                self._wakeups.notify(WORK)

            self._current.committer.add(Told(execution=id, tell=set_aside, record=record))

    async def is_committed(self, execution_id: str) -> bool:
        """Whether all that was decided so far was kept, once that is known: nobody is shown what may yet be lost."""
        assert self.loop is not None
        kept: asyncio.Future[bool] = self.loop.create_future()

        def settle(fate: Fate) -> None:
            if not kept.done():
                kept.set_result(fate == "committed")

        self._current.committer.add(Told(execution=execution_id, tell=settle, record=self.records.get(execution_id)))
        return await kept

    def find_held(self, execution_id: str) -> Record | None:
        """In hand, and ours. One that has ended may still be here for a handler that goes on: it is ours no more."""
        record = self.records.get(execution_id)
        return record if record is not None and (record.owned or record.uncommitted) else None

    # -- Letting go ----------------------------------------------------------------------------------------------------

    def release_if_idle(self, record: Record) -> None:
        """An execution that only waits leaves memory; it is claimed again when it is due or has mail."""
        state = record.state
        if record.uncommitted or self.records.get(state.id) is not record or state.id in self.mail_unchecked:
            return
        if self.closing:
            self._hand_over_to_others(record)
            return
        if record.parked and not self.runs(record.performer):
            self._hand_over(record)
            return
        if not record.is_idle:
            return
        if state.finished is not None:
            self.release(record)
            return
        if record.parked:
            self._leave_aside(record)
            return
        if has_queued(state) and self._lingers(state.id):
            return
        waits_long = record.wake_at is None or record.wake_at - self.now() > EVICT_MS
        if waits_long and not has_work(state):
            self.release(record)

    def _park(self, record: Record, ref: Ref, why: Waiting) -> None:
        if not record.is_guest and self.records.get(record.state.id) is not record:
            return
        super()._park(record, ref, why)
        self._later(partial(self.release_if_idle, record))

    def forget_work(self, record: Record) -> list[Ref]:
        self._late_reports.keep(record)
        return super().forget_work(record)

    def _finished(self, record: Record) -> None:
        super()._finished(record)
        if record.state.cancel is not None:
            self._late_reports.stop(record.state.id)

    # -- Reports of attempts that are not run again --------------------------------------------------------------------

    def _answer_for_certain(self, record: Record, ref: Ref, fact: f.Reported) -> None:
        if record.is_guest:
            self._answer(record, ref, fact)  # which goes through the mailbox as well
        elif self.records.get(record.state.id) is not record:
            self._late_reports.send(record.state.id, fact)
        else:
            self._answer_or_send(record, fact)

    def _answer_or_send(self, record: Record, fact: f.Reported) -> None:
        """If it is not recorded because the execution has another owner, that owner is told."""
        answered: asyncio.Future[f.Answer] = asyncio.get_running_loop().create_future()
        self.callers.setdefault(record, []).append(answered)
        answered.add_done_callback(partial(self._send_if_moved, record, fact))

        def then(answer: f.Answer) -> None:
            if not answered.done():
                answered.set_result(answer)

        try:
            self.apply(record, fact, then=then)
        except BaseException:
            answered.cancel()
            raise

    def _send_if_moved(self, record: Record, fact: f.Reported, answered: "asyncio.Future[f.Answer]") -> None:
        self.forget_caller(record, answered)
        if not answered.cancelled() and isinstance(answered.exception(), Moved):
            self._late_reports.send(record.state.id, fact)

    def _take_up_again(self, record: Record, refs: list[Ref]) -> None:
        """What was just handed back is nobody's, though it is still here: it begins when it is granted to us again."""
        back = [ref for ref in refs if self._was_handed_back(record, ref)]
        if back:
            fact = f.Taken(at=self.now(), epoch=record.epoch)
            self.apply(record, fact, RESUME, lambda _: super(HeldExecutions, self)._take_up_again(record, back))
        super()._take_up_again(record, [ref for ref in refs if ref not in back])

    def _was_handed_back(self, record: Record, ref: Ref) -> bool:
        holder = holder_of(record.state, ref)
        return holder is not None and holder.open is not None and holder.open.ref == ref and not holder.open.epoch

    def _bury(self, record: Record, path: str) -> None:
        job, id = record.zombies[path], record.state.id
        super()._bury(record, path)
        self.release_if_idle(record)
        self._late_reports.ended(id, path, job)
        for again in (self.records.get(id), self._visits.get(id)):
            if again is not None and again.zombies.get(path) is job:
                self._bury(again, path)

    def _lingers(self, id: str) -> bool:
        """Whether an execution whose attempts run elsewhere is kept for a while: most answers come soon."""
        now = self.now()
        return now < self._lingering.setdefault(id, now + EVICT_MS)

    def release_idle(self) -> None:
        now = self.now()
        for id in [id for id, until in self._lingering.items() if until <= now]:
            try:
                if (record := self.records.get(id)) is not None:
                    self.release_if_idle(record)
            finally:  # not before: until then it says that the time is over
                del self._lingering[id]

    def _hand_over(self, record: Record) -> None:
        """This process decided for it, and cannot run what was granted: that is for whoever can."""
        if record.jobs or record.tickets or record.zombies or record.held:
            return
        self.return_work(record, ())
        if not record.uncommitted:  # else it comes here again, when that is kept
            self.release(record, HandedOver)

    def _hand_over_to_others(self, record: Record) -> None:
        """This process is about to end. What runs no handler here need not wait for handlers of other executions."""
        if not self._hands_over or record.jobs or record.zombies:
            return
        record.tickets.clear()
        record.held.clear()
        self.return_work(record, ())
        if not record.uncommitted:
            self.release(record, HandedOver)

    def release_all(self) -> None:
        """What has no handler running goes at once, all else when its last one has ended and that is recorded."""
        self._hands_over = True
        for record in list(self.records.values()):
            try:
                self.release_if_idle(record)
            except Exception as error:
                report(f"Execution {record.state.id} could not be handed over.", error)

    def _leave_aside(self, record: Record) -> None:
        """It waits for code that fits what is recorded: others may have that, and everybody sees why it waits."""
        self.return_work(record, ())
        if not record.uncommitted:
            self.release(record, Parked)
            self._parked_executions.note_tried(record.state.id, _why_aside(record))

    def is_parked(self, id: str) -> None:
        """The parking is committed. Code that was registered meanwhile may be what the execution waits for."""
        if not self._parked_executions.was_tried(id):
            self._parked_executions.look_soon()

    def _look_again_at(self, record: Record) -> int:
        """After as long as it has stood still, at least a minute and at most an hour; or when it is due anyway."""
        now = self.now()
        stood = (entry.at for entry in reversed(record.history) if not isinstance(entry.event, STANDING_STILL))
        pause = min(max(now - next(stood, now), PARKED_MS), LONGEST_PARKED_MS)
        due = record.state.wake_at
        return now + pause if due is None or due <= now else min(now + pause, due)

    def return_work(self, record: Record, unknown: Collection[Ref]) -> None:
        """What was granted and never begun is handed back: nothing is lost with this process, and nothing counted.

        `unknown` are the attempts that had to be stopped: what came of them nobody knows.
        """
        refs = tuple(ref for ref in work_of(record.state) if ref not in unknown and ref not in record.jobs)
        if refs and record.owned:
            self.apply(record, f.Returned(at=self.now(), refs=refs))

    def release(self, record: Record, kind: "type[Released] | None" = None) -> None:
        state = record.state
        if self.records.get(state.id) is not record:
            return
        del self.records[state.id]
        self._parked.pop(record, None)
        self.unread_mail.left(state.id)
        record.wake_at = None
        self.fail_waiters(record, Moved())
        if record.shown and state.finished is None:
            self.progress.leave(state.id)
        if record.owned:
            self.releasing[state.id] += 1
            kept = (kind or Released)(self, record, [], [], None, f.APPLIED, None, execution=state.id)
            self.write(kept, release=True)

    def has_left(self, execution_id: str) -> None:
        self.releasing[execution_id] -= 1
        if not self.releasing[execution_id]:
            del self.releasing[execution_id]

    def announce_work_elsewhere(self) -> None:
        self._store.notify(WORK)

    def announce_work(self) -> None:
        """Something is due that nobody owns: here or elsewhere somebody may be free for it."""
        self._wakeups.notify(WORK)
        self._store.notify(WORK)

    def _request_hold(self, record: Record, effect: RequestHold) -> None:
        fact = f.HoldGranted(at=self.now(), amount=effect.amount, admitted=record.state.concurrency_key is None)
        self._soon(record, lambda: void(self.apply(record, fact, RESUME)))


def _why_aside(record: Record) -> str:
    """The reason and what it is about, as the row shows it: that of a stored value, if there are several."""
    reasons = sorted(record.parked.values())
    return f"{reasons[0].reason}: {reasons[0].what}" if reasons else "incompatible"


def void(_: object) -> None:
    """For callbacks whose caller wants no answer."""


class Moved(Exception):
    """The execution is no longer in this process's hands; ask the database."""


def not_kept(execution_id: str, fate: Fate) -> Exception:
    """What callers are told whose decision was not recorded."""
    if fate == "parked":
        return StorageError(
            f"The database refused what was to be recorded for execution {execution_id}; it is set aside.",
            code="incompatible",
            hint="its status says so; any command tries again",
        )
    if fate == "unknown":
        return StorageError(
            "The engine was closed while the database could not be reached; whether this was recorded is not known.",
            code="outcome_unknown",
            hint="ask again when the database is back; with an idempotency key a start can be repeated",
        )
    return Moved()

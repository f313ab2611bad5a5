"""What is decided here is kept, and acted upon when it is kept.

A decision goes to the committer as one `Kept`. When its commit is acknowledged, what it grants is begun, whoever waits
for it is told, and an execution that has nothing more to do leaves memory. When it is refused, the state that it led to
never came to be.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Collection
from functools import partial
from typing import NamedTuple

import msgspec

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
from tenuto.runtime.executor.held_execution import Record
from tenuto.runtime.executor.slots import RESUME
from tenuto.runtime.executor.worker import Then
from tenuto.runtime.shared.outbox_relay import Relay
from tenuto.runtime.shared.supervision import report
from tenuto.storage.port import NEWS, WORK, Append, Basis, Batch, MailVerdict, mail_for
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
from .committer import Committer, Fate, Told, Write
from .definition_cache import Librarian
from .progress import Beats
from .queued_attempts import has_queued
from .session import Session
from .tenant_admission import Crowds, Door
from .unread_mail import Letters
from .watcher import Watched

logger = logging.getLogger("tenuto.durable")

EVICT_MS = 2_000  # a wait longer than this is spent outside of memory
SET_ASIDE_MS = 60_000
COMMITS_LOST = (
    "The database has lost commits of execution %s, which goes on from what is stored. See the durability guide."
)
UNREADABLE = "Execution {} cannot be read by this release; it is set aside."
LONGEST_ASIDE_MS = 3_600_000
ASIDE_REMEMBERED = 10_000
STANDING_STILL = (AttemptsGranted, AttemptsReturned)  # all that is recorded each time it is looked at
PROJECTED = AUDITED | {ReviewOpened, ReviewResolved}  # events that other tables may show


class Kept(Write, gc=False):
    """A decision on its way into the database, and what follows when it is there."""

    runtime: "Keeper"
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
        self.runtime._door.leave(start.tenant)
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
            self.runtime._load_again(self.record)


class SetAside(Released, gc=False):
    """An execution was let go of that this release cannot go on with. It is looked at again after a while."""

    def settle(self, fate: Fate) -> None:
        super().settle(fate)
        self.runtime.is_aside(self.execution)


class HandedOver(Released, gc=False):
    """An execution was let go of for others to run: they are told that there is work."""

    def settle(self, fate: Fate) -> None:
        super().settle(fate)
        self.runtime._store.notify(WORK)


class Parking(NamedTuple):
    """An execution that is still owned in the database, by this session since this epoch, and is to be released."""

    session: Session
    epoch: int
    why: str  # empty: it is due, for whoever claims it first
    again_ms: int


class Keeper(Librarian):
    """A worker that holds executions for as long as they have work, and records all that is decided."""

    _committer: Committer

    def _prepare_keeping(self, announced: Announced | None, relay: Relay | None) -> None:
        self._announced = announced
        self._relay = relay
        self._smallest_tail = snapshots.SMALLEST_TAIL
        self._asked: dict[Record, list[asyncio.Future[f.Answer]]] = {}  # callers who wait for a commit
        self._letters = Letters()
        self._fresh: dict[str, None] = {}  # there may be mail that nobody has looked for: they are not let go of before
        self._mail_in_hand: str | None = None
        self._to_park: dict[str, Parking] = {}
        self._loaded_again: set[str] = set()  # and nothing was committed for them since
        self._tried: dict[str, int] = {}  # set aside here, and how much this process had learned by then
        self._lingering: dict[str, int] = {}
        self._letting_go: Counter[str] = Counter()  # let go of, and that is not recorded yet
        self._beats = Beats(self._store)
        self._crowds = Crowds()
        self._door = Door()
        self._watched = Watched(self._store)

    def apply(self, record: Record, fact: f.Fact, rank: int | None = None, then: Then | None = None) -> f.Answer:
        state = record.state
        if self._records.get(state.id) is not record:
            return f.Ignored("stale_lease")  # given up, or let go of: whoever has it now decides
        decision = self._decide(record, fact)
        entries, answer = decision.entries, decision.answer
        if entries:
            changed, state.changed = state.changed, []
            record.unkept += 1
            kept = Kept(self, record, entries, changed, rank, answer, then, execution=state.id)
            try:
                self._write(kept)
            except Exception as error:  # what was decided cannot be written, and nothing may be decided on top of it
                self._mail_in_hand = None
                self._break(record, error)
                raise
        elif then is not None and record.unkept:
            # An answer may rest on what is not kept yet: it waits for that.
            tell = partial(self._answer_when_kept, record, then, answer)
            self._committer.add(Told(execution=state.id, tell=tell, record=record))
        elif then is not None:
            then(answer)
        if state.timers or record.wake_at is not None:
            self._alarms.set(record)
        return answer

    def _answer_when_kept(self, record: Record, then: Then, answer: f.Answer, fate: Fate) -> None:
        if fate == "committed":
            then(answer)
        else:
            self._give_up(record, fate)

    def _write(self, kept: "Kept", *, release: bool = False) -> None:
        record = kept.record
        state = record.state
        entries = kept.entries
        if entries:
            body = encode_entries(entries)
            kept.append = Append(state.id, entries[0].seq, len(entries), body)
            record.tail += len(body)
        if kept.start is None:
            kept.after = Basis(record.epoch, state.seq - len(entries))
        kept.extra = self._extra(state, entries, kept.changed, kept.answer, record.history[0].actor)
        if record.tail > self._smallest_tail and record.tail > record.longest_tail and state.finished is None:
            kept.extra = Batch(session=None) if kept.extra is None else kept.extra
            kept.extra.snapshots.append(snapshots.take(record))
        status = state.status
        if status != record.kept_status or release or kept.start is not None or state.cancel is not None:
            record.kept_status = status
            where = standing(state, entries, record.epoch, release=release)
            if where.release and state.id in self._fresh:  # nobody has looked for its mail: it is due
                del self._fresh[state.id]
                where = msgspec.structs.replace(where, wake_at=state.at)
            if isinstance(kept, SetAside):
                where = msgspec.structs.replace(where, parked=_why_aside(record), wake_at=self._look_again_at(record))
            kept.standing = where
            record.owned = not where.release
        self._committer.add(kept)

    def _extra(
        self, state: Execution, entries: list[Entry], changed: list[EffectKey], answer: f.Answer, by: str | None
    ) -> Batch | None:
        """What is seldom written: most decisions only append. `by` is who started the execution."""
        mail, self._mail_in_hand = self._mail_in_hand, None
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
            self._give_up(record, fate)
            return
        record.unkept -= 1
        if self._loaded_again:
            self._loaded_again.discard(kept.execution)
        try:
            self._act(record, kept.entries, kept.changed, kept.rank)
        except Exception as error:  # it is recorded: whoever reads it again follows it
            report(f"Execution {kept.execution} could not go on; it is set aside.", error)
            self._leave_broken(record)
        if kept.then is not None:
            kept.then(kept.answer)
        if record.state.finished is not None or record.state.reviews:
            self._store.notify(NEWS)
            if record.state.finished is not None:
                self._crowds.ended(record.state.tenant)
                if record.state.concurrency_key is not None:
                    self._hint_at_work()  # whoever waited for its key
            if record.waiters:
                self._tell_waiters(record)
        if self._relay is not None and kept.extra is not None and kept.extra.outbox:
            self._relay.nudge()
        if kept.extra is not None and kept.extra.withdrawn and self._records.get(kept.execution) is record:
            self._fresh[kept.execution] = None  # mail tells what was withdrawn, and nobody else may come to read it
            self._nudge(mail_for(self._session.id))
        if not record.jobs:
            self._let_go_if_idle(record)

    def _follow(self, record: Record, changed: list[EffectKey], rank: int | None) -> None:
        """What was granted to this process; not what another may have by now, though its record was on the way."""
        if self._records.get(record.state.id) is record:
            super()._follow(record, changed, rank)

    def _give_up(self, record: Record, fate: Fate) -> None:
        """What was decided is not recorded: that state never came to be, and whoever waits for it is told."""
        self._lose(record)
        self._fail_waiters(record, Moved())
        if fate == "stale":
            self._load_again(record)
        for answered in self._asked.pop(record, ()):
            if not answered.done():
                answered.set_exception(not_kept(record.state.id, fate))

    def _load_again(self, record: Record) -> None:
        """The database lost commits that it had acknowledged. What it has now is the truth, and is taken over.

        If that was done, and nothing could be committed on it either, then what is stored is not a history that this
        release can go on with. It is set aside.
        """
        id = record.state.id
        if id in self._to_park:
            return  # two writes were refused together
        if id in self._loaded_again:
            self._loaded_again.discard(id)
            self._to_park[id] = Parking(self._session, record.epoch, "incompatible", SET_ASIDE_MS)
        else:
            self._loaded_again.add(id)
            logger.error(COMMITS_LOST, id, extra={"action": "commits_lost", "execution_id": id})
            self._to_park[id] = Parking(self._session, record.epoch, "", 0)
        self._look_for_astray_soon()
        self._nudge(WORK)

    def _look_for_astray_soon(self) -> None:
        """This session may own what is in nobody's hand."""

    def _no_longer_asked(self, record: Record, answered: "asyncio.Future[f.Answer]") -> None:
        left = [other for other in self._asked.get(record, ()) if other is not answered]
        if left:
            self._asked[record] = left
        else:
            self._asked.pop(record, None)

    def _lose(self, record: Record) -> None:
        id = record.state.id
        if self._records.get(id) is record:
            del self._records[id]
            self._letters.left(id)
            self._fresh.pop(id, None)
            if record.shown and record.state.finished is None:
                self._beats.leave(id)
        record.wake_at = None
        self._forget_work(record)

    def _break(self, record: Record, error: Exception) -> None:
        """Nothing more is decided on what it made of the state. What is recorded is sound, and is set aside."""
        super()._break(record, error)
        self._leave_broken(record)

    def _leave_broken(self, record: Record) -> None:
        """It is set aside, when all that was decided for it is recorded. Whoever waits for it asks the database."""
        id, session = record.state.id, self._session
        if self._records.get(id) is record:
            self._lose(record)
            self._fail_waiters(record, Moved())
            self._letting_go[id] += 1

            def set_aside(_: Fate) -> None:
                self.has_left(id)
                self._to_park[id] = Parking(session, record.epoch, "incompatible", SET_ASIDE_MS)
                self._nudge(WORK)

            self._committer.add(Told(execution=id, tell=set_aside, record=record))

    async def _is_kept(self, execution_id: str) -> bool:
        """Whether all that was decided so far was kept, once that is known: nobody is shown what may yet be lost."""
        assert self._loop is not None
        kept: asyncio.Future[bool] = self._loop.create_future()

        def settle(fate: Fate) -> None:
            if not kept.done():
                kept.set_result(fate == "committed")

        self._committer.add(Told(execution=execution_id, tell=settle, record=self._records.get(execution_id)))
        return await kept

    def _held(self, execution_id: str) -> Record | None:
        """In hand, and ours. One that has ended may still be here for a handler that goes on: it is ours no more."""
        record = self._records.get(execution_id)
        return record if record is not None and (record.owned or record.unkept) else None

    # -- Letting go ----------------------------------------------------------------------------------------------------

    def _let_go_if_idle(self, record: Record) -> None:
        """An execution that only waits leaves memory; it is claimed again when it is due or has mail."""
        state = record.state
        if record.unkept or self._records.get(state.id) is not record or state.id in self._fresh:
            return
        if self._closing:
            self._leave_to_others(record)
            return
        if record.parked and not self._runs(record.performer):
            self._hand_over(record)
            return
        if not record.is_idle:
            return
        if state.finished is not None:
            self._release(record)
            return
        if record.parked:
            self._leave_aside(record)
            return
        if has_queued(state) and self._lingers(state.id):
            return
        waits_long = record.wake_at is None or record.wake_at - self._now() > EVICT_MS
        if waits_long and not has_work(state):
            self._release(record)

    def _park(self, record: Record, ref: Ref, why: Waiting) -> None:
        super()._park(record, ref, why)
        self._later(partial(self._let_go_if_idle, record))

    def _take_up_again(self, record: Record, refs: list[Ref]) -> None:
        """What was just handed back is nobody's, though it is still here: it begins when it is granted to us again."""
        back = [ref for ref in refs if self._was_handed_back(record, ref)]
        if back:
            fact = f.Taken(at=self._now(), epoch=record.epoch)
            self.apply(record, fact, RESUME, lambda _: super(Keeper, self)._take_up_again(record, back))
        super()._take_up_again(record, [ref for ref in refs if ref not in back])

    def _was_handed_back(self, record: Record, ref: Ref) -> bool:
        holder = holder_of(record.state, ref)
        return holder is not None and holder.open is not None and holder.open.ref == ref and not holder.open.epoch

    def _bury(self, record: Record, path: str) -> None:
        super()._bury(record, path)
        self._let_go_if_idle(record)

    def _lingers(self, id: str) -> bool:
        """Whether an execution whose attempts run elsewhere is kept for a while: most answers come soon."""
        now = self._now()
        return now < self._lingering.setdefault(id, now + EVICT_MS)

    def _end_lingering(self) -> None:
        now = self._now()
        for id in [id for id, until in self._lingering.items() if until <= now]:
            try:
                if (record := self._records.get(id)) is not None:
                    self._let_go_if_idle(record)
            finally:  # not before: until then it says that the time is over
                del self._lingering[id]

    def _hand_over(self, record: Record) -> None:
        """This process decided for it, and cannot run what was granted: that is for whoever can."""
        if record.jobs or record.tickets or record.zombies or record.held:
            return
        self._return_work(record, ())
        if not record.unkept:  # else it comes here again, when that is kept
            self._release(record, HandedOver)

    def _leave_to_others(self, record: Record) -> None:
        """This process is about to end. What runs no handler here need not wait for handlers of other executions."""
        if not self._hands_over or record.jobs or record.zombies:
            return
        record.tickets.clear()
        record.held.clear()
        self._return_work(record, ())
        if not record.unkept:
            self._release(record, HandedOver)

    def _leave_all_to_others(self) -> None:
        """What has no handler running goes at once, all else when its last one has ended and that is recorded."""
        self._hands_over = True
        for record in list(self._records.values()):
            try:
                self._let_go_if_idle(record)
            except Exception as error:
                report(f"Execution {record.state.id} could not be handed over.", error)

    def _leave_aside(self, record: Record) -> None:
        """It waits for code that fits what is recorded: others may have that, and everybody sees why it waits."""
        self._return_work(record, ())
        if not record.unkept:
            self._release(record, SetAside)
            self._note_tried(record.state.id, _why_aside(record))

    def _note_tried(self, id: str, why: str) -> None:
        """With the code that is here it was tried: others may try it now. It is told once."""
        if self._tried.pop(id, None) != self._learned and why:
            extra = {"action": "set_aside", "execution_id": id, "reason": why}
            logger.warning("Execution %s cannot go on with the code that is here: %s", id, why, extra=extra)
        self._tried[id] = self._learned
        if len(self._tried) > ASIDE_REMEMBERED:
            del self._tried[next(iter(self._tried))]

    def is_aside(self, id: str) -> None:
        """That is recorded. What was learned meanwhile may be what it waits for."""
        if self._tried.get(id) != self._learned:
            self._look_aside_soon()

    def _look_aside_soon(self) -> None:
        """Something was set aside that this process may be able to go on with."""

    def _look_again_at(self, record: Record) -> int:
        """After as long as it has stood still, at least a minute and at most an hour; or when it is due anyway."""
        now = self._now()
        stood = (entry.at for entry in reversed(record.history) if not isinstance(entry.event, STANDING_STILL))
        pause = min(max(now - next(stood, now), SET_ASIDE_MS), LONGEST_ASIDE_MS)
        due = record.state.wake_at
        return now + pause if due is None or due <= now else min(now + pause, due)

    def _return_work(self, record: Record, unknown: Collection[Ref]) -> None:
        """What was granted and never begun is handed back: nothing is lost with this process, and nothing counted.

        `unknown` are the attempts that had to be stopped: what came of them nobody knows.
        """
        refs = tuple(ref for ref in work_of(record.state) if ref not in unknown and ref not in record.jobs)
        if refs and record.owned:
            self.apply(record, f.Returned(at=self._now(), refs=refs))

    def _release(self, record: Record, kind: "type[Released] | None" = None) -> None:
        state = record.state
        if self._records.get(state.id) is not record:
            return
        del self._records[state.id]
        self._parked.pop(record, None)
        self._letters.left(state.id)
        record.wake_at = None
        self._fail_waiters(record, Moved())
        if record.shown and state.finished is None:
            self._beats.leave(state.id)
        if record.owned:
            self._letting_go[state.id] += 1
            kept = (kind or Released)(self, record, [], [], None, f.APPLIED, None, execution=state.id)
            self._write(kept, release=True)

    def has_left(self, execution_id: str) -> None:
        self._letting_go[execution_id] -= 1
        if not self._letting_go[execution_id]:
            del self._letting_go[execution_id]

    def _hint_at_work(self) -> None:
        """Something is due that nobody owns: here or elsewhere somebody may be free for it."""
        self._nudge(WORK)
        self._store.notify(WORK)

    def _request_hold(self, record: Record, effect: RequestHold) -> None:
        fact = f.HoldGranted(at=self._now(), amount=effect.amount, admitted=record.state.concurrency_key is None)
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

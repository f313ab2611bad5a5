"""Executions that this process owns and holds in memory.

A fact is decided at once on the newest state. Once the decision is committed, it takes effect: attempts start, callers
are answered, and the execution may be released. If the commit is refused, the state it led to is discarded.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial

from tenuto.errors import EngineClosed, InsufficientCredits, StorageError
from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref
from tenuto.kernel.effects import EffectKey, RequestHold
from tenuto.kernel.evolve import HOLD, holder_of
from tenuto.runtime.executor import Job
from tenuto.runtime.executor.held_execution import Inbox, Record, Ticket
from tenuto.runtime.executor.observers import Observers
from tenuto.runtime.executor.slots import RESUME
from tenuto.runtime.executor.timers import WakeTimer
from tenuto.runtime.executor.worker import Then, Worker
from tenuto.runtime.shared.outbox_relay import Relay
from tenuto.runtime.supervision import report
from tenuto.storage.port import NEWS, WORK, Basis, Batch, Store, mail_for
from tenuto.views import Waiting
from tenuto.views.jobs import CallbackRow, callback_row

from .committer import CallbackWrite, Fate
from .decision_writer import DecisionWrite, DecisionWriter
from .late_reports import LateReports
from .parked_executions import PARKED_MS, ParkedExecutions, Parking
from .progress import ProgressWriter
from .session import CurrentSession
from .tenant_admission import TenantAdmission
from .unread_mail import UnreadMail
from .wakeups import Wakeups

logger = logging.getLogger("tenuto.durable")

COMMITS_LOST = (
    "The database has lost commits of execution %s, which goes on from what is stored. See the durability guide."
)
UNREADABLE = "Execution {} cannot be read by this release; it is set aside."


class HeldExecutions:
    """Decides for the executions that this process holds. It is their `Controller`."""

    def __init__(
        self,
        store: Store,
        current: CurrentSession,
        wakeups: Wakeups,
        worker: Worker,
        records: dict[str, Record],
        writer: DecisionWriter,
        observers: Observers,
        unread_mail: UnreadMail,
        parked_executions: ParkedExecutions,
        late_reports: LateReports,
        progress: ProgressWriter,
        admission: TenantAdmission,
        relay: Relay | None,
        inbox: Inbox,
    ) -> None:
        self._store = store
        self._current = current
        self._wakeups = wakeups
        self._worker = worker
        self._writer = writer
        self._observers = observers
        self._parked_executions = parked_executions
        self._late_reports = late_reports
        self._admission = admission
        self._relay = relay
        self._now = worker.now
        self.records = records
        self.unread_mail = unread_mail
        self.progress = progress
        self.limits = worker.limits
        self.inbox = inbox
        self.timer = WakeTimer(worker.environment, records, self._wake)
        # Called when a record may have nothing to do here. The releaser sets it.
        self.on_idle: Callable[[Record], None] = _stay
        self.releasing: Counter[str] = Counter()  # released, and not committed yet
        self.credits = store.credits
        self._asking: set[asyncio.Future[None]] = set()
        self._callers: dict[Record, list[asyncio.Future[f.Answer]]] = {}  # wait for a commit
        self._loaded_again: set[str] = set()  # and nothing was committed for them since

    # -- Decisions -----------------------------------------------------------------------------------------------------

    def apply(
        self,
        record: Record,
        fact: f.Fact,
        rank: int | None = None,
        then: Then | None = None,
        message: str | None = None,
    ) -> f.Answer:
        """Decides a fact. Once the decision is committed, it takes effect and `then` is called with the answer.

        `rank`: the class of its attempts in the queues. `message`: the mail that the fact came with.
        """
        state = record.state
        if self.records.get(state.id) is not record:
            return f.Ignored("stale_lease")  # released or given up: the present owner decides
        try:
            decision = record.decide(fact, self._now())
        except Exception as error:
            self._break(record, error)
            raise
        entries, answer = decision.entries, decision.answer
        callback = callback_row(state, fact, answer)
        if entries:
            changed, state.changed = state.changed, []
            record.uncommitted += 1
            write = DecisionWrite(self, record, entries, changed, rank, answer, then, execution=state.id)
            try:
                self._writer.write(write, message, callback=callback)
            except Exception as error:  # the decision cannot be written, and nothing may be decided on top of it
                self._break(record, error)
                raise
        elif callback is not None and message is None:
            self._log_callback(record, callback, then, answer)
        elif then is not None and record.uncommitted:
            # The answer may rest on decisions that are not committed yet.
            call = partial(self._answer_committed, record, then, answer)
            self._current.committer.add(CallbackWrite(execution=state.id, call=call, record=record))
        elif then is not None:
            then(answer)
        if state.timers or record.wake_at is not None:
            self.timer.schedule(record)
        return answer

    def _log_callback(self, record: Record, row: CallbackRow, then: Then | None, answer: f.Answer) -> None:
        """A callback that changed nothing: only its row is written, and then it is answered."""
        id = record.state.id
        call = partial(self._answer_committed, record, then or _ignore, answer)
        extra = Batch(session=None, callbacks=[row])
        after = Basis(record.epoch, record.state.seq)
        self._current.committer.add(CallbackWrite(execution=id, after=after, extra=extra, call=call, record=record))

    def _wake(self, record: Record, now: int) -> None:
        self.apply(record, f.Tick(at=now))

    def _answer_committed(self, record: Record, then: Then, answer: f.Answer, fate: Fate) -> None:
        if fate == "committed":
            then(answer)
        else:
            self.give_up(record, fate)

    def ask(self, record: Record, fact: f.Fact, rank: int | None = None) -> "asyncio.Future[f.Answer]":
        """Decides a fact. The answer comes once it is committed, or `Moved` if another process is to decide."""
        answered: asyncio.Future[f.Answer] = asyncio.get_running_loop().create_future()
        self._callers.setdefault(record, []).append(answered)
        answered.add_done_callback(partial(self._forget_caller, record))

        def then(answer: f.Answer) -> None:
            if not answered.done():
                answered.set_result(answer)

        try:
            self.apply(record, fact, rank, then)
        except BaseException:
            answered.cancel()
            raise
        return answered

    def _forget_caller(self, record: Record, answered: "asyncio.Future[f.Answer]") -> None:
        left = [other for other in self._callers.get(record, ()) if other is not answered]
        if left:
            self._callers[record] = left
        else:
            self._callers.pop(record, None)

    def settle(self, write: DecisionWrite, fate: Fate) -> None:
        record = write.record
        if fate != "committed":
            self.give_up(record, fate)
            return
        record.uncommitted -= 1
        if self._loaded_again:
            self._loaded_again.discard(write.execution)
        try:
            self._take_effect(write)
        except Exception as error:  # the decision is recorded: the next owner follows it
            report(f"Execution {write.execution} could not go on; it is set aside.", error)
            self.park_broken(record)
        if write.then is not None:
            write.then(write.answer)
        state = record.state
        if state.finished is not None or state.reviews:
            self._store.notify(NEWS)
            if state.finished is not None:
                self._admission.ended(state.tenant)
                if state.concurrency_key is not None:
                    self.announce_work()  # another execution may have waited for its key
            if record.waiters:
                record.answer_waiters()
        if write.extra is not None:
            self._settle_extra(write)
        if not record.jobs:
            self.on_idle(record)

    def _take_effect(self, write: DecisionWrite) -> None:
        record = write.record
        if self._observers.all:
            self._observers.decided(record, write.entries)
        if write.changed:
            self.follow_agenda(record, write.changed, write.rank)
        if record.is_active and record.state.finished is not None:
            record.is_active = False
            if record.state.cancel is not None:
                self._late_reports.stop(record.state.id)

    def _settle_extra(self, write: DecisionWrite) -> None:
        extra, id = write.extra, write.execution
        assert extra is not None
        if self._relay is not None and extra.outbox:
            self._relay.nudge()
        if extra.withdrawn and self.records.get(id) is write.record:
            self.unread_mail.unchecked[id] = None  # mail says which tasks were withdrawn
            self._wakeups.notify(mail_for(self._current.session.id))

    def follow_agenda(self, record: Record, changed: list[EffectKey], rank: int | None) -> None:
        """Follows the agenda, unless another process owns the execution by now."""
        if self.records.get(record.state.id) is record:
            self._worker.follow_agenda(record, changed, rank)
            if record.state.retries and HOLD in changed:
                self._request_hold(record)

    def _request_hold(self, record: Record) -> None:
        """Answers the request for another attempt's credits. The commit that opens the attempt reserves them."""
        effect = record.state.agenda[HOLD]
        assert isinstance(effect, RequestHold)
        task = asyncio.ensure_future(self._answer_hold(record, effect.amount))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _answer_hold(self, record: Record, amount: int) -> None:
        try:
            has_credits = not amount or (await self.credits.account(record.state.tenant)).available >= amount
        except StorageError as error:  # it stays on the agenda, and is asked for again by the next owner
            report(f"The credits of execution {record.state.id} could not be read.", error)
            self.park_broken(record)
            return
        admitted = record.state.concurrency_key is None
        if has_credits:
            fact: f.Fact = f.HoldGranted(at=self._now(), amount=amount, admitted=admitted)
        else:
            fact = f.HoldRefused(at=self._now())
        self._worker.run_errand(record, partial(self.apply, record, fact, RESUME))

    async def is_committed(self, execution_id: str) -> bool:
        """Whether all decisions so far were committed, once that is known. Readers see nothing else."""
        committed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def settle(fate: Fate) -> None:
            if not committed.done():
                committed.set_result(fate == "committed")

        record = self.records.get(execution_id)
        self._current.committer.add(CallbackWrite(execution=execution_id, call=settle, record=record))
        return await committed

    def find_held(self, execution_id: str) -> Record | None:
        """The execution, if this process owns it. One that has ended may still be in memory for a running handler."""
        record = self.records.get(execution_id)
        return record if record is not None and (record.owned or record.uncommitted) else None

    def announce_work(self) -> None:
        """An execution without an owner is due: a worker, here or elsewhere, may have room for it."""
        self._wakeups.notify(WORK)
        self._store.notify(WORK)

    # -- Attempts: as their controller ---------------------------------------------------------------------------------

    def begin(self, ticket: Ticket) -> None:
        self.apply(ticket.record, self._worker.begun(ticket.ref), then=lambda _: self._worker.begin(ticket))

    def report(self, record: Record, ref: Ref, fact: f.Fact) -> None:
        self.apply(record, fact)

    def report_unsafe(self, record: Record, ref: Ref, fact: f.Reported) -> None:
        """If it is not recorded because the execution has another owner, that owner receives it by mail."""
        if self.records.get(record.state.id) is record:
            self.ask(record, fact).add_done_callback(partial(self._send_if_moved, record, fact))
        else:
            self._late_reports.send(record.state.id, fact)

    def _send_if_moved(self, record: Record, fact: f.Reported, answered: "asyncio.Future[f.Answer]") -> None:
        if not answered.cancelled() and isinstance(answered.exception(), Moved):
            self._late_reports.send(record.state.id, fact)

    def cannot_run(self, record: Record, ref: Ref, why: Waiting) -> None:
        if self.records.get(record.state.id) is record:
            self._worker.park(record, ref, why)
            self._worker.call_soon(partial(self.on_idle, record))

    def handler_ended(self, record: Record, path: str, job: Job) -> None:
        self.on_idle(record)
        self._late_reports.ended(record, path, job)

    def slot_freed(self, record: Record) -> None:
        self.on_idle(record)

    def resume_parked(self) -> None:
        """Code was registered: parked attempts may be able to run."""
        for record in self._worker.take_parked():
            self._resume(record, list(record.parked))

    def _resume(self, record: Record, refs: list[Ref]) -> None:
        returned = [ref for ref in refs if _was_returned(record, ref)]
        if returned:  # they begin once they are granted to this process again
            fact = f.Taken(at=self._now(), epoch=record.epoch)
            self.apply(record, fact, RESUME, lambda _: self._worker.resume(record, returned))
        self._worker.resume(record, [ref for ref in refs if ref not in returned])

    # -- Loss ----------------------------------------------------------------------------------------------------------

    def lose(self, record: Record) -> None:
        """Forgets an execution that this process no longer owns."""
        id = record.state.id
        if self.records.get(id) is record:
            del self.records[id]
            self.unread_mail.left(id)
            self.unread_mail.unchecked.pop(id, None)
            if record.shown and record.state.finished is None:
                self.progress.leave(id)
        self._forget(record)

    def _forget(self, record: Record) -> None:
        record.wake_at = None
        self._late_reports.keep(record)
        self._worker.forget(record)

    def has_left(self, execution_id: str) -> None:
        """The release is settled."""
        self.releasing[execution_id] -= 1
        if not self.releasing[execution_id]:
            del self.releasing[execution_id]

    def clear(self) -> None:
        """The session is lost, and others own the executions now. Handlers that are not safe to retry continue."""
        records = list(self.records.values())
        self.records.clear()
        for record in records:
            self._forget(record)
            record.fail_waiters(Moved())
        self.unread_mail.clear()
        self.progress.clear()

    def close(self) -> None:
        self.timer.close()
        for record in self.records.values():
            record.fail_waiters(EngineClosed("The engine was closed while the execution was under way."))

    def give_up(self, record: Record, fate: Fate) -> None:
        """A decision was not recorded: the state it led to is discarded, and its callers are told why."""
        self.lose(record)
        record.fail_waiters(Moved())
        if fate == "stale":
            self.load_again(record)
        elif fate == "insufficient_credits":
            self._take_up_again(record)
        for answered in self._callers.pop(record, ()):
            if not answered.done():
                answered.set_exception(not_committed(record.state.id, fate))

    def _take_up_again(self, record: Record) -> None:
        """Another attempt's credits were refused. The execution is still owned, and continues from what is stored."""
        id = record.state.id
        if id not in self._parked_executions.to_park:
            self._parked_executions.to_park[id] = Parking(self._current.session, record.epoch, "", 0)
            self._parked_executions.look_for_lost_claims()
            self._wakeups.notify(WORK)

    def load_again(self, record: Record) -> None:
        """The database lost commits that it had acknowledged. The stored history is taken over as it is.

        If that was done before, and nothing could be committed on top of it, then this release cannot continue the
        stored history. The execution is parked.
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

    def _break(self, record: Record, error: Exception) -> None:
        """Nothing more is decided on this state. The recorded history is sound, and is parked."""
        record.fail(error)
        self.park_broken(record)

    def park_broken(self, record: Record) -> None:
        """Parks the execution once all its decisions are committed. Its waiters read the database."""
        id, session = record.state.id, self._current.session
        if self.records.get(id) is record:
            self.lose(record)
            record.fail_waiters(Moved())
            self.releasing[id] += 1

            def park(_: Fate) -> None:
                self.has_left(id)
                self._parked_executions.to_park[id] = Parking(session, record.epoch, "incompatible", PARKED_MS)
                self._wakeups.notify(WORK)

            self._current.committer.add(CallbackWrite(execution=id, call=park, record=record))


def _ignore(answer: f.Answer) -> None:
    """Nobody waits for the answer."""


def _stay(record: Record) -> None:
    """Without a releaser, executions stay in memory."""


def _was_returned(record: Record, ref: Ref) -> bool:
    """Whether the attempt was handed back, so that no worker owns it at present."""
    holder = holder_of(record.state, ref)
    return holder is not None and holder.open is not None and holder.open.ref == ref and not holder.open.epoch


class Moved(Exception):
    """This process no longer holds the execution; ask the database."""


def not_committed(execution_id: str, fate: Fate) -> Exception:
    """The error for callers whose decision was not committed."""
    if fate == "parked":
        return StorageError(
            f"The database refused what was to be recorded for execution {execution_id}; it is set aside.",
            code="incompatible",
            hint="its status says so; any command tries again",
        )
    if fate == "insufficient_credits":
        return InsufficientCredits(f"The credits for another attempt of run {execution_id} could not be reserved.")
    if fate == "unknown":
        return StorageError(
            "The engine was closed while the database could not be reached; whether this was recorded is not known.",
            code="outcome_unknown",
            hint="ask again when the database is back; with an idempotency key a start can be repeated",
        )
    return Moved()

"""Facts from outside: decided at once for executions held here, and sent to the mailbox of all others."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import monotonic

import msgspec

from tenuto.errors import (
    NotFound,
    ResultTimeout,
    StorageError,
)
from tenuto.kernel import facts as f
from tenuto.kernel.codec import decode_answer, decode_fact, encode_answer, encode_fact
from tenuto.runtime.executor.held_execution import Record
from tenuto.runtime.executor.slots import RESUME
from tenuto.runtime.executor.worker import Worker
from tenuto.runtime.shared.in_flight import tenant_is_full
from tenuto.runtime.shared.job_rows import with_cause
from tenuto.runtime.supervision import report
from tenuto.storage.port import MAIL_AT_ONCE, Basis, Mail, MailVerdict, Store, mail_for
from tenuto.values.jitter import spread
from tenuto.views.jobs import CALLBACK, CallbackRow, callback_row

from .claimer import Claimer
from .committer import CallbackWrite, Fate
from .decision_writer import DecisionWriter
from .held_executions import UNREADABLE, HeldExecutions, Moved, not_committed
from .reader import Reader
from .releaser import Releaser
from .session import CurrentSession
from .task_reports import TaskReports
from .wakeups import Wakeups

VERDICT_SECONDS = 30
DUE_MS = 1_000  # clocks differ
MORE_MAIL_SECONDS = 0.02  # until the messages that were read are answered, and the next ones can be queried


class Mailbox:
    """Sends facts to the owners of executions, and decides those that are sent to this process."""

    def __init__(
        self,
        store: Store,
        current: CurrentSession,
        wakeups: Wakeups,
        worker: Worker,
        held: HeldExecutions,
        releaser: Releaser,
        writer: DecisionWriter,
        claimer: Claimer,
        reader: Reader,
        task_reports: TaskReports,
        check_open: Callable[[], None],
    ) -> None:
        self._store = store
        self._current = current
        self._wakeups = wakeups
        self._worker = worker
        self._held = held
        self._releaser = releaser
        self._writer = writer
        self._claimer = claimer
        self._reader = reader
        self._task_reports = task_reports
        self._check_open = check_open
        self._unread = held.unread_mail

    async def tell(self, tenant: str | None, execution_id: str, fact: f.Fact) -> f.Answer:
        self._check_open()
        fact = with_cause(fact, self._worker.environment.new_id)
        if isinstance(fact, f.Retry):
            row = await self._reader.row(tenant, execution_id)
            fact = msgspec.structs.replace(fact, admitted=row.concurrency_key is None)
            if row.status == "failed":
                await self._check_room(row.tenant)
        record = self._held.records.get(execution_id)
        if record is not None and record.owned and (tenant is None or record.state.tenant == tenant):
            with suppress(Moved):  # nothing was recorded, and another process owns the execution
                return await self._held.ask(record, fact, _rank(fact))
        await self._reader.row(tenant, execution_id)
        return await self._send(execution_id, fact)

    async def _check_room(self, tenant: str) -> None:
        """Checks the tenant's limit for another run, which counts once it is opened."""
        for use in await self._store.limits.tenants(tenant):
            if use.in_flight >= use.max_in_flight:
                raise tenant_is_full(tenant)

    async def _send(self, execution_id: str, fact: f.Fact) -> f.Answer:
        """Sends a message to the owner of the execution. If there is none, this process claims it and decides."""
        is_callback = isinstance(fact, f.Acked | f.Reported)
        id = fact.cause.removeprefix(CALLBACK) if is_callback and fact.cause else self._worker.environment.new_id()
        posted = await self._store.mailbox.post(id, execution_id, encode_fact(fact))
        if posted is None:
            raise NotFound(f"There is no execution {execution_id!r}.")
        _, owner = posted
        if owner is not None and owner != self._current.session.id:
            self._store.notify(mail_for(owner))
        else:
            with suppress(StorageError):  # the message is stored: its verdict comes all the same
                await self._claimer.claim_one(execution_id)
                await self.read()
        return await self._verdict(id, execution_id)

    async def _verdict(self, mail_id: str, execution_id: str) -> f.Answer:
        """Waits for the owner's verdict. If the execution loses its owner, this process claims it and decides."""
        deadline = monotonic() + VERDICT_SECONDS
        wait = 0.005
        while monotonic() < deadline:
            try:
                # The row is read before the verdict: the execution may be parked because of what follows from it.
                row = await self._store.executions.find(execution_id)
                if (verdict := (await self._store.mailbox.verdicts([mail_id])).get(mail_id)) is not None:
                    return decode_answer(verdict)
                if row is not None and row.parked and not self._is_due(row.wake_at):
                    raise not_committed(execution_id, "parked")
                await self._claimer.claim_one(execution_id)
                await self.read()
            except StorageError as error:
                if error.code == "incompatible":
                    raise
            await asyncio.sleep(spread(wait))
            wait = min(wait * 2, self._wakeups.poll_s)
        raise ResultTimeout("The command was delivered, and its verdict is not known yet; it will be acted upon.")

    def _is_due(self, wake_at: int | None) -> bool:
        """Mail makes a parked execution due: a worker claims it, and reads the mail."""
        return wake_at is not None and wake_at <= self._worker.now() + DUE_MS

    # -- The mailbox ---------------------------------------------------------------------------------------------------

    async def read(self) -> None:
        fresh = list(self._unread.unchecked)
        query = self._unread.begin()
        try:
            found = await self._store.mailbox.unread(self._current.session.id)
            short_of = await self._short_of_credits(found)
            for mail in found:
                record = self._held.records.get(mail.execution)
                if record is not None and self._unread.is_new(query, mail.id, mail.execution):
                    self._unread.read(mail.id, mail.execution)
                    try:
                        self._decide(record, mail, short_of.get(mail.execution))
                    except Exception as error:  # perhaps written by another release; the others are read all the same
                        if self._held.records.get(mail.execution) is record:  # else it is being parked already
                            report(UNREADABLE.format(mail.execution), error)
                            self._held.park_broken(record)
        finally:
            self._unread.end(query)
        if len(found) == MAIL_AT_ONCE:  # there may be more, and no execution is released before its mail was read
            hint = mail_for(self._current.session.id)
            asyncio.get_running_loop().call_later(MORE_MAIL_SECONDS, self._wakeups.notify, hint)
            return
        for id in fresh:
            if not self._unread.were_asked_for(query, id):
                continue  # it was released meanwhile, and claimed again
            self._unread.unchecked.pop(id, None)
            if (record := self._held.records.get(id)) is not None:
                self._releaser.release_if_idle(record)

    async def _short_of_credits(self, found: list[Mail]) -> dict[str, f.Refused]:
        """Retries of paid runs whose organisation has too few credits. Their commit would be refused, mail and all."""
        short: dict[str, f.Refused] = {}
        for mail in found:
            record = self._held.records.get(mail.execution)
            if record is None or not record.state.hold or record.state.finished != "failed":
                continue
            available = (await self._store.credits.account(record.state.tenant)).available
            if available < record.state.hold:
                short[mail.execution] = f.Refused("insufficient_credits", "the credits for another attempt are missing")
        return short

    def _decide(self, record: Record, mail: Mail, refused: f.Refused | None) -> None:
        fact = msgspec.structs.replace(decode_fact(mail.body), at=mail.received_at, cause=mail.id)
        state = record.state
        if refused is not None and isinstance(fact, f.Retry):
            self._write_verdict(record, mail, refused)
            return
        seq, recorded = state.seq, False

        def committed(_: f.Answer) -> None:
            if recorded:
                self._mail_settled(mail.id, "committed")

        answer = self._held.apply(record, fact, _rank(fact), committed, mail.id)
        recorded = state.seq != seq
        if not recorded:
            self._write_verdict(record, mail, answer, callback_row(state, fact, answer))

    def _write_verdict(self, record: Record, mail: Mail, answer: f.Answer, callback: CallbackRow | None = None) -> None:
        """Writes the verdict on a message that changed nothing."""
        state = record.state
        verdict = MailVerdict(state.id, mail.id, encode_answer(answer))
        extra = self._writer.extra_rows(state, [], [], None, verdict, callback)
        call = partial(self._verdict_settled, record, mail.id)
        after = Basis(record.epoch, state.seq)
        write = CallbackWrite(execution=state.id, after=after, extra=extra, call=call, record=record)
        self._current.committer.add(write)

    def _verdict_settled(self, record: Record, id: str, fate: Fate) -> None:
        self._mail_settled(id, fate)
        if fate in ("stale", "not_owner"):
            self._held.give_up(record, fate)

    def _mail_settled(self, id: str, fate: Fate) -> None:
        self._unread.settle(id, fate)
        if self._task_reports.is_pending(id):
            self._wakeups.tasks.set()


def _rank(fact: f.Fact) -> int | None:
    return RESUME if isinstance(fact, f.Resume | f.Decide | f.Retry) else None

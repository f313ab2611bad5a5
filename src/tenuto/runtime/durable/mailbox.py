"""Facts from outside: decided at once for what is in hand, and through the mailbox for all else."""

import asyncio
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
from tenuto.kernel.codec import decode_answer, decode_fact, encode_fact
from tenuto.runtime.executor.held_execution import Record
from tenuto.runtime.executor.slots import RESUME
from tenuto.runtime.shared.in_flight import tenant_is_full
from tenuto.runtime.supervision import report
from tenuto.storage.port import MAIL_AT_ONCE, Basis, Mail, Store, mail_for
from tenuto.values.jitter import spread

from .claimer import Claimer
from .committer import Fate, Told
from .held_executions import UNREADABLE, HeldExecutions, Moved, not_kept
from .reader import Reader
from .session import CurrentSession
from .wakeups import Wakeups

VERDICT_SECONDS = 30
DUE_MS = 1_000  # clocks differ
MORE_MAIL_SECONDS = 0.02  # until what was read is answered, and makes room for the rest


class Mailbox:
    """Brings facts to the owners of executions, and decides those that are sent to this process."""

    def __init__(
        self,
        store: Store,
        current: CurrentSession,
        wakeups: Wakeups,
        held: HeldExecutions,
        claimer: Claimer,
        reader: Reader,
    ) -> None:
        self._store = store
        self._current = current
        self._wakeups = wakeups
        self._held = held
        self._claimer = claimer
        self._reader = reader
        self._unread = held.unread_mail

    async def tell(self, tenant: str | None, execution_id: str, fact: f.Fact) -> f.Answer:
        self._held.check_open()
        if isinstance(fact, f.Retry):
            row = await self._reader.row(tenant, execution_id)
            fact = msgspec.structs.replace(fact, admitted=row.concurrency_key is None)
            if row.status == "failed":
                await self._check_room(row.tenant)
        record = self._held.records.get(execution_id)
        if record is not None and record.owned and (tenant is None or record.state.tenant == tenant):
            with suppress(Moved):  # nothing of it was recorded, and somebody else is to hear it
                return await self._apply_and_wait(record, fact)
        await self._reader.row(tenant, execution_id)
        return await self._send(execution_id, fact)

    async def _check_room(self, tenant: str) -> None:
        """For another run. It counts when it is opened, whoever came first: unlike a start it is not created twice."""
        for use in await self._store.limits.tenants(tenant):
            if use.in_flight >= use.max_in_flight:
                raise tenant_is_full(tenant)

    async def _apply_and_wait(self, record: Record, fact: f.Fact) -> f.Answer:
        answered: asyncio.Future[f.Answer] = asyncio.get_running_loop().create_future()

        def then(answer: f.Answer) -> None:
            if not answered.done():
                answered.set_result(answer)

        rank = RESUME if isinstance(fact, f.Resume | f.Decide | f.Retry) else None
        self._held.callers.setdefault(record, []).append(answered)
        try:
            self._held.apply(record, fact, rank, then)
            return await answered
        finally:
            self._held.forget_caller(record, answered)

    async def _send(self, execution_id: str, fact: f.Fact) -> f.Answer:
        """Through the mailbox: to whoever owns the execution, or, if nobody does, to ourselves."""
        id = self._held.environment.new_id()
        posted = await self._store.mailbox.post(id, execution_id, encode_fact(fact))
        if posted is None:
            raise NotFound(f"There is no execution {execution_id!r}.")
        _, owner = posted
        if owner is not None and owner != self._current.session.id:
            self._store.notify(mail_for(owner))
        else:
            await self._claimer.claim_one(execution_id)
            await self.read()
        return await self._verdict(id, execution_id)

    async def _verdict(self, mail_id: str, execution_id: str) -> f.Answer:
        """What the owner says. If there is none any more, this process takes the execution and says it itself."""
        deadline = monotonic() + VERDICT_SECONDS
        wait = 0.005
        while monotonic() < deadline:
            try:
                row = await self._store.executions.find(
                    execution_id
                )  # first: it may be set aside for what follows from the verdict
                if (verdict := (await self._store.mailbox.verdicts([mail_id])).get(mail_id)) is not None:
                    return decode_answer(verdict)
                if row is not None and row.parked and not self._is_due(row.wake_at):
                    raise not_kept(execution_id, "parked")
                await self._claimer.claim_one(execution_id)
                await self.read()
            except StorageError as error:
                if error.code == "incompatible":
                    raise
            await asyncio.sleep(spread(wait))
            wait = min(wait * 2, self._wakeups.poll_s)
        raise ResultTimeout("The command was delivered, and its verdict is not known yet; it will be acted upon.")

    def _is_due(self, wake_at: int | None) -> bool:
        """What came by mail wakes what was set aside: somebody takes it, and reads that."""
        return wake_at is not None and wake_at <= self._held.now() + DUE_MS

    # -- The mailbox ---------------------------------------------------------------------------------------------------

    async def read(self) -> None:
        fresh = list(self._held.mail_unchecked)
        query = self._unread.begin()
        try:
            found = await self._store.mailbox.unread(self._current.session.id)
            for mail in found:
                record = self._held.records.get(mail.execution)
                if record is not None and self._unread.is_new(query, mail.id, mail.execution):
                    self._unread.read(mail.id, mail.execution)
                    try:
                        self._decide(record, mail)
                    except Exception as error:  # of another release, perhaps: the others are read all the same
                        self._held.mail_in_hand = None
                        if self._held.records.get(mail.execution) is record:  # else that is on its way already
                            report(UNREADABLE.format(mail.execution), error)
                            self._held.park_broken(record)
        finally:
            self._unread.end(query)
        if len(found) == MAIL_AT_ONCE:  # there may be more: nothing is let go of before its mail was seen
            hint = mail_for(self._current.session.id)
            asyncio.get_running_loop().call_later(MORE_MAIL_SECONDS, self._wakeups.notify, hint)
            return
        for id in fresh:
            if not self._unread.were_asked_for(query, id):
                continue  # it was let go of meanwhile, and has come back since
            self._held.mail_unchecked.pop(id, None)
            if (record := self._held.records.get(id)) is not None:
                self._held.release_if_idle(record)

    def _decide(self, record: Record, mail: Mail) -> None:
        fact = msgspec.structs.replace(decode_fact(mail.body), at=mail.received_at, cause=mail.id)
        rank = RESUME if isinstance(fact, f.Resume | f.Decide | f.Retry) else None
        self._held.mail_in_hand = mail.id
        recorded = False

        def heard(_: f.Answer) -> None:
            if recorded:
                self._mail_settled(mail.id, "committed")

        answer = self._held.apply(record, fact, rank, heard)
        recorded = self._held.mail_in_hand is None
        if not recorded:  # but the verdict is
            extra = self._held.extra_rows(record.state, [], [], answer, None)
            tell = partial(self._verdict_settled, record, mail.id)
            after = Basis(record.epoch, record.state.seq)
            write = Told(execution=record.state.id, after=after, extra=extra, tell=tell, record=record)
            self._current.committer.add(write)

    def _verdict_settled(self, record: Record, id: str, fate: Fate) -> None:
        self._mail_settled(id, fate)
        if fate in ("stale", "not_owner"):
            self._held.give_up(record, fate)

    def _mail_settled(self, id: str, fate: Fate) -> None:
        self._unread.settle(id, fate)
        if self._held.is_asking(id):
            self._wakeups.tasks.set()

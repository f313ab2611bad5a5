"""The runtime behind `sqlite://` and `postgresql://`: executions that outlive their processes.

The executions that this process owns are held in memory and driven as in the memory runtime; what is decided is kept by
the committer, and acted upon when its commit is acknowledged. Everything else reaches an execution through its mailbox.
Executions that wait leave memory, and are claimed again, by whoever is first, when they are due or have mail.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from time import monotonic

from tenuto.authoring.program import Program
from tenuto.errors import (
    StorageError,
)
from tenuto.kernel.definition import Definition
from tenuto.runtime.clock import Environment
from tenuto.runtime.executor.worker import ASYNC_SLOTS, THREADS
from tenuto.runtime.port import BacklogRow, Notices, Observer, Pruned, Vitals
from tenuto.runtime.shared.outbox_relay import Relay
from tenuto.runtime.shared.supervision import enduring
from tenuto.storage.caller_connections import caller_of
from tenuto.storage.inbox import note_once
from tenuto.storage.outbox import OutboxStore
from tenuto.storage.permits import Ask, Dealt
from tenuto.storage.port import EVERYTHING, NEWS, WORK, Hints, Store, mail_for
from tenuto.storage.registry import Registry
from tenuto.values.jitter import spread
from tenuto.views import LimitRow, TenantLimitRow, WorkerRow
from tenuto.views.messages import Announced, Publish
from tenuto.views.projections import AuditRow

from .audit_sealer import Sealing
from .clock import DatabaseClock
from .committer import Committer
from .held_executions import Moved
from .mailbox import Postman
from .permits import Permits
from .progress import EVERY_SECONDS
from .retention import keep_pruning, prune
from .rows import shared_limit_row, tenant_row, worker_row
from .session import LEASE_MS, Session
from .single_flight import Shared

POLL_MS = 200
REAP_SECONDS = 1.0  # between looks for sessions that are over
LAST_WORDS_SECONDS = 5.0  # what a database that cannot be reached gets, when the engine is closed
ROOM_SECONDS = 0.02  # before it is asked again whether a tenant may start something


class DurableRuntime(Postman):
    def __init__(
        self,
        environment: Environment,
        store: Store,
        compile: Callable[[Definition], Program],
        *,
        observers: Sequence[Observer] = (),
        worker: bool = True,
        queues: Sequence[str] = ("default",),
        slots: int = ASYNC_SLOTS,
        threads: int = THREADS,
        lease_ms: int = LEASE_MS,
        poll_ms: int = POLL_MS,
        announced: Announced | None = None,
        publish: Publish | None = None,
        keep_ms: int | None = None,
        read_only: bool = False,
    ) -> None:
        super().__init__(environment, observers=observers, worker=worker, queues=queues, slots=slots, threads=threads)
        self._store = store
        self._lease_ms = lease_ms
        self._poll_ms = poll_ms
        self._keep_ms = keep_ms
        self._read_only = read_only
        self._sealing = Sealing(store.registry, self._now)
        self._reap_at = 0.0
        self._upkeep = (
            ("Ending sessions that are over", self._reap),
            ("Reading the catalog", self._read_catalog),
            ("Sealing the audit", self._sealing.look),
        )
        self._checked = Shared(store.check)
        self._waits = Shared(store.backlog)
        self._hints: Hints = frozenset()
        self._nudged = asyncio.Event()
        self._polling: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._pruning: asyncio.Task[None] | None = None
        self._reopening: asyncio.Task[None] | None = None
        self._former: list[Committer] = []
        self._prepare_guests()
        self._prepare_definitions(compile)
        relay = None if publish is None else Relay(store.outbox, publish, self._now, self._live_session)
        self._prepare_keeping(announced, relay)
        self._prepare_stragglers()
        self._prepare_starting()
        self._prepare_claiming()
        self._prepare_reading()

    def _make_limits(self) -> Permits:
        self._permits = Permits(self.environment.clock, self._exchange, self._wanted, self._pump)
        return self._permits

    @property
    def registry(self) -> Registry:
        return self._store.registry

    def _registry_of(self, tenant: str) -> Registry:
        return self._store.for_tenant(tenant).registry

    @property
    def outbox(self) -> OutboxStore:
        return self._store.outbox

    @property
    def notices(self) -> Notices:
        return self._store

    def _live_session(self) -> str | None:
        return self._session.id if self._session.alive else None

    # -- Life ----------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        self._note_time(await self._store.open(migrate=not self._read_only))
        self._loop = asyncio.get_running_loop()
        if self._read_only:
            self._polling = asyncio.create_task(self._keep_watching(), name="tenuto-poll")
            return
        try:
            await self._open_session()
        except BaseException:
            self._loop = None  # it is as closed as it was
            await self._store.close()
            raise
        self._store.listen(self._hear)
        self._polling = asyncio.create_task(self._keep_polling(), name="tenuto-poll")
        self._beating = asyncio.create_task(self._keep_beating(), name="tenuto-beats")
        self._late_words.start()
        if self._relay is not None:
            self._relay.start()
        if self._keep_ms is not None:
            sweeps = keep_pruning(self._store.pruning, self._now, self._keep_ms)
            self._pruning = asyncio.create_task(sweeps, name="tenuto-prune")
        self._open_guests()

    async def _open_session(self) -> None:
        environment = self.environment
        new = environment.new_id()
        session = Session(self._store, new, self._lose_session, self._note_time, lease_ms=self._lease_ms)
        queues = sorted(self._queues) if self._works else None
        self._note_time(await session.open(environment.worker, environment.build, queues))
        self._session = session
        self._committer = Committer(self._store, session.id, self._note_time, session.lose, self._hear_of_room)
        self._committer.start()

    def _note_time(self, now_ms: int) -> None:
        clock = self.environment.clock
        if isinstance(clock, DatabaseClock) and clock.note(now_ms):
            self._alarms.arm()  # what was a while ahead may be due

    async def close(self, grace_ms: int) -> None:
        """In good order: what ended is recorded, what was not begun is handed back, the rest is due for others at once.

        Executions that run no handler here are let go of before anything is waited for, the others one by one.
        Where the database cannot be reached, nothing is waited for beyond a few seconds: it is as if this process died.
        """
        if self._closing or self._loop is None:
            return
        self._closing = True  # from here on nothing is begun
        if self._read_only:
            await self._close_reading()
            return
        try:
            self._leave_all_to_others()
            self._nudge(mail_for(self._session.id))  # what was just claimed goes when its mail was read
            await self._leave_queues(LAST_WORDS_SECONDS)
            stopped = await self._stop_work(grace_ms)
            await self._close_guests(LAST_WORDS_SECONDS)
            for task in (self._polling, self._beating, self._reopening, self._pruning):
                if task is not None:
                    task.cancel()
                    await asyncio.wait([task])
            with suppress(StorageError):
                await self._beats.write(self._records)
            unknown = {(job.attempt.host, job.attempt.ref) for job in stopped}
            for record in list(self._records.values()):
                self._return_work(record, [ref for host, ref in unknown if host is record])
            for record in list(self._records.values()):
                self._release(record)
            for committer in (*self._former, self._committer):
                await committer.stop(LAST_WORDS_SECONDS)
            await asyncio.sleep(0)  # what could not be recorded is mailed
            await self._late_words.stop(LAST_WORDS_SECONDS)
            if self._relay is not None:
                await self._relay.stop(min(grace_ms / 1_000, LAST_WORDS_SECONDS))
        finally:
            self._close_up()
            self._watched.close()
            self._session.stop()
        with suppress(StorageError, TimeoutError):  # others find the session over, by and by
            async with asyncio.timeout(LAST_WORDS_SECONDS):
                await self._session.close()
                await self._store.tasks.sweep(self._lease_ms)
                await self._sealing.close()
        self._store.notify(WORK)
        await self._store.close()

    async def _close_reading(self) -> None:
        if self._polling is not None:
            self._polling.cancel()
            await asyncio.wait([self._polling])
        self._close_up()
        self._watched.close()
        await self._store.close()

    def _check_open(self) -> None:
        super()._check_open()
        if self._read_only:
            raise StorageError("the engine was opened to read only", code="read_only", hint="open it without read_only")

    def _lose_session(self) -> None:
        """This process was taken for dead. Others have its executions: forget them, and begin again.

        Handlers of steps that are not safe to retry are heard out all the same.
        """
        records = list(self._records.values())
        self._records.clear()
        for record in records:
            self._forget_work(record)
            record.wake_at = None
            self._fail_waiters(record, Moved())
        self._claimed.clear()
        self._astray_at = []
        self._suspected = {}
        self._fresh.clear()
        self._letters.clear()
        self._beats.clear()
        self._forget_visits()
        self._permits.forget()
        if not self._closing:
            self._reopening = asyncio.ensure_future(self._reopen(self._committer))

    async def _reopen(self, former: Committer) -> None:
        """What the former session still wanted to commit is refused, and told so."""
        self._former.append(former)
        wait = self._poll_ms / 1_000
        while not self._session.alive:
            with enduring("Opening another session"):
                await self._open_session()
                break
            await asyncio.sleep(spread(wait, 0, 2))
        self._reopening = None
        self._hear(EVERYTHING)
        await former.stop()
        self._former.remove(former)

    async def _until_reopened(self) -> None:
        if self._reopening is not None:
            await asyncio.wait([self._reopening])

    def vitals(self) -> Vitals:
        vitals = super().vitals()
        if not vitals.is_open or self._polling is None or self._read_only:
            return vitals
        return replace(
            vitals,
            claims=not self._polling.done(),
            visits=self._is_visiting,
            may_start=self._session.may_start,
            renewed_ms=self._session.renewed_ms,
            uncommitted=self._committer.waiting,
            committing_ms=self._committer.committing_ms,
            commit_trouble=self._committer.trouble,
        )

    async def check(self) -> None:
        await self._checked.answer()

    async def backlog(self) -> list[BacklogRow]:
        return await self._waits.answer()

    async def workers(self) -> list[WorkerRow]:
        return [worker_row(row) for row in await self._store.sessions() if row.works]

    # -- Looking -------------------------------------------------------------------------------------------------------

    async def _keep_polling(self) -> None:
        """What is stored is the truth, and is looked at every so often; hints only say when to look sooner."""
        look_at = 0.0
        while True:
            with suppress(TimeoutError):
                # Not `wait_for`: before Python 3.12 it swallows a cancellation that meets the event.
                async with asyncio.timeout(max(0, look_at - monotonic())):
                    await self._nudged.wait()
            self._nudged.clear()
            hints, self._hints = self._hints, frozenset()
            if monotonic() >= look_at:  # however many hints have come
                hints = EVERYTHING
                look_at = monotonic() + spread(self._poll_ms / 1_000, 0, 2)
            if not self._session.alive:
                continue
            for what, keep in self._upkeep:
                with enduring(what):
                    await keep()
            await self._look(hints)
            with enduring("Letting go"):
                self._end_lingering()
            if self._session.may_start:
                self._let_in()

    async def _keep_watching(self) -> None:
        """All that a process without a session does: it looks for what its callers wait for."""
        while True:
            await asyncio.sleep(spread(self._poll_ms / 1_000, 0, 2))
            with enduring("Looking for what others wait for"):
                await self._watched.look()

    async def _reap(self) -> None:
        if (now := monotonic()) >= self._reap_at:
            self._reap_at = now + spread(REAP_SECONDS, 0, 2)
            reaped = await self._store.reap(self._session.id)
            if reaped:
                self._store.notify(WORK)
            await self._sweep(at_once=reaped > 0)

    async def _look(self, hints: Hints) -> None:
        if hints & {*EVERYTHING, WORK}:
            with enduring("Looking for work"):
                await self._claim()
        if self._fresh or (self._records and hints & {*EVERYTHING, mail_for(self._session.id)}):
            with enduring("Reading mail"):
                await self._read_mail()
        with enduring("Looking for what others wait for"):
            rest = await self._watched.look()
            if rest and self._loop is not None:
                self._loop.call_later(rest, self._nudge, NEWS)

    def _nudge(self, hint: str) -> None:
        self._hear(frozenset({hint}))

    def _hear(self, hints: Hints) -> None:
        if not hints <= self._hints:
            self._hints |= hints
            self._nudged.set()
        self._hear_of_tasks(hints)

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(spread(EVERY_SECONDS, 0, 2))
            with enduring("Writing down how far attempts are"):
                await self._beats.write(self._records)

    def _may_start(self) -> bool:
        return self._session.may_start

    # -- Limits --------------------------------------------------------------------------------------------------------

    async def limit(
        self, name: str, *, rate: tuple[int, int] | None, concurrency: int | None, note: AuditRow | None = None
    ) -> None:
        await self._store.limits.set(name, rate, concurrency, note)
        self._permits.changed()

    async def _exchange(self, ask: Ask) -> Dealt | None:
        session = self._session
        if not session.may_start:
            return None
        dealt = await self._store.limits.exchange(session.id, ask)
        if dealt is None and session is self._session:
            session.lose()
        return None if session is not self._session else dealt

    async def limits(self) -> list[LimitRow]:
        return [shared_limit_row(use) for use in await self._store.limits.all()]

    async def tenant_limit(self, tenant: str, max_in_flight: int | None, note: AuditRow | None = None) -> None:
        await self._store.limits.set_tenant(tenant, max_in_flight, note)
        self._crowds.forget(tenant)

    async def tenant_limits(self, tenant: str | None) -> list[TenantLimitRow]:
        return [tenant_row(use) for use in await self._store.limits.tenants(tenant)]

    async def room(self, tenant: str) -> int | None:
        wait = ROOM_SECONDS
        while True:
            await asyncio.sleep(spread(wait))
            self._check_open()
            uses = await self._store.limits.tenants(tenant)
            if not uses:
                return None
            if uses[0].in_flight < uses[0].max_in_flight:
                return uses[0].max_in_flight - uses[0].in_flight
            wait = min(2 * wait, self._poll_ms / 1_000)

    # -- Storage -------------------------------------------------------------------------------------------------------

    async def prune(self, keep_ms: int) -> Pruned:
        self._check_open()
        return await prune(self._store.pruning, self._now(), keep_ms)

    @asynccontextmanager
    async def inbox(self, consumer: str, id: str, connection: object) -> AsyncIterator[bool]:
        yield await note_once(caller_of(connection), consumer, id, self._now())

"""The runtime behind `sqlite://` and `postgresql://`: executions that outlive their processes.

The executions that this process owns are held in memory and driven as in the memory runtime. Decisions go to the
committer, and take effect when their commit is acknowledged. Facts from other processes reach an execution through its
mailbox. Executions that wait leave memory, and the first free worker claims them when they are due or have mail.

This module wires the parts: each gets the ones that it needs as arguments.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from tenuto.authoring.program import CompileStored
from tenuto.errors import StorageError
from tenuto.runtime.clock import Environment
from tenuto.runtime.executor.worker import ASYNC_SLOTS, THREADS, Interpose, WorkerOptions
from tenuto.runtime.observer import Observer
from tenuto.runtime.shared.documents import Documents
from tenuto.runtime.shared.outbox_relay import Relay
from tenuto.runtime.shared.retention import Pruned, keep_pruning, prune
from tenuto.runtime.supervision import supervised
from tenuto.runtime.vitals import Vitals
from tenuto.storage.catalog import Catalog
from tenuto.storage.notices import Notices
from tenuto.storage.operations import BacklogRow
from tenuto.storage.outbox import OutboxStore
from tenuto.storage.port import EVERYTHING, WORK, Store, mail_for
from tenuto.storage.registry import Registry
from tenuto.values.jitter import spread
from tenuto.views import LimitRow, TenantLimitRow, WorkerRow
from tenuto.views.messages import Announced, Publish
from tenuto.views.projections import AuditRow

from .audit_sealer import AuditSealer
from .claimer import Claimer
from .clock import DatabaseClock
from .committer import Committer
from .held_executions import HeldExecutions
from .late_reports import LateReports
from .mailbox import Mailbox
from .parked_executions import ParkedExecutions
from .poller import Poller
from .progress import ProgressWriter
from .reader import Reader
from .restoration import Restorer
from .rows import shared_limit_row, tenant_row, worker_row
from .session import LEASE_MS, CurrentSession, Session
from .single_flight import Shared
from .starter import Starter
from .tenant_admission import TenantAdmission
from .wakeups import Owners, Wakeups
from .watcher import Watcher

POLL_MS = 200
CLOSING_SECONDS = 5.0  # how long closing waits for a database that cannot be reached
ROOM_SECONDS = 0.02  # before a caller asks again whether a tenant may start something


class DurableRuntime:
    def __init__(
        self,
        environment: Environment,
        store: Store,
        compile: CompileStored,
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
        options = WorkerOptions(observers=observers, worker=worker, queues=queues, slots=slots, threads=threads)
        now = environment.now_ms
        self.environment = environment
        self._store = store
        self._keep_ms = keep_ms
        self._read_only = read_only
        self._current = CurrentSession(lease_ms)
        self._wakeups = Wakeups(poll_ms, options.queues)
        self._relay = None if publish is None else Relay(store.outbox, publish, now, self._live_session)
        self._sealing = AuditSealer(store.registry, now)
        self._watcher = Watcher(store)
        self._admission = TenantAdmission(store)
        self._parked_executions = ParkedExecutions()
        self._restorer = Restorer(store, self._wakeups, reads_all=bool(options.observers))
        owners = Owners(store, self._current, self._wakeups)
        self._late_reports = LateReports(store, environment.new_id, owners.notify)
        self._held = HeldExecutions(
            environment,
            store,
            self._current,
            self._wakeups,
            owners,
            self._parked_executions,
            self._restorer,
            self._late_reports,
            ProgressWriter(store),
            self._admission,
            options,
            compile,
            announced,
            self._relay,
            read_only=read_only,
        )
        self._claimer = Claimer(
            store,
            self._current,
            self._wakeups,
            self._parked_executions,
            self._held,
            self._restorer,
            self._late_reports,
            self._watcher,
        )
        self._held.claim_one = self._claimer.claim_one
        self._reader = Reader(store, self._held, self._restorer, self._watcher)
        self._mailbox = Mailbox(store, self._current, self._wakeups, self._held, self._claimer, self._reader)
        self._starter = Starter(
            store,
            self._current,
            self._wakeups,
            self._admission,
            self._held,
            self._claimer,
            self._reader,
            self._until_reopened,
        )
        self._poller = Poller(
            store,
            self._current,
            self._wakeups,
            self._held,
            self._claimer,
            self._mailbox,
            self._watcher,
            self._sealing,
        )
        self._documents = Documents(self._reader, self._registry_of, now)
        self._pruning: asyncio.Task[None] | None = None
        self._reopening: asyncio.Task[None] | None = None
        self._former: list[Committer] = []
        self._bind()

    def _bind(self) -> None:
        """The members of the port that belong to one part as they are: bound, so that they cost no further call."""
        held, reader, documents = self._held, self._reader, self._documents
        self.provide = held.provide
        self.provided = held.provided
        self.provide_handler = held.provide_handler
        self.publish = held.cache.publish
        self.program = held.cache.program
        self.definitions = held.cache.definitions
        self.keep_definitions = held.cache.keep_definitions
        self.knows = held.registered.knows
        self.note_definition = held.cache.note_definition
        self.inbox = held.inbox
        self.is_crowded = self._admission.is_crowded
        self.submit = self._starter.submit
        self.tell = self._mailbox.tell
        self.read = reader.read
        self.look = reader.look
        self.read_all = reader.read_all
        self.entries = reader.entries
        self.wait = reader.wait
        self.executions = reader.executions
        self.count = reader.count
        self.statuses = reader.statuses
        self.act = documents.act
        self.answer_letter = documents.answer_letter
        self.reprocess = documents.reprocess
        self.document = documents.document
        self.follow = documents.follow
        self.summaries = documents.summaries
        self.reviews = documents.reviews
        self.dead_letters = documents.dead_letters
        self.review_page = documents.review_page
        self.review = documents.review
        self.note = documents.note
        self.audit = documents.audit
        self.audit_chain = documents.audit_chain
        self.verify_audit = documents.verify_audit
        self.check = Shared(self._store.check).answer
        self._backlog = Shared(self._store.operations.backlog)

    @property
    def observers(self) -> tuple[Observer, ...]:
        return self._held.observers

    @property
    def interpose(self) -> Interpose | None:
        """What is called in place of a handler."""
        return self._held.interpose

    @interpose.setter
    def interpose(self, interpose: Interpose | None) -> None:
        self._held.interpose = interpose

    @property
    def registry(self) -> Registry:
        return self._store.registry

    def _registry_of(self, tenant: str | None) -> Registry:
        return self._store.registry if tenant is None else self._store.for_tenant(tenant).registry

    @property
    def outbox(self) -> OutboxStore:
        return self._store.outbox

    @property
    def notices(self) -> Notices:
        return self._store.notices

    @property
    def catalog(self) -> Catalog:
        return self._store.catalog

    def _live_session(self) -> str | None:
        session = self._current.session
        return session.id if session.alive else None

    # -- Life ----------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        self._note_time(await self._store.open(migrate=not self._read_only))
        self._held.loop = asyncio.get_running_loop()
        if self._read_only:
            self._poller.start_read_only()
            return
        try:
            await self._open_session()
        except BaseException:
            self._held.loop = None  # it is as closed as it was
            await self._store.close()
            raise
        self._store.listen(self._wakeups.notify_all)
        self._poller.start()
        self._late_reports.outgoing.start()
        if self._relay is not None:
            self._relay.start()
        if self._keep_ms is not None:
            sweeps = keep_pruning(self._store.pruning, self._held.now, self._keep_ms)
            self._pruning = asyncio.create_task(sweeps, name="tenuto-prune")
        self._held.open_tasks()

    async def _open_session(self) -> None:
        environment, held, current = self.environment, self._held, self._current
        new = environment.new_id()
        session = Session(self._store, new, self._lose_session, self._note_time, lease_ms=current.lease_ms)
        queues = sorted(held.queues) if held.works else None
        self._note_time(await session.open(environment.worker, environment.build, queues))
        current.session = session
        current.committer = Committer(self._store, session.id, self._note_time, session.lose, self._admission.note_room)
        current.committer.start()

    def _note_time(self, now_ms: int) -> None:
        clock = self.environment.clock
        if isinstance(clock, DatabaseClock) and clock.note(now_ms):
            self._held.alarms.arm()  # timers that were ahead may be due

    async def close(self, grace_ms: int) -> None:
        """Closes in good order: reports are recorded, attempts that have not begun are returned, the rest is due.

        Executions that run no handler here are released before anything is waited for, the others one by one.
        If the database cannot be reached, nothing is waited for beyond a few seconds: it is as if this process died.
        """
        held = self._held
        if held.closing or held.loop is None:
            return
        held.closing = True  # from here on nothing begins
        if self._read_only:
            await self._poller.stop()
            held.close_up()
            self._watcher.close()
            await self._store.close()
            return
        current = self._current
        try:
            held.release_all()
            self._wakeups.notify(mail_for(current.session.id))  # executions just claimed go when their mail was read
            await held.leave_queues(CLOSING_SECONDS)
            stopped = await held.stop_work(grace_ms)
            await held.close_tasks(CLOSING_SECONDS)
            await self._poller.stop()
            for task in (self._reopening, self._pruning):
                if task is not None:
                    task.cancel()
                    await asyncio.wait([task])
            with suppress(StorageError):
                await held.progress.write(held.records)
            unknown = {(job.attempt.host, job.attempt.ref) for job in stopped}
            for record in list(held.records.values()):
                held.return_work(record, [ref for host, ref in unknown if host is record])
            for record in list(held.records.values()):
                held.release(record)
            for committer in (*self._former, current.committer):
                await committer.stop(CLOSING_SECONDS)
            await asyncio.sleep(0)  # reports that could not be recorded are mailed
            await self._late_reports.outgoing.stop(CLOSING_SECONDS)
            if self._relay is not None:
                await self._relay.stop(min(grace_ms / 1_000, CLOSING_SECONDS))
        finally:
            held.close_up()
            self._watcher.close()
            current.session.stop()
        with suppress(StorageError, TimeoutError):  # else others find the session expired
            async with asyncio.timeout(CLOSING_SECONDS):
                await current.session.close()
                await self._store.tasks.sweep(current.lease_ms)
                await self._sealing.close()
        self._store.notify(WORK)
        await self._store.close()

    def _lose_session(self) -> None:
        """This process was declared dead, and others own its executions: it forgets them, and opens another session."""
        self._held.clear()
        self._claimer.clear()
        if not self._held.closing:
            self._reopening = asyncio.ensure_future(self._reopen(self._current.committer))

    async def _reopen(self, former: Committer) -> None:
        """What the former session had still to commit is refused."""
        self._former.append(former)
        while not self._current.session.alive:
            with supervised("Opening another session"):
                await self._open_session()
                break
            await asyncio.sleep(spread(self._wakeups.poll_s, 0, 2))
        self._reopening = None
        self._wakeups.notify_all(EVERYTHING)
        await former.stop()
        self._former.remove(former)

    async def _until_reopened(self) -> None:
        if self._reopening is not None:
            await asyncio.wait([self._reopening])

    def vitals(self) -> Vitals:
        vitals = self._held.vitals()
        if not vitals.is_open or not self._poller.is_started or self._read_only:
            return vitals
        session, committer = self._current.session, self._current.committer
        return replace(
            vitals,
            is_claiming=self._poller.is_polling,
            is_taking_tasks=self._held.is_visiting,
            may_start=session.may_start,
            renewed_ms=session.renewed_ms,
            uncommitted=committer.waiting,
            committing_ms=committer.committing_ms,
            commit_trouble=committer.trouble,
        )

    def check_scope(self, tenant: str) -> None:
        """Any tenant: the process that embeds the engine is trusted."""

    async def backlog(self) -> list[BacklogRow]:
        return await self._backlog.answer()

    async def workers(self) -> list[WorkerRow]:
        return [worker_row(row) for row in await self._store.operations.sessions() if row.works]

    async def prune(self, keep_ms: int) -> Pruned:
        self._held.check_open()
        return await prune(self._store.pruning, self._held.now(), keep_ms)

    # -- Limits --------------------------------------------------------------------------------------------------------

    async def limit(
        self, name: str, *, rate: tuple[int, int] | None, concurrency: int | None, note: AuditRow | None = None
    ) -> None:
        await self._store.limits.set(name, rate, concurrency, note)
        self._held.permits.changed()

    async def limits(self) -> list[LimitRow]:
        return [shared_limit_row(use) for use in await self._store.limits.all()]

    async def tenant_limit(self, tenant: str, max_in_flight: int | None, note: AuditRow | None = None) -> None:
        await self._store.limits.set_tenant(tenant, max_in_flight, note)
        self._admission.forget(tenant)

    async def tenant_limits(self, tenant: str | None) -> list[TenantLimitRow]:
        return [tenant_row(use) for use in await self._store.limits.tenants(tenant)]

    async def room(self, tenant: str) -> int | None:
        wait = ROOM_SECONDS
        while True:
            await asyncio.sleep(spread(wait))
            self._held.check_open()
            uses = await self._store.limits.tenants(tenant)
            if not uses:
                return None
            if uses[0].in_flight < uses[0].max_in_flight:
                return uses[0].max_in_flight - uses[0].in_flight
            wait = min(2 * wait, self._wakeups.poll_s)

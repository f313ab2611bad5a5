"""The runtime behind `sqlite://` and `postgresql://`: executions that outlive their processes.

The executions that this process owns are held in memory and driven as in the memory runtime. Decisions go to the
committer, and take effect when their commit is acknowledged. Facts from other processes reach an execution through its
mailbox. Executions that wait leave memory, and the first free worker claims them when they are due or have mail.

This module wires the parts: each gets the ones that it needs as arguments.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import chain

from tenuto.authoring.program import CompileStored
from tenuto.errors import StorageError
from tenuto.runtime.clock import Environment
from tenuto.runtime.executor import Job
from tenuto.runtime.executor.held_execution import Record
from tenuto.runtime.executor.observers import Observers
from tenuto.runtime.executor.program_registry import ProgramRegistry
from tenuto.runtime.executor.worker import ASYNC_SLOTS, THREADS, Interpose, Worker, WorkerOptions
from tenuto.runtime.observer import Observer
from tenuto.runtime.shared.documents import Documents
from tenuto.runtime.shared.outbox_relay import Relay
from tenuto.runtime.shared.retention import Pruned, keep_pruning, prune
from tenuto.runtime.vitals import Vitals
from tenuto.storage.caller_connections import caller_of
from tenuto.storage.catalog import Catalog
from tenuto.storage.inbox import note_once
from tenuto.storage.notices import Notices
from tenuto.storage.operations import BacklogRow
from tenuto.storage.outbox import OutboxStore
from tenuto.storage.port import WORK, Store, mail_for, tasks_in
from tenuto.storage.registry import Registry
from tenuto.values.jitter import spread
from tenuto.views import LimitRow, TenantLimitRow, WorkerRow
from tenuto.views.messages import Announced, Publish
from tenuto.views.projections import AuditRow

from .audit_sealer import AuditSealer
from .claimer import Claimer
from .decision_writer import DecisionWriter
from .definition_cache import DefinitionCache
from .held_executions import HeldExecutions
from .late_reports import LateReports
from .mailbox import Mailbox
from .parked_executions import ParkedExecutions
from .permits import PermitExchange, Permits
from .poller import Poller
from .progress import ProgressWriter
from .reader import Reader
from .releaser import Releaser
from .restoration import Restorer
from .rows import shared_limit_row, tenant_row, worker_row
from .session import LEASE_MS, CurrentSession
from .session_opener import SessionOpener
from .single_flight import SingleFlight
from .starter import Starter
from .task_executions import TaskExecution
from .task_reports import TaskReports
from .task_worker import TaskWorker
from .tenant_admission import TenantAdmission
from .unread_mail import UnreadMail
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
        logs_failures: bool = False,
        lease_ms: int = LEASE_MS,
        poll_ms: int = POLL_MS,
        announced: Announced | None = None,
        publish: Publish | None = None,
        keep_ms: int | None = None,
        read_only: bool = False,
    ) -> None:
        options = WorkerOptions(
            observers=observers,
            worker=worker,
            queues=queues,
            slots=slots,
            threads=threads,
            logs_failures=logs_failures,
        )
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
        self._observers = Observers(observers)
        self._registry = ProgramRegistry(prepares=worker)
        self._cache = DefinitionCache(store, self._registry, compile, now, works=worker)
        self._permits = Permits(environment.clock, PermitExchange(store, self._current).exchange)
        self._worker = Worker(
            environment,
            options,
            self._permits,
            self._observers,
            may_start=self._current.may_start,
            dispatch=self._notify_queue,
            fetch=self._restorer.fetch_missing,
        )
        self._sessions = SessionOpener(
            store,
            self._current,
            self._wakeups,
            self._worker,
            self._admission,
            on_lost=self._forget_session,
            on_time=lambda: self._held.timer.arm(),  # timers may be due that were not by the old time
        )
        records: dict[str, Record] = {}
        self._task_executions: dict[str, TaskExecution] = {}
        owners = Owners(store, self._current, self._wakeups)
        self._late_reports = LateReports(store, self._worker, owners.notify, records, self._task_executions)
        unread_mail = UnreadMail()
        self._writer = DecisionWriter(self._current, unread_mail, announced)
        self._held = HeldExecutions(
            store,
            self._current,
            self._wakeups,
            self._worker,
            records,
            self._writer,
            self._observers,
            unread_mail,
            self._parked_executions,
            self._late_reports,
            ProgressWriter(store),
            self._admission,
            self._relay,
            self.inbox,
        )
        self._releaser = Releaser(store, self._worker, self._held, self._writer, self._cache, self._parked_executions)
        self._held.on_idle = self._releaser.release_if_idle
        self._claimer = Claimer(
            store,
            self._current,
            self._wakeups,
            self._worker,
            self._registry,
            self._cache,
            self._parked_executions,
            self._held,
            self._restorer,
            self._late_reports,
            self._watcher,
        )
        self._task_reports = TaskReports(
            store,
            self._current,
            self._wakeups,
            owners,
            self._worker,
            self._parked_executions,
            self._late_reports,
            self._claimer.claim_one,
            self.inbox,
        )
        self._task_worker = TaskWorker(
            store,
            self._current,
            self._wakeups,
            self._worker,
            self._task_reports,
            self._task_executions,
            self._registry,
            self._cache,
            self._restorer,
            self._parked_executions,
            self._late_reports,
        )
        self._registry.on_replaced.append(self._held.resume_parked)
        self._registry.on_change.append(self._task_worker.learn)
        self._reader = Reader(
            store, self._worker, self._cache, self._held, self._restorer, self._watcher, self._check_open
        )
        self._mailbox = Mailbox(
            store,
            self._current,
            self._wakeups,
            self._worker,
            self._held,
            self._releaser,
            self._writer,
            self._claimer,
            self._reader,
            self._task_reports,
            self._check_open,
        )
        self._starter = Starter(
            store,
            self._current,
            self._wakeups,
            self._admission,
            self._worker,
            self._registry,
            self._cache,
            self._held,
            self._writer,
            self._observers,
            self._claimer,
            self._reader,
            self._check_open,
            self._sessions.until_reopened,
        )
        self._poller = Poller(
            store,
            self._current,
            self._wakeups,
            self._worker,
            self._cache,
            self._held,
            self._releaser,
            self._claimer,
            self._mailbox,
            self._task_worker,
            self._watcher,
            self._sealing,
        )
        self._documents = Documents(self._reader, self._registry_of, now)
        self._pruning: asyncio.Task[None] | None = None
        self._bind()

    def _bind(self) -> None:
        """The members of the port that belong to one part as they are: bound, so that they cost no further call."""
        registry, cache, reader, documents = self._registry, self._cache, self._reader, self._documents
        self.provide = registry.provide
        self.provided = registry.provided
        self.provide_handler = registry.provide_handler
        self.publish = cache.publish
        self.program = cache.program
        self.definitions = cache.definitions
        self.keep_definitions = cache.keep_definitions
        self.knows = registry.knows
        self.note_definition = cache.note_definition
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
        self.check = SingleFlight(self._store.check).call
        self._backlog = SingleFlight(self._store.operations.backlog)

    @property
    def observers(self) -> tuple[Observer, ...]:
        return self._observers.all

    @property
    def interpose(self) -> Interpose | None:
        """What is called in place of a handler."""
        return self._worker.interpose

    @interpose.setter
    def interpose(self, interpose: Interpose | None) -> None:
        self._worker.interpose = interpose

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

    @asynccontextmanager
    async def inbox(self, consumer: str, id: str, connection: object) -> AsyncIterator[bool]:
        """Whether this consumer receives this id for the first time, in the transaction of the connection."""
        yield await note_once(caller_of(connection), consumer, id, self._worker.now())

    def _notify_queue(self, queue: str) -> None:
        """Wakes the task workers of this queue."""
        hint = tasks_in(queue)
        self._store.notify(hint)
        self._wakeups.notify_tasks(frozenset({hint}))

    def _check_open(self) -> None:
        self._worker.check_open()
        if self._read_only:
            raise StorageError("the engine was opened to read only", code="read_only", hint="open it without read_only")

    def _live_session(self) -> str | None:
        session = self._current.session
        return session.id if session.alive else None

    # -- Life ----------------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        self._sessions.note_time(await self._store.open(migrate=not self._read_only))
        self._worker.loop = asyncio.get_running_loop()
        if self._read_only:
            self._poller.start_read_only()
            return
        try:
            await self._sessions.open()
        except BaseException:
            self._worker.loop = None  # it is as closed as it was
            await self._store.close()
            raise
        self._store.listen(self._wakeups.notify_all)
        self._poller.start()
        self._late_reports.outgoing.start()
        if self._relay is not None:
            self._relay.start()
        if self._keep_ms is not None:
            sweeps = keep_pruning(self._store.pruning, self._worker.now, self._keep_ms)
            self._pruning = asyncio.create_task(sweeps, name="tenuto-prune")
        self._task_worker.start()

    async def close(self, grace_ms: int) -> None:
        """Closes in good order: reports are recorded, attempts that have not begun are returned, the rest is due.

        Executions that run no handler here are released before anything is waited for, the others one by one.
        If the database cannot be reached, nothing is waited for beyond a few seconds: it is as if this process died.
        """
        held, worker, releaser = self._held, self._worker, self._releaser
        if worker.closing or worker.loop is None:
            return
        worker.closing = True  # from here on nothing begins
        if self._read_only:
            await self._poller.stop()
            held.close()
            worker.close()
            self._watcher.close()
            await self._store.close()
            return
        current = self._current
        try:
            releaser.release_all()
            self._wakeups.notify(mail_for(current.session.id))  # executions just claimed go when their mail was read
            await self._task_worker.leave(CLOSING_SECONDS)
            await worker.drain(grace_ms, self._jobs)
            releaser.stop_handing_over()
            held.timer.close()
            stopped = self._jobs()
            await worker.stop(stopped)
            await self._task_reports.stop(CLOSING_SECONDS)
            await self._poller.stop()
            await self._sessions.stop_reopening()
            if self._pruning is not None:
                self._pruning.cancel()
                await asyncio.wait([self._pruning])
            with suppress(StorageError):
                await held.progress.write(held.records)
            unknown = {(job.attempt.host, job.attempt.ref) for job in stopped}
            for record in list(held.records.values()):
                releaser.return_work(record, [ref for host, ref in unknown if host is record])
            for record in list(held.records.values()):
                releaser.release(record)
            await self._sessions.stop_committers(CLOSING_SECONDS)
            await asyncio.sleep(0)  # reports that could not be recorded are mailed
            await self._late_reports.outgoing.stop(CLOSING_SECONDS)
            if self._relay is not None:
                await self._relay.stop(min(grace_ms / 1_000, CLOSING_SECONDS))
        finally:
            held.close()
            worker.close()
            self._watcher.close()
            current.session.stop()
        with suppress(StorageError, TimeoutError):  # else others find the session expired
            async with asyncio.timeout(CLOSING_SECONDS):
                await current.session.close()
                await self._store.tasks.sweep(current.lease_ms)
                await self._sealing.close()
        self._store.notify(WORK)
        await self._store.close()

    def _jobs(self) -> list[Job]:
        """All handlers that run in this process."""
        records = chain(self._held.records.values(), self._task_executions.values())
        jobs = (job for record in records for job in (*record.jobs.values(), *record.zombies.values()))
        return list(dict.fromkeys((*jobs, *self._late_reports.jobs())))

    def _forget_session(self) -> None:
        """The session is lost, and all that it owned."""
        self._held.clear()
        self._task_worker.clear()
        self._permits.forget()
        self._claimer.clear()

    def vitals(self) -> Vitals:
        worker = self._worker
        vitals = Vitals(is_open=worker.is_open, held=len(self._held.records), lanes=worker.lane_loads())
        if not vitals.is_open or not self._poller.is_started or self._read_only:
            return vitals
        session, committer = self._current.session, self._current.committer
        return replace(
            vitals,
            is_claiming=self._poller.is_polling,
            is_taking_tasks=self._task_worker.is_taking,
            may_start=session.may_start,
            renewed_ms=session.renewed_ms,
            uncommitted=committer.waiting,
            committing_ms=committer.committing_ms,
            commit_trouble=committer.trouble,
        )

    def check_scope(self, tenant: str) -> None:
        """Any tenant: the process that embeds the engine is trusted."""

    async def backlog(self) -> list[BacklogRow]:
        return await self._backlog.call()

    async def workers(self) -> list[WorkerRow]:
        return [worker_row(row) for row in await self._store.operations.sessions() if row.works]

    async def prune(self, keep_ms: int) -> Pruned:
        self._check_open()
        return await prune(self._store.pruning, self._worker.now(), keep_ms)

    # -- Limits --------------------------------------------------------------------------------------------------------

    async def limit(
        self, name: str, *, rate: tuple[int, int] | None, concurrency: int | None, note: AuditRow | None = None
    ) -> None:
        await self._store.limits.set(name, rate, concurrency, note)
        self._permits.changed()

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
            self._check_open()
            uses = await self._store.limits.tenants(tenant)
            if not uses:
                return None
            if uses[0].in_flight < uses[0].max_in_flight:
                return uses[0].max_in_flight - uses[0].in_flight
            wait = min(2 * wait, self._wakeups.poll_s)

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
from itertools import chain

from tenuto.authoring.program import CompileStored
from tenuto.errors import StorageError
from tenuto.runtime.clock import Environment
from tenuto.runtime.executor import Job
from tenuto.runtime.executor.held_execution import Record
from tenuto.runtime.executor.observers import Observers
from tenuto.runtime.executor.program_registry import Override, ProgramRegistry, unchanged
from tenuto.runtime.executor.worker import ASYNC_SLOTS, THREADS, Interpose, Worker, WorkerOptions
from tenuto.runtime.observer import Observer
from tenuto.runtime.port import Admission, Programs
from tenuto.runtime.shared.audit_log import RegistryAuditLog
from tenuto.runtime.shared.executions import ExecutionReads
from tenuto.runtime.shared.limits import StoredLimits
from tenuto.runtime.shared.operations import StoredOperations
from tenuto.runtime.shared.outbox_relay import Relay
from tenuto.runtime.shared.overview import Overviews
from tenuto.runtime.shared.retention import keep_pruning
from tenuto.runtime.shared.reviews import StoredReviews
from tenuto.runtime.shared.single_flight import SingleFlight
from tenuto.runtime.shared.status_feed import StatusFeed
from tenuto.runtime.supervision import supervised
from tenuto.runtime.vitals import Vitals
from tenuto.storage.notices import Notices
from tenuto.storage.port import WORK, Store, mail_for, tasks_in
from tenuto.views.messages import Announced, Publish

from .audit_sealer import AuditSealer
from .claimer import Claimer
from .decision_writer import DecisionWriter
from .definition_cache import DefinitionCache
from .dispatch import DurableDispatch
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
from .session import LEASE_MS, CurrentSession
from .session_opener import SessionOpener
from .starter import Starter
from .task_executions import TaskExecution
from .task_reports import TaskReports
from .task_worker import TaskWorker
from .tenant_admission import TenantAdmission
from .unread_mail import UnreadMail
from .wakeups import Owners, Wakeups
from .watcher import Watcher

POLL_MS = 200
CLOSING_SECONDS = 5.0  # how long closing waits for an unreachable database


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
        override: Override = unchanged,
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
        self.operations = StoredOperations(store, now, self._check_open)
        self._current = CurrentSession(lease_ms)
        self._wakeups = Wakeups(poll_ms, options.queues)
        self._relay = None if publish is None else Relay(store.outbox, publish, now, self._live_session)
        self._sealing = AuditSealer(store.registry, store.credits, now)
        self._watcher = Watcher(store)
        self._admission = TenantAdmission(store, self._check_open, self._wakeups.poll_s)
        self._parked_executions = ParkedExecutions()
        self._restorer = Restorer(store, self._wakeups, reads_all=bool(options.observers))
        self._observers = Observers(observers)
        self._registry = ProgramRegistry(prepares=worker, override=override)
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
            self.operations.inbox,
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
            self.operations.inbox,
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
        self._registry.on_change.append(lambda: self._wakeups.notify(WORK))  # to publish it, and to claim its work
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
        self._pruning: asyncio.Task[None] | None = None

        self.submit = self._starter.submit
        self.tell = self._mailbox.tell
        self.check = SingleFlight(store.check).call
        self.programs: Programs = self._cache
        self.executions = ExecutionReads(self._reader)
        self.reviews = StoredReviews(self._reader, lambda: store.registry, now)
        overviews = Overviews(self._reader.figures, self.reviews.with_requests)
        self.feed = StatusFeed(store.status_changes, self._reader, overviews)
        self.admission: Admission = self._admission
        self.limits = StoredLimits(store.limits, self._permits.changed, self._admission.forget)
        self.audit = RegistryAuditLog(self.operations.registry_of)
        self.dispatch = DurableDispatch(store.jobs, self._worker, self._wakeups)
        self.credits = store.credits
        self.runs = store.runs

    @property
    def observers(self) -> tuple[Observer, ...]:
        return self._observers.all

    @property
    def interpose(self) -> Interpose | None:
        """Wraps each handler."""
        return self._worker.interpose

    @interpose.setter
    def interpose(self, interpose: Interpose | None) -> None:
        self._worker.interpose = interpose

    @property
    def notices(self) -> Notices:
        return self._store.notices

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
        with supervised("Publishing definitions"):  # if that fails, the poller tries again
            await self._cache.publish_provided()
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
            self.feed.close()
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
            self.feed.close()
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

"""The runtime behind `memory://`, wired from its parts.

Nothing is stored: this runtime is for tests and short-lived sagas, and the reference for the behaviour of others.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from tenuto.runtime.clock import Environment
from tenuto.runtime.executor.limits import LocalLimits
from tenuto.runtime.executor.observers import Observers
from tenuto.runtime.executor.program_registry import Override, ProgramRegistry, unchanged
from tenuto.runtime.executor.worker import ASYNC_SLOTS, THREADS, Interpose, Worker, WorkerOptions
from tenuto.runtime.observer import Observer
from tenuto.runtime.shared.audit_log import RegistryAuditLog
from tenuto.runtime.shared.executions import ExecutionReads
from tenuto.runtime.shared.in_flight import InFlight
from tenuto.runtime.shared.outbox_relay import Relay
from tenuto.runtime.shared.overview import Overviews
from tenuto.runtime.shared.reviews import StoredReviews
from tenuto.runtime.shared.status_feed import StatusFeed
from tenuto.runtime.vitals import Vitals
from tenuto.storage.credits import CreditStore
from tenuto.storage.memory.outbox import MemoryOutbox
from tenuto.storage.memory.registry import MemoryRegistry
from tenuto.storage.notices import Notice, Notices
from tenuto.storage.runs import RunStore
from tenuto.views.messages import Announced, Publish

from .dispatch import MemoryDispatch
from .executions import MemoryExecutions
from .limits import MemoryAdmission, MemoryLimits
from .operations import MemoryInbox, MemoryOperations
from .programs import MemoryPrograms
from .reader import MemoryReader


class MemoryRuntime:
    """Runs executions in this process, without a database."""

    def __init__(
        self,
        environment: Environment,
        *,
        observers: Sequence[Observer] = (),
        worker: bool = True,
        queues: Sequence[str] = ("default",),
        slots: int = ASYNC_SLOTS,
        threads: int = THREADS,
        logs_failures: bool = False,
        announced: Announced | None = None,
        publish: Publish | None = None,
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
        self.environment = environment
        self.now = environment.now_ms
        self._limits = LocalLimits(environment.clock)
        self._observers = Observers(observers)
        self._registered = ProgramRegistry(prepares=worker, override=override)
        self._worker = Worker(environment, options, self._limits, self._observers)
        self._in_flight = InFlight()
        self._registry: MemoryRegistry | None = None
        self._outbox = MemoryOutbox()
        self._relay = None if publish is None else Relay(self._outbox, publish, self.now, lambda: "memory")
        inbox = MemoryInbox()
        self._executions = MemoryExecutions(
            self._worker,
            self._registered,
            self._observers,
            self._in_flight,
            self._outbox,
            announced,
            self._relay,
            inbox.inbox,
            self._registry_in_memory,
        )
        self._reader = MemoryReader(self._worker, self._executions)
        self._registered.on_replaced.append(self._executions.resume_parked)

        self.submit = self._executions.submit
        self.tell = self._executions.tell
        self.lose_worker = self._executions.lose_worker
        self.programs = MemoryPrograms(self._registered, self._registry_in_memory, self.now)
        self.executions = ExecutionReads(self._reader)
        self.reviews = StoredReviews(self._reader, self._registry_in_memory, self.now)
        overviews = Overviews(self._reader.figures, self.reviews.with_requests)
        self.feed = StatusFeed(self._executions.status_changes, self._reader, overviews)
        self.admission = MemoryAdmission(self._worker, self._in_flight)
        self.limits = MemoryLimits(
            self._limits,
            self._in_flight,
            self._executions.count_active,
            lambda note: self._registry_in_memory().note_now(note),
        )
        self.audit = RegistryAuditLog(lambda _: self._registry_in_memory())
        self.operations = MemoryOperations(
            self._worker, self._executions, self._outbox, inbox, self._registry_in_memory
        )
        self.notices: Notices = _MemoryNotices(environment)
        self.dispatch = MemoryDispatch(self._worker, self._executions, self._registry_in_memory)

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

    def _registry_in_memory(self) -> MemoryRegistry:
        """Created on first use. What happened before is not audited."""
        if self._registry is None:
            self._registry = self._executions.audited_in = MemoryRegistry()
        return self._registry

    @property
    def credits(self) -> CreditStore:
        return self._executions.books().credits

    @property
    def runs(self) -> RunStore:
        return self._executions.books().runs

    # -- Lifecycle -----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        self._worker.loop = asyncio.get_running_loop()
        self.operations.opened_at = self.now()
        if self._relay is not None:
            self._relay.start()

    async def close(self, grace_ms: int) -> None:
        worker, executions = self._worker, self._executions
        await worker.drain(grace_ms, executions.jobs)  # timers continue: running handlers may wait for one
        executions.stop_timer()
        await worker.stop(executions.jobs())
        if self._relay is not None:
            await self._relay.stop(grace_ms / 1_000, drain=True)
        worker.close()
        executions.close()
        self.feed.close()

    def vitals(self) -> Vitals:
        worker = self._worker
        return Vitals(is_open=worker.is_open, held=len(self._executions.records), lanes=worker.lane_loads())

    async def check(self) -> None:
        """Does nothing: there is no database that could be unreachable."""

    # -- For tests -----------------------------------------------------------------------------------------------------

    async def quiet(self, patience_ms: int) -> None:
        """Waits until no handler runs, at most as long as given, in real time."""
        await self._worker.wait_until_quiet(patience_ms)

    @property
    def running(self) -> int:
        """How many handlers run."""
        return self._worker.running

    @property
    def on_idle(self) -> Callable[[], None] | None:
        """Called when no handler runs and a caller waits."""
        return self._worker.on_idle

    @on_idle.setter
    def on_idle(self, call: Callable[[], None] | None) -> None:
        self._worker.on_idle = call

    @property
    def is_awaited(self) -> bool:
        """Whether a caller waits for an execution, or for capacity to start another."""
        return self._reader.is_awaited or self._in_flight.is_awaited


class _MemoryNotices:
    """Implements `Notices`."""

    def __init__(self, environment: Environment) -> None:
        self.now = environment.now_ms
        self._kept: dict[str, Notice] = {}

    async def begin_notice(self, notice: Notice) -> Notice:
        return self._kept.setdefault(notice.key, msgspec.structs.replace(notice, begun_at=self.now()))

    async def end_notice(self, key: str, receipt: bytes) -> None:
        if (kept := self._kept[key]).receipt is None:
            self._kept[key] = msgspec.structs.replace(kept, sent_at=self.now(), receipt=receipt)

    async def notice(self, key: str) -> Notice | None:
        return self._kept.get(key)

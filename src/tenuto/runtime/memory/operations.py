"""Inbox, backlog, retention and worker of the memory runtime."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from tenuto.runtime.executor.worker import Worker
from tenuto.runtime.shared.retention import Pruned
from tenuto.storage.memory.outbox import MemoryOutbox
from tenuto.storage.memory.registry import MemoryRegistry
from tenuto.storage.operations import BacklogRow
from tenuto.storage.outbox import OutboxStore
from tenuto.storage.registry import Registry
from tenuto.views import WorkerRow, rfc3339

from .executions import MemoryExecutions


class MemoryInbox:
    """Has no transaction to be part of: an id counts as received when the block succeeds."""

    def __init__(self) -> None:
        self._received: set[tuple[str, str]] = set()

    def inbox(self, consumer: str, id: str, connection: object) -> AbstractAsyncContextManager[bool]:
        return self._receive((consumer, id))

    @asynccontextmanager
    async def _receive(self, key: tuple[str, str]) -> AsyncIterator[bool]:
        is_first = key not in self._received
        yield is_first
        self._received.add(key)


class MemoryOperations:
    """Implements `Operations`."""

    def __init__(
        self,
        worker: Worker,
        executions: MemoryExecutions,
        outbox: MemoryOutbox,
        inbox: MemoryInbox,
        registry: Callable[[], MemoryRegistry],
    ) -> None:
        self._worker = worker
        self._now = worker.now
        self._executions = executions
        self._registry = registry
        self._outbox = outbox
        self.inbox = inbox.inbox
        self.opened_at = 0

    @property
    def registry(self) -> Registry:
        return self._registry()

    @property
    def outbox(self) -> OutboxStore:
        return self._outbox

    async def workers(self) -> list[WorkerRow]:
        """This process is the only worker."""
        if not self._worker.works:
            return []
        environment = self._worker.environment
        return [
            {
                "id": environment.worker,
                "worker": environment.worker,
                "build": environment.build,
                "queues": sorted(self._worker.queues),
                "started_at": rfc3339(self.opened_at),
                "expires_at": None,
                "executions": sum(record.state.finished is None for record in self._executions.in_order),
            }
        ]

    async def backlog(self) -> list[BacklogRow]:
        opened: dict[str, list[int]] = {}
        for record in self._executions.in_order:
            for review in record.state.reviews.values():
                opened.setdefault(review.kind, []).append(review.opened_at)
        rows = [BacklogRow("reviews", kind, len(times), min(times)) for kind, times in opened.items()]
        return [*rows, BacklogRow("now", "", 0, self._now())]

    async def prune(self, keep_ms: int) -> Pruned:
        return Pruned(executions=self._executions.prune(self._now() - keep_ms))

"""What operators and the service need of a store."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from tenuto.storage.caller_connections import caller_of
from tenuto.storage.caller_transactions import note_once
from tenuto.storage.operations import BacklogRow, SessionRow
from tenuto.storage.outbox import OutboxStore
from tenuto.storage.port import Store
from tenuto.storage.registry import Registry
from tenuto.storage.tasks import queues_of
from tenuto.views import WorkerRow, rfc3339

from .retention import Pruned, prune
from .single_flight import SingleFlight


class StoredOperations:
    """Implements `Operations`."""

    def __init__(self, store: Store, now_ms: Callable[[], int], check_writable: Callable[[], None]) -> None:
        """`check_writable` raises if this process is closed or only reads."""
        self._store = store
        self._now = now_ms
        self._check_writable = check_writable
        self._backlog = SingleFlight(store.operations.backlog)

    @property
    def registry(self) -> Registry:
        return self._store.registry

    def registry_of(self, tenant: str | None) -> Registry:
        """The registry that shows only this tenant's rows. None: all rows."""
        return self._store.registry if tenant is None else self._store.for_tenant(tenant).registry

    @property
    def outbox(self) -> OutboxStore:
        return self._store.outbox

    async def workers(self) -> list[WorkerRow]:
        return [_worker_row(row) for row in await self._store.operations.sessions() if row.works]

    async def backlog(self) -> list[BacklogRow]:
        return await self._backlog.call()

    @asynccontextmanager
    async def inbox(self, consumer: str, id: str, connection: object) -> AsyncIterator[bool]:
        yield await note_once(caller_of(connection), consumer, id, self._now())

    async def prune(self, keep_ms: int) -> Pruned:
        self._check_writable()
        return await prune(self._store.pruning, self._now(), keep_ms)


def _worker_row(row: SessionRow) -> WorkerRow:
    return {
        "id": row.id,
        "worker": row.worker,
        "build": row.build,
        "queues": queues_of(row.queues),
        "started_at": rfc3339(row.started_at),
        "expires_at": rfc3339(row.expires_at),
        "executions": row.executions,
    }

"""The workers of the service, and the operations that need its database."""

from contextlib import AbstractAsyncContextManager

from tenuto.runtime.shared.retention import Pruned
from tenuto.storage.operations import BacklogRow
from tenuto.storage.outbox import OutboxStore
from tenuto.storage.registry import Registry
from tenuto.views import WorkerRow

from .refusals import refuse
from .transport import Transport, paged


class RemoteOperations:
    """Implements `Operations`. Refuses what needs a connection to the database."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def workers(self) -> list[WorkerRow]:
        return [row async for row in paged(self._transport, "/v1/workers", {})]

    @property
    def registry(self) -> Registry:
        refuse("The registry of keys", "use the database: `tenuto keys` with TENUTO_URL")

    @property
    def outbox(self) -> OutboxStore:
        refuse("The outbox", "use an engine on the database: Engine(url of the database).outbox()")

    async def backlog(self) -> list[BacklogRow]:
        refuse("The backlog", "see /metrics of the service")

    def inbox(self, consumer: str, id: str, connection: object) -> AbstractAsyncContextManager[bool]:
        refuse("The inbox", "use an engine on the database: Engine(url of the database).inbox(…)")

    async def prune(self, keep_ms: int) -> Pruned:
        refuse("Pruning", "use an engine on the database: Engine(url of the database).prune(…)")

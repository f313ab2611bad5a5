"""Figures about a running system, on both databases."""

from tenuto.storage.port import BacklogRow, SessionRow
from tenuto.storage.tasks import TaskStore

from . import queries
from .database import Database
from .executions import row_of


class SqlOperations:
    """Implements `Operations`."""

    def __init__(self, database: Database, tasks: TaskStore) -> None:
        self._sql = database
        self._tasks = tasks

    async def sessions(self) -> list[SessionRow]:
        return [row_of(SessionRow, row) for row in await self._sql.fetch(queries.SESSIONS, ())]

    async def backlog(self) -> list[BacklogRow]:
        served = sorted({queue for each in await self._tasks.serving() for queue in each.queues})
        query = queries.backlog(self._sql.clock(), self._sql.dialect.among)
        return [BacklogRow(*row) for row in await self._sql.fetch(query, (self._sql.listed(served),))]

    async def overview(self, tenant: str | None) -> list[BacklogRow]:
        values = () if tenant is None else (tenant,)
        query = queries.overview(self._sql.clock(), is_of_tenant=tenant is not None)
        return [BacklogRow(*row) for row in await self._sql.fetch(query, values)]

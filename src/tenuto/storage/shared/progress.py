"""The progress that handlers report, on both databases."""

from collections.abc import Sequence

from tenuto.storage.port import ProgressRow

from .database import Database

_SAVE = (
    "INSERT INTO progress (execution, path, body) VALUES ($1, $2, $3) "
    "ON CONFLICT (execution, path) DO UPDATE SET body = excluded.body"
)
_DELETE = "DELETE FROM progress WHERE execution = $1 AND path = $2"


class SqlProgress:
    """Implements `Progress`."""

    def __init__(self, database: Database) -> None:
        self._sql = database

    async def of(self, executions: Sequence[str]) -> list[ProgressRow]:
        query = f"SELECT execution, path, body FROM progress WHERE execution {self._sql.dialect.among}"
        return [ProgressRow(*row) for row in await self._sql.fetch(query, (self._sql.listed(executions),))]

    async def save(self, rows: Sequence[ProgressRow], gone: Sequence[tuple[str, str]]) -> None:
        # Sorted, so that two transactions lock rows in the same order.
        saved = sorted((row.execution, row.path, row.body) for row in rows)
        await self._sql.run_many([(_SAVE, saved), (_DELETE, sorted(gone))])

"""Reads of executions that both databases share."""

from collections.abc import Sequence
from typing import Any, TypeVar

from tenuto.storage.port import ExecutionRow, Loaded, SnapshotRow, Wanted

from . import queries
from .database import Database

T = TypeVar("T")


class SqlExecutions:
    """The part of `Executions` that is the same on both databases."""

    def __init__(self, database: Database) -> None:
        self._sql = database

    async def find(self, id: str) -> ExecutionRow | None:
        rows = await self._sql.fetch(f"SELECT {queries.EXECUTION_COLUMNS} FROM executions WHERE id = $1", (id,))
        return row_of(ExecutionRow, rows[0]) if rows else None

    async def page(self, wanted: Wanted, after: str | None, limit: int) -> list[ExecutionRow]:
        rows = await self._sql.fetch(*queries.executions(wanted, after, limit, self._sql.dialect.mark))
        return [row_of(ExecutionRow, row) for row in rows]

    async def count(self, wanted: Wanted, by: str) -> dict[str, int]:
        return {row[0]: row[1] for row in await self._sql.fetch(*queries.count(wanted, by, self._sql.dialect.mark))}

    async def statuses(self, ids: Sequence[str], tenant: str | None = None) -> dict[str, str]:
        among = self._sql.dialect.among
        query = f"SELECT id, status FROM executions WHERE id {among} AND tenant = coalesce($2, tenant)"
        return {row[0]: row[1] for row in await self._sql.fetch(query, (self._sql.listed(ids), tenant))}

    async def bodies(self, id: str, first: int, last: int) -> list[bytes]:
        query = "SELECT body FROM events WHERE execution = $1 AND seq + count > $2 AND seq <= $3 ORDER BY seq"
        return [body for (body,) in await self._sql.fetch(query, (id, first, last))]


def row_of(kind: type[T], values: Sequence[Any]) -> T:
    """A row as its struct. SQLite returns booleans as numbers, which a struct would keep."""
    fields: tuple[str, ...] = kind.__struct_fields__  # type: ignore[attr-defined]  # only structs are passed
    named = dict(zip(fields, values, strict=True))
    if "cancel_requested" in named:
        named["cancel_requested"] = bool(named["cancel_requested"])
    return kind(**named)


def loaded(row: Sequence[Any], bodies: list[bytes]) -> Loaded:
    """An execution from its columns, followed by `seq` and `body` of its snapshot."""
    *columns, seq, snapshot = row
    execution = row_of(ExecutionRow, columns)
    return Loaded(execution, None if seq is None else SnapshotRow(execution.id, seq, snapshot), bodies)

"""Runs as they were created. Written once for both dialects.

A run has a row from its creation on. When it starts, an execution with the same id follows, and the row is marked in
the same transaction: a run that was cancelled or deleted before cannot start any more, and the other way round.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct

from tenuto.views.projections import AuditRow

from .statements import Statements, marks, noting


class RunRow(Struct, frozen=True, kw_only=True):
    id: str
    tenant: str
    definition: str
    version: int
    name: str
    input: bytes
    priority: str
    max_tokens: int
    max_attempts: int
    estimate: int
    hold: int
    key: str | None
    request_hash: str
    created_by: str
    created_at: int
    started_at: int | None = None
    cancelled_at: int | None = None
    deleted_at: int | None = None


class RunStore(Protocol):
    async def create(self, row: RunRow, note: AuditRow) -> RunRow:
        """Writes a run. If its key was used before, returns the run that the key created."""

    async def find(self, tenant: str | None, id: str) -> RunRow | None:
        """Returns a run that is not deleted."""

    async def by_key(self, tenant: str, key: str) -> RunRow | None:
        """Returns the run that an idempotency key created."""

    async def cancel(self, id: str, at: int, note: AuditRow) -> bool:
        """Cancels a run that has not started. Returns false if it has, or is cancelled already."""

    async def delete(self, id: str, at: int, note: AuditRow) -> bool:
        """Marks a run that has not started as deleted. Returns false if it has started or was cancelled."""

    async def page(self, tenant: str | None, after: str | None, limit: int) -> list[RunRow]:
        """Runs that are not deleted, newest first."""

    async def deleted(self, tenant: str | None, id: str) -> bool:
        """Returns whether there was such a run, and it was deleted."""


_RUN = ", ".join(RunRow.__struct_fields__)
OPEN = "started_at IS NULL AND cancelled_at IS NULL AND deleted_at IS NULL"


class SqlRuns:
    """Implements `RunStore` on a store's database."""

    def __init__(self, statements: Statements) -> None:
        self._sql = statements

    async def create(self, row: RunRow, note: AuditRow) -> RunRow:
        values = [getattr(row, name) for name in RunRow.__struct_fields__]
        query = f"INSERT INTO runs ({_RUN}) VALUES ({marks(len(values))}) ON CONFLICT DO NOTHING RETURNING id"
        if await self._sql.run_all([(query, values), *noting(note)]):
            return row
        found = await self._rows("tenant = $1 AND key = $2", (row.tenant, row.key))
        return found[0]

    async def find(self, tenant: str | None, id: str) -> RunRow | None:
        found = await self._rows("id = $1 AND deleted_at IS NULL", (id,))
        return found[0] if found and tenant in (None, found[0].tenant) else None

    async def by_key(self, tenant: str, key: str) -> RunRow | None:
        found = await self._rows("tenant = $1 AND key = $2", (tenant, key))
        return found[0] if found else None

    async def cancel(self, id: str, at: int, note: AuditRow) -> bool:
        query = f"UPDATE runs SET cancelled_at = $2 WHERE id = $1 AND {OPEN} RETURNING id"
        return await self._sql.run_all([(query, (id, at)), *noting(note)])

    async def delete(self, id: str, at: int, note: AuditRow) -> bool:
        query = f"UPDATE runs SET deleted_at = $2 WHERE id = $1 AND {OPEN} RETURNING id"
        return await self._sql.run_all([(query, (id, at)), *noting(note)])

    async def page(self, tenant: str | None, after: str | None, limit: int) -> list[RunRow]:
        conditions, values = ["deleted_at IS NULL"], list[object]()
        if tenant is not None:
            values.append(tenant)
            conditions.append(f"tenant = ${len(values)}")
        if after is not None:
            values.append(after)
            conditions.append(f"id < ${len(values)}")
        values.append(limit)
        return await self._rows(f"{' AND '.join(conditions)} ORDER BY id DESC LIMIT ${len(values)}", values)

    async def deleted(self, tenant: str | None, id: str) -> bool:
        found = await self._rows("id = $1 AND deleted_at IS NOT NULL", (id,))
        return bool(found) and tenant in (None, found[0].tenant)

    async def _rows(self, where: str, values: Sequence[object]) -> list[RunRow]:
        rows = await self._sql.fetch(f"SELECT {_RUN} FROM runs WHERE {where}", values)
        return [_run(row) for row in rows]


def _run(row: Sequence[Any]) -> RunRow:
    named = dict(zip(RunRow.__struct_fields__, row, strict=True))
    return RunRow(**{**named, "input": bytes(named["input"])})

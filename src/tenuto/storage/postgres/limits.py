"""Limits on PostgreSQL. The row of a limit is the lock under which it is shared out."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import asyncpg
import msgspec

from tenuto.storage.permits import (
    IN_FLIGHT,
    UNCOUNTED,
    USE,
    Ask,
    Dealing,
    Dealt,
    HolderRow,
    LimitRow,
    LimitUse,
    TenantUse,
)
from tenuto.storage.statements import noting
from tenuto.views.projections import AuditRow

from .statements import LIVE, NOW

LOCK_MS = 100

# Always in the order of their names, so that two exchanges cannot wait for each other.
_LOCK = "SELECT name, count, period_ms, concurrency, spent FROM limits WHERE name = ANY($1) ORDER BY name FOR UPDATE"
_HOLDERS = f"""
WITH lease AS ({LIVE})
SELECT {NOW} AS now, EXISTS (SELECT 1 FROM lease) AS live, ARRAY(
    SELECT ROW(name, session, held, wanted, asked_at, served_at) FROM limit_holders WHERE name = ANY($2)) AS holders"""
_WRITE = """
WITH counted AS (
    UPDATE limits l SET spent = r.spent FROM unnest($1::text[], $2::text[]) AS r (name, spent) WHERE l.name = r.name
)
INSERT INTO limit_holders (name, session, held, wanted, asked_at, served_at)
SELECT * FROM unnest($3::text[], $4::text[], $5::int[], $6::int[], $7::bigint[], $8::bigint[])
ON CONFLICT (name, session) DO UPDATE SET held = excluded.held, wanted = excluded.wanted,
    asked_at = excluded.asked_at, served_at = excluded.served_at"""


_SET = """
INSERT INTO limits (name, count, period_ms, concurrency, spent) VALUES ($1, $2, $3, $4, '[]')
ON CONFLICT (name) DO UPDATE SET count = excluded.count, period_ms = excluded.period_ms,
    concurrency = excluded.concurrency"""
_ADD_TENANT = f"""
INSERT INTO tenant_limits (tenant, max_in_flight, in_flight) VALUES ($1, {UNCOUNTED}, 0) ON CONFLICT DO NOTHING"""
# What is counted, and what is forgotten because it is in that count, is seen at one moment.
_SET_TENANT = """
WITH forgotten AS (DELETE FROM tenant_changes WHERE tenant = $1)
UPDATE tenant_limits SET max_in_flight = $2,
    in_flight = (SELECT count(*) FROM executions WHERE tenant = $1 AND ended_at IS NULL) WHERE tenant = $1"""
_LIFT = """
WITH forgotten AS (DELETE FROM tenant_changes WHERE tenant = $1) DELETE FROM tenant_limits WHERE tenant = $1"""
_IS_SHOWN = f"SELECT max_in_flight < {UNCOUNTED} FROM tenant_limits WHERE tenant = $1"
_TENANTS = f"""
SELECT t.tenant, t.max_in_flight, {IN_FLIGHT} FROM tenant_limits t
WHERE t.tenant = coalesce($1, t.tenant) AND t.max_in_flight < {UNCOUNTED} ORDER BY t.tenant"""


class PostgresLimits:
    """Implements `permits.LimitStore`."""

    def __init__(self, lend: Callable[[], AbstractAsyncContextManager[Any]]) -> None:
        self._lend = lend

    async def exchange(self, session: str, ask: Ask) -> Dealt | None:
        names = ask.names
        async with self._lend() as db, db.transaction():
            rows = [LimitRow.of(*row) for row in await db.fetch(_LOCK, names)]
            found = await db.fetchrow(_HOLDERS, session, names if rows else [])
            if not found["live"]:
                return None
            holders = [HolderRow(*holder) for holder in found["holders"]]
            dealing = Dealing(rows, holders, session, ask, found["now"])
            dealt = dealing.deal()
            await self._keep(db, dealing.changed_rows(), dealing.changed_holders())
            return dealt
        raise AssertionError("what lends does not swallow")

    async def _keep(self, db: Any, rows: list[LimitRow], holders: list[HolderRow]) -> None:
        if rows or holders:
            columns = zip(*(msgspec.structs.astuple(holder) for holder in holders), strict=True)
            values = [list(column) for column in columns] or [[]] * 6
            await db.execute(_WRITE, [row.name for row in rows], [row.spent_text for row in rows], *values)

    async def set(
        self, name: str, rate: tuple[int, int] | None, concurrency: int | None, note: AuditRow | None = None
    ) -> None:
        async with self._lend() as db, db.transaction():
            if rate is None and concurrency is None:
                if await db.fetchval("DELETE FROM limits WHERE name = $1 RETURNING 1", name) is None:
                    note = None
                await db.execute("DELETE FROM limit_holders WHERE name = $1", name)
            else:
                await db.execute(_SET, name, *(rate or (None, None)), concurrency)
            await _write_down(db, note)

    async def all(self) -> list[LimitUse]:
        async with self._lend() as db:
            return [LimitUse(*row) for row in await db.fetch(USE)]
        raise AssertionError("what lends does not swallow")

    async def set_tenant(self, tenant: str, max_in_flight: int | None, note: AuditRow | None = None) -> None:
        """Counts the executions in flight when a limit is set. From then on, every commit maintains the count.

        Commits of tenants without a limit take no lock. So the row is added first, without a bound, and the
        transactions that were open at that moment are waited for. Then the row is locked, which every start of the
        tenant needs from now on, and the executions in flight are counted. An execution that ends meanwhile is either
        seen as ended or noted as a change. A process that is killed in between leaves a row that limits nothing and is
        not listed.
        """
        async with self._lend() as db:
            if max_in_flight is None:
                async with db.transaction():
                    was_shown = await db.fetchval(_IS_SHOWN, tenant)
                    await db.execute(_LIFT, tenant)
                    await _write_down(db, note if was_shown else None)
                return
            await db.execute(_ADD_TENANT, tenant)
            while not await self._are_written(db):  # noqa: ASYNC110  (the end of a stranger's transaction is no event)
                await asyncio.sleep(LOCK_MS / 1_000)
            async with db.transaction():
                await db.execute("SELECT 1 FROM tenant_limits WHERE tenant = $1 FOR UPDATE", tenant)
                await db.execute(_SET_TENANT, tenant, max_in_flight)
                await _write_down(db, note)

    async def _are_written(self, db: Any) -> bool:
        """Whether all transactions that wrote executions or read limits have ended.

        Waits in short pieces, because other transactions queue behind this lock.
        """
        try:
            async with db.transaction():
                await db.execute(f"SET LOCAL lock_timeout = {LOCK_MS}")
                await db.execute("LOCK TABLE executions, tenant_limits IN SHARE MODE")
        except asyncpg.LockNotAvailableError:
            return False
        return True

    async def tenants(self, tenant: str | None) -> list[TenantUse]:
        async with self._lend() as db:
            return [TenantUse(*row) for row in await db.fetch(_TENANTS, tenant)]
        raise AssertionError("what lends does not swallow")


async def _write_down(db: Any, note: AuditRow | None) -> None:
    for query, values in noting(note):
        await db.execute(query, *values)

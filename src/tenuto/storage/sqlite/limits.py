"""Limits on SQLite. There is one writer at a time, which is lock enough."""

from collections.abc import Callable

import apsw
import msgspec

from tenuto.storage.permits import USE, Ask, Dealing, Dealt, HolderRow, LimitRow, LimitUse, TenantUse
from tenuto.storage.statements import noting
from tenuto.views.projections import AuditRow

from .statements import LIVE
from .tasks import Fetch, Write

_NAMED = "name IN (SELECT value FROM json_each(?))"
_LIMITS = f"SELECT name, count, period_ms, concurrency, spent FROM limits WHERE {_NAMED}"
_HOLDERS = f"SELECT name, session, held, wanted, asked_at, served_at FROM limit_holders WHERE {_NAMED}"
_HOLDER = """
INSERT OR REPLACE INTO limit_holders (name, session, held, wanted, asked_at, served_at) VALUES (?, ?, ?, ?, ?, ?)"""
_SET = """
INSERT INTO limits (name, count, period_ms, concurrency, spent) VALUES (?, ?, ?, ?, '[]')
ON CONFLICT (name) DO UPDATE SET count = excluded.count, period_ms = excluded.period_ms,
    concurrency = excluded.concurrency"""
_SET_TENANT = """
INSERT INTO tenant_limits (tenant, max_in_flight, in_flight)
VALUES (?1, ?2, (SELECT count(*) FROM executions WHERE tenant = ?1 AND ended_at IS NULL))
ON CONFLICT (tenant) DO UPDATE SET max_in_flight = excluded.max_in_flight, in_flight = excluded.in_flight"""
_TENANTS = """
SELECT tenant, max_in_flight, in_flight FROM tenant_limits WHERE tenant = coalesce(?, tenant) ORDER BY tenant"""


class SqliteLimits:
    """Implements `permits.LimitStore`."""

    def __init__(self, write: Write, fetch: Fetch, now: Callable[[], int]) -> None:
        self._write = write
        self._fetch = fetch
        self._now = now

    async def exchange(self, session: str, ask: Ask) -> Dealt | None:
        def work(db: apsw.Connection) -> Dealt | None:
            return None if db.execute(LIVE, (session,)).fetchone() is None else self._deal(db, session, ask)

        return await self._write(work)

    def _deal(self, db: apsw.Connection, session: str, ask: Ask) -> Dealt:
        names = (msgspec.json.encode(ask.names).decode(),)
        rows = [LimitRow.of(*row) for row in db.execute(_LIMITS, names)]
        holders = [HolderRow(*row) for row in db.execute(_HOLDERS, names)]
        dealing = Dealing(rows, holders, session, ask, self._now())
        dealt = dealing.deal()
        for row in dealing.changed_rows():
            db.execute("UPDATE limits SET spent = ? WHERE name = ?", (row.spent_text, row.name))
        for holder in dealing.changed_holders():
            db.execute(_HOLDER, msgspec.structs.astuple(holder))
        return dealt

    async def set(
        self, name: str, rate: tuple[int, int] | None, concurrency: int | None, note: AuditRow | None = None
    ) -> None:
        def work(db: apsw.Connection) -> None:
            if rate is None and concurrency is None:
                acts = db.execute("DELETE FROM limits WHERE name = ? RETURNING 1", (name,)).fetchall()
                db.execute("DELETE FROM limit_holders WHERE name = ?", (name,))
            else:
                acts = db.execute(f"{_SET} RETURNING 1", (name, *(rate or (None, None)), concurrency)).fetchall()
            _write_down(db, note if acts else None)

        await self._write(work)

    async def all(self) -> list[LimitUse]:
        return [LimitUse(*row) for row in await self._fetch(USE, ())]

    async def set_tenant(self, tenant: str, max_in_flight: int | None, note: AuditRow | None = None) -> None:
        def work(db: apsw.Connection) -> None:
            if max_in_flight is None:
                acts = db.execute("DELETE FROM tenant_limits WHERE tenant = ? RETURNING 1", (tenant,)).fetchall()
            else:
                acts = db.execute(f"{_SET_TENANT} RETURNING 1", (tenant, max_in_flight)).fetchall()
            _write_down(db, note if acts else None)

        await self._write(work)

    async def tenants(self, tenant: str | None) -> list[TenantUse]:
        return [TenantUse(*row) for row in await self._fetch(_TENANTS, (tenant,))]


def _write_down(db: apsw.Connection, note: AuditRow | None) -> None:
    for query, values in noting(note):
        db.execute(query.replace("$", "?"), tuple(values))

"""Claims of due executions on SQLite.

A claim by tenant reads the next tenant from the index, and within it the next plan with due executions. Plans that this
process cannot run are skipped as a whole, however many executions wait for them.
"""

import json
from collections.abc import Iterator, Sequence, Set
from itertools import islice

import apsw

from tenuto.storage.port import TENANTS_AT_ONCE, Claim, Turn, next_after, plan_pairs
from tenuto.storage.shared.claims import SqlClaims

from .database import SqliteDatabase
from .errors import translated
from .statements import is_live

# One index lookup per plan: executions that this process cannot run are never read.
_DUE = """
SELECT e.id FROM json_each(?1) p JOIN executions e ON e.id IN (
    SELECT id FROM executions INDEXED BY executions_due
    WHERE owner IS NULL AND definition = p.value ->> 0 AND version = p.value ->> 1 AND priority = ?2 AND wake_at <= ?3
    ORDER BY wake_at LIMIT ?4)
ORDER BY e.wake_at LIMIT ?4"""
_NEXT_TENANT = """
SELECT tenant FROM executions INDEXED BY executions_turn
WHERE owner IS NULL AND wake_at IS NOT NULL AND tenant > ? ORDER BY tenant LIMIT 1"""
_PLANS = """
SELECT definition, version FROM executions INDEXED BY executions_turn
WHERE owner IS NULL AND wake_at IS NOT NULL AND tenant = ?1"""
# In two parts: by `(definition, version) > (?, ?)` it would read all that waits of the plan it comes from.
_NEXT_PLAN = f"""
SELECT * FROM ({_PLANS} AND definition = ?2 AND version > ?3 ORDER BY version LIMIT 1) UNION ALL
SELECT * FROM ({_PLANS} AND definition > ?2 ORDER BY definition, version LIMIT 1) LIMIT 1"""
_DUE_OF_TENANT = """
SELECT e.id FROM json_each(?2) p JOIN executions e ON e.id IN (
    SELECT id FROM executions INDEXED BY executions_turn
    WHERE owner IS NULL AND tenant = ?1 AND definition = p.value ->> 0 AND version = p.value ->> 1 AND priority = ?3
        AND wake_at <= ?4 ORDER BY wake_at LIMIT ?5)
ORDER BY e.wake_at LIMIT ?5"""
_TAKE = """
UPDATE executions SET owner = ?, epoch = epoch + 1, wake_at = NULL, parked = ''
WHERE id IN (SELECT value FROM json_each(?)) RETURNING id, epoch, definition, version"""


class SqliteClaims(SqlClaims):
    def __init__(self, database: SqliteDatabase) -> None:
        super().__init__(database)
        self._database = database

    async def claim(self, session: str, plans: Sequence[str], limit: int) -> list[Claim]:
        return await self._database.in_writer(lambda: self._claim(session, plans, limit, None))

    async def claim_by_tenant(self, session: str, plans: Sequence[str], turn: Turn) -> tuple[list[Claim], str]:
        return await self._database.in_transaction(
            lambda db: _claim_by_tenant(db, session, plans, turn, self._database.now())
        )

    async def claim_one(self, session: str, execution: str) -> Claim | None:
        claims = await self._database.in_writer(lambda: self._claim(session, (), 1, execution))
        return claims[0] if claims else None

    def _claim(self, session: str, plans: Sequence[str], limit: int, execution: str | None) -> list[Claim]:
        with translated():
            now = self._database.now()
            if not self._candidates(now, plans, 1, execution):
                return []
            with self._database.transaction():
                if not is_live(self._database.write_connection, session):
                    return []
                query = (
                    "UPDATE executions SET owner = ?, epoch = epoch + 1, wake_at = NULL, parked = '' "
                    "WHERE id IN (SELECT value FROM json_each(?)) RETURNING id, epoch, definition, version"
                )
                ids = self._candidates(now, plans, limit, execution)
                return [
                    Claim(*row) for row in self._database.write_connection.execute(query, (session, json.dumps(ids)))
                ]

    def _candidates(self, now: int, plans: Sequence[str], limit: int, execution: str | None) -> list[str]:
        if execution is not None:
            query = "SELECT id FROM executions WHERE id = ? AND owner IS NULL"
            return [id for (id,) in self._database.write_connection.execute(query, (execution,))]
        wanted = json.dumps(plan_pairs(plans))
        found: list[str] = []
        for priority in (1, 0):
            values = (wanted, priority, now, limit - len(found))
            found.extend(id for (id,) in self._database.write_connection.execute(_DUE, values))
        return found

    async def park(
        self, session: str | None, execution: str, why: str, again_ms: int | None, epoch: int | None = None
    ) -> None:
        query = (
            "UPDATE executions SET parked = ?, owner = NULL, wake_at = ? "
            "WHERE id = ? AND (owner IS NULL OR owner = ?) AND epoch = coalesce(?, epoch)"
        )

        def work() -> None:
            with translated():
                again_at = None if again_ms is None else self._database.now() + again_ms
                self._database.write_connection.execute(query, (why, again_at, execution, session, epoch))

        await self._database.in_writer(work)


def _claim_by_tenant(
    db: apsw.Connection, session: str, plans: Sequence[str], turn: Turn, now: int
) -> tuple[list[Claim], str]:
    if not is_live(db, session):
        return [], ""
    wanted, full = frozenset(plan_pairs(plans)), frozenset(turn.full)
    ids: list[str] = []
    tenants = list(islice(_tenants(db, turn.after), TENANTS_AT_ONCE))
    for tenant in tenants:
        if tenant not in full and len(ids) < turn.limit:
            ids += _due_of_tenant(db, tenant, now, wanted, min(turn.each, turn.limit - len(ids)))
    last = next_after(turn, tenants, len(ids))
    return [Claim(*row) for row in db.execute(_TAKE, (session, json.dumps(ids)))] if ids else [], last


def _tenants(db: apsw.Connection, after: str) -> Iterator[str]:
    while (found := db.execute(_NEXT_TENANT, (after,)).fetchone()) is not None:
        (after,) = found
        yield after


def _plans(db: apsw.Connection, tenant: str) -> Iterator[tuple[str, int]]:
    plan = ("", 0)
    while (found := db.execute(_NEXT_PLAN, (tenant, *plan)).fetchone()) is not None:
        plan = found
        yield plan


def _due_of_tenant(db: apsw.Connection, tenant: str, now: int, wanted: Set[tuple[str, int]], limit: int) -> list[str]:
    plans = json.dumps([plan for plan in _plans(db, tenant) if plan in wanted])
    found: list[str] = []
    for priority in (1, 0):
        values = (tenant, plans, priority, now, limit - len(found))
        found += [id for (id,) in db.execute(_DUE_OF_TENANT, values)]
    return found

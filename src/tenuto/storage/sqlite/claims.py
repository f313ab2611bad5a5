"""Claims tenant by tenant, on SQLite.

Each look into the index finds the next tenant, and in it the next plan of which something waits: what nobody here can
run is stepped over as a whole, however much of it there is.
"""

import json
from collections.abc import Iterator, Sequence, Set
from itertools import islice

import apsw

from tenuto.storage.port import TENANTS_AT_ONCE, Claim, Turn, next_after, plan_pairs
from tenuto.storage.sqlite_sql import LIVE

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
_DUE = """
SELECT e.id FROM json_each(?2) p JOIN executions e ON e.id IN (
    SELECT id FROM executions INDEXED BY executions_turn
    WHERE owner IS NULL AND tenant = ?1 AND definition = p.value ->> 0 AND version = p.value ->> 1 AND priority = ?3
        AND wake_at <= ?4 ORDER BY wake_at LIMIT ?5)
ORDER BY e.wake_at LIMIT ?5"""
_TAKE = """
UPDATE executions SET owner = ?, epoch = epoch + 1, wake_at = NULL, parked = ''
WHERE id IN (SELECT value FROM json_each(?)) RETURNING id, epoch, definition, version"""


def claim_in_turn(
    db: apsw.Connection, session: str, plans: Sequence[str], turn: Turn, now: int
) -> tuple[list[Claim], str]:
    if db.execute(LIVE, (session,)).fetchone() is None:
        return [], ""
    wanted, full = frozenset(plan_pairs(plans)), frozenset(turn.full)
    ids: list[str] = []
    tenants = list(islice(_tenants(db, turn.after), TENANTS_AT_ONCE))
    for tenant in tenants:
        if tenant not in full and len(ids) < turn.limit:
            ids += _due(db, tenant, now, wanted, min(turn.each, turn.limit - len(ids)))
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


def _due(db: apsw.Connection, tenant: str, now: int, wanted: Set[tuple[str, int]], limit: int) -> list[str]:
    plans = json.dumps([plan for plan in _plans(db, tenant) if plan in wanted])
    found: list[str] = []
    for priority in (1, 0):
        values = (tenant, plans, priority, now, limit - len(found))
        found += [id for (id,) in db.execute(_DUE, values)]
    return found

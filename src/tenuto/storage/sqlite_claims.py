"""Claims tenant by tenant, on SQLite."""

import json
from collections.abc import Iterator, Sequence
from itertools import islice

import apsw

from .store import TENANTS_AT_ONCE, Claim, Turn, next_after

_NEXT = """
SELECT tenant FROM executions INDEXED BY executions_turn
WHERE owner IS NULL AND wake_at IS NOT NULL AND tenant > ? ORDER BY tenant LIMIT 1"""
_DUE = """
SELECT id FROM executions INDEXED BY executions_turn
WHERE owner IS NULL AND tenant = ? AND priority = ? AND wake_at <= ?
    AND definition || '/' || version IN (SELECT value FROM json_each(?)) ORDER BY wake_at LIMIT ?"""
_TAKE = """
UPDATE executions SET owner = ?, epoch = epoch + 1, wake_at = NULL, parked = ''
WHERE id IN (SELECT value FROM json_each(?)) RETURNING id, epoch, definition, version"""


def claim_in_turn(
    db: apsw.Connection, session: str, plans: Sequence[str], turn: Turn, now: int
) -> tuple[list[Claim], str]:
    if db.execute("SELECT 1 FROM sessions WHERE id = ? AND ended_at IS NULL", (session,)).fetchone() is None:
        return [], ""
    wanted, full = json.dumps(list(plans)), frozenset(turn.full)
    ids: list[str] = []
    tenants = list(islice(_tenants(db, turn.after), TENANTS_AT_ONCE))
    for tenant in tenants:
        if tenant not in full and len(ids) < turn.limit:
            ids += _due(db, tenant, now, wanted, min(turn.each, turn.limit - len(ids)))
    last = next_after(turn, tenants, len(ids))
    return [Claim(*row) for row in db.execute(_TAKE, (session, json.dumps(ids)))] if ids else [], last


def _tenants(db: apsw.Connection, after: str) -> Iterator[str]:
    while (found := db.execute(_NEXT, (after,)).fetchone()) is not None:
        (after,) = found
        yield after


def _due(db: apsw.Connection, tenant: str, now: int, wanted: str, limit: int) -> list[str]:
    found: list[str] = []
    for priority in (1, 0):
        values = (tenant, priority, now, wanted, limit - len(found))
        found += [id for (id,) in db.execute(_DUE, values)]
    return found

"""Claims tenant by tenant, on PostgreSQL: what others are just claiming is passed over.

Each look into the index finds the next tenant, and in it the next plan of which something waits: what nobody here can
run is stepped over as a whole, however much of it there is.
"""

from collections.abc import Sequence
from typing import Any

from tenuto.storage.port import TENANTS_AT_ONCE, Claim, Turn, next_after

from .statements import LIVE, NOW

_NEXT = """
SELECT tenant FROM executions e WHERE owner IS NULL AND wake_at IS NOT NULL AND e.tenant > {} ORDER BY tenant LIMIT 1"""
_TENANTS = f"""
WITH RECURSIVE found AS (
    ({_NEXT.format("$1")}) UNION ALL SELECT ({_NEXT.format("found.tenant")}) FROM found WHERE tenant IS NOT NULL
)
SELECT tenant FROM found WHERE tenant IS NOT NULL LIMIT {TENANTS_AT_ONCE}"""
_DUE = f"e.owner IS NULL AND e.wake_at <= (SELECT {NOW})"
# More are looked at than are wanted: some may just be claimed by others, and are passed over.
_CLAIM = f"""
WITH RECURSIVE me AS ({LIVE}),
found AS (
    SELECT tenant, '' AS definition, 0 AS version FROM me, unnest($3::text[]) AS tenant
    UNION ALL
    SELECT found.tenant, next.* FROM found, LATERAL (
        SELECT e.definition, e.version FROM executions e
        WHERE owner IS NULL AND wake_at IS NOT NULL AND e.tenant = found.tenant
            AND (e.definition, e.version) > (found.definition, found.version)
        ORDER BY e.definition, e.version LIMIT 1) next
),
plans AS MATERIALIZED (
    SELECT tenant, array_agg(definition) AS definitions, array_agg(version) AS versions
    FROM found WHERE definition || '/' || version = ANY($2) GROUP BY tenant
),
due AS (
    SELECT mine.id FROM plans, LATERAL (
        SELECT e.id FROM (
            SELECT w.id, p.priority, w.wake_at
            FROM (VALUES (1), (0)) AS p (priority), unnest(definitions, versions) AS of (definition, version), LATERAL (
                SELECT e.id, e.wake_at FROM executions e
                WHERE {_DUE} AND e.tenant = plans.tenant AND e.definition = of.definition AND e.version = of.version
                    AND e.priority = p.priority
                ORDER BY e.wake_at LIMIT 4 * $4 + 16) w
            ORDER BY p.priority DESC, w.wake_at LIMIT 4 * $4 + 16) c
        JOIN executions e ON e.id = c.id WHERE {_DUE}
        ORDER BY c.priority DESC, c.wake_at LIMIT $4 FOR UPDATE OF e SKIP LOCKED) mine
    LIMIT $5
)
UPDATE executions e SET owner = $1, epoch = epoch + 1, wake_at = NULL, parked = '' FROM due WHERE e.id = due.id
RETURNING e.id, e.epoch, e.definition, e.version"""


async def claim_in_turn(db: Any, session: str, plans: Sequence[str], turn: Turn) -> tuple[list[Claim], str]:
    tenants = [row["tenant"] for row in await db.fetch(_TENANTS, turn.after)]
    open_to = [tenant for tenant in tenants if tenant not in frozenset(turn.full)]
    rows = await db.fetch(_CLAIM, session, list(plans), open_to, turn.each, turn.limit) if open_to else []
    return [Claim(*row) for row in rows], next_after(turn, tenants, len(rows))

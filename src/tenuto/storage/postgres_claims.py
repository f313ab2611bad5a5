"""Claims tenant by tenant, on PostgreSQL: what others are just claiming is passed over."""

from collections.abc import Sequence
from typing import Any

from .store import TENANTS_AT_ONCE, Claim, Turn, next_after

_NOW = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
_NEXT = """
SELECT tenant FROM executions e WHERE owner IS NULL AND wake_at IS NOT NULL AND e.tenant > {} ORDER BY tenant LIMIT 1"""
_TENANTS = f"""
WITH RECURSIVE found AS (
    ({_NEXT.format("$1")}) UNION ALL SELECT ({_NEXT.format("found.tenant")}) FROM found WHERE tenant IS NOT NULL
)
SELECT tenant FROM found WHERE tenant IS NOT NULL LIMIT {TENANTS_AT_ONCE}"""
_CLAIM = f"""
WITH me AS (SELECT id FROM sessions WHERE id = $1 AND ended_at IS NULL FOR SHARE),
due AS (
    SELECT e.id FROM me, unnest($3::text[]) WITH ORDINALITY AS t (tenant, place), LATERAL (
        SELECT due.id FROM (VALUES (1), (0)) AS p (priority), LATERAL (
            SELECT id FROM executions
            WHERE owner IS NULL AND tenant = t.tenant AND priority = p.priority AND wake_at <= (SELECT {_NOW})
                AND definition || '/' || version = ANY($2)
            ORDER BY wake_at LIMIT $4 FOR UPDATE SKIP LOCKED) due
        LIMIT $4) e
    LIMIT $5
)
UPDATE executions e SET owner = $1, epoch = epoch + 1, wake_at = NULL, parked = '' FROM due WHERE e.id = due.id
RETURNING e.id, e.epoch, e.definition, e.version"""


async def claim_in_turn(db: Any, session: str, plans: Sequence[str], turn: Turn) -> tuple[list[Claim], str]:
    tenants = [row["tenant"] for row in await db.fetch(_TENANTS, turn.after)]
    open_to = [tenant for tenant in tenants if tenant not in frozenset(turn.full)]
    rows = await db.fetch(_CLAIM, session, list(plans), open_to, turn.each, turn.limit) if open_to else []
    return [Claim(*row) for row in rows], next_after(turn, tenants, len(rows))

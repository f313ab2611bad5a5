"""Claims of due executions on PostgreSQL. Rows that other workers are claiming are skipped.

A claim by tenant reads the next tenant from the index, and within it the next plan with due executions. Plans that this
process cannot run are skipped as a whole, however many executions wait for them.
"""

from collections.abc import Sequence

from tenuto.storage.port import TENANTS_AT_ONCE, Claim, Turn, next_after
from tenuto.storage.shared.claims import SqlClaims

from .database import PostgresDatabase
from .errors import translated
from .statements import LIVE, NOW

# A subquery is asked once, and may be looked up in an index; the clock itself is read anew for every row.
_DUE = f"e.owner IS NULL AND e.wake_at <= (SELECT {NOW})"
_TAKE = "UPDATE executions e SET owner = $1, epoch = epoch + 1, wake_at = NULL, parked = ''"
_TAKEN = "RETURNING e.id, e.epoch, e.definition, e.version"

# The claimant's session is locked as in a commit: a process that ends it meanwhile waits, and sees its claims.
# More are looked at than are wanted: some may just be claimed by others, and are passed over.
_CLAIM = f"""
WITH me AS ({LIVE}),
plans AS MATERIALIZED (
    SELECT substring(plan FROM '^(.*)/') AS definition, substring(plan FROM '[0-9]+$')::int AS version
    FROM unnest($2::text[]) AS plan
),
candidates AS MATERIALIZED (
    SELECT found.id, priority, found.wake_at FROM me, plans, (VALUES (1), (0)) AS p (priority), LATERAL (
        SELECT e.id, e.wake_at FROM executions e
        WHERE {_DUE} AND e.definition = plans.definition AND e.version = plans.version AND e.priority = p.priority
        ORDER BY e.wake_at LIMIT 4 * $3 + 16
    ) found ORDER BY priority DESC, wake_at LIMIT 4 * $3 + 16
),
free AS (
    SELECT e.id FROM candidates c JOIN executions e ON e.id = c.id WHERE {_DUE}
    ORDER BY c.priority DESC, c.wake_at LIMIT $3 FOR UPDATE OF e SKIP LOCKED
)
{_TAKE} FROM free WHERE e.id = free.id {_TAKEN}"""
_CLAIM_ONE = f"WITH me AS ({LIVE}) {_TAKE} FROM me WHERE e.id = $2 AND e.owner IS NULL {_TAKEN}"

_NEXT = """
SELECT tenant FROM executions e WHERE owner IS NULL AND wake_at IS NOT NULL AND e.tenant > {} ORDER BY tenant LIMIT 1"""
_TENANTS = f"""
WITH RECURSIVE found AS (
    ({_NEXT.format("$1")}) UNION ALL SELECT ({_NEXT.format("found.tenant")}) FROM found WHERE tenant IS NOT NULL
)
SELECT tenant FROM found WHERE tenant IS NOT NULL LIMIT {TENANTS_AT_ONCE}"""
# More are looked at than are wanted: some may just be claimed by others, and are passed over.
_CLAIM_BY_TENANT = f"""
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
{_TAKE} FROM due WHERE e.id = due.id
{_TAKEN}"""


class PostgresClaims(SqlClaims):
    def __init__(self, database: PostgresDatabase) -> None:
        super().__init__(database)
        self._database = database

    async def claim(self, session: str, plans: Sequence[str], limit: int) -> list[Claim]:
        async with translated():
            return [Claim(*row) for row in await self._database.pool.fetch(_CLAIM, session, list(plans), limit)]
        raise AssertionError("translated() does not swallow")

    async def claim_by_tenant(self, session: str, plans: Sequence[str], turn: Turn) -> tuple[list[Claim], str]:
        async with translated(), self._database.pool.acquire() as db:
            tenants = [row["tenant"] for row in await db.fetch(_TENANTS, turn.after)]
            open_to = [tenant for tenant in tenants if tenant not in frozenset(turn.full)]
            values = (session, list(plans), open_to, turn.each, turn.limit)
            rows = await db.fetch(_CLAIM_BY_TENANT, *values) if open_to else []
            return [Claim(*row) for row in rows], next_after(turn, tenants, len(rows))
        raise AssertionError("translated() does not swallow")

    async def claim_one(self, session: str, execution: str) -> Claim | None:
        async with translated():
            row = await self._database.pool.fetchrow(_CLAIM_ONE, session, execution)
            return None if row is None else Claim(*row)
        raise AssertionError("translated() does not swallow")

    async def park(
        self, session: str | None, execution: str, why: str, again_ms: int | None, epoch: int | None = None
    ) -> None:
        query = (
            f"UPDATE executions SET parked = $3, owner = NULL, wake_at = {NOW} + $4 "
            "WHERE id = $2 AND (owner IS NULL OR owner = $1) AND epoch = coalesce($5, epoch)"
        )
        async with translated():
            await self._database.pool.execute(query, session, execution, why, again_ms, epoch)

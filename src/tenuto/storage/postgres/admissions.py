"""Admission of starts on PostgreSQL, within the transaction that writes a batch with rare parts.

Locks are taken in one order: the lines of concurrency keys, then the rows of tenants with a limit, then executions.
"""

from collections.abc import Sequence
from typing import Any

from tenuto.storage.port import Batch, NewExecution, Refusal
from tenuto.storage.shared.admissions import Known, admission, line_of, lock_name, refusals
from tenuto.views.projections import Line, Standing

from .statements import NOW, columns

_LOCK = """
SELECT pg_advisory_xact_lock(hash) FROM (
    SELECT DISTINCT hashtextextended(line, 0) AS hash FROM unnest($1::text[]) AS l (line) ORDER BY hash) hashes"""
_KEYS = """
SELECT e.tenant, e.key FROM unnest($1::text[], $2::text[]) AS s (tenant, key)
JOIN executions e ON e.tenant = s.tenant AND e.key = s.key"""
_LINES = """
SELECT DISTINCT a.tenant, a.definition, a.key FROM unnest($1::text[], $2::text[], $3::text[]) AS s (tenant, name, key)
JOIN admissions a ON a.tenant = s.tenant AND a.definition = s.name AND a.key = s.key"""
LOCK_LIMITS = "SELECT tenant FROM tenant_limits WHERE tenant = ANY($1) ORDER BY tenant FOR UPDATE"
# A statement of its own: it sees whatever was committed while the lock was waited for.
COUNT_CHANGES = """
WITH changes AS (DELETE FROM tenant_changes WHERE tenant = ANY($1) RETURNING tenant, change)
UPDATE tenant_limits l SET in_flight = greatest(
    l.in_flight + coalesce((SELECT sum(c.change) FROM changes c WHERE c.tenant = l.tenant), 0)::int, 0)
WHERE l.tenant = ANY($1) RETURNING l.tenant, l.max_in_flight - l.in_flight"""
_FIRST = f"""
SELECT e.id, e.run, {NOW} AS now FROM admissions a JOIN executions e ON e.id = a.execution
WHERE a.tenant = $1 AND a.definition = $2 AND a.key = $3 ORDER BY a.position LIMIT 1"""
_MAIL = """
INSERT INTO mailbox (id, execution, body, received_at) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING RETURNING id"""


async def refused_starts(db: Any, batch: Batch) -> dict[str, Refusal]:
    """Because of their concurrency keys. What is written says which keys are known, and for how many there is room."""
    await _lock_lines(db, [standing.line for standing in batch.standings.values() if standing.line is not None])
    starts = batch.starts
    lines = [line for start in starts if start.reject_conflict and (line := line_of(start)) is not None]
    if not lines:
        return {}
    taken = [tuple(row) for row in await db.fetch(_LINES, *columns(lines, 3))]
    return refusals(starts, Known(keys=await known_keys(db, starts), lines=taken))


async def _lock_lines(db: Any, lines: list[Line]) -> None:
    if lines:
        await db.execute(_LOCK, [lock_name(*line) for line in lines])


async def known_keys(db: Any, starts: Sequence[NewExecution]) -> set[tuple[str, str]]:
    """Which of them were used before."""
    keys = [(start.tenant, start.key) for start in starts if start.key is not None]
    return {tuple(row) for row in await db.fetch(_KEYS, *columns(keys, 2))} if keys else set()


async def admit(db: Any, standing: Standing) -> None:
    """Enters or leaves the queue. The execution that is then first gets a message."""
    assert standing.line is not None
    if standing.admission == "request":
        query = (
            "INSERT INTO admissions (tenant, definition, key, execution) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING"
        )
        await db.execute(query, *standing.line, standing.id)
    else:
        await db.execute("DELETE FROM admissions WHERE execution = $1", standing.id)
    first = await db.fetchrow(_FIRST, *standing.line)
    if first is None:
        return
    mail = admission(first["id"], first["run"], standing.line[2], first["now"])
    if await db.fetchval(_MAIL, *mail) is not None:  # else it was told before
        await db.execute("UPDATE executions SET wake_at = $2 WHERE id = $1", first["id"], first["now"])

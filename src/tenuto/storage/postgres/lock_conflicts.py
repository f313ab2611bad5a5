"""Finds the executions of a batch that cannot be written now, because another transaction holds their locks.

It does not wait, and releases its own locks at once, so the answer was true a moment ago. Conflicts that it misses are
found by halving the batch.
"""

from typing import Any

from tenuto.storage.port import Batch
from tenuto.storage.shared.admissions import lock_name

_THERE = "SELECT id FROM executions WHERE id = ANY($1)"
_FREE = "SELECT id FROM executions WHERE id = ANY($1) FOR NO KEY UPDATE SKIP LOCKED"
_LIMITED = "SELECT tenant FROM tenant_limits WHERE tenant = ANY($1)"
_FREE_LIMITS = f"{_LIMITED} FOR UPDATE SKIP LOCKED"
_FREE_NAMES = """
SELECT name FROM unnest($1::text[]) AS n (name) WHERE pg_try_advisory_xact_lock(hashtextextended(name, 0))"""


async def blocked(db: Any, batch: Batch) -> set[str]:
    started = {start.id for start in batch.starts}
    moves = [id for id in batch.standings if id not in started]
    async with db.transaction():
        there = {row[0] for row in await db.fetch(_THERE, moves)}
        free = {row[0] for row in await db.fetch(_FREE, moves)}
        return (there - free) | await _by_limits(db, batch) | await _by_names(db, batch)


async def _by_limits(db: Any, batch: Batch) -> set[str]:
    """What begins is counted in the row of its tenant."""
    wanted = sorted({start.tenant for start in batch.starts})
    limited = {row[0] for row in await db.fetch(_LIMITED, wanted)} if wanted else set()
    if not limited:
        return set()
    free = {row[0] for row in await db.fetch(_FREE_LIMITS, sorted(limited))}
    return {start.id for start in batch.starts if start.tenant in limited - free}


async def _by_names(db: Any, batch: Batch) -> set[str]:
    """Concurrency keys, and idempotency keys that another transaction is about to use."""
    names = [(s.id, lock_name(*s.line)) for s in batch.standings.values() if s.line is not None]
    names += [(start.id, lock_name(start.tenant, start.key)) for start in batch.starts if start.key is not None]
    if not names:
        return set()
    free = {row[0] for row in await db.fetch(_FREE_NAMES, sorted({name for _, name in names}))}
    return {id for id, name in names if name not in free}

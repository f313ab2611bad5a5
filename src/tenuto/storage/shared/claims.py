"""Reads about claims that both databases share."""

import json
from collections.abc import Sequence

from tenuto.storage.port import PARKED_AT_ONCE, Claim, plan_pairs

from .database import Database

_PARKED = """
SELECT e.id FROM {plans} p CROSS JOIN executions e
WHERE e.owner IS NULL AND e.wake_at IS NOT NULL AND e.definition = p.definition AND e.version = p.version
    AND e.priority IN (0, 1) AND e.wake_at <= {clock} + $2 AND e.parked <> '' LIMIT $3"""


class SqlClaims:
    """The part of `Claims` that is the same on both databases."""

    def __init__(self, database: Database) -> None:
        self._sql = database

    async def owned(self, session: str) -> list[Claim]:
        query = "SELECT id, epoch, definition, version FROM executions WHERE owner = $1"
        return [Claim(*row) for row in await self._sql.fetch(query, (session,))]

    async def parked(self, plans: Sequence[str], within_ms: int) -> list[str]:
        query = _PARKED.format(plans=self._sql.dialect.plans, clock=self._sql.clock())
        values = (json.dumps(plan_pairs(plans)), within_ms, PARKED_AT_ONCE)
        return [id for (id,) in await self._sql.fetch(query, values)]

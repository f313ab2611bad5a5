"""Reads executions and their histories from PostgreSQL."""

from collections.abc import Mapping, Sequence

from tenuto.storage.port import ExecutionRow, Loaded
from tenuto.storage.shared.executions import SqlExecutions, loaded

from .database import PostgresDatabase
from .errors import translated

_LOAD = f"""
SELECT {", ".join(f"e.{name}" for name in ExecutionRow.__struct_fields__)}, s.seq AS snapshot_seq, s.body AS snapshot
FROM executions e LEFT JOIN snapshots s ON $2 AND s.execution = e.id WHERE e.id = ANY($1)"""
_LOAD_WHOLE = f"""
SELECT {", ".join(f"e.{name}" for name in ExecutionRow.__struct_fields__)},
    (SELECT array_agg(body ORDER BY seq) FROM events WHERE execution = e.id)
FROM executions e WHERE e.id = ANY($1)"""
_LOAD_EVENTS = """
SELECT execution, body FROM (
    SELECT e.execution, e.seq, e.body FROM unnest($1::text[], $2::bigint[]) AS w (execution, after)
    JOIN events e ON e.execution = w.execution AND e.seq > w.after
    UNION ALL
    SELECT e.execution, e.seq, e.body FROM unnest($1::text[], $2::bigint[]) AS w (execution, after)
    JOIN events e ON e.execution = w.execution AND e.seq = 1 WHERE w.after > 0
) found ORDER BY execution, seq"""

_BY_KEYS = """
SELECT e.tenant, e.key, e.id, e.request_hash FROM unnest($1::text[], $2::text[]) AS s (tenant, key)
JOIN executions e ON e.tenant = s.tenant AND e.key = s.key"""


class PostgresExecutions(SqlExecutions):
    def __init__(self, database: PostgresDatabase) -> None:
        super().__init__(database)
        self._database = database

    async def load(self, ids: Sequence[str], *, short: bool = False) -> list[Loaded]:
        """Whole histories at once. Short ones in two queries: the rest is asked for by the snapshot that was found."""
        async with translated(), self._database.pool.acquire() as connection:
            if not short:
                whole = await connection.fetch(_LOAD_WHOLE, list(ids))
                return [loaded((*columns, None, None), found or []) for *columns, found in whole]
            rows = await connection.fetch(_LOAD, list(ids), short)
            found = {row["id"]: row["snapshot_seq"] or 0 for row in rows}
            bodies: dict[str, list[bytes]] = {id: [] for id in found}
            for execution, body in await connection.fetch(_LOAD_EVENTS, list(found), list(found.values())):
                bodies[execution].append(body)
            return [loaded(tuple(row), bodies[row["id"]]) for row in rows]
        raise AssertionError("translated() does not swallow")

    async def tails(self, after: Mapping[str, int]) -> dict[str, list[bytes]]:
        query = """
            SELECT e.execution, e.body FROM unnest($1::text[], $2::bigint[]) AS a (execution, seq)
            JOIN events e ON e.execution = a.execution AND e.seq > a.seq ORDER BY e.execution, e.seq"""
        found: dict[str, list[bytes]] = {}
        for row in await self._database.fetch(query, (list(after), list(after.values()))):
            found.setdefault(row["execution"], []).append(row["body"])
        return found

    async def holding(self, id: str, seqs: Sequence[int]) -> list[bytes]:
        query = (
            "SELECT body FROM events WHERE execution = $1 AND seq IN (SELECT (SELECT max(seq) FROM events "
            "WHERE execution = $1 AND seq <= wanted) FROM unnest($2::bigint[]) AS wanted)"
        )
        return [row["body"] for row in await self._database.fetch(query, (id, list(seqs)))]

    async def find_by_keys(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, str]]:
        tenants, names = [tenant for tenant, _ in keys], [key for _, key in keys]
        async with translated():
            rows = await self._database.pool.fetch(_BY_KEYS, tenants, names)
            return {(row[0], row[1]): (row[2], row[3]) for row in rows}
        raise AssertionError("translated() does not swallow")

    async def changed(self, known: Sequence[tuple[str, str]]) -> list[str]:
        query = (
            "SELECT k.id FROM unnest($1::text[], $2::text[]) AS k (id, status) "
            "LEFT JOIN executions e ON e.id = k.id WHERE e.status IS DISTINCT FROM k.status"
        )
        return [
            row["id"]
            for row in await self._database.fetch(query, ([id for id, _ in known], [status for _, status in known]))
        ]

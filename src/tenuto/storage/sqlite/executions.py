"""Reads executions and their histories from SQLite."""

import json
from collections.abc import Mapping, Sequence

from tenuto.storage.port import ExecutionRow, Loaded
from tenuto.storage.shared.executions import SqlExecutions, loaded

from .database import SqliteDatabase
from .errors import translated
from .plain_batch import as_json

_LOAD = f"""
SELECT {", ".join(f"e.{name}" for name in ExecutionRow.__struct_fields__)}, s.seq, s.body
FROM executions e LEFT JOIN snapshots s ON ?2 AND s.execution = e.id
WHERE e.id IN (SELECT value FROM json_each(?1))"""
_LOAD_EVENTS = """
SELECT execution, body FROM (
    SELECT e.execution, e.seq, e.body FROM json_each(?1) w
    JOIN events e ON e.execution = w.value ->> 0 AND e.seq > w.value ->> 1
    UNION ALL
    SELECT e.execution, e.seq, e.body FROM json_each(?1) w
    JOIN events e ON e.execution = w.value ->> 0 AND e.seq = 1 WHERE w.value ->> 1 > 0
) ORDER BY execution, seq"""
_BY_KEYS = """
SELECT e.tenant, e.key, e.id, e.request_hash FROM json_each(?) s
JOIN executions e ON e.tenant = s.value ->> 0 AND e.key = s.value ->> 1"""


class SqliteExecutions(SqlExecutions):
    def __init__(self, database: SqliteDatabase) -> None:
        super().__init__(database)
        self._database = database

    async def load(self, ids: Sequence[str], *, short: bool = False) -> list[Loaded]:
        """The rows are asked for by the snapshot that was found, whatever comes between the two queries."""

        def work() -> list[Loaded]:
            with translated():
                rows = list(self._database.read_connection.execute(_LOAD, (json.dumps(list(ids)), short)))
                bodies: dict[str, list[bytes]] = {row[0]: [] for row in rows}
                after = json.dumps([(row[0], row[-2] or 0) for row in rows])
                for execution, body in self._database.read_connection.execute(_LOAD_EVENTS, (after,)):
                    bodies[execution].append(body)
                return [loaded(row, bodies[row[0]]) for row in rows]

        return await self._database.in_reader(work)

    async def holding(self, id: str, seqs: Sequence[int]) -> list[bytes]:
        query = (
            "SELECT body FROM events WHERE execution = ?1 AND seq IN (SELECT (SELECT max(seq) FROM events "
            "WHERE execution = ?1 AND seq <= value) FROM json_each(?2))"
        )
        return [body for (body,) in await self._database.fetch(query, (id, json.dumps(list(seqs))))]

    async def tails(self, after: Mapping[str, int]) -> dict[str, list[bytes]]:
        query = """
            SELECT execution, body FROM json_each(?) JOIN events ON execution = key AND seq > value
            ORDER BY execution, seq"""
        found: dict[str, list[bytes]] = {}
        for id, body in await self._database.fetch(query, (json.dumps(dict(after)),)):
            found.setdefault(id, []).append(body)
        return found

    async def find_by_keys(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, str]]:
        found = await self._database.fetch(_BY_KEYS, (as_json(list(keys)),))
        return {(tenant, key): (id, digest) for tenant, key, id, digest in found}

    async def changed(self, known: Sequence[tuple[str, str]]) -> list[str]:
        query = (
            "SELECT k.value ->> 0 FROM json_each(?) k LEFT JOIN executions e ON e.id = k.value ->> 0 "
            "WHERE e.status IS NOT k.value ->> 1"
        )
        return [id for (id,) in await self._database.fetch(query, (as_json(known),))]

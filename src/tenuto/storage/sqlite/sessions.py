"""Sessions of worker processes on SQLite."""

import threading
import time
from collections.abc import Callable, Sequence

import apsw

from tenuto.storage.port import SESSIONS_KEPT_MS, Renewal, renewal_s
from tenuto.storage.tasks import queues_text

from .database import SqliteDatabase
from .errors import translated
from .statements import INCARNATION, IS_LIVE


class SqliteSessions:
    """Implements `Sessions`."""

    def __init__(self, database: SqliteDatabase) -> None:
        self._database = database

    async def open(self, id: str, worker: str, build: str, lease_ms: int, queues: Sequence[str] | None) -> int:
        def work() -> int:
            with translated(), self._database.transaction():
                now = self._database.now()
                row = (id, worker, build, queues_text(queues), now, now + lease_ms)
                self._database.write_connection.execute(
                    "INSERT INTO sessions (id, worker, build, queues, started_at, expires_at, incarnation) "
                    f"VALUES (?, ?, ?, ?, ?, ?, {INCARNATION})",
                    row,
                )
                return now

        return await self._database.in_writer(work)

    def keep_alive(self, id: str, lease_ms: int, tell: Callable[[Renewal], None], stop: threading.Event) -> None:
        connection = self._database.connect()
        query = (
            "UPDATE sessions SET expires_at = ?1 + ?2, renewed_at = ?1, renewals = renewals + 1 "
            f"WHERE id = ?3 AND {IS_LIVE} AND renewals >= ?4 RETURNING renewals"
        )
        known = 0  # how often it was renewed, as the last answer said
        while not stop.wait(renewal_s(lease_ms)):
            now, asked_at = self._database.now(), time.monotonic()
            try:
                row = connection.execute(query, (now, lease_ms, id, known)).fetchone()
            except apsw.Error:
                continue  # not renewed: the owner sees its lease run out by its own clock
            if row is not None:
                (known,) = row
            tell(Renewal(now, row is not None, asked_at))
        connection.close()

    async def end(self, id: str) -> None:
        def work() -> None:
            with translated(), self._database.transaction():
                self._end_sessions([id])

        await self._database.in_writer(work)

    async def reap(self, own: str = "") -> int:
        def work() -> int:
            with translated():
                query = (
                    "SELECT id FROM sessions WHERE ended_at IS NULL AND id <> ?2 "
                    f"AND (expires_at < ?1 OR incarnation <> {INCARNATION})"
                )
                if self._database.write_connection.execute(query, (self._database.now(), own)).fetchone() is None:
                    return 0
                with self._database.transaction():
                    ids = [id for (id,) in self._database.write_connection.execute(query, (self._database.now(), own))]
                    self._end_sessions(ids)
                    return len(ids)

        return await self._database.in_writer(work)

    def _end_sessions(self, ids: list[str]) -> None:
        """Ends these sessions. Their executions lose their owner and become due in the same transaction."""
        now, connection = self._database.now(), self._database.write_connection
        for id in ids:
            connection.execute("UPDATE sessions SET ended_at = ? WHERE id = ? AND ended_at IS NULL", (now, id))
            query = "UPDATE executions SET owner = NULL, wake_at = min(coalesce(wake_at, ?1), ?1) WHERE owner = ?2"
            connection.execute(query, (now, id))
            connection.execute("DELETE FROM limit_holders WHERE session = ?", (id,))
        connection.execute("DELETE FROM sessions WHERE ended_at < ?", (now - SESSIONS_KEPT_MS,))

    async def mark_restored(self) -> int:
        query = "UPDATE incarnation SET number = max(number + 1, $1) RETURNING number"
        ((number,),) = await self._database.run(query, (self._database.now(),))
        return int(number)

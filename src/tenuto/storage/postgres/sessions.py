"""Sessions of worker processes on PostgreSQL."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import asyncpg

from tenuto.storage.port import SESSIONS_KEPT_MS, Renewal, renewal_s
from tenuto.storage.tasks import queues_text

from .database import LOCK_MS, PostgresDatabase
from .errors import translated
from .statements import INCARNATION, IS_LIVE, NOW


class PostgresSessions:
    """Implements `Sessions`."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database

    async def open(self, id: str, worker: str, build: str, lease_ms: int, queues: Sequence[str] | None) -> int:
        async with translated():
            now: int = await self._database.pool.fetchval(
                "INSERT INTO sessions (id, worker, build, queues, started_at, expires_at, incarnation) "
                f"VALUES ($1, $2, $3, $4, {NOW}, {NOW} + $5, {INCARNATION}) RETURNING started_at",
                id, worker, build, queues_text(queues), lease_ms,
            )  # fmt: skip
            return now
        raise AssertionError("translated() does not swallow")

    def keep_alive(self, id: str, lease_ms: int, tell: Callable[[Renewal], None], stop: threading.Event) -> None:
        """The loop runs for a renewal at a time; between them this thread waits for its end, and for nothing else."""
        connection: asyncpg.Connection | None = None
        known = 0
        with asyncio.Runner() as runner:
            while not stop.wait(renewal_s(lease_ms)):
                try:
                    connection, renewal, known = runner.run(self._renew(connection, id, lease_ms, known))
                except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError):
                    connection = None  # not renewed: the owner sees its lease run out by its own clock
                else:
                    tell(renewal)
            if connection is not None:
                connection.terminate()

    async def _renew(
        self, connection: asyncpg.Connection | None, id: str, lease_ms: int, known: int
    ) -> tuple[asyncpg.Connection, Renewal, int]:
        """Also gives how often the session was renewed; `known` is what the last answer said."""
        patience, asked_at = lease_ms / 3_000, time.monotonic()
        if connection is None or connection.is_closed():
            async with asyncio.timeout(patience):
                connection = await self._database.connect()
        try:
            row = await connection.fetchrow(
                f"UPDATE sessions SET expires_at = {NOW} + $2, renewed_at = {NOW}, renewals = renewals + 1 "
                f"WHERE id = $1 AND {IS_LIVE} AND renewals >= $3 RETURNING expires_at - $2 AS now, renewals",
                id, lease_ms, known, timeout=patience,
            )  # fmt: skip
        except BaseException:
            connection.terminate()
            raise
        if row is None:
            return connection, Renewal(0, False, asked_at), known
        return connection, Renewal(row["now"], True, asked_at), row["renewals"]

    async def end(self, id: str) -> None:
        async with translated(), self._database.pool.acquire() as connection, connection.transaction():
            await _end_sessions(connection, "id = $1 AND ended_at IS NULL", id)

    async def reap(self, own: str = "") -> int:
        """A session with an open transaction is left for the next call, which does not wait for it."""
        over = f"ended_at IS NULL AND (expires_at < {NOW} OR incarnation <> {INCARNATION})"
        free = f"id = (SELECT id FROM sessions WHERE {over} AND id = $1 FOR UPDATE SKIP LOCKED)"
        reaped = 0
        async with translated(), self._database.pool.acquire() as connection:
            for row in await connection.fetch(f"SELECT id FROM sessions WHERE {over} AND id <> $1", own):
                with suppress(asyncpg.LockNotAvailableError):  # another transaction locks an execution of it
                    async with connection.transaction():
                        await connection.execute(f"SET LOCAL lock_timeout = {LOCK_MS}")
                        reaped += await _end_sessions(connection, free, row["id"])
        return reaped

    async def mark_restored(self) -> int:
        query = f"UPDATE incarnation SET number = greatest(number + 1, {NOW}) RETURNING number"
        async with translated(permit="run it as the owner of the schema"):
            number: int = await self._database.pool.fetchval(query)
            return number
        raise AssertionError("translated() does not swallow")


async def _end_sessions(connection: Any, where: str, *values: object) -> int:
    """Ends sessions. Their executions lose their owner and become due in the same transaction."""
    rows = await connection.fetch(f"UPDATE sessions SET ended_at = {NOW} WHERE {where} RETURNING id", *values)
    ids = [row["id"] for row in rows]
    await connection.execute(
        f"UPDATE executions SET owner = NULL, wake_at = least(wake_at, {NOW}) WHERE owner = ANY($1)", ids
    )
    await connection.execute(f"DELETE FROM sessions WHERE ended_at < {NOW} - $1", SESSIONS_KEPT_MS)
    await connection.execute("DELETE FROM limit_holders WHERE session = ANY($1)", ids)
    return len(ids)

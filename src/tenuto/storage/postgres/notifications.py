"""Hints between processes by LISTEN and NOTIFY, on a connection of their own.

A NOTIFY makes the commit it is part of wait for all others that notify, so it is never part of one that matters: hints
are gathered, and sent at most ten times a second. The first after a silence leaves at once.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import asyncpg

from tenuto.storage.port import EVERYTHING, Hints
from tenuto.values.jitter import spread

CHANNEL = "tenuto"
EVERY_SECONDS = 0.1
RECONNECT_SECONDS = 1.0

_FAILURES = (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError)


class Notifier:
    def __init__(self, connect: Callable[[], Awaitable[asyncpg.Connection]], hear: Callable[[Hints], None]) -> None:
        self._connect = connect
        self._hear = hear
        self._hints: dict[str, None] = {}
        self._heard: dict[str, None] = {}
        self._connection: asyncpg.Connection | None = None
        self._rung = asyncio.Event()
        self._tasks = [asyncio.create_task(self._keep_listening()), asyncio.create_task(self._keep_sending())]

    def notify(self, hint: str) -> None:
        if hint not in self._hints:
            self._hints[hint] = None
            self._rung.set()

    async def _keep_sending(self) -> None:
        while True:
            await self._rung.wait()
            self._rung.clear()
            hints, self._hints = list(self._hints), {}
            if self._connection is not None:
                with suppress(*_FAILURES):  # they poll
                    query = "SELECT pg_notify($1, hint) FROM unnest($2::text[]) AS hint"
                    await self._connection.execute(query, CHANNEL, hints)
            await asyncio.sleep(EVERY_SECONDS)

    async def _keep_listening(self) -> None:
        while True:
            with suppress(*_FAILURES):
                await self._listen()
            self._connection = None
            await asyncio.sleep(spread(RECONNECT_SECONDS))

    async def _listen(self) -> None:
        """Until the connection is lost. What was said before it was there has been missed."""
        connection = await self._connect()
        lost = asyncio.Event()
        connection.add_termination_listener(lambda _: lost.set())
        try:
            await connection.add_listener(CHANNEL, self._take)
            self._connection = connection
            self._hear(EVERYTHING)
            await lost.wait()
        finally:
            connection.terminate()

    def _take(self, connection: object, pid: int, channel: str, hint: object) -> None:
        """Hints that arrive together are handed on together. Our own come back, and say nothing new."""
        assert self._connection is not None
        if pid == self._connection.get_server_pid():
            return
        if not self._heard:
            asyncio.get_running_loop().call_soon(self._hand_on)
        self._heard[str(hint)] = None

    def _hand_on(self) -> None:
        heard, self._heard = self._heard, {}
        self._hear(frozenset(heard))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)

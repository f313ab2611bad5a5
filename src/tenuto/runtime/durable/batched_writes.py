"""Writes that gather while the last ones are under way, as commits do: there is no timer on this path."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

from tenuto.errors import StorageError

from .backoff import pause_s

T = TypeVar("T")

logger = logging.getLogger("tenuto.durable")

MOST = 200


class BatchedWrites(Generic[T]):
    """Hands on what is added, in order and in batches, however long the database takes to come back.

    A batch whose fate is unknown is sent again: `send` must not mind. What the database refuses for its data is sent
    alone, and given up if it is refused again.
    """

    def __init__(self, name: str, send: Callable[[list[T]], Awaitable[None]]) -> None:
        self._name = name
        self._send = send
        self._waiting: list[T] = []
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=self._name)

    def add(self, item: T) -> None:
        self._waiting.append(item)
        self._idle.clear()
        self._wake.set()

    @property
    def has_ended(self) -> bool:
        return self._task is not None and self._task.done()

    async def stop(self, patience_s: float) -> None:
        """Waits for what was added, as long as allowed."""
        if self._task is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._idle.wait()
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            if not self._waiting:
                self._wake.clear()
                self._idle.set()
                continue
            batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
            await self._until_sent(batch)

    async def _until_sent(self, batch: list[T]) -> None:
        failures = 0
        while True:
            try:
                await self._send(batch)
            except Exception as error:  # whatever it is: nothing is given up
                if not isinstance(error, StorageError):
                    logger.exception("%s: a write failed, and is tried again", self._name)
                elif error.code == "bad_data":
                    await self._one_by_one(batch)
                    return
                await asyncio.sleep(pause_s(failures))
                failures += 1
            else:
                return

    async def _one_by_one(self, batch: list[T]) -> None:
        if len(batch) == 1:
            logger.error("%s: the database refused the data of a write, which is given up", self._name)
            return
        for item in batch:
            await self._until_sent([item])

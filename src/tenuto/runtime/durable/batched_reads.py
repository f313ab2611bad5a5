"""Batches queries to the database: while some are in flight, the next ones gather.

There is no timer on this path. A lone query waits for nothing, and a hundred concurrent ones are one query. A query
never joins one that was already sent, so it sees everything written before it was asked.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

from tenuto.errors import StorageError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BatchedReads(Generic[K, V]):
    """At most `lanes` questions are under way, of `at_once` keys each; one that takes long does not hold all up."""

    __slots__ = ("_ask", "_at_once", "_lanes", "_tasks", "_waiting")

    def __init__(
        self, ask: Callable[[Sequence[K]], Awaitable[Mapping[K, V]]], *, at_once: int = 500, lanes: int = 1
    ) -> None:
        self._ask = ask
        self._at_once = at_once
        self._lanes = lanes
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting: list[tuple[K, asyncio.Future[V | None]]] = []

    @property
    def is_idle(self) -> bool:
        return not self._tasks

    async def find(self, key: K) -> V | None:
        found: asyncio.Future[V | None] = asyncio.get_running_loop().create_future()
        self._waiting.append((key, found))
        if len(self._tasks) < self._lanes:
            self._tasks.add(asyncio.create_task(self._run(), name="tenuto-ask"))
        return await found

    async def _run(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            while self._waiting:
                some, self._waiting = self._waiting[: self._at_once], self._waiting[self._at_once :]
                await self._tell(some)
        finally:
            self._tasks.discard(task)  # now: the next query must find a free lane

    async def _tell(self, some: list[tuple[K, asyncio.Future[V | None]]]) -> None:
        try:
            known = await self._ask([key for key, _ in some])
        except Exception as error:  # whatever it is, it is for those who asked
            await self._explain(some, error)
        else:
            for key, found in some:
                if not found.done():
                    found.set_result(known.get(key))

    async def _explain(self, some: list[tuple[K, asyncio.Future[V | None]]], error: Exception) -> None:
        """A key that the database does not take is the fault of him who asked for it, and of no other."""
        if len(some) > 1 and isinstance(error, StorageError) and error.code == "bad_data":
            for each in some:
                await self._tell([each])
            return
        for _, found in some:
            if not found.done():
                found.set_exception(error)

"""Whether idempotency keys are known, asked together: while one question is under way, the next ones gather."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

Key = tuple[str, str]  # tenant and key
Found = tuple[str, str]  # the execution, and the hash of the request that started it

AT_ONCE: Final = 500


class SeenKeys:
    __slots__ = ("_ask", "_task", "_waiting")

    def __init__(self, ask: Callable[[Sequence[Key]], Awaitable[dict[Key, Found]]]) -> None:
        self._ask = ask
        self._task: asyncio.Task[None] | None = None
        self._waiting: list[tuple[Key, asyncio.Future[Found | None]]] = []

    async def find(self, tenant: str, key: str) -> Found | None:
        found: asyncio.Future[Found | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(((tenant, key), found))
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="tenuto-keys")
        return await found

    async def _run(self) -> None:
        try:
            while self._waiting:
                some, self._waiting = self._waiting[:AT_ONCE], self._waiting[AT_ONCE:]
                await self._tell(some)
        finally:
            self._task = None

    async def _tell(self, some: list[tuple[Key, asyncio.Future[Found | None]]]) -> None:
        try:
            known = await self._ask([key for key, _ in some])
        except Exception as error:  # whatever it is, it is for those who asked
            for _, found in some:
                if not found.done():
                    found.set_exception(error)
        else:
            for key, found in some:
                if not found.done():
                    found.set_result(known.get(key))

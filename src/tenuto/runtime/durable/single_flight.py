"""A question to the database that many ask: one is under way, and whoever asks meanwhile hears its answer.

Whoever does not wait for the answer can leave at once. A driver may take as long to give a question up as to hear that
nobody answers, and would keep him for so long.
"""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Generic, TypeVar

T = TypeVar("T")

STALE_SECONDS = 10.0  # what was not answered by then is asked anew: the line may be dead, and the database back


class Shared(Generic[T]):
    def __init__(self, ask: Callable[[], Awaitable[T]]) -> None:
        self._ask = ask
        self._asking: asyncio.Future[T] | None = None
        self._asked_at = 0.0

    async def answer(self) -> T:
        asking = self._asking
        if asking is None or asking.done() or monotonic() - self._asked_at > STALE_SECONDS:
            self._asked_at = monotonic()
            asking = self._asking = asyncio.ensure_future(self._ask())
        return await asyncio.shield(asking)

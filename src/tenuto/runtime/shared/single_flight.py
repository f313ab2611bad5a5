"""Shares one call among all callers that come while it is under way.

A caller that is cancelled returns at once. A driver may take as long to give up a query as to notice that the database
does not answer.
"""

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Generic, TypeVar

T = TypeVar("T")

STALE_SECONDS = 10.0  # then another call is made: the connection may be dead, and the database reachable again


class SingleFlight(Generic[T]):
    def __init__(self, function: Callable[[], Awaitable[T]]) -> None:
        self._function = function
        self._call: asyncio.Future[T] | None = None
        self._called_at = 0.0

    async def call(self) -> T:
        call = self._call
        if call is None or call.done() or monotonic() - self._called_at > STALE_SECONDS:
            self._called_at = monotonic()
            call = self._call = asyncio.ensure_future(self._function())
        return await asyncio.shield(call)

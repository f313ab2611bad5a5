"""Those who have an execution's concurrency key before it: others of the same definition, which stand still.

One before it, from its start; and one after it, which has the key when its first run is over, and so comes before its
next one. Each ends when the seed says so.
"""

import asyncio
import os
from typing import Any

from tenuto import Engine, Handle
from tests.seams import runtime_of


class Line:
    def __init__(self, asking: Engine, working: Engine) -> None:
        self._asking = asking
        self._working = working
        self._before: list[Handle[Any]] = []
        self._after: list[Handle[Any]] = []

    @property
    def is_next(self) -> bool:
        return not self._before

    async def stands(self, first: Handle[Any]) -> bool:
        """Whether it has the key, and keeps it: there are programs that end by themselves."""
        while not (state := await self._state(first)).admitted:
            await asyncio.to_thread(os.sched_yield)
        if state.finished is None:
            await first.pause()
            self._before.append(first)
        return state.finished is None

    async def is_followed_by(self, last: Handle[Any]) -> None:
        await last.pause()
        self._after.append(last)

    def goes_again(self) -> None:
        """Whoever came after it is before it now. Those that were before it still are, if it ended in the line."""
        self._before, self._after = [*self._before, *self._after], []

    async def moves_on(self) -> None:
        first = self._before.pop(0)
        await first.cancel("terminate")
        while (await self._state(first)).finished is None:
            await asyncio.to_thread(os.sched_yield)

    async def _state(self, handle: Handle[Any]) -> Any:
        return (await runtime_of(self._working).executions.read(None, handle.id)).state

"""Callers who wait for executions that other processes drive."""

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic

from tenuto.errors import EngineClosed, ResultTimeout
from tenuto.storage.store import Loaded, Store

REST = 4  # so many times as long as a look took, there is no other
LONGEST_REST_SECONDS = 0.1  # a look may have taken long because the process was busy with what it found
LOADED_AT_ONCE = 200


class Watched:
    """All who wait are looked up in one query: a caller costs nothing while nothing happens."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[str, list[tuple[str, asyncio.Future[Loaded | None]]]] = {}
        self._rests_until = 0.0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    async def until_moved(self, execution_id: str, status: str, left_ms: int | None) -> Loaded | None:
        """The execution, once it stands otherwise than now; None when it came to be driven here."""
        moved: asyncio.Future[Loaded | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(execution_id, []).append((status, moved))
        try:
            async with asyncio.timeout(None if left_ms is None else left_ms / 1_000):
                return await moved
        except TimeoutError:
            raise ResultTimeout(f"Execution {execution_id} had not settled in time; it goes on regardless.") from None

    async def look(self, here: Callable[[str], object]) -> float:
        """Tells those whose execution has moved. If it only just has, it says after how many seconds to come again."""
        began = monotonic()
        if not self._waiting or began < self._rests_until:
            return max(0.0, self._rests_until - began) if self._waiting else 0.0
        found = await self._store.statuses(list(self._waiting))
        moved = [id for id, status in found.items() if self._has_moved(id, status, here)]
        for first in range(0, len(moved), LOADED_AT_ONCE):
            await self._tell(moved[first : first + LOADED_AT_ONCE], here)
        self._rests_until = monotonic() + min(REST * (monotonic() - began), LONGEST_REST_SECONDS)
        return 0.0

    def _has_moved(self, id: str, status: str, here: Callable[[str], object]) -> bool:
        waiting = [pair for pair in self._waiting.get(id, ()) if not pair[1].done()]
        if not waiting:
            self._waiting.pop(id, None)
            return False
        self._waiting[id] = waiting
        return here(id) is not None or any(known != status for known, _ in waiting)

    async def _tell(self, ids: Sequence[str], here: Callable[[str], object]) -> None:
        for loaded in await self._store.load(ids):
            id = loaded.row.id
            for _, moved in self._waiting.pop(id, ()):
                if not moved.done():
                    moved.set_result(None if here(id) is not None else loaded)

    def close(self) -> None:
        for waiting in self._waiting.values():
            for _, moved in waiting:
                if not moved.done():
                    moved.set_exception(EngineClosed("The engine was closed while the execution was under way."))

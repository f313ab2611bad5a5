"""Watches executions that this process does not own, for callers who wait for them."""

import asyncio
from collections.abc import Sequence
from time import monotonic

from tenuto.errors import EngineClosed, ResultTimeout
from tenuto.storage.port import Loaded, Store

REST = 4  # so many times as long as a look took, there is no other
# A look may have taken long because the process was busy with what it found, and not because there was much to ask.
LONGEST_REST_SECONDS = 0.1
LONGER_SECONDS = 0.000_02  # for each execution that is waited for
LOADED_AT_ONCE = 200

Moved = asyncio.Future[Loaded | None]


class Watcher:
    """All that is waited for is asked about in one query, which answers with what has moved: the rest costs little."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: dict[str, dict[str, dict[Moved, None]]] = {}  # by id, and by the status that they know
        self._rests_until = 0.0
        self.is_closed = False

    def __bool__(self) -> bool:
        return bool(self._waiting)

    async def until_moved(self, execution_id: str, status: str, left_ms: int | None) -> Loaded | None:
        """The execution, once it stands otherwise than now; None when it came to be driven here, or is gone."""
        moved: Moved = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(execution_id, {}).setdefault(status, {})[moved] = None
        try:
            async with asyncio.timeout(None if left_ms is None else left_ms / 1_000):
                return await moved
        except TimeoutError:
            raise ResultTimeout(f"Execution {execution_id} had not settled in time; it goes on regardless.") from None
        finally:
            self._forget(execution_id, status, moved)

    def _forget(self, id: str, status: str, moved: Moved) -> None:
        by_status = self._waiting.get(id, {})
        if moved in (waiting := by_status.get(status, {})):
            del waiting[moved]
            if not waiting:
                del by_status[status]
            if not by_status:
                del self._waiting[id]

    async def look(self) -> float:
        """Tells those whose execution has moved. If it only just has, it says after how many seconds to come again."""
        began = monotonic()
        if not self._waiting or began < self._rests_until:
            return max(0.0, self._rests_until - began) if self._waiting else 0.0
        known = [(id, status) for id, by_status in self._waiting.items() for status in by_status]
        moved = list(dict.fromkeys(await self._store.executions.changed(known)))
        for first in range(0, len(moved), LOADED_AT_ONCE):
            await self._load(moved[first : first + LOADED_AT_ONCE])
        longest = LONGEST_REST_SECONDS + LONGER_SECONDS * len(self._waiting)
        self._rests_until = monotonic() + min(REST * (monotonic() - began), longest)
        return 0.0

    async def _load(self, ids: Sequence[str]) -> None:
        for loaded in await self._store.executions.load(ids):
            self._tell(loaded.row.id, loaded)
        for id in ids:
            self._tell(id, None)  # those still waiting: it was pruned, and reading it says so

    def came_here(self, execution_id: str) -> None:
        """It is driven by this process from now on."""
        self._tell(execution_id, None)

    def _tell(self, id: str, loaded: Loaded | None) -> None:
        for waiting in self._waiting.pop(id, {}).values():
            for moved in waiting:
                if not moved.done():
                    moved.set_result(loaded)

    def close(self) -> None:
        self.is_closed = True
        for by_status in self._waiting.values():
            for waiting in by_status.values():
                for moved in waiting:
                    if not moved.done():
                        moved.set_exception(EngineClosed("The engine was closed while the execution was under way."))

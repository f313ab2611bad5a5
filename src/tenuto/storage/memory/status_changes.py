"""Status changes of the executions in this process."""

from collections import deque
from collections.abc import Sequence

from tenuto.storage.status_changes import ChangesRow, Positions, StatusChange

KEPT = 10_000


class MemoryStatusChanges:
    """Implements `StatusChanges`."""

    def __init__(self) -> None:
        self._rows: deque[ChangesRow] = deque(maxlen=KEPT)

    def add(self, at: int, change: StatusChange) -> None:
        self._rows.append(ChangesRow(self._last + 1, at, [change]))

    @property
    def _last(self) -> int:
        return self._rows[-1].position if self._rows else 0

    async def positions(self) -> Positions:
        return Positions(self._rows[0].position, self._last) if self._rows else Positions(0, 0)

    async def after(self, position: int, missing: Sequence[int] = ()) -> list[ChangesRow]:
        first = self._rows[0].position if self._rows else 1
        return list(self._rows)[max(0, position + 1 - first) :]

    async def forget(self, before: int) -> None:
        """The newest are kept, however old."""

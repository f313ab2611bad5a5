"""One clock: the database's. A worker's `now` is its time at the last exchange, plus monotonic time since."""

import asyncio
import time
from collections.abc import Callable

from tenuto.runtime.clock import Timer

LEAP_MS = 1_000
SLOWER = 2  # so many times as slowly time goes on while the database's is behind


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class DatabaseClock:
    def __init__(self, ticks: Callable[[], int] = monotonic_ms) -> None:
        self._ticks = ticks
        self._offset_ms = time.time_ns() // 1_000_000 - ticks()
        self._latest = 0
        self._latest_ticks = 0

    def now_ms(self) -> int:
        """Never goes back, because ids sort by it, and the times of a history.

        When the database's clock is set back it does not stand still either, or all that is due would wait for as long:
        it goes on slowly until the database has caught up.
        """
        ticks = self._ticks()
        now = self._offset_ms + ticks
        if now < self._latest:
            gone = (ticks - self._latest_ticks) // SLOWER
            self._latest += gone
            self._latest_ticks += gone * SLOWER
            return self._latest
        self._latest, self._latest_ticks = now, ticks
        return now

    def note(self, now_ms: int) -> bool:
        """The database said what time it is, a moment ago. Whether that is a leap ahead of what was believed."""
        offset = now_ms - self._ticks()
        leaps = offset - self._offset_ms > LEAP_MS
        self._offset_ms = offset
        return leaps

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(delay_ms / 1_000, callback)

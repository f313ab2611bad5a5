"""One clock: the database's. A worker's `now` is its time at the last exchange, plus monotonic time since."""

import asyncio
import time
from collections.abc import Callable

from tenuto.runtime import Timer

LEAP_MS = 1_000


class DatabaseClock:
    def __init__(self) -> None:
        self._offset_ms = time.time_ns() // 1_000_000 - time.monotonic_ns() // 1_000_000
        self._latest = 0

    def now_ms(self) -> int:
        """Never goes back, because ids sort by it: when the database's clock does, it stands still for a while."""
        now = self._offset_ms + time.monotonic_ns() // 1_000_000
        if now < self._latest:
            return self._latest
        self._latest = now
        return now

    def note(self, now_ms: int) -> bool:
        """The database said what time it is, a moment ago. Whether that is a leap ahead of what was believed."""
        offset = now_ms - time.monotonic_ns() // 1_000_000
        leaps = offset - self._offset_ms > LEAP_MS
        self._offset_ms = offset
        return leaps

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(delay_ms / 1_000, callback)

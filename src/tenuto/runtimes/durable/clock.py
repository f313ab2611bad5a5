"""One clock: the database's. A worker's `now` is its time at the last exchange, plus monotonic time since."""

import asyncio
import time
from collections.abc import Callable

from tenuto.runtime import Timer


class DatabaseClock:
    def __init__(self) -> None:
        self._offset_ms = time.time_ns() // 1_000_000 - time.monotonic_ns() // 1_000_000

    def now_ms(self) -> int:
        return self._offset_ms + time.monotonic_ns() // 1_000_000

    def note(self, now_ms: int) -> None:
        """The database said what time it is. The answer was under way for a while, so it can only be later."""
        if now_ms:
            self._offset_ms = now_ms - time.monotonic_ns() // 1_000_000

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        return asyncio.get_running_loop().call_later(delay_ms / 1_000, callback)

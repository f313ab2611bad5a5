"""The machine's time, for as long as a process lives: it follows a clock that is set forward, and never goes back."""

import time
from collections.abc import Callable

SLOWER = 10  # one part in so many is held back while the machine's clock is behind


class WallClock:
    """Gives milliseconds. Waits depend on it, so it goes on when the machine's clock is set back.

    Then it follows the monotonic clock, a tenth slower, until the machine's clock has caught up: a wait of ten seconds
    takes eleven. A clock that is set forward is followed at once, also after the machine was suspended.
    """

    __slots__ = ("_last", "_ticks", "_wall")

    def __init__(
        self, wall: Callable[[], int] = lambda: time.time_ns(), ticks: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._wall = wall
        self._ticks = ticks
        self._last = (wall(), ticks())  # one value: threads share it, and none sees half of it

    def __call__(self) -> int:
        before, since = self._last
        ticks, now = self._ticks(), self._wall()
        gone = ticks - since
        if (ahead := before + gone - now) > 0:
            now = before + gone - min(ahead, gone // SLOWER)
        self._last = (now, ticks)
        return now // 1_000_000

    def reach(self, now_ms: int) -> None:
        """Others have come so far already: it is at least that late."""
        if self() < now_ms:
            self._last = (now_ms * 1_000_000, self._ticks())

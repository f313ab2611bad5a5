"""A wall clock that never goes back during the life of a process."""

import time
from collections.abc import Callable

SLOWER = 10  # while the machine's clock is behind, this clock runs slower by one part in ten


class WallClock:
    """Returns milliseconds since the epoch. Timers depend on it, so it continues when the machine's clock is set back.

    In that case it follows the monotonic clock, one tenth slower, until the machine's clock has caught up: a wait of
    ten seconds takes eleven. If the machine's clock is set forward, or the machine was suspended, this clock follows at
    once.
    """

    __slots__ = ("_last", "_ticks", "_wall")

    def __init__(
        self, wall: Callable[[], int] = lambda: time.time_ns(), ticks: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._wall = wall
        self._ticks = ticks
        self._last = (wall(), ticks())  # one tuple, so that threads never see half of an update

    def __call__(self) -> int:
        before, since = self._last
        ticks, now = self._ticks(), self._wall()
        gone = ticks - since
        if (ahead := before + gone - now) > 0:
            now = before + gone - min(ahead, gone // SLOWER)
        self._last = (now, ticks)
        return now // 1_000_000

    def reach(self, now_ms: int) -> None:
        """Sets the clock forward to a time that another process has already recorded. Never sets it back."""
        if self() < now_ms:
            self._last = (now_ms * 1_000_000, self._ticks())

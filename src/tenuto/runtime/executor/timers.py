"""Wakes executions in memory when they are due: one timer for all of them, and a heap of their times."""

import heapq
from collections.abc import Callable

from tenuto.runtime.clock import Environment, Timer

from .held_execution import Record

STALE = 1_000  # outdated times that the heap may contain


class WakeTimer:
    """Calls `wake` for each record when its `wake_at` has come.

    Times are not removed from the heap: an entry is ignored if its record is no longer held or is due at another time.
    """

    def __init__(
        self, environment: Environment, records: dict[str, Record], wake: Callable[[Record, int], object]
    ) -> None:
        self._clock = environment.clock
        self._now = environment.now_ms
        self._records = records
        self._wake = wake
        self._due: list[tuple[int, str]] = []
        self._most = STALE
        self._timer: Timer | None = None
        self._timer_at = 0
        self._closed = False

    def __len__(self) -> int:
        return len(self._due)

    def schedule(self, record: Record) -> None:
        wake_at = record.state.wake_at
        if wake_at == record.wake_at:
            return
        record.wake_at = wake_at
        if wake_at is not None:
            heapq.heappush(self._due, (wake_at, record.state.id))
            if self._timer is None or wake_at < self._timer_at:
                self.arm()
            if len(self._due) > self._most:
                self._forget()

    def close(self) -> None:
        self._closed = True
        self.arm()

    def _forget(self) -> None:
        """Removes the outdated times, once there are many."""
        records = self._records
        self._due = [
            (due, id) for due, id in self._due if (record := records.get(id)) is not None and record.wake_at == due
        ]
        heapq.heapify(self._due)
        self._most = 2 * len(self._due) + STALE

    def arm(self) -> None:
        """Sets the timer for the earliest time. Also called when the clock was adjusted."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._due and not self._closed:
            self._timer_at = self._due[0][0]
            self._timer = self._clock.call_later(max(0, self._timer_at - self._now()), self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = self._now()
        try:
            while self._due and self._due[0][0] <= now:
                due, id = heapq.heappop(self._due)
                record = self._records.get(id)
                if record is not None and record.wake_at == due:
                    record.wake_at = None
                    self._wake(record, now)
        finally:  # if one cannot be woken, the others still are
            self.arm()

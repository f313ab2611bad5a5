"""When executions in memory are to be woken: one timer for all of them, and a heap of who is next."""

import heapq
from collections.abc import Callable

from tenuto.runtime.clock import Environment, Timer

from .held_execution import Record

STALE = 1_000  # so many may be out of date


class Alarms:
    """An alarm is not taken back: one that rings for what is not held, or for a time that is not awaited, is void."""

    def __init__(
        self, environment: Environment, records: dict[str, Record], ring: Callable[[Record, int], object]
    ) -> None:
        self._clock = environment.clock
        self._now = environment.now_ms
        self.records = records
        self._wake = ring
        self._due: list[tuple[int, str]] = []
        self._most = STALE
        self._timer: Timer | None = None
        self._timer_at = 0
        self._closed = False

    def __len__(self) -> int:
        return len(self._due)

    def set(self, record: Record) -> None:
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
        """Those of executions that are no longer held go when there are many."""
        records = self.records
        self._due = [
            (due, id) for due, id in self._due if (record := records.get(id)) is not None and record.wake_at == due
        ]
        heapq.heapify(self._due)
        self._most = 2 * len(self._due) + STALE

    def arm(self) -> None:
        """Sets the timer for who is next; also when the clock has leapt."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._due and not self._closed:
            self._timer_at = self._due[0][0]
            self._timer = self._clock.call_later(max(0, self._timer_at - self._now()), self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = self._now()
        try:
            while self._due and self._due[0][0] <= now:
                due, id = heapq.heappop(self._due)
                record = self.records.get(id)
                if record is not None and record.wake_at == due:
                    record.wake_at = None
                    self._wake(record, now)
        finally:  # one that cannot be woken does not keep the others from waking
            self.arm()

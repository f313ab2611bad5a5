"""Rate and concurrency limits that steps name, and those of a single process.

While a limit is spent, the attempts that name it wait for it without a slot. Their timeouts have not begun.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final, Protocol, TypeAlias

from tenuto.runtime.clock import Clock, Timer
from tenuto.values.rates import rate_text
from tenuto.views import LimitRow

Names: TypeAlias = tuple[str, ...]  # the limits that one step names; an attempt needs room under each of them

MAX_WINDOW: Final = 1_000


class LimitedQueue(Protocol):
    """Attempts that may wait for limits."""

    def wanted(self) -> dict[Names, int]:
        """How many attempts wait for which limits, and would find a slot."""

    def pump(self) -> None:
        """Starts what can start."""


class Limits(Protocol):
    """Lanes ask these before they start an attempt. A limit that is not set does not limit."""

    def add_queue(self, queue: LimitedQueue) -> None:
        """From now on, this queue is pumped when a limit lets something start."""

    def spent(self, names: Names) -> str | None:
        """The first of these limits that lets nothing start now."""

    def wait(self, names: Names) -> None:
        """An attempt waits for these. The queues are pumped when it may be able to start."""

    def take(self, names: Names) -> None: ...

    def undo(self, names: Names) -> None:
        """Gives back what was taken just now: nothing started."""

    def leave(self, names: Names) -> None:
        """An attempt that named these has ended."""

    def close(self) -> None: ...


class Limit:
    """At most `count` starts in any `period_ms`, and `concurrency` at once. None: no such bound."""

    __slots__ = ("_count", "_period_ms", "_starts", "concurrency", "rate", "running")

    def __init__(self) -> None:
        self.running = 0
        self._starts: deque[int] = deque()
        self.change(None, None)

    def change(self, rate: tuple[int, int] | None, concurrency: int | None) -> None:
        self.rate = rate
        self.concurrency = concurrency
        count, period_ms = rate or (0, 0)
        if count > MAX_WINDOW:  # the same rate over a shorter period: no looser, and fewer starts to remember
            count, period_ms = MAX_WINDOW, -(-period_ms * MAX_WINDOW // count)
        self._count, self._period_ms = count, period_ms

    def opens_at(self, now_ms: int) -> int | None:
        """When another may start, as far as the rate goes. None: not before one ends."""
        if self.concurrency is not None and self.running >= self.concurrency:
            return None
        if not self._count:
            return now_ms
        starts = self._starts
        while starts and starts[0] <= now_ms - self._period_ms:
            starts.popleft()
        return now_ms if len(starts) < self._count else starts[-self._count] + self._period_ms

    def take(self, now_ms: int) -> None:
        self.running += 1
        if self._count:
            self._starts.append(now_ms)

    def undo(self) -> None:
        self.running -= 1
        if self._count and self._starts:
            self._starts.pop()


class LocalLimits:
    """The limits of a single process, by name."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queues: list[LimitedQueue] = []
        self._named: dict[str, Limit] = {}
        self._timer: Timer | None = None
        self._opens_at = 0

    def add_queue(self, queue: LimitedQueue) -> None:
        self._queues.append(queue)

    def set(self, name: str, rate: tuple[int, int] | None, concurrency: int | None) -> None:
        self._limit(name).change(rate, concurrency)
        self._pump()

    def rows(self) -> list[LimitRow]:
        waiting = total_wanted(self._queues)
        named = [(name, self._named[name]) for name in sorted(self._named)]
        return [
            limit_row(name, limit.rate, limit.concurrency, limit.running, _sum(waiting, name))
            for name, limit in named
            if limit.rate is not None or limit.concurrency is not None
        ]

    def _limit(self, name: str) -> Limit:
        # Limits that are not set are counted too: attempts that run when one is set count for it.
        limit = self._named.get(name)
        if limit is None:
            limit = self._named[name] = Limit()
        return limit

    def spent(self, names: Names) -> str | None:
        now = self._clock.now_ms()
        return next((name for name in names if self._limit(name).opens_at(now) != now), None)

    def wait(self, names: Names) -> None:
        now = self._clock.now_ms()
        moments = [self._limit(name).opens_at(now) for name in names]
        if None not in moments:  # else the next attempt that ends pumps
            self._call_at(max(at for at in moments if at is not None), now)

    def take(self, names: Names) -> None:
        now = self._clock.now_ms()
        for name in names:
            self._limit(name).take(now)

    def undo(self, names: Names) -> None:
        for name in names:
            self._limit(name).undo()

    def leave(self, names: Names) -> None:
        for name in names:
            self._limit(name).running -= 1

    def _call_at(self, opens_at: int, now: int) -> None:
        if self._timer is None or opens_at < self._opens_at:
            self.close()
            self._opens_at = opens_at
            self._timer = self._clock.call_later(opens_at - now, self._open)

    def _open(self) -> None:
        self._timer = None
        self._pump()

    def _pump(self) -> None:
        for queue in self._queues:
            queue.pump()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def limit_row(name: str, rate: tuple[int, int] | None, concurrency: int | None, running: int, waiting: int) -> LimitRow:
    text = None if rate is None else rate_text(*rate)
    return {"name": name, "rate": text, "concurrency": concurrency, "running": running, "waiting": waiting}


def total_wanted(queues: Iterable[LimitedQueue]) -> dict[Names, int]:
    """How many attempts in all queues wait for which limits, and would find a slot."""
    total: dict[Names, int] = {}
    for queue in queues:
        for names, number in queue.wanted().items():
            total[names] = total.get(names, 0) + number
    return total


def _sum(waiting: Mapping[Names, int], name: str) -> int:
    return sum(number for names, number in waiting.items() if name in names)

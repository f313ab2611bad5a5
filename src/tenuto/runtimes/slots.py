"""Who may run next: slots, limits, and turns.

A worker has so many slots. What finds none free waits in one queue per execution; queues are served in turn, by class
(undo, resume, high, normal), so that an execution with 100,000 clones costs the others one turn each. A step may name
limits (so many starts in a time, so many at once): while they are spent it waits outside of the slots, and neither its
attempt nor its timeout has begun.
"""

from collections import deque
from collections.abc import Callable, Hashable
from typing import Final, Generic, TypeVar

from tenuto.runtime import Clock, Timer

O = TypeVar("O", bound=Hashable)  # noqa: E741  (the owner of a queue: an execution)
T = TypeVar("T")

UNDO, RESUME, HIGH, NORMAL = range(4)
RANKS: Final = 4
MAX_WINDOW: Final = 1_000


class Turns(Generic[O, T]):
    """A queue per owner, served in turn."""

    __slots__ = ("_lines", "_order")

    def __init__(self) -> None:
        self._lines: dict[O, deque[T]] = {}
        self._order: deque[O] = deque()

    def __bool__(self) -> bool:
        return bool(self._order)

    def push(self, owner: O, item: T) -> None:
        line = self._lines.get(owner)
        if line is None:
            self._lines[owner] = deque((item,))
            self._order.append(owner)
        else:
            line.append(item)

    def pop(self) -> T:
        """The first of the owner whose turn it is; the owner goes to the end."""
        owner = self._order.popleft()
        line = self._lines[owner]
        item = line.popleft()
        if line:
            self._order.append(owner)
        else:
            del self._lines[owner]
        return item


class Limit:
    """At most `count` starts in any `period_ms`, and `concurrency` at once. None: no such bound."""

    __slots__ = ("_count", "_period_ms", "_starts", "concurrency", "running")

    def __init__(self, rate: tuple[int, int] | None, concurrency: int | None) -> None:
        self.running = 0
        self._starts: deque[int] = deque()
        self.change(rate, concurrency)

    def change(self, rate: tuple[int, int] | None, concurrency: int | None) -> None:
        self.concurrency = concurrency
        count, period_ms = rate or (0, 0)
        if count > MAX_WINDOW:  # the same rate over a shorter time: no looser, and not so much to remember
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


class Limits:
    """All limits of a runtime, by name. One that nobody has set is no limit."""

    def __init__(self, clock: Clock, on_open: Callable[[], None]) -> None:
        self._clock = clock
        self._on_open = on_open
        self._named: dict[str, Limit] = {}
        self._timer: Timer | None = None
        self._opens_at = 0

    def set(self, name: str, rate: tuple[int, int] | None, concurrency: int | None) -> None:
        known = self._named.get(name)
        if known is None:
            self._named[name] = Limit(rate, concurrency)
        else:
            known.change(rate, concurrency)

    def spent(self, names: tuple[str, ...]) -> str | None:
        """The first of these limits that lets nothing start now. Whoever asks is called when that changes."""
        now = self._clock.now_ms()
        for name in names:
            limit = self._named.get(name)
            if limit is not None and (opens_at := limit.opens_at(now)) != now:
                if opens_at is not None:
                    self._call_at(opens_at, now)
                return name
        return None

    def take(self, names: tuple[str, ...]) -> None:
        now = self._clock.now_ms()
        for name in names:
            if (limit := self._named.get(name)) is not None:
                limit.take(now)

    def leave(self, names: tuple[str, ...]) -> None:
        for name in names:
            if (limit := self._named.get(name)) is not None:
                limit.running -= 1

    def _call_at(self, opens_at: int, now: int) -> None:
        if self._timer is None or opens_at < self._opens_at:
            self.close()
            self._opens_at = opens_at
            self._timer = self._clock.call_later(opens_at - now, self._open)

    def _open(self) -> None:
        self._timer = None
        self._on_open()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Lane(Generic[O, T]):
    """Slots of one kind, and what waits for one. `start` says whether the item took the slot, or was out of date."""

    __slots__ = ("_limits", "_pumping", "_start", "_waiting", "running", "size", "waiting")

    def __init__(self, size: int, limits: Limits, start: Callable[[T], bool]) -> None:
        self.size = size
        self.running = 0
        self.waiting = 0
        self._limits = limits
        self._start = start
        self._pumping = False
        # By rank, then by the limits that are asked for: those of one kind may have to wait while others pass.
        self._waiting: tuple[dict[tuple[str, ...], Turns[O, T]], ...] = tuple({} for _ in range(RANKS))

    def enter(self, owner: O, rank: int, limits: tuple[str, ...], item: T) -> None:
        if not limits and not self.waiting and self.running < self.size and not self._pumping:
            self._run(item, limits)
            return
        self._waiting[rank].setdefault(limits, Turns()).push(owner, item)
        self.waiting += 1
        if not self._pumping:
            self.pump()

    def leave(self, limits: tuple[str, ...]) -> None:
        """One has ended. `pump` lets the next one in."""
        self.running -= 1
        if limits:
            self._limits.leave(limits)

    def pump(self) -> None:
        """Starts what can start."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while self.waiting and self.running < self.size and (found := self._next()) is not None:
                self._run(*found)
        finally:
            self._pumping = False

    def _next(self) -> tuple[T, tuple[str, ...]] | None:
        for by_limits in self._waiting:
            for limits, turns in by_limits.items():
                if turns and (not limits or self._limits.spent(limits) is None):
                    self.waiting -= 1
                    item = turns.pop()
                    if not turns:
                        del by_limits[limits]
                    return item, limits
        return None

    def _run(self, item: T, limits: tuple[str, ...]) -> None:
        self.running += 1
        if not self._start(item):
            self.running -= 1
        elif limits:
            self._limits.take(limits)

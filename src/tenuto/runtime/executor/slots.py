"""Slots for attempts, and fair queues for attempts that wait for one.

A worker has a fixed number of slots. An attempt that finds none free waits in the queue of its execution. Queues are
served by class (undo, resume, high, normal); within a class tenants take turns, and within a tenant its executions do.
So an execution with 100,000 clones delays each other execution by one turn, and a tenant with 10,000 executions delays
each other tenant by one turn.
"""

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from itertools import count
from typing import Final, Generic, TypeVar

from .limits import Limits, Names

O = TypeVar("O", bound=Hashable)  # noqa: E741  (the owner of a queue: an execution)
T = TypeVar("T")

UNDO, RESUME, HIGH, NORMAL = range(4)
RANKS: Final = 4


class FairQueue(Generic[O, T]):
    """Items in one line per owner, served in turn: by tenant, then by owner.

    `served` has the number of each tenant's last turn. Several queues share it, so that a turn in one counts in all.
    """

    __slots__ = ("_lines", "_owners", "_placed", "_served", "_tenants", "last", "waiting")

    def __init__(self, served: dict[str, int]) -> None:
        self._served = served
        self._tenants: deque[str] = deque()
        self._placed: dict[str, int] = {}  # the last turn of a tenant when it took its place in line
        self._owners: dict[str, deque[O]] = {}
        self._lines: dict[O, deque[T]] = {}
        self.waiting = 0
        self.last = 0  # the number of the last turn given here

    def since(self) -> int:
        """The last turn of the tenant that is next. Tenants served by other queues meanwhile go to the end first."""
        tenants, served, placed = self._tenants, self._served, self._placed
        while (last := served.get(tenants[0], 0)) > placed[tenants[0]]:
            placed[tenants[0]] = last
            tenants.rotate(-1)
        return last

    def push(self, tenant: str, owner: O, item: T) -> None:
        self.waiting += 1
        line = self._lines.get(owner)
        if line is not None:
            line.append(item)
            return
        self._lines[owner] = deque((item,))
        owners = self._owners.get(tenant)
        if owners is None:
            self._owners[tenant] = deque((owner,))
            self._placed[tenant] = self._served.get(tenant, 0)
            self._tenants.append(tenant)
        else:
            owners.append(owner)

    def lengths(self) -> Iterator[tuple[O, int]]:
        return ((owner, len(line)) for owner, line in self._lines.items())

    def pop(self, number: int) -> T:
        """The first item of the next owner. The owner goes to the end of its tenant's line, the tenant to the end."""
        tenant = self._tenants.popleft()
        self._served[tenant] = self._placed[tenant] = self.last = number
        owners = self._owners[tenant]
        owner = owners.popleft()
        line = self._lines[owner]
        item = line.popleft()
        if line:
            owners.append(owner)
        else:
            del self._lines[owner]
        if owners:
            self._tenants.append(tenant)
        else:
            del self._owners[tenant], self._placed[tenant]
        self.waiting -= 1
        return item


class Lane(Generic[O, T]):
    """Slots of one kind, and the items that wait for one. `start` returns whether the item took its slot."""

    __slots__ = ("_limits", "_numbers", "_pumping", "_served", "_start", "_waiting", "running", "size", "waiting")

    def __init__(self, size: int, limits: Limits, start: Callable[[T], bool]) -> None:
        self.size = size
        self.running = 0
        self.waiting = 0
        self._limits = limits
        self._start = start
        self._pumping = False
        # By rank, then by the limits that are named: items whose limits are spent wait while others pass.
        self._waiting: tuple[dict[Names, FairQueue[O, T]], ...] = tuple({} for _ in range(RANKS))
        self._served: dict[str, int] = {}  # the number of each tenant's last turn
        self._numbers = count(1)
        limits.add_queue(self)

    def enter(self, tenant: str, owner: O, rank: int, limits: Names, item: T) -> None:
        if not limits and not self.waiting and self.running < self.size and not self._pumping:
            self._run(item, limits)
            return
        queue = self._waiting[rank].get(limits)
        if queue is None:
            queue = self._waiting[rank][limits] = FairQueue(self._served)
        queue.push(tenant, owner, item)
        self.waiting += 1
        if not self._pumping:
            self.pump()

    def leave(self, limits: Names) -> None:
        """Frees a slot. `pump` gives it to the next item."""
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

    def _next(self) -> tuple[T, Names] | None:
        for by_limits in self._waiting:
            if by_limits and (limits := self._open_kind(by_limits)) is not None:
                return self._pop(by_limits, limits), limits
        return None

    def _open_kind(self, by_limits: dict[Names, FairQueue[O, T]]) -> Names | None:
        """Of the limits that are not spent, those of the tenant that waits longest; among these, in turn."""
        found: Names | None = None
        first = (0, 0)
        for limits, queue in by_limits.items():
            if limits and self._limits.spent(limits) is not None:
                self._limits.wait(limits)
                continue
            since = (queue.since(), queue.last)
            if found is None or since < first:
                found, first = limits, since
        return found

    def _pop(self, by_limits: dict[Names, FairQueue[O, T]], limits: Names) -> T:
        queue = by_limits[limits]
        item = queue.pop(next(self._numbers))
        if not queue.waiting:
            del by_limits[limits]
        self.waiting -= 1
        if not self.waiting:
            self._served.clear()
        return item

    def _run(self, item: T, limits: Names) -> None:
        self.running += 1
        if limits:
            self._limits.take(limits)  # before it starts: attempts that it leads to must find them taken
        if not self._start(item):
            self.running -= 1
            if limits:
                self._limits.undo(limits)

    def wanted(self) -> dict[Names, int]:
        """How many items wait for which limits and would find a slot, the most urgent first."""
        free = self.size - self.running
        wanted: dict[Names, int] = {}
        for by_limits in self._waiting:
            for limits, queue in by_limits.items():
                if limits and free > 0:
                    number = min(queue.waiting, free)
                    wanted[limits] = wanted.get(limits, 0) + number
                    free -= number
        return wanted

    @property
    def backlog(self) -> int:
        """How many items wait for a slot and for nothing else."""
        return sum(queue.waiting for limits, queue in self._kinds() if not self._is_held_up(limits))

    def held_up(self) -> Iterator[tuple[O, int]]:
        """The owners whose items wait for a limit, with the number of these items."""
        for limits, queue in self._kinds():
            if self._is_held_up(limits):
                yield from queue.lengths()

    def _kinds(self) -> Iterator[tuple[Names, FairQueue[O, T]]]:
        return (pair for by_limits in self._waiting for pair in by_limits.items())

    def _is_held_up(self, limits: Names) -> bool:
        return bool(limits) and self._limits.spent(limits) is not None

"""Who may run next: slots and turns.

A worker has so many slots. What finds none free waits in one queue per execution. Queues are served by class (undo,
resume, high, normal); within a class tenants take turns, and within a tenant its executions do. So an execution with
100,000 clones costs the others one turn each, and a tenant with 10,000 executions one turn for every other tenant.
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


class Turns(Generic[O, T]):
    """A queue per owner, served in turn: by tenant, then by owner.

    `served` says when each tenant last had a turn, here or in the queues beside these: a turn there counts here too.
    """

    __slots__ = ("_lines", "_owners", "_placed", "_served", "_tenants", "last", "waiting")

    def __init__(self, served: dict[str, int]) -> None:
        self._served = served
        self._tenants: deque[str] = deque()
        self._placed: dict[str, int] = {}  # what `served` said of a tenant when it took its place
        self._owners: dict[str, deque[O]] = {}
        self._lines: dict[O, deque[T]] = {}
        self.waiting = 0
        self.last = 0  # the number of the last turn given here

    def since(self) -> int:
        """When the tenant whose turn it is last had one. Those served elsewhere meanwhile go to the end first."""
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
        """The first of the owner whose turn it is; the owner goes to the end of its tenant, the tenant to the end."""
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
    """Slots of one kind, and what waits for one. `start` says whether the item took the slot, or was out of date."""

    __slots__ = ("_limits", "_numbers", "_pumping", "_served", "_start", "_waiting", "running", "size", "waiting")

    def __init__(self, size: int, limits: Limits, start: Callable[[T], bool]) -> None:
        self.size = size
        self.running = 0
        self.waiting = 0
        self._limits = limits
        self._start = start
        self._pumping = False
        # By rank, then by the limits that are asked for: those of one kind may have to wait while others pass.
        self._waiting: tuple[dict[Names, Turns[O, T]], ...] = tuple({} for _ in range(RANKS))
        self._served: dict[str, int] = {}  # when each tenant last had a turn
        self._numbers = count(1)

    def enter(self, tenant: str, owner: O, rank: int, limits: Names, item: T) -> None:
        if not limits and not self.waiting and self.running < self.size and not self._pumping:
            self._run(item, limits)
            return
        turns = self._waiting[rank].get(limits)
        if turns is None:
            turns = self._waiting[rank][limits] = Turns(self._served)
        turns.push(tenant, owner, item)
        self.waiting += 1
        if not self._pumping:
            self.pump()

    def leave(self, limits: Names) -> None:
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

    def _next(self) -> tuple[T, Names] | None:
        for by_limits in self._waiting:
            if by_limits and (limits := self._open_kind(by_limits)) is not None:
                return self._pop(by_limits, limits), limits
        return None

    def _open_kind(self, by_limits: dict[Names, Turns[O, T]]) -> Names | None:
        """Of the kinds whose limits are not spent, that of the tenant who waits longest; of its kinds, in turn."""
        found: Names | None = None
        first = (0, 0)
        for limits, turns in by_limits.items():
            if limits and self._limits.spent(limits) is not None:
                self._limits.wait(limits)
                continue
            since = (turns.since(), turns.last)
            if found is None or since < first:
                found, first = limits, since
        return found

    def _pop(self, by_limits: dict[Names, Turns[O, T]], limits: Names) -> T:
        turns = by_limits[limits]
        item = turns.pop(next(self._numbers))
        if not turns.waiting:
            del by_limits[limits]
        self.waiting -= 1
        if not self.waiting:
            self._served.clear()
        return item

    def _run(self, item: T, limits: Names) -> None:
        self.running += 1
        if limits:
            self._limits.take(limits)  # before it starts: what its start leads to must see it
        if not self._start(item):
            self.running -= 1
            if limits:
                self._limits.undo(limits)

    def wanted(self) -> dict[Names, int]:
        """How many wait for which limits and would find a slot, the most urgent first."""
        free = self.size - self.running
        wanted: dict[Names, int] = {}
        for by_limits in self._waiting:
            for limits, turns in by_limits.items():
                if limits and free > 0:
                    number = min(turns.waiting, free)
                    wanted[limits] = wanted.get(limits, 0) + number
                    free -= number
        return wanted

    @property
    def backlog(self) -> int:
        """How many wait for a slot. What waits for a limit is not among them: slots do not help it."""
        return sum(turns.waiting for limits, turns in self._kinds() if not self._is_held_up(limits))

    def held_up(self) -> Iterator[tuple[O, int]]:
        """Who waits for a limit, and with how many."""
        for limits, turns in self._kinds():
            if self._is_held_up(limits):
                yield from turns.lengths()

    def _kinds(self) -> Iterator[tuple[Names, Turns[O, T]]]:
        return (pair for by_limits in self._waiting for pair in by_limits.items())

    def _is_held_up(self, limits: Names) -> bool:
        return bool(limits) and self._limits.spent(limits) is not None

"""Admits the starts of tenants, and refuses those beyond a tenant's in-flight limit at low cost.

The commit of a start decides whether the tenant has capacity, under the lock of the tenant's row. Only a commit admits
a start. But a refusal in a commit costs nearly as much as a start. So after many refusals, this process decides by what
the last commit reported. It lets through as many starts as there was capacity for, plus one for each execution that
ended here since then, and refuses all others. The report is valid only for a moment, because executions also end in
other processes. After that, one start reads the number in flight, which waits for no commit. A few starts that arrive
meanwhile wait for the result, for a short time; the others are refused.

Before the first refusals, a process does not know that a tenant is at its limit. So only `ON_THE_WAY` starts of a
tenant are in commits at a time, and further ones wait in a queue, which costs next to nothing. Otherwise the starts
that will be refused would delay the work that was accepted.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from tenuto.errors import StorageError
from tenuto.storage.port import Store
from tenuto.values.jitter import spread

MANY: Final = 64  # refusals before this process decides by itself
AT_ONCE: Final = 16  # concurrent starts of a tenant over its limit; each one delays the others
MOMENT_S: Final = 0.1  # how long a report of capacity is valid
READING_S: Final = 1.0  # then another start reads the capacity: the first may have failed
FORGOTTEN_S: Final = 5.0  # without refusals, a tenant counts as under its limit again
PATIENCE_S: Final = 0.025  # how long a start waits that may be refused in the end
ON_THE_WAY: Final = 500  # starts of one tenant in commits
CAPACITY_S: Final = 0.02  # the first interval of polling for capacity


class _OverLimit:
    __slots__ = ("capacity", "is_reading", "refusals", "refused_at", "until", "waited")

    def __init__(self) -> None:
        self.refusals = 0
        self.refused_at = 0.0
        self.capacity = 0  # starts to let through
        self.until = 0.0  # then one start reads the capacity
        self.is_reading = False
        self.waited = 0  # starts that waited for the reading

    @property
    def is_worth_waiting(self) -> bool:
        return self.is_reading and self.waited < MANY


class OverLimitTenants:
    """The tenants whose starts were refused lately, and the capacity that they are known to have."""

    __slots__ = ("_tenants",)

    def __init__(self) -> None:
        self._tenants: dict[str, _OverLimit] = {}

    def is_known(self, tenant: str) -> bool:
        """Whether enough starts were refused for this process to decide by itself."""
        found = self._tenants.get(tenant)
        return found is not None and found.refusals >= MANY

    def is_worth_waiting(self, tenant: str) -> bool:
        """Whether a start is reading the capacity, and only a few wait for it yet."""
        found = self._tenants.get(tenant)
        return found is not None and found.is_worth_waiting

    def waits(self, tenant: str) -> None:
        """Counts a start that waits for the reading."""
        if (found := self._tenants.get(tenant)) is not None:
            found.waited += 1

    def is_full(self, tenant: str) -> bool:
        """Whether a start would be refused now. Uses up no capacity."""
        found = self._tenants.get(tenant)
        if found is None or found.refusals < MANY or found.capacity:
            return False
        now = time.monotonic()
        if now > found.until or found.is_worth_waiting:
            return False
        found.refused_at = now
        return True

    def has_enough(self, tenant: str, in_flight: int) -> bool:
        """Whether so many starts are unanswered that another one would only delay them."""
        return in_flight >= AT_ONCE and self.is_known(tenant)

    def must_read(self, tenant: str) -> bool:
        """Whether the caller must read the capacity now. The other starts wait for it."""
        found = self._tenants.get(tenant)
        if found is None or found.refusals < MANY or found.capacity:
            return False
        now = time.monotonic()
        if now <= found.until or now > found.refused_at + FORGOTTEN_S:
            return False
        self._begin_reading(found, now)
        return True

    def _begin_reading(self, found: _OverLimit, now: float) -> None:
        found.is_reading = True
        found.waited = 0 if now > found.until else found.waited
        found.until = now + READING_S

    def refuse(self, tenant: str) -> bool:
        """Whether a start is refused without a commit. Otherwise it uses up capacity."""
        if self.is_full(tenant):
            return True
        found = self._tenants.get(tenant)
        if found is None or found.refusals < MANY:
            return False
        now = time.monotonic()
        if now > found.refused_at + FORGOTTEN_S:
            del self._tenants[tenant]
        elif found.capacity:
            found.capacity -= 1
        else:
            self._begin_reading(found, now)
        return False

    def refused(self, tenant: str) -> bool:
        """Counts a refusal by the database. Returns whether this process decides by itself from now on."""
        found = self._tenants.setdefault(tenant, _OverLimit())
        found.refusals += 1
        found.refused_at = time.monotonic()
        found.until = found.refused_at + MOMENT_S
        return found.refusals == MANY

    def accepted(self, tenant: str) -> None:
        """Notes that the database admitted a start."""
        found = self._tenants.get(tenant)
        if found is not None and found.refusals < MANY:
            del self._tenants[tenant]

    def set_capacity(self, tenant: str, capacity: int) -> None:
        """Sets how many starts to let through: what a commit or a reading reported, minus the starts in commits."""
        found = self._tenants.get(tenant)
        if found is not None:
            found.capacity = max(capacity, 0)
            found.until = time.monotonic() + MOMENT_S
            found.is_reading = False

    def ended(self, tenant: str) -> None:
        """Notes that an execution ended here, after the last report of capacity."""
        found = self._tenants.get(tenant)
        if found is not None:
            found.capacity += 1

    def forget(self, tenant: str) -> None:
        """Discards what is known of a tenant, because its limit changed."""
        self._tenants.pop(tenant, None)


class _Queue:
    __slots__ = ("called", "committing", "waiting")

    def __init__(self) -> None:
        self.committing = 0
        self.called = 0  # no longer waiting, and not committing yet
        self.waiting: deque[asyncio.Future[None]] = deque()


class StartQueue:
    """The starts of each tenant that are in commits, and those that wait."""

    __slots__ = ("_queues",)

    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {}

    def committing(self, tenant: str) -> int:
        queue = self._queues.get(tenant)
        return 0 if queue is None else queue.committing

    def is_closed(self, tenant: str) -> bool:
        """Whether a new start must wait. Starts that were called go first."""
        queue = self._queues.get(tenant)
        return queue is not None and queue.committing + queue.called >= ON_THE_WAY

    async def wait(self, tenant: str, patience_s: float | None = None) -> bool:
        """Waits until the start should check again. Some start is in a commit or reads. False: it took too long."""
        queue = self._queue(tenant)
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.waiting.append(called)
        try:
            async with asyncio.timeout(patience_s):
                await called
        except TimeoutError:
            return False
        else:
            return True
        finally:
            if called.cancelled():
                with suppress(ValueError):
                    queue.waiting.remove(called)
            else:
                queue.called -= 1
            self._clear(tenant, queue)

    def _queue(self, tenant: str) -> _Queue:
        queue = self._queues.get(tenant)
        if queue is None:
            queue = self._queues[tenant] = _Queue()
        return queue

    def enter(self, tenant: str) -> None:
        self._queue(tenant).committing += 1

    def leave(self, tenant: str) -> None:
        queue = self._queues[tenant]
        queue.committing -= 1
        self._call(queue, ON_THE_WAY - queue.committing - queue.called)
        self._clear(tenant, queue)

    def pass_on(self, tenant: str) -> None:
        """Calls the waiting starts if no start is in a commit, or called, that would call them later."""
        queue = self._queues.get(tenant)
        if queue is not None and not queue.committing and not queue.called:
            self._call(queue, len(queue.waiting))

    def _clear(self, tenant: str, queue: _Queue) -> None:
        if not queue.committing and not queue.called and not queue.waiting and self._queues.get(tenant) is queue:
            del self._queues[tenant]

    def call_all(self, tenant: str) -> None:
        """Makes all waiting starts check again: they may be refused now."""
        queue = self._queues.get(tenant)
        if queue is not None:
            self._call(queue, len(queue.waiting))

    def _call(self, queue: _Queue, number: int) -> None:
        while queue.waiting and number > 0:
            called = queue.waiting.popleft()
            if not called.done():
                called.set_result(None)
                queue.called += 1
                number -= 1


class TenantAdmission:
    """Decides which starts of a tenant go to the database, which wait, and which are refused at once."""

    def __init__(self, store: Store, check_open: Callable[[], None], poll_s: float) -> None:
        self._store = store
        self._check_open = check_open
        self._poll_s = poll_s
        self.over_limit = OverLimitTenants()
        self.starting = StartQueue()
        # Called for every start or end of an execution.
        self.enter = self.starting.enter
        self.leave = self.starting.leave
        self.pass_on = self.starting.pass_on
        self.refuse = self.over_limit.refuse
        self.accepted = self.over_limit.accepted
        self.ended = self.over_limit.ended
        self.forget = self.over_limit.forget

    def refuses(self, tenant: str, in_flight: int = 0) -> bool:
        return self.over_limit.is_full(tenant) or self.over_limit.has_enough(tenant, in_flight)

    async def wait_for_capacity(self, tenant: str) -> int | None:
        """Polls, at growing intervals."""
        wait = CAPACITY_S
        while True:
            await asyncio.sleep(spread(wait))
            self._check_open()
            uses = await self._store.limits.tenants(tenant)
            if not uses:
                return None
            if uses[0].in_flight < uses[0].max_in_flight:
                return uses[0].max_in_flight - uses[0].in_flight
            wait = min(2 * wait, self._poll_s)

    def must_wait(self, tenant: str) -> bool:
        if self.starting.is_closed(tenant) and not self.over_limit.is_known(tenant):
            return True
        return self.over_limit.is_worth_waiting(tenant)

    async def wait(self, tenant: str) -> bool:
        """Waits until the start may check again. False: it waited as long as a refusal may take."""
        patience_s = PATIENCE_S if self.over_limit.is_known(tenant) else None
        self.over_limit.waits(tenant)
        return await self.starting.wait(tenant, patience_s)

    def refused(self, tenant: str) -> None:
        """Notes that the database refused a start."""
        if self.over_limit.refused(tenant):
            self.starting.call_all(tenant)

    def must_read_capacity(self, tenant: str) -> bool:
        return self.over_limit.must_read(tenant)

    async def read_capacity(self, tenant: str) -> None:
        """Reads the tenant's capacity. If that fails, or the limit was removed, commits decide again."""
        capacity: int | None = None
        try:
            with suppress(StorageError):
                for use in await self._store.limits.tenants(tenant):
                    capacity = use.max_in_flight - use.in_flight
        finally:
            if capacity is None:
                self.over_limit.forget(tenant)
            else:
                self.over_limit.set_capacity(tenant, capacity - self.starting.committing(tenant))
            self.starting.call_all(tenant)

    def note_capacity(self, left: Mapping[str, int]) -> None:
        """Notes the capacity that a commit left."""
        for tenant, capacity in left.items():
            self.over_limit.set_capacity(tenant, capacity - self.starting.committing(tenant))
            if self.over_limit.is_known(tenant):
                self.starting.call_all(tenant)

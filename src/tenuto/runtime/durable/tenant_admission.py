"""Tenants that ask for far more than they may. They are told so at once, and their refusals cost the others nothing.

Whether a tenant has room is decided by the commit that would start an execution, under the lock of the tenant's row,
and nothing else ever lets one in. But a refusal in a commit costs nearly as much as a start. So when many were refused,
this process goes by what the last commit said: as many starts as there was room for, and as executions ended here since
then, are let through to the database. All others are refused here. What was said is true for a moment only, because
executions end elsewhere, too: then one looks how many there are, which waits for nobody's commit. A few that come
meanwhile wait for what he sees, as many as a tenant that asks for no more than it may would send, and no longer than a
refusal may take; the others are refused.

Until the first are refused nobody knows that there are too many. So no more than so many starts of a tenant are on
their way to the database at any time; whoever comes then waits at the door, which costs next to nothing, until one of
them was answered. Otherwise what is only asked for would keep the process from what was accepted.
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

MANY: Final = 64  # refusals; fewer are each asked about
AT_ONCE: Final = 16  # starts of a tenant that is known to ask for too much; each adds to what the others wait
MOMENT_S: Final = 0.1
SCOUTING_S: Final = 1.0  # then another is sent: what became of the first may be unknown
FORGOTTEN_S: Final = 5.0
PATIENCE_S: Final = 0.025  # for which somebody waits who may well be refused: others come for the room that is found
ON_THE_WAY: Final = 500
CAPACITY_S: Final = 0.02  # the first interval of polling for capacity


class _OverLimit:
    __slots__ = ("is_scouting", "refusals", "refused_at", "room", "until", "waited")

    def __init__(self) -> None:
        self.refusals = 0
        self.refused_at = 0.0
        self.room = 0  # starts that are let through
        self.until = 0.0  # then one is, to see
        self.is_scouting = False
        self.waited = 0  # for him who is on the way to see

    @property
    def is_worth_waiting(self) -> bool:
        return self.is_scouting and self.waited < MANY


class OverLimitTenants:
    """By tenant. Where nobody is refused there is nothing in it."""

    __slots__ = ("_tenants",)

    def __init__(self) -> None:
        self._tenants: dict[str, _OverLimit] = {}

    def is_known(self, tenant: str) -> bool:
        """Whether so many were refused that this process decides by itself."""
        found = self._tenants.get(tenant)
        return found is not None and found.refusals >= MANY

    def is_worth_waiting(self, tenant: str) -> bool:
        """Whether somebody is on the way to see how much room there is, and not many have waited for him yet."""
        found = self._tenants.get(tenant)
        return found is not None and found.is_worth_waiting

    def waits(self, tenant: str) -> None:
        """One more waits for what is to be heard."""
        if (found := self._tenants.get(tenant)) is not None:
            found.waited += 1

    def is_full(self, tenant: str) -> bool:
        """Whether a start is refused that comes now. It uses up no room."""
        found = self._tenants.get(tenant)
        if found is None or found.refusals < MANY or found.room:
            return False
        now = time.monotonic()
        if now > found.until or found.is_worth_waiting:
            return False
        found.refused_at = now
        return True

    def has_enough(self, tenant: str, under_way: int) -> bool:
        """Whether so many starts are under way that one more would only make them wait for each other."""
        return under_way >= AT_ONCE and self.is_known(tenant)

    def must_look(self, tenant: str) -> bool:
        """Whether it is time to look for room. Whoever is told so looks, and the others wait for him."""
        found = self._tenants.get(tenant)
        if found is None or found.refusals < MANY or found.room:
            return False
        now = time.monotonic()
        if now <= found.until or now > found.refused_at + FORGOTTEN_S:
            return False
        self._scout(found, now)
        return True

    def _scout(self, found: _OverLimit, now: float) -> None:
        found.is_scouting = True
        found.waited = 0 if now > found.until else found.waited
        found.until = now + SCOUTING_S

    def refuse(self, tenant: str) -> bool:
        """Whether a start is refused without asking the database. Otherwise it is on its way."""
        if self.is_full(tenant):
            return True
        found = self._tenants.get(tenant)
        if found is None or found.refusals < MANY:
            return False
        now = time.monotonic()
        if now > found.refused_at + FORGOTTEN_S:
            del self._tenants[tenant]
        elif found.room:
            found.room -= 1
        else:
            self._scout(found, now)
        return False

    def refused(self, tenant: str) -> bool:
        """By the database. Gives whether that was the last one that it was asked about."""
        found = self._tenants.setdefault(tenant, _OverLimit())
        found.refusals += 1
        found.refused_at = time.monotonic()
        found.until = found.refused_at + MOMENT_S
        return found.refusals == MANY

    def accepted(self, tenant: str) -> None:
        """By the database."""
        found = self._tenants.get(tenant)
        if found is not None and found.refusals < MANY:
            del self._tenants[tenant]

    def told(self, tenant: str, room: int) -> None:
        """A commit said how much room it left for those whom it did not answer."""
        found = self._tenants.get(tenant)
        if found is not None:
            found.room = max(room, 0)
            found.until = time.monotonic() + MOMENT_S
            found.is_scouting = False

    def ended(self, tenant: str) -> None:
        """One of its executions, here, in a later commit than the last that told."""
        found = self._tenants.get(tenant)
        if found is not None:
            found.room += 1

    def forget(self, tenant: str) -> None:
        """Its limit was changed."""
        self._tenants.pop(tenant, None)


class _Queue:
    __slots__ = ("called", "inside", "outside")

    def __init__(self) -> None:
        self.inside = 0
        self.called = 0  # and not come yet
        self.outside: deque[asyncio.Future[None]] = deque()


class StartQueue:
    """How many starts of each tenant are on their way to the database."""

    __slots__ = ("_queues",)

    def __init__(self) -> None:
        self._queues: dict[str, _Queue] = {}

    def inside(self, tenant: str) -> int:
        queue = self._queues.get(tenant)
        return 0 if queue is None else queue.inside

    def is_closed(self, tenant: str) -> bool:
        """For whoever comes: those who were called are before him."""
        queue = self._queues.get(tenant)
        return queue is not None and queue.inside + queue.called >= ON_THE_WAY

    async def wait(self, tenant: str, patience_s: float | None = None) -> bool:
        """Until there is a place or something to hear: look again. One is inside, or looks. False: it took long."""
        queue = self._queue(tenant)
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.outside.append(called)
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
                    queue.outside.remove(called)
            else:
                queue.called -= 1
            self._clear(tenant, queue)

    def _queue(self, tenant: str) -> _Queue:
        queue = self._queues.get(tenant)
        if queue is None:
            queue = self._queues[tenant] = _Queue()
        return queue

    def enter(self, tenant: str) -> None:
        self._queue(tenant).inside += 1

    def leave(self, tenant: str) -> None:
        queue = self._queues[tenant]
        queue.inside -= 1
        self._call(queue, ON_THE_WAY - queue.inside - queue.called)
        self._clear(tenant, queue)

    def pass_on(self, tenant: str) -> None:
        """Whoever was called has come in, or has gone. If nobody is inside who would call the next ones, he does."""
        queue = self._queues.get(tenant)
        if queue is not None and not queue.inside and not queue.called:
            self._call(queue, len(queue.outside))

    def _clear(self, tenant: str, queue: _Queue) -> None:
        if not queue.inside and not queue.called and not queue.outside and self._queues.get(tenant) is queue:
            del self._queues[tenant]

    def call_all(self, tenant: str) -> None:
        """Those who wait are to look again: there may be no sense in waiting."""
        queue = self._queues.get(tenant)
        if queue is not None:
            self._call(queue, len(queue.outside))

    def _call(self, queue: _Queue, number: int) -> None:
        while queue.outside and number > 0:
            called = queue.outside.popleft()
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
        """Waits until the start may ask again. False: it waited as long as a refusal may take."""
        patience_s = PATIENCE_S if self.over_limit.is_known(tenant) else None
        self.over_limit.waits(tenant)
        return await self.starting.wait(tenant, patience_s)

    def refused(self, tenant: str) -> None:
        """By the database."""
        if self.over_limit.refused(tenant):
            self.starting.call_all(tenant)

    def must_look(self, tenant: str) -> bool:
        return self.over_limit.must_look(tenant)

    async def look(self, tenant: str) -> None:
        """Reads how much room the tenant has. If that fails, or the limit is gone, starts ask the database again."""
        room: int | None = None
        try:
            with suppress(StorageError):
                for use in await self._store.limits.tenants(tenant):
                    room = use.max_in_flight - use.in_flight
        finally:
            if room is None:
                self.over_limit.forget(tenant)
            else:
                self.over_limit.told(tenant, room - self.starting.inside(tenant))
            self.starting.call_all(tenant)

    def note_room(self, left: Mapping[str, int]) -> None:
        """A commit reported how much room it left."""
        for tenant, room in left.items():
            self.over_limit.told(tenant, room - self.starting.inside(tenant))
            if self.over_limit.is_known(tenant):
                self.starting.call_all(tenant)

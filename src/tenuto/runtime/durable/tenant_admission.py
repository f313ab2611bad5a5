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
from contextlib import suppress
from typing import Final

MANY: Final = 64  # refusals; fewer are each asked about
AT_ONCE: Final = 16  # starts of a tenant that is known to ask for too much; each adds to what the others wait
MOMENT_S: Final = 0.1
SCOUTING_S: Final = 1.0  # then another is sent: what became of the first may be unknown
FORGOTTEN_S: Final = 5.0
PATIENCE_S: Final = 0.025  # for which somebody waits who may well be refused: others come for the room that is found
ON_THE_WAY: Final = 500


class _Crowd:
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


class Crowds:
    """By tenant. Where nobody is refused there is nothing in it."""

    __slots__ = ("_crowds",)

    def __init__(self) -> None:
        self._crowds: dict[str, _Crowd] = {}

    def is_known(self, tenant: str) -> bool:
        """Whether so many were refused that this process decides by itself."""
        crowd = self._crowds.get(tenant)
        return crowd is not None and crowd.refusals >= MANY

    def is_worth_waiting(self, tenant: str) -> bool:
        """Whether somebody is on the way to see how much room there is, and not many have waited for him yet."""
        crowd = self._crowds.get(tenant)
        return crowd is not None and crowd.is_worth_waiting

    def waits(self, tenant: str) -> None:
        """One more waits for what is to be heard."""
        if (crowd := self._crowds.get(tenant)) is not None:
            crowd.waited += 1

    def is_full(self, tenant: str) -> bool:
        """Whether a start is refused that comes now. It uses up no room."""
        crowd = self._crowds.get(tenant)
        if crowd is None or crowd.refusals < MANY or crowd.room:
            return False
        now = time.monotonic()
        if now > crowd.until or crowd.is_worth_waiting:
            return False
        crowd.refused_at = now
        return True

    def has_enough(self, tenant: str, under_way: int) -> bool:
        """Whether so many starts are under way that one more would only make them wait for each other."""
        return under_way >= AT_ONCE and self.is_known(tenant)

    def must_look(self, tenant: str) -> bool:
        """Whether it is time to look for room. Whoever is told so looks, and the others wait for him."""
        crowd = self._crowds.get(tenant)
        if crowd is None or crowd.refusals < MANY or crowd.room:
            return False
        now = time.monotonic()
        if now <= crowd.until or now > crowd.refused_at + FORGOTTEN_S:
            return False
        self._scout(crowd, now)
        return True

    def _scout(self, crowd: _Crowd, now: float) -> None:
        crowd.is_scouting = True
        crowd.waited = 0 if now > crowd.until else crowd.waited
        crowd.until = now + SCOUTING_S

    def refuse(self, tenant: str) -> bool:
        """Whether a start is refused without asking the database. Otherwise it is on its way."""
        if self.is_full(tenant):
            return True
        crowd = self._crowds.get(tenant)
        if crowd is None or crowd.refusals < MANY:
            return False
        now = time.monotonic()
        if now > crowd.refused_at + FORGOTTEN_S:
            del self._crowds[tenant]
        elif crowd.room:
            crowd.room -= 1
        else:
            self._scout(crowd, now)
        return False

    def refused(self, tenant: str) -> bool:
        """By the database. Gives whether that was the last one that it was asked about."""
        crowd = self._crowds.setdefault(tenant, _Crowd())
        crowd.refusals += 1
        crowd.refused_at = time.monotonic()
        crowd.until = crowd.refused_at + MOMENT_S
        return crowd.refusals == MANY

    def accepted(self, tenant: str) -> None:
        """By the database."""
        crowd = self._crowds.get(tenant)
        if crowd is not None and crowd.refusals < MANY:
            del self._crowds[tenant]

    def told(self, tenant: str, room: int) -> None:
        """A commit said how much room it left for those whom it did not answer."""
        crowd = self._crowds.get(tenant)
        if crowd is not None:
            crowd.room = max(room, 0)
            crowd.until = time.monotonic() + MOMENT_S
            crowd.is_scouting = False

    def ended(self, tenant: str) -> None:
        """One of its executions, here, in a later commit than the last that told."""
        crowd = self._crowds.get(tenant)
        if crowd is not None:
            crowd.room += 1

    def forget(self, tenant: str) -> None:
        """Its limit was changed."""
        self._crowds.pop(tenant, None)


class _Queue:
    __slots__ = ("called", "inside", "outside")

    def __init__(self) -> None:
        self.inside = 0
        self.called = 0  # and not come yet
        self.outside: deque[asyncio.Future[None]] = deque()


class Door:
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

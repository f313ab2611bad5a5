"""Limits that all workers of a database share: the permits that this process has, and when it asks for more.

The database deals permits (`storage/permits.py`) to all attempts that wait at once: while one exchange is under way,
further requests gather for the next. Permits are used without asking again. Each exchange gives back the permits that
are not in use, and another follows soon while any are held or wanted. So other workers get their share, and a changed
limit is noticed. Attempts that name no limit never come here.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from tenuto.runtime.clock import Clock, Timer
from tenuto.runtime.executor.limits import LimitedQueue, Names, total_wanted
from tenuto.runtime.supervision import supervised
from tenuto.storage.permits import Ask, Dealt, Share
from tenuto.storage.port import Store
from tenuto.values.jitter import spread

from .session import CurrentSession

REFRESH_MS: Final = 200
GOOD_MS: Final = 1_000  # what was dealt is good for so long: without word from the database nothing more starts
RETRY_MS: Final = (10, 20, 40, 80, 160, REFRESH_MS)
LONGEST_MS: Final = 500  # whatever the rate says: others may give back what they were dealt, or lift the limit
SPARE: Final = 50


class Permit:
    """The permits of this process under one limit. None: the limit has no such bound."""

    __slots__ = ("good_until", "most", "running", "slice", "started", "starts", "told")

    def __init__(self) -> None:
        self.running = 0
        self.most: int | None = 0
        self.starts: int | None = 0
        self.slice = 0
        self.started = 0  # since the last exchange
        self.told = 0  # how many the database was told that run: it holds so many for us
        self.good_until = 0

    def is_spent(self, now_ms: int) -> bool:
        full = self.most is not None and self.running >= self.most
        return full or self.starts == 0 or now_ms >= self.good_until

    @property
    def is_starved(self) -> bool:
        """It could run another, and has used up the starts it was dealt."""
        return self.starts == 0 and (self.most is None or self.running < self.most)

    @property
    def is_idle(self) -> bool:
        return not self.running and not self.told and not self.most and not self.starts

    @property
    def is_overdue(self) -> bool:
        """Whether attempts ended that the database still counts, while the limit is reached."""
        return self.told > self.running and self.most is not None and self.running >= self.most

    def give_back(self) -> None:
        """Gives up unused permits for the length of an exchange: other sessions may get them."""
        self.told = self.running
        self.most = self.running if self.most is None else min(self.most, self.running)
        self.starts = 0
        self.started = 0

    def dealt(self, share: Share, good_until: int) -> None:
        self.most, self.starts, self.slice = share.running, share.starts, share.slice
        self.good_until = good_until


class Permits:
    """Implements `Limits`. `exchange` sends a request to the database, and returns None if the session has ended."""

    def __init__(self, clock: Clock, exchange: Callable[[Ask], Awaitable[Dealt | None]]) -> None:
        self._clock = clock
        self._exchange = exchange
        self._queues: list[LimitedQueue] = []
        self._named: dict[str, Permit] = {}
        self._denied: dict[Names, None] = {}  # asked for at the last exchange, and not dealt in full
        self._closed_until = 0  # by a rate
        self._failures = 0
        self._timer: Timer | None = None
        self._due_at = 0
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.exchanges = 0

    # For lanes

    def add_queue(self, queue: LimitedQueue) -> None:
        self._queues.append(queue)

    def spent(self, names: Names) -> str | None:
        now = self._clock.now_ms()
        return next((name for name in names if self._permit(name).is_spent(now)), None)

    def _permit(self, name: str) -> Permit:
        permit = self._named.get(name)
        if permit is None:
            permit = self._named[name] = Permit()
        return permit

    def wait(self, names: Names) -> None:
        if names not in self._denied:
            self._ask_in(0)
        elif self._clock.now_ms() >= self._closed_until and any(self._permit(name).is_starved for name in names):
            self._ask_in(RETRY_MS[0])
        # Else there is a time to ask again.

    def take(self, names: Names) -> None:
        for name in names:
            permit = self._permit(name)
            permit.running += 1
            permit.started += 1
            if permit.starts is not None:
                permit.starts -= 1

    def undo(self, names: Names) -> None:
        for name in names:
            permit = self._permit(name)
            permit.running -= 1
            permit.started -= 1
            if permit.starts is not None:
                permit.starts += 1

    def leave(self, names: Names) -> None:
        for name in names:
            permit = self._permit(name)
            permit.running -= 1
            if permit.most is not None and permit.running >= permit.most:
                self._ask_in(0)  # another session may wait for this permit

    def changed(self) -> None:
        """A limit was set: what is known of it is out of date."""
        for permit in self._named.values():
            permit.good_until = 0
        self._denied.clear()
        self._ask_in(0)

    def forget(self) -> None:
        """The session is over, and all that was dealt to it. What still runs counts for the next one."""
        for permit in self._named.values():
            permit.give_back()
            permit.told = 0
            permit.good_until = 0
        self._denied.clear()

    # Exchanges

    def _ask_in(self, delay_ms: int) -> None:
        due_at = self._clock.now_ms() + delay_ms
        if self._closed or self._task is not None or (self._timer is not None and self._due_at <= due_at):
            return
        self._stop_timer()
        self._due_at = due_at
        self._timer = self._clock.call_later(delay_ms, self._begin)

    def _begin(self) -> None:
        self._timer = None
        if not self._closed and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._ask(), name="tenuto-permits")

    async def _ask(self) -> None:
        wanted = total_wanted(self._queues)
        ask = self._make_ask(wanted)
        dealt: Dealt | None = None
        try:
            # If it fails, nothing was dealt, as far as we know: what the database thinks the next exchange mends.
            with supervised("Sharing out limits"):
                if ask.names:
                    self.exchanges += 1
                    dealt = await self._exchange(ask)
        finally:
            self._task = None
        if not ask.names:
            self._denied.clear()  # nothing is wanted, for the moment: what is later, has to be asked for again
        if self._closed or not ask.names:
            return
        if dealt is not None:
            self._take_up(ask, dealt)
        else:
            self._denied = dict.fromkeys(wanted)  # asked for again when it is time, and not at once
        self._plan(dealt)
        for queue in self._queues:
            queue.pump()

    def _make_ask(self, wanted: dict[Names, int]) -> Ask:
        named = {name for names in wanted for name in names}
        active = {name: p for name, p in self._named.items() if not p.is_idle or p.started or name in named}
        ask = Ask(
            running={name: permit.running for name, permit in active.items()},
            unspent={name: (permit.slice, permit.starts) for name, permit in active.items() if permit.starts},
            wants=list(wanted.items()),
            spare={name: min(permit.started, SPARE) for name, permit in active.items() if permit.started},
        )
        for permit in active.values():
            permit.give_back()
        return ask

    def _take_up(self, ask: Ask, dealt: Dealt) -> None:
        now = self._clock.now_ms()
        for name, share in dealt.shares.items():
            self._permit(name).dealt(share, now + GOOD_MS)
        self._denied = dict.fromkeys(dealt.denied)
        self._closed_until = now + dealt.retry_ms
        more = any(share.starts or (share.running or 0) > ask.running.get(n, 0) for n, share in dealt.shares.items())
        self._failures = 0 if more or not dealt.denied else self._failures + 1

    def _plan(self, dealt: Dealt | None) -> None:
        """When to come again: soon while something is wanted, after a while as long as something is held."""
        if dealt is None or self._denied:
            patience = RETRY_MS[min(self._failures, len(RETRY_MS) - 1)]
            retry_ms = spread(REFRESH_MS) if dealt is None else min(max(dealt.retry_ms, patience), LONGEST_MS)
            self._ask_in(int(retry_ms))
        if any(permit.is_overdue for permit in self._named.values()):
            self._ask_in(0)
        if not all(permit.is_idle for permit in self._named.values()):
            self._ask_in(REFRESH_MS)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        self._closed = True
        self._stop_timer()
        if self._task is not None:
            self._task.cancel()


class PermitExchange:
    """Exchanges permits in the name of the current session."""

    def __init__(self, store: Store, current: CurrentSession) -> None:
        self._store = store
        self._current = current

    async def exchange(self, ask: Ask) -> Dealt | None:
        session = self._current.session
        if not session.may_start:
            return None
        dealt = await self._store.limits.exchange(session.id, ask)
        if dealt is None and session is self._current.session:
            session.lose()
        return None if session is not self._current.session else dealt

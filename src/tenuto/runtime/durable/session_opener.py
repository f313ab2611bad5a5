"""Opens the session of this process, and another one when it is lost."""

import asyncio
from collections.abc import Callable

from tenuto.runtime.executor.worker import Worker
from tenuto.runtime.supervision import supervised
from tenuto.storage.port import EVERYTHING, Store
from tenuto.values.jitter import spread

from .clock import DatabaseClock
from .committer import Committer
from .session import CurrentSession, Session
from .tenant_admission import TenantAdmission
from .wakeups import Wakeups


class SessionOpener:
    """`on_lost`: forgets everything that the session owned. `on_time`: the clock was set forward."""

    def __init__(
        self,
        store: Store,
        current: CurrentSession,
        wakeups: Wakeups,
        worker: Worker,
        admission: TenantAdmission,
        on_lost: Callable[[], None],
        on_time: Callable[[], None],
    ) -> None:
        self._store = store
        self._current = current
        self._wakeups = wakeups
        self._worker = worker
        self._admission = admission
        self._on_lost = on_lost
        self._on_time = on_time
        self._reopening: asyncio.Task[None] | None = None
        self._former: list[Committer] = []  # of lost sessions: their writes are refused

    async def open(self) -> None:
        worker, current = self._worker, self._current
        environment = worker.environment
        session = Session(self._store, environment.new_id(), self._lose, self.note_time, lease_ms=current.lease_ms)
        queues = sorted(worker.queues) if worker.works else None
        self.note_time(await session.open(environment.worker, environment.build, queues))
        current.session = session
        current.committer = Committer(
            self._store, session.id, self.note_time, session.lose, self._admission.note_capacity
        )
        current.committer.start()

    def note_time(self, now_ms: int) -> None:
        """The database has told the time."""
        clock = self._worker.environment.clock
        if isinstance(clock, DatabaseClock) and clock.note(now_ms):
            self._on_time()

    def _lose(self) -> None:
        """This process was declared dead, and others own its executions: it forgets them, and opens another session."""
        self._on_lost()
        if not self._worker.closing:
            self._reopening = asyncio.ensure_future(self._reopen(self._current.committer))

    async def _reopen(self, former: Committer) -> None:
        self._former.append(former)
        while not self._current.session.alive:
            with supervised("Opening another session"):
                await self.open()
                break
            await asyncio.sleep(spread(self._wakeups.poll_s, 0, 2))
        self._reopening = None
        self._wakeups.notify_all(EVERYTHING)
        await former.stop()
        self._former.remove(former)

    async def until_reopened(self) -> None:
        if self._reopening is not None:
            await asyncio.wait([self._reopening])

    async def stop_reopening(self) -> None:
        if self._reopening is not None:
            self._reopening.cancel()
            await asyncio.wait([self._reopening])

    async def stop_committers(self, patience_s: float) -> None:
        for committer in (*self._former, self._current.committer):
            await committer.stop(patience_s)

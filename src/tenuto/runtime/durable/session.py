"""The session: this process's right to the executions it owns, kept alive by a thread of its own."""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from tenuto.storage.port import Renewal, Store

from .committer import Committer

logger = logging.getLogger("tenuto.durable")

LEASE_MS = 15_000
STANDSTILL = 4  # leases for which the event loop may stand still; then what it owns is left to others


class Session:
    def __init__(
        self,
        store: Store,
        id: str,
        on_lost: Callable[[], None],
        on_time: Callable[[int], None],
        *,
        lease_ms: int = LEASE_MS,
    ) -> None:
        self.id = id
        self.lease_ms = lease_ms
        self._store = store
        self._on_lost = on_lost
        self._on_time = on_time
        self._stop = threading.Event()
        self._ended = asyncio.Event()
        self._thread: threading.Thread | None = None
        self._renewed_at = 0.0
        self._good_until = 0.0
        self._turned_at = 0.0
        self.alive = False

    async def open(self, worker: str, build: str, queues: Sequence[str] | None) -> int:
        now = await self._store.sessions.open(self.id, worker, build, self.lease_ms, queues)
        self._turned_at = time.monotonic()
        self._renewed(self._turned_at)
        self.alive = True
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._keep_alive, args=(loop,), name="tenuto-session", daemon=True)
        self._thread.start()
        return now

    def _renewed(self, at: float) -> None:
        self._renewed_at = at
        self._good_until = at + self.lease_ms / 1_000

    def _keep_alive(self, loop: asyncio.AbstractEventLoop) -> None:
        def tell(renewal: Renewal) -> None:
            if renewal.alive and not self._stands_still:
                self._renewed(renewal.asked_at)
                loop.call_soon_threadsafe(self._turn, renewal.now)
            else:
                self._stop.set()
                loop.call_soon_threadsafe(self.lose)

        with suppress(RuntimeError):  # the event loop is gone, and with it all executions
            try:
                self._store.sessions.keep_alive(self.id, self.lease_ms, tell, self._stop)
            except Exception as error:
                loop.call_soon_threadsafe(self.lose)  # this thread no longer renews the lease
                logger.error("The lease is no longer renewed; another session is opened.", exc_info=error)
            finally:
                loop.call_soon_threadsafe(self._ended.set)

    def _turn(self, now_ms: int) -> None:
        self._turned_at = time.monotonic()
        self._on_time(now_ms)  # also to a process that commits nothing

    @property
    def _stands_still(self) -> bool:
        """Whether a handler blocks the event loop. Otherwise the thread would renew the lease of a stuck process."""
        return time.monotonic() - self._turned_at > STANDSTILL * self.lease_ms / 1_000

    def lose(self) -> None:
        """Gives up the session, because another process has ended it or may do so."""
        if self.alive:
            self.alive = False
            self._stop.set()
            self._on_lost()

    @property
    def may_start(self) -> bool:
        """Whether the lease has not run out by this process's own clock: else nothing new is begun under it."""
        return self.alive and time.monotonic() < self._good_until

    @property
    def renewed_ms(self) -> int:
        """How long ago the lease was last renewed."""
        return int((time.monotonic() - self._renewed_at) * 1_000)

    def stop(self) -> None:
        """Renews it no more."""
        self._stop.set()

    async def close(self) -> None:
        self.stop()
        if self._thread is not None:
            await self._ended.wait()  # and not in the loop's executor, which a handler may have shut
        if self.alive:
            self.alive = False
            await self._store.sessions.end(self.id)


class CurrentSession:
    """The session that this process has at present, and the committer that writes in its name.

    Both are replaced together when the session is lost and another one is opened.
    """

    __slots__ = ("committer", "lease_ms", "session")

    def __init__(self, lease_ms: int) -> None:
        self.lease_ms = lease_ms
        self.session: Session
        self.committer: Committer

    def may_start(self) -> bool:
        return self.session.may_start

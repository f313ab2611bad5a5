"""Sessions of worker processes, which hold the leases on executions."""

import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from msgspec import Struct

from tenuto.values.jitter import spread

SESSIONS_KEPT_MS: Final = 24 * 3_600_000  # ended sessions stay visible for a day


class Renewal(Struct, frozen=True):
    """`alive`: the session is live. `now`: the database's clock. The lease counts from `asked_at`."""

    now: int
    alive: bool
    asked_at: float


def renewal_s(lease_ms: int) -> float:
    """When to renew a lease next: within a third of it, with jitter."""
    return spread(lease_ms / 3_000, 0.75, 1)


class Sessions(Protocol):
    """Sessions of worker processes: a lease each, which its owner renews."""

    async def open(self, id: str, worker: str, build: str, lease_ms: int, queues: Sequence[str] | None) -> int:
        """Opens a session, and returns the database's time.

        `queues` None: the process runs no steps. Empty: it runs only steps that are on no queue.
        """

    def keep_alive(self, id: str, lease_ms: int, tell: Callable[[Renewal], None], stop: threading.Event) -> None:
        """Renews the session at a third of its lease until `stop`, in the calling thread, on its own connection."""

    async def end(self, id: str) -> None: ...

    async def reap(self, own: str = "") -> int:
        """Ends expired sessions, except one's own. Their executions become due. Returns how many."""

    async def mark_restored(self) -> int:
        """Raises the database's incarnation, which ends every session opened before, and returns it."""

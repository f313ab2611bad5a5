"""Figures about a running system: live sessions, and what waits."""

from typing import Protocol

from msgspec import Struct


class SessionRow(Struct, frozen=True, kw_only=True):
    """A live session, and how many executions it owns. `queues` is JSON; null if it runs no steps."""

    id: str
    worker: str
    build: str
    queues: str
    started_at: int
    expires_at: int
    executions: int

    @property
    def works(self) -> bool:
        return self.queues != "null"


class BacklogRow(Struct, frozen=True):
    """A count, and since when the oldest has waited. In the row `now`, `oldest` is the database's time."""

    what: str  # reviews, due, owned, mail, tasks, outbox, sessions, now
    label: str
    count: int
    oldest: int | None = None


COUNTED = 10_000  # counts of the overview stop here, so that they cost the same in a large database


class Operations(Protocol):
    async def sessions(self) -> list[SessionRow]:
        """Sessions that have not ended, oldest first."""

    async def backlog(self) -> list[BacklogRow]:
        """What waits, and for how long. Reads partial indexes only, so it is cheap enough to poll."""

    async def overview(self, tenant: str | None) -> list[BacklogRow]:
        """Figures of one tenant, or of all: `executions` by status and open `reviews` by kind, `COUNTED` at most each,
        `due`, since when the oldest execution has waited for a worker, `tasks` by queue, and `now`."""

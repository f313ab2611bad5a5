"""A store that notes how its database does: how long commits and claims take, what fails, how often a lease is lost.

Everything that is not named here goes to the store as it is.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from tenuto.errors import StorageError
from tenuto.storage.port import Batch, Claim, Committed, Store

from . import catalogue as c
from .tally import Counts, Histogram


class Meter:
    """What was noted."""

    def __init__(self, counts: dict[c.Metric, Counts]) -> None:
        self.counts = counts
        self.commits = Histogram(c.STORE_BOUNDS)
        self.batches = Histogram(c.BATCH_BOUNDS)
        self.claims = Histogram(c.STORE_BOUNDS)
        self.sessions = 0

    def store(self, store: Store) -> Store:
        return cast(Store, _Metered(store, self))


class _Metered:
    def __init__(self, store: Store, meter: Meter) -> None:
        self._store = store
        self._meter = meter

    if not TYPE_CHECKING:  # to whoever asks it is a `Store`, and the rest of one

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

    async def commit(self, batch: Batch) -> Committed:
        meter = self._meter
        began = time.perf_counter()
        try:
            committed = await self._store.commit(batch)
        except StorageError as error:
            meter.counts[c.STORE_ERRORS][error.code,] += 1
            raise
        meter.commits.note((time.perf_counter() - began) * 1_000)
        meter.batches.note(len(batch.appends))
        if aside := sum(1 for where in batch.standings.values() if where.parked):
            meter.counts[c.SET_ASIDE][()] += aside
        return committed

    async def claim(self, session: str, plans: Sequence[str], limit: int) -> list[Claim]:
        meter = self._meter
        began = time.perf_counter()
        try:
            claims = await self._store.claim(session, plans, limit)
        except StorageError as error:
            meter.counts[c.STORE_ERRORS][error.code,] += 1
            raise
        meter.claims.note((time.perf_counter() - began) * 1_000)
        meter.counts[c.CLAIMED][()] += len(claims)
        return claims

    async def reap(self, own: str = "") -> int:
        ended = await self._store.reap(own)
        self._meter.counts[c.SESSIONS_ENDED][()] += ended
        return ended

    async def park(
        self, session: str | None, execution: str, why: str, again_ms: int | None, epoch: int | None = None
    ) -> None:
        await self._store.park(session, execution, why, again_ms, epoch)
        self._meter.counts[c.SET_ASIDE][()] += bool(why)

    async def open_session(self, *given: Any, **named: Any) -> int:
        """A process opens a session when it begins, and another each time it lost the one before."""
        now = await self._store.open_session(*given, **named)
        if self._meter.sessions:
            self._meter.counts[c.SESSIONS_LOST][()] += 1
        self._meter.sessions += 1
        return now

"""Measures a store: durations of commits and claims, errors, and lost leases.

All other methods are passed through to the store.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from tenuto.errors import StorageError
from tenuto.storage.port import Batch, Claim, Claims, Committed, Sessions, Store

from . import catalogue as c
from .tally import Counts, Histogram


class Meter:
    """The measurements of one store."""

    def __init__(self, counts: dict[c.Metric, Counts]) -> None:
        self.counts = counts
        self.commits = Histogram(c.STORE_BOUNDS)
        self.batches = Histogram(c.BATCH_BOUNDS)
        self.claims = Histogram(c.STORE_BOUNDS)
        self.sessions = 0

    def store(self, store: Store) -> Store:
        return cast(Store, _Metered(store, self))


class _Metered:
    """A store that measures its commits and some methods of its ports."""

    def __init__(self, store: Store, meter: Meter) -> None:
        self._store = store
        self._meter = meter
        self.claims = _MeteredClaims(store.claims, meter)
        self.sessions = _MeteredSessions(store.sessions, meter)

    if not TYPE_CHECKING:  # the rest of a `Store`

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
        if parked := sum(1 for standing in batch.standings.values() if standing.parked):
            meter.counts[c.SET_ASIDE][()] += parked
        return committed


class _MeteredClaims:
    def __init__(self, claims: Claims, meter: Meter) -> None:
        self._claims = claims
        self._meter = meter

    if not TYPE_CHECKING:  # the rest of `Claims`

        def __getattr__(self, name: str) -> Any:
            return getattr(self._claims, name)

    async def claim(self, session: str, plans: Sequence[str], limit: int) -> list[Claim]:
        meter = self._meter
        began = time.perf_counter()
        try:
            claims = await self._claims.claim(session, plans, limit)
        except StorageError as error:
            meter.counts[c.STORE_ERRORS][error.code,] += 1
            raise
        meter.claims.note((time.perf_counter() - began) * 1_000)
        meter.counts[c.CLAIMED][()] += len(claims)
        return claims

    async def park(
        self, session: str | None, execution: str, why: str, again_ms: int | None, epoch: int | None = None
    ) -> None:
        await self._claims.park(session, execution, why, again_ms, epoch)
        self._meter.counts[c.SET_ASIDE][()] += bool(why)


class _MeteredSessions:
    def __init__(self, sessions: Sessions, meter: Meter) -> None:
        self._sessions = sessions
        self._meter = meter

    if not TYPE_CHECKING:  # the rest of `Sessions`

        def __getattr__(self, name: str) -> Any:
            return getattr(self._sessions, name)

    async def open(self, *given: Any, **named: Any) -> int:
        """Counts sessions. A process opens one when it starts, and another each time it has lost its session."""
        now = await self._sessions.open(*given, **named)
        if self._meter.sessions:
            self._meter.counts[c.SESSIONS_LOST][()] += 1
        self._meter.sessions += 1
        return now

    async def reap(self, own: str = "") -> int:
        ended = await self._sessions.reap(own)
        self._meter.counts[c.SESSIONS_ENDED][()] += ended
        return ended

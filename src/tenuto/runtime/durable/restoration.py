"""Brings executions into memory: from a snapshot and the entries after it, or from the whole history."""

import asyncio
from collections.abc import Callable

from tenuto.errors import StorageError
from tenuto.kernel.codec import decode_entries
from tenuto.kernel.evolve import evolve
from tenuto.runtime.executor.held_execution import Record, Ticket
from tenuto.storage.port import Loaded, Store
from tenuto.values.jitter import spread

from . import snapshots
from .wakeups import Wakeups


class Restorer:
    def __init__(self, store: Store, wakeups: Wakeups, *, reads_all: bool) -> None:
        """`reads_all`: observers are shown whole histories."""
        self._store = store
        self._wakeups = wakeups
        self._reads_all = reads_all
        self._fetching: dict[asyncio.Future[None], None] = {}

    async def restore(self, record: Record, loaded: Loaded) -> None:
        """Brings a new record to where its execution stands."""
        if loaded.snapshot is None or not snapshots.restore(record, loaded):
            await self._restore_whole(record, loaded)
        if self._reads_all and record.unread:
            await self.read_all(record)
        record.state.changed.clear()

    async def _restore_whole(self, record: Record, loaded: Loaded) -> None:
        """From the beginning: the history is short, or another release wrote the snapshot."""
        if loaded.snapshot is not None:
            (loaded,) = await self._store.executions.load([loaded.row.id])
        entries = [entry for body in loaded.bodies for entry in decode_entries(body)]
        for entry in entries:
            evolve(record.state, entry)
        record.note(entries)
        record.tail = sum(len(body) for body in loaded.bodies)

    def fetch_missing(self, ticket: Ticket, then: Callable[[Ticket], None]) -> bool:
        """Whether the attempt reads entries that are not in memory. They are fetched, and `then` is called."""
        seqs = snapshots.needed(ticket.record, ticket.ref)
        if seqs:
            fetching = asyncio.ensure_future(self._fetch(ticket, seqs, then))
            self._fetching[fetching] = None
            fetching.add_done_callback(self._fetching.pop)
        return bool(seqs)

    async def _fetch(self, ticket: Ticket, seqs: list[int], then: Callable[[Ticket], None]) -> None:
        record, ref, _ = ticket
        while record.tickets.get(ref) is ticket:
            try:
                snapshots.fill(record, await self._store.executions.holding(record.state.id, seqs))
                break
            except StorageError:
                await asyncio.sleep(spread(self._wakeups.poll_s))
        then(ticket)

    async def read_all(self, record: Record) -> None:
        """Reads the entries that the snapshot made it possible to skip."""
        snapshots.fill(record, await self._store.executions.bodies(record.state.id, 1, record.unread))
        record.unread = 0

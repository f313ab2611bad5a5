"""The feed: status changes of executions, read once for all viewers in this process, and encoded once.

One task reads the changes while there are viewers. A viewer that cannot keep up, or that comes back too late, gets a
`reset`: it then reads the lists again.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from zlib import crc32

from tenuto.errors import EngineClosed
from tenuto.kernel.events import Entry
from tenuto.runtime.supervision import supervised
from tenuto.storage.status_changes import ROWS_AT_ONCE, ChangesRow, StatusChange, StatusChanges
from tenuto.views import event_document
from tenuto.views.feed import RESET, FeedChunk, FeedEvent, status_event, watched_event
from tenuto.views.reading import Reading

from .overview import Overviews

EVERY_SECONDS = 0.25
LATE_SECONDS = 10.0  # the server ends a transaction sooner: a position that is still missing then was rolled back
MOST_MISSING = 1_000
RECENT = 100
MOST_PENDING = 5_000  # statuses, or events, that a viewer has not taken


class FeedSource(Protocol):
    """Reads the executions that are watched."""

    async def read_state(self, tenant: str | None, execution_id: str) -> Reading: ...

    async def entries(self, tenant: str | None, execution_id: str, after: int) -> list[Entry]: ...

    async def tails(self, after: Mapping[str, int]) -> Mapping[str, Sequence[Entry]]:
        """The entries of several executions, each after the last one of a commit."""


@dataclass(slots=True, eq=False)
class _Viewer:
    """One stream, and what it has not taken yet: of an execution, only the last status."""

    tenant: str | None
    watched: dict[str, int]  # how far the viewer has seen each execution that it watches
    statuses: dict[str, FeedEvent] = field(default_factory=dict)
    events: list[FeedEvent] = field(default_factory=list)
    must_reset: bool = False
    is_over: bool = False
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def add_status(self, tenant: str, event: FeedEvent) -> None:
        if self.tenant not in (None, tenant) or self.must_reset:
            return
        self.statuses[event.execution_id] = event
        if len(self.statuses) > MOST_PENDING:
            self.reset()
        self.news.set()

    def add_entry(self, seq: int, event: FeedEvent) -> None:
        if seq <= self.watched[event.execution_id]:
            return
        self.watched[event.execution_id] = seq
        if self.must_reset:
            return
        self.events.append(event)
        if len(self.events) > MOST_PENDING:
            self.reset()
        self.news.set()

    def reset(self) -> None:
        self.statuses.clear()
        self.events.clear()
        self.must_reset = True
        self.news.set()

    def take(self, position: int) -> FeedChunk:
        self.news.clear()
        events = [RESET] if self.must_reset else [*self.events, *self.statuses.values()]
        self.must_reset = False
        self.events.clear()
        self.statuses.clear()
        return FeedChunk(self._reached(position), events)

    def _reached(self, position: int) -> str:
        """The position, and how far each watched execution was seen. The last number tells which they are."""
        if not self.watched:
            return f"{position}"
        return "-".join(map(str, (position, *self.watched.values(), _check(self.watched))))


class StatusFeed:
    """Implements `Feed`: reads status changes and the events of watched executions, and hands them to the viewers."""

    def __init__(self, changes: StatusChanges, source: FeedSource, overviews: Overviews) -> None:
        self._changes = changes
        self._source = source
        self.overview = overviews.overview
        self._viewers: dict[_Viewer, None] = {}
        self._task: asyncio.Task[None] | None = None
        self._last = 0  # position of the last row that was read
        self._missing: dict[int, float] = {}  # positions before it that may still appear, and until when
        self._watched: dict[str, int] = {}
        self._joining = asyncio.Lock()
        self._is_closed = False

    async def follow(
        self, tenant: str | None, watched: Mapping[str, int | None], after: str | None
    ) -> AsyncIterator[FeedChunk]:
        """Yields chunks from now on, or from where a viewer stopped. The first one says where that is.

        `watched` are executions, each with the event after which to begin; None: the last one now.
        """
        now = {id: (await self._source.read_state(tenant, id)).state.seq for id in watched}
        viewer = _Viewer(tenant, {id: now[id] if seq is None else seq for id, seq in watched.items()})
        try:
            await self._join(viewer, now, after)
            yield viewer.take(self._position)
            while True:
                await viewer.news.wait()
                if viewer.is_over:
                    raise EngineClosed("The engine was closed.")
                yield viewer.take(self._position)
        finally:
            self._leave(viewer)

    def close(self) -> None:
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()
        for viewer in self._viewers:
            viewer.is_over = True
            viewer.news.set()

    @property
    def _position(self) -> int:
        """Every row up to this position was read, or will not appear."""
        return min(self._missing) - 1 if self._missing else self._last

    # Viewers

    async def _join(self, viewer: _Viewer, now: Mapping[str, int], after: str | None) -> None:
        """`now` are the last events of the executions that the viewer watches."""
        if self._is_closed:
            raise EngineClosed("The engine was closed.")
        async with self._joining:
            if not self._viewers:
                await self._begin()
            self._viewers[viewer] = None  # from here on it misses nothing
        position, seen = _parsed(after)
        if seen[-1:] == [_check(viewer.watched)] and len(seen) == len(viewer.watched) + 1:
            viewer.watched = dict(zip(viewer.watched, seen, strict=False))
        behind = {id: seq for id, seq in viewer.watched.items() if self._watched.setdefault(id, now[id]) > seq}
        if after is not None:
            await self._catch_up(viewer, position)
        for id, seq in behind.items():
            for entry in await self._source.entries(viewer.tenant, id, seq):
                viewer.add_entry(entry.seq, watched_event(id, event_document(entry)))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="tenuto-feed")

    async def _catch_up(self, viewer: _Viewer, position: int | None) -> None:
        """Adds what the viewer missed. What it may have seen comes again, because that does no harm."""
        stored = await self._changes.positions()
        if position is None or not stored.first - 1 <= position <= stored.last:
            viewer.reset()
            return
        rows = await self._changes.after(position)
        if len(rows) == ROWS_AT_ONCE:
            viewer.reset()
            return
        newer, viewer.statuses = viewer.statuses, {}
        for tenant, event in _status_events(rows):
            viewer.add_status(tenant, event)
        viewer.statuses |= newer

    def _leave(self, viewer: _Viewer) -> None:
        self._viewers.pop(viewer, None)
        watched = {id for each in self._viewers for id in each.watched}
        self._watched = {id: seq for id, seq in self._watched.items() if id in watched}
        if not self._viewers and self._task is not None:
            self._task.cancel()
            self._task = None

    # Reading

    async def _begin(self) -> None:
        """Begins at the last row. Commits with a position shortly before it may not be visible yet."""
        stored = await self._changes.positions()
        recent = max(stored.first - 1, stored.last - RECENT)
        visible = {row.position for row in await self._changes.after(recent)}
        until = asyncio.get_running_loop().time() + LATE_SECONDS
        self._last = stored.last
        self._missing = {number: until for number in range(recent + 1, stored.last) if number not in visible}

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_SECONDS)
            with supervised("Reading status changes"):
                await self._read_statuses()
            if self._watched:
                with supervised("Reading events of watched executions"):
                    await self._read_watched()

    async def _read_statuses(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            rows = await self._changes.after(self._last, list(self._missing))
            for tenant, event in _status_events(rows):
                for viewer in self._viewers:
                    viewer.add_status(tenant, event)
            self._note_positions(rows, clock() + LATE_SECONDS)
            if len(rows) < ROWS_AT_ONCE:
                break
        self._missing = {position: until for position, until in self._missing.items() if until > clock()}
        if not rows and (stored := await self._changes.positions()).last < self._last:  # an older backup was restored
            self._last, self._missing = stored.last, {}
            self._reset_all()

    def _note_positions(self, rows: Sequence[ChangesRow], until: float) -> None:
        for row in rows:
            if row.position <= self._last:
                self._missing.pop(row.position, None)
            elif row.position - self._last > MOST_MISSING:  # so many were deleted unread
                self._last = row.position
                self._reset_all()
            else:
                self._missing |= dict.fromkeys(range(self._last + 1, row.position), until)
                self._last = row.position

    def _reset_all(self) -> None:
        for viewer in self._viewers:
            viewer.reset()

    async def _read_watched(self) -> None:
        found = await self._source.tails(self._watched)
        for id, entries in found.items():
            for entry in entries:
                event = watched_event(id, event_document(entry))
                for viewer in self._viewers:
                    if id in viewer.watched:
                        viewer.add_entry(entry.seq, event)
            if entries and id in self._watched:
                self._watched[id] = entries[-1].seq


def _status_events(rows: Sequence[ChangesRow]) -> list[tuple[str, FeedEvent]]:
    """The last status of each execution, with its tenant."""
    last: dict[str, tuple[StatusChange, int]] = {}
    for row in rows:
        for change in row.changes:
            if change.id not in last or last[change.id][0].seq <= change.seq:
                last[change.id] = (change, row.at)
    return [(change.tenant, _status_event(change, at)) for change, at in last.values()]


def _status_event(change: StatusChange, at: int) -> FeedEvent:
    return status_event(
        id=change.id,
        definition=change.definition,
        version=change.version,
        status=change.status,
        seq=change.seq,
        at=at,
        created_at=change.created_at,
        ended_at=change.ended_at,
        error_class=change.error_class,
    )


def _check(watched: Mapping[str, int]) -> int:
    return crc32(" ".join(watched).encode())


def _parsed(after: str | None) -> tuple[int | None, list[int]]:
    """The position, and the numbers after it, in the id of a chunk. An id of another form has neither."""
    parts = (after or "").split("-")
    if not all(part.isascii() and part.isdigit() and len(part) <= 16 for part in parts):
        return None, []
    return int(parts[0]), [int(part) for part in parts[1:]]

"""Reads the events of an execution from the service's event stream."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final, get_args

import httpx2
import msgspec

from tenuto.errors import NotSupported, RateExceeded
from tenuto.kernel.events import Entry
from tenuto.views import EventDocument, entry_of
from tenuto.views.feed import FeedChunk, FeedEvent, FeedKind

from .transport import Transport, lost, quoted

FIRST_DELAY: Final = 0.1
LONGEST_DELAY: Final = 5.0
MAX_FAILURES: Final = 10  # in a row without an event: about half a minute


async def recorded(transport: Transport, execution_id: str, after: int) -> list[Entry]:
    """Returns the entries recorded so far after number `after`."""
    found: list[Entry] = []
    async for document in _events(transport, execution_id, after, follow=False):
        found.append(entry(document))
    return found


async def followed(transport: Transport, execution_id: str, after: int) -> AsyncIterator[EventDocument]:
    """Yields events after number `after` as they are recorded. A broken stream is resumed where it stopped."""
    async for document in _events(transport, execution_id, after, follow=True):
        yield document


async def fed(transport: Transport, watched: Mapping[str, int | None], after: str | None) -> AsyncIterator[FeedChunk]:
    """Yields the events of the feed one by one. A broken stream is resumed where it stopped."""
    params = {"watch": [id if seq is None else f"{id}:{seq}" for id, seq in watched.items()]}
    stream = _Stream(transport, "/v1/feed", params, after or "")
    async for event in stream.events():
        stream.reached = event.id or stream.reached
        kind: Any = event.event
        document = msgspec.json.decode(event.data or "null")
        about = "" if document is None else document["execution_id"]
        events = [FeedEvent(kind, about, event.data.encode())] if kind in get_args(FeedKind) else []
        yield FeedChunk(stream.reached, events)


async def _events(transport: Transport, execution_id: str, after: int, *, follow: bool) -> AsyncIterator[EventDocument]:
    params = {} if follow else {"follow": "false"}
    stream = _Stream(transport, f"/v1/executions/{quoted(execution_id)}/events", params, str(after))
    async for event in stream.events():
        if event.event == "end":
            return
        document: Any = msgspec.json.decode(event.data)
        stream.reached = str(document["seq"])
        yield document


class _Stream:
    """A stream that is opened again when it breaks or ends. `reached` is the id of the last event."""

    def __init__(self, transport: Transport, path: str, params: Mapping[str, Any], reached: str) -> None:
        self._transport = transport
        self._path = path
        self._params = params
        self.reached = reached

    async def events(self) -> AsyncIterator[httpx2.ServerSentEvent]:
        failures, delay = 0, FIRST_DELAY
        while True:
            why: Exception | None = None
            headers = {"Last-Event-ID": self.reached} if self.reached else {}
            try:
                async with self._transport.stream(self._path, self._params, headers) as events:
                    async for event in events:
                        failures, delay = 0, FIRST_DELAY
                        yield event
            except httpx2.TransportError as error:
                why = lost(error, self._transport.address)
            except RateExceeded as error:
                why, delay = error, max(delay, error.retry_after)
            failures += 1
            if why is not None and failures == MAX_FAILURES:
                raise why
            await asyncio.sleep(delay)
            delay = min(2 * delay, LONGEST_DELAY)


def entry(document: EventDocument) -> Entry:
    """Decodes an event. A newer service may record events that this version cannot decode."""
    try:
        return entry_of(document)
    except (KeyError, msgspec.ValidationError):
        raise NotSupported(
            f"The service sent an event of type {document['type']!r}, which this version does not support.",
            code="newer_service",
            hint="upgrade the client to the version of the service",
        ) from None

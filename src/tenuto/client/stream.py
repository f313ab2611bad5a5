"""Reads the events of an execution from the service's event stream."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import httpx2
import msgspec

from tenuto.errors import NotSupported, RateExceeded
from tenuto.kernel.events import Entry
from tenuto.views import EventDocument, entry_of

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


async def _events(transport: Transport, execution_id: str, after: int, *, follow: bool) -> AsyncIterator[EventDocument]:
    path = f"/v1/executions/{quoted(execution_id)}/events"
    params = {} if follow else {"follow": "false"}
    failures, delay = 0, FIRST_DELAY
    while True:
        why: Exception | None = None
        try:
            async with transport.stream(path, params, {"Last-Event-ID": str(after)}) as events:
                async for event in events:
                    if event.event == "end":
                        return
                    document: Any = msgspec.json.decode(event.data)
                    after, failures, delay = document["seq"], 0, FIRST_DELAY
                    yield document
        except httpx2.TransportError as error:
            why = lost(error, transport.address)
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

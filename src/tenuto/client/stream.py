"""What is recorded of an execution, from the service's stream of events: so far, or as it happens."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import httpx2
import msgspec

from tenuto.errors import NotSupported, RateExceeded
from tenuto.kernel.events import Entry
from tenuto.views import EventDocument, entry_of

from .wire import Wire, lost, quoted

FIRST_DELAY: Final = 0.1
LONGEST_DELAY: Final = 5.0
TRIES: Final = 10  # in a row without a single event: about half a minute


async def recorded(wire: Wire, execution_id: str, after: int) -> list[Entry]:
    """All that is recorded by now, after this number."""
    found: list[Entry] = []
    async for document in _events(wire, execution_id, after, follow=False):
        found.append(entry(document))
    return found


async def followed(wire: Wire, execution_id: str, after: int) -> AsyncIterator[EventDocument]:
    """What is recorded after this number, as it happens. A broken stream is taken up again where it was."""
    async for document in _events(wire, execution_id, after, follow=True):
        yield document


async def _events(wire: Wire, execution_id: str, after: int, *, follow: bool) -> AsyncIterator[EventDocument]:
    path = f"/v1/executions/{quoted(execution_id)}/events"
    params = {} if follow else {"follow": "false"}
    tries, delay = 0, FIRST_DELAY
    while True:
        why: Exception | None = None
        try:
            async with wire.stream(path, params, {"Last-Event-ID": str(after)}) as events:
                async for event in events:
                    if event.event == "end":
                        return
                    document: Any = msgspec.json.decode(event.data)
                    after, tries, delay = document["seq"], 0, FIRST_DELAY
                    yield document
        except httpx2.TransportError as error:
            why = lost(error, wire.address)
        except RateExceeded as error:
            why, delay = error, max(delay, error.retry_after)
        tries += 1
        if why is not None and tries == TRIES:
            raise why
        await asyncio.sleep(delay)
        delay = min(2 * delay, LONGEST_DELAY)


def entry(document: EventDocument) -> Entry:
    """As it was recorded. A service may be of a later release than this one, and record what this cannot read."""
    try:
        return entry_of(document)
    except (KeyError, msgspec.ValidationError):
        raise NotSupported(
            f"The service records an event, {document['type']!r}, that this version does not know.",
            code="newer_service",
            hint="update tenuto here to the service's version",
        ) from None

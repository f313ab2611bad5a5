"""The end of the server that an application is on: whoever stays on the line until something happens is let go.

The server says so by an event in the scope of each request. Where another one serves the application, nobody does.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

_ENDING = "tenuto.ending"


def telling(app: ASGIApp, ending: asyncio.Event) -> ASGIApp:
    """The application, whose requests find this event."""

    async def told(scope: Scope, receive: Receive, send: Send) -> None:
        scope[_ENDING] = ending
        await app(scope, receive, send)

    return told


def ending_of(scope: Scope) -> asyncio.Event:
    found: asyncio.Event | None = scope.get(_ENDING)
    return asyncio.Event() if found is None else found


async def unless_set(ending: asyncio.Event, work: Coroutine[Any, Any, object]) -> None:
    """Does the work, or gives it up as soon as the event is set."""
    working, ended = asyncio.ensure_future(work), asyncio.ensure_future(ending.wait())
    try:
        await asyncio.wait([working, ended], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            await working
    finally:
        working.cancel()
        ended.cancel()

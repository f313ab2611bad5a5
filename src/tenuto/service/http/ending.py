"""The end of the server that an application is on: whoever stays on the line until something happens is let go.

The server says so by an event in the scope of each request. Where another one serves the application, nobody does.
"""

import asyncio

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

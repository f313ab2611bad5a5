"""The shutdown event of the server, in the scope of each request: open streams and long polls end when it is set.

Another ASGI server sets no event, so streams on it end only with their connection.
"""

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send

_SHUTDOWN = "tenuto.shutdown"


def with_shutdown_event(app: ASGIApp, event: asyncio.Event) -> ASGIApp:
    """Returns the application with this event in the scope of its requests."""

    async def pass_on(scope: Scope, receive: Receive, send: Send) -> None:
        scope[_SHUTDOWN] = event
        await app(scope, receive, send)

    return pass_on


def shutdown_event_of(scope: Scope) -> asyncio.Event:
    found: asyncio.Event | None = scope.get(_SHUTDOWN)
    return asyncio.Event() if found is None else found

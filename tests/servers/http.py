"""A service that listens, in the process that asks it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tenuto.service.server import address_of, bind, serve
from tenuto.settings import Settings


@asynccontextmanager
async def serving(app: Any, settings: Settings | None = None) -> AsyncIterator[str]:
    """The service on a port of its own; gives its address."""
    listener, stop = bind("127.0.0.1", 0), asyncio.Event()
    task = asyncio.create_task(serve(app, listener, stop, grace_seconds=1, settings=settings))
    try:
        yield address_of(listener)
    finally:
        stop.set()
        await task

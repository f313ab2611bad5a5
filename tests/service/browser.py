"""A browser's requests to the service: they carry cookies, and say where they come from."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2

from tests.service.conftest import Site

LOOPBACK = "http://127.0.0.1:8080"
SAME_ORIGIN = {"Sec-Fetch-Site": "same-origin"}


@asynccontextmanager
async def browser(site: Site, base: str = LOOPBACK) -> AsyncIterator[httpx2.AsyncClient]:
    """A client that keeps cookies, and sends what browsers send for the console's own requests."""
    transport = httpx2.ASGITransport(app=site.app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url=base, headers=SAME_ORIGIN) as client:
        yield client

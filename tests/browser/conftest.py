"""A service, a browser, and for each test a tenant of its own with pages that are watched."""

import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page

from tenuto import Engine
from tests.servers.databases import database

from .browser import INSTALL, Guard, chromium, guarded, launched
from .service import Service, deployed, dev


@pytest.fixture(scope="session")
def chromium_path() -> str:
    found = chromium()
    if found is None and os.environ.get("TENUTO_REQUIRE_ALL") == "1":
        pytest.fail(f"Chromium is missing. Install it: {INSTALL}")
    if found is None:
        pytest.skip(f"Chromium is missing. Install it: {INSTALL}")
    return found


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser(chromium_path: str) -> AsyncIterator[Browser]:
    async with launched(chromium_path) as browser:
        yield browser


@pytest.fixture(scope="session")
def development(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """`tenuto dev`, for all tests of this process."""
    with dev(tmp_path_factory.mktemp("dev")) as service:
        yield service


@pytest.fixture(scope="session")
def deployment(postgres_server: Any) -> Iterator[Service]:
    """`tenuto serve` and `tenuto worker` on PostgreSQL, for all tests of this process."""
    with database(postgres_server) as url, deployed(url) as service:
        yield service


@dataclass
class Site:
    """A service, as one tenant sees it."""

    service: Service
    browser: Browser
    root: Engine
    tenant: str = field(default_factory=lambda: f"t{uuid4().hex[:8]}")
    guards: list[Guard] = field(default_factory=list)
    pages: list[Page] = field(default_factory=list)

    @property
    def engine(self) -> Engine:
        return self.root.scoped(tenant=self.tenant, actor="journey")

    async def key(self, *roles: str, tenant: str | None = None) -> Any:
        return await self.root.keys.create(tenant=tenant or self.tenant, roles=roles or ["admin"], name="ann")

    async def visitor(self, **options: Any) -> Page:
        """A page of somebody who is not signed in."""
        context, guard = await guarded(self.browser, self.service.address, **options)
        self.guards.append(guard)
        page = await context.new_page()
        self.pages.append(page)
        return page

    async def page(self, path: str, *roles: str, tenant: str | None = None, **options: Any) -> Page:
        """A page of somebody who is signed in, with these roles; an admin without."""
        return await self.signed_in(path, (await self.key(*roles, tenant=tenant)).token, **options)

    async def signed_in(self, path: str, token: str, **options: Any) -> Page:
        page = await self.visitor(**options)
        answer = await page.context.request.post("/v1/session", data={"key": token})
        assert answer.status == 201, await answer.text()
        await page.goto(path)
        return page

    def allow(self, pattern: str) -> None:
        """Expects console errors like this on the pages that are open."""
        for guard in self.guards:
            guard.allow(pattern)

    async def start(self, definition: str, input: Any = None, *, settled: bool = True) -> str:
        handle = await self.engine.start(definition, {} if input is None else input)
        if settled:
            await handle.result(timeout="20s")
        return handle.id


async def _site(service: Service, browser: Browser) -> AsyncIterator[Site]:
    async with Engine(service.url, worker=False) as engine:
        site = Site(service, browser, engine)
        try:
            yield site
        finally:
            for page in site.pages:
                await page.context.close()
        for guard in site.guards:
            guard.check()


@pytest_asyncio.fixture(loop_scope="session")
async def site(development: Service, browser: Browser) -> AsyncIterator[Site]:
    async for site in _site(development, browser):
        yield site


@pytest_asyncio.fixture(loop_scope="session")
async def deployed_site(deployment: Service, browser: Browser) -> AsyncIterator[Site]:
    async for site in _site(deployment, browser):
        yield site

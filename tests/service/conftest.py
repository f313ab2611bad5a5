"""The service over HTTP: on memory, SQLite and PostgreSQL, each with keys for some tenants and roles."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx2
import pytest

from tenuto import Engine
from tenuto.service.app import create_app
from tenuto.settings import Settings
from tests.checking.soundness import assert_sound
from tests.servers.databases import database

STORES = ["sqlite", "postgres"]


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "postgres":
        with database(request.getfixturevalue("postgres_server")) as place:
            yield place
    else:
        yield f"sqlite:///{tmp_path / 'tenuto.db'}"


@dataclass
class Site:
    """A service, and clients that hold keys for it."""

    engine: Engine
    app: Any
    stack: AsyncExitStack
    clients: dict[tuple[str, tuple[str, ...]], httpx2.AsyncClient] = field(default_factory=dict)
    is_tampered: bool = False  # the test changes rows behind the service's back

    async def client(self, tenant: str = "acme", *roles: str) -> httpx2.AsyncClient:
        """A client of that tenant with a key for these roles; an admin without."""
        at = (tenant, roles)
        if at not in self.clients:
            key = await self.engine.keys.create(
                tenant=tenant, roles=roles or ("admin",), name="-".join(roles) or "admin"
            )
            self.clients[at] = await self.bare(key.token)
        return self.clients[at]

    async def bare(self, token: str | None = None, **headers: str) -> httpx2.AsyncClient:
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        transport = httpx2.ASGITransport(app=self.app, raise_app_exceptions=False)
        client = httpx2.AsyncClient(transport=transport, base_url="http://tenuto", headers=headers)
        return await self.stack.enter_async_context(client)


class MakeSite(Protocol):
    async def __call__(self, *sagas: object, settings: Settings | None = None, **options: Any) -> Site: ...


@pytest.fixture
async def make_site(url: str) -> AsyncIterator[MakeSite]:
    sites: list[Site] = []
    async with AsyncExitStack() as stack:

        async def make(*sagas: object, settings: Settings | None = None, **options: Any) -> Site:
            engine = Engine(url, **{"shutdown_grace": "1s", **options})
            engine.register(*sagas)
            await stack.enter_async_context(engine)
            app = create_app(engine, settings or Settings(rate_per_second=0))
            await stack.enter_async_context(app.router.lifespan_context(app))
            sites.append(Site(engine, app, stack))
            return sites[-1]

        yield make
    if not any(site.is_tampered for site in sites):
        await assert_sound(url)


async def until(ask: Callable[[], Any], wanted: Callable[[Any], bool]) -> Any:
    """Asks until the answer is as wanted. The test's own timeout ends what never comes."""
    while not wanted(found := await ask()):
        pass
    return found

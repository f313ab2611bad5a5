"""A service on SQLite or PostgreSQL with its worker, and clients that hold keys for it, over real sockets."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Protocol

import pytest

from tenuto import Engine
from tenuto.service.app import create_app
from tenuto.settings import Settings
from tests.checking.soundness import assert_sound
from tests.servers.http import serving
from tests.service.conftest import url as url


@dataclass
class Place:
    """`worker` runs what `client` starts. `address` is the service's."""

    worker: Engine
    app: Any
    address: str
    stack: AsyncExitStack

    async def key(self, *roles: str, tenant: str = "default") -> str:
        return (await self.worker.keys.create(tenant=tenant, roles=roles or ("admin",))).token

    async def client(
        self, *sagas: object, roles: tuple[str, ...] = ("admin",), tenant: str = "default", at: str = ""
    ) -> Engine:
        engine = Engine(at or self.address, api_key=await self.key(*roles, tenant=tenant))
        engine.register(*sagas)
        return await self.stack.enter_async_context(engine)


class MakePlace(Protocol):
    async def __call__(self, *sagas: object, settings: Settings | None = None, **options: Any) -> Place: ...


@pytest.fixture
async def make_place(url: str) -> AsyncIterator[MakePlace]:
    """What a test leaves behind is sound."""
    places: list[Place] = []
    async with AsyncExitStack() as stack:

        async def make(*sagas: object, settings: Settings | None = None, **options: Any) -> Place:
            worker = Engine(url, **{"shutdown_grace": "1s", **options})
            worker.register(*sagas)
            await stack.enter_async_context(worker)
            app = create_app(worker, settings or Settings(rate_per_second=0))
            address = await stack.enter_async_context(serving(app))
            places.append(Place(worker, app, address, stack))
            return places[-1]

        yield make
    if places:
        await assert_sound(url)

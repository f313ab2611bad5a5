"""Engines that may call this machine, and the servers that they call."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from tenuto import Engine
from tenuto.handlers.settings import LOOPBACK, HandlerSettings
from tests.servers import smtp, web

from .documents import RUNTIMES


class MakeEngine(Protocol):
    async def __call__(self, **settings: Any) -> Engine: ...


@pytest.fixture(params=RUNTIMES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'tenuto.db'}"


@pytest.fixture
async def make_engine(url: str) -> AsyncIterator[MakeEngine]:
    async with AsyncExitStack() as stack:

        async def make(**settings: Any) -> Engine:
            outside = HandlerSettings(**{"egress_allow": LOOPBACK, **settings})
            return await stack.enter_async_context(Engine(url, outside=outside, shutdown_grace="1s"))

        yield make


@pytest.fixture
async def server() -> AsyncIterator[web.Web]:
    async with web.running() as found:
        yield found


@pytest.fixture
async def mail() -> AsyncIterator[smtp.Mail]:
    async with smtp.running() as found:
        yield found

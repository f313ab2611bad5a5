"""Engines that may call this machine, and the servers that they call."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from tenuto import Engine
from tenuto.handlers.settings import LOOPBACK, HandlerSettings
from tests.checking.soundness import assert_sound
from tests.servers import smtp, web

from .documents import RUNTIMES


class MakeEngine(Protocol):
    async def __call__(self, **settings: Any) -> Engine: ...


@pytest.fixture(params=RUNTIMES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'tenuto.db'}"


@pytest.fixture
async def make_engine(request: pytest.FixtureRequest, url: str) -> AsyncIterator[MakeEngine]:
    """What a test leaves behind is sound, unless it says why it is not."""
    engines: list[Engine] = []
    async with AsyncExitStack() as stack:

        async def make(**settings: Any) -> Engine:
            outside = HandlerSettings(**{"egress_allow": LOOPBACK, **settings})
            engines.append(await stack.enter_async_context(Engine(url, outside=outside, shutdown_grace="1s")))
            return engines[-1]

        yield make
    if engines and url != "memory://" and request.node.get_closest_marker("unchecked") is None:
        await assert_sound(url)


@pytest.fixture
async def server() -> AsyncIterator[web.Web]:
    async with web.running() as found:
        yield found


@pytest.fixture
async def mail() -> AsyncIterator[smtp.Mail]:
    async with smtp.running() as found:
        yield found

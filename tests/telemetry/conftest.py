"""Engines with telemetry, on two runtimes."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from tenuto import Engine
from tenuto.telemetry import Telemetry


class MakeEngine(Protocol):
    async def __call__(self, *sagas: object, telemetry: Telemetry | None, **options: Any) -> Engine: ...


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path / 'tenuto.db'}"


@pytest.fixture
async def make_engine(url: str) -> AsyncIterator[MakeEngine]:
    async with AsyncExitStack() as stack:

        async def make(*sagas: object, telemetry: Telemetry | None, **options: Any) -> Engine:
            engine = Engine(url, telemetry=telemetry, **{"shutdown_grace": "1s", **options})
            engine.register(*sagas)
            return await stack.enter_async_context(engine)

        yield make

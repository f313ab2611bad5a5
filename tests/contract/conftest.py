"""The runtimes that the contract is tested on, and engines on them."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from tenuto import Engine
from tenuto.testing import Harness
from tests.checking.soundness import assert_sound
from tests.servers.databases import database

# A further runtime is a further name here, and its url below.
RUNTIMES = ["memory", "sqlite", "postgres"]

# Those that forget nothing when an engine is closed; what only they can promise is in `test_restart.py`.
DURABLE = [name for name in RUNTIMES if name != "memory"]
# Those that `Harness` gives virtual time to: what takes hours or days is tested there.
VIRTUAL = [name for name in RUNTIMES if name == "memory"]

collect_ignore = [] if DURABLE else ["test_restart.py"]


class MakeEngine(Protocol):
    async def __call__(self, *sagas: object, **options: Any) -> Engine: ...


class MakeHarness(Protocol):
    async def __call__(self, *sagas: object, **options: Any) -> Harness: ...


@pytest.fixture(params=RUNTIMES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where executions live: a fresh place for each test."""
    match request.param:
        case "memory":
            yield "memory://"
        case "sqlite":
            yield f"sqlite:///{tmp_path / 'tenuto.db'}"
        case "postgres":
            with database(request.getfixturevalue("postgres_server")) as place:
                yield place
        case unknown:
            raise LookupError(f"the contract knows no runtime {unknown!r}")


@pytest.fixture
async def make_engine(url: str) -> AsyncIterator[MakeEngine]:
    """Makes engines on the runtime under test, opened, with these sagas; all of one test share their executions."""
    async with AsyncExitStack() as stack:

        async def make(*sagas: object, **options: Any) -> Engine:
            engine = Engine(url, **{"shutdown_grace": "1s", **options})
            engine.register(*sagas)
            return await stack.enter_async_context(engine)

        yield make
    if not url.startswith("memory"):
        await assert_sound(url)


@pytest.fixture
async def engine(make_engine: MakeEngine) -> Engine:
    return await make_engine()


@pytest.fixture(params=VIRTUAL)
async def make_harness(request: pytest.FixtureRequest) -> AsyncIterator[MakeHarness]:
    """Makes engines whose time is skipped instead of waited for."""
    async with AsyncExitStack() as stack:

        async def make(*sagas: object, **options: Any) -> Harness:
            return await stack.enter_async_context(Harness(*sagas, url=f"{request.param}://", **options))

        yield make

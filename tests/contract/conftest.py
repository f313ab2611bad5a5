"""The runtimes that the contract is tested on, and engines on them."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from tenuto import Engine
from tenuto.testing import Harness
from tests.checking.soundness import assert_histories_sound, assert_sound
from tests.servers.databases import served

from .over_http import client_of, runs_over_http

# A further runtime is a further name here, and its url below. `http` is SQLite behind a service: see `over_http.py`.
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


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    chosen = any(mark.args[0] == "runtime" for mark in metafunc.definition.iter_markers("parametrize"))
    if "url" in metafunc.fixturenames and not chosen:
        over_http = ["http"] if runs_over_http(metafunc.module.__name__, metafunc.function.__name__) else []
        metafunc.parametrize("runtime", [*RUNTIMES, *over_http], indirect=True)


@pytest.fixture
def runtime(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def url(runtime: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where executions live: a fresh place for each test."""
    match runtime:
        case "memory":
            yield "memory://"
        case "sqlite" | "http":
            yield f"sqlite:///{tmp_path / 'tenuto.db'}"
        case "postgres":
            with served(request.getfixturevalue("postgres_server")) as place:
                yield place
        case unknown:
            raise LookupError(f"the contract knows no runtime {unknown!r}")


@pytest.fixture
async def make_engine(url: str, runtime: str) -> AsyncIterator[MakeEngine]:
    """Makes engines on the runtime under test, opened, with these sagas; all of one test share their executions."""
    engines: list[Engine] = []
    async with AsyncExitStack() as stack:

        async def make(*sagas: object, **options: Any) -> Engine:
            engine = Engine(url, **{"shutdown_grace": "1s", **options})
            engines.append(engine)
            engine.register(*sagas)
            await stack.enter_async_context(engine)
            return engine if runtime != "http" else await stack.enter_async_context(client_of(engine, *sagas))

        yield make
    if not url.startswith("memory"):
        await assert_sound(url)
    else:
        for engine in engines:
            assert_histories_sound(engine)


@pytest.fixture
async def engine(make_engine: MakeEngine) -> Engine:
    return await make_engine()


@pytest.fixture(params=VIRTUAL)
async def make_harness(request: pytest.FixtureRequest) -> AsyncIterator[MakeHarness]:
    """Makes engines whose time is skipped instead of waited for."""
    harnesses: list[Harness] = []
    async with AsyncExitStack() as stack:

        async def make(*sagas: object, **options: Any) -> Harness:
            harness = await stack.enter_async_context(Harness(*sagas, url=f"{request.param}://", **options))
            harnesses.append(harness)
            return harness

        yield make
    for harness in harnesses:
        assert_histories_sound(harness)

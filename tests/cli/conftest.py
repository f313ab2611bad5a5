"""Commands in this process, on a database of their own."""

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple, Protocol

import pytest

from tenuto import Engine
from tenuto.cli import main
from tenuto.service.app import create_app
from tenuto.service.server import address_of, bind, serve
from tenuto.settings import Settings

from . import shop


class Done(NamedTuple):
    """What a command did: its exit code, and what it wrote."""

    code: int
    out: str
    err: str


class Run(Protocol):
    def __call__(self, *arguments: str) -> Done: ...


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A database that is named in the environment, and nothing else there or in the folder."""
    for name in ("TENUTO_SERVER", "TENUTO_API_KEY", "TENUTO_APP", "TENUTO_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    place = f"sqlite:///{tmp_path / 'tenuto.db'}"
    monkeypatch.setenv("TENUTO_URL", place)
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setenv("USER", "ada")
    monkeypatch.setenv("LOGNAME", "ada")
    monkeypatch.chdir(tmp_path)
    return place


# These are run over a service as well, and say the same there.
OVER_HTTP = ("test_audit", "test_control", "test_executions", "test_limits")
# What differs there, and why.
ON_A_DATABASE_ALONE = {
    "test_approve_finds_the_step_that_waits": "it is recorded in the name of the key: test_server.py",
    "test_what_a_person_did_is_in_the_audit_in_that_persons_name": "the same",
    "test_four_eyes_count_on_the_database_too": "there the service's settings say so: test_access.py",
    "test_what_cannot_be_reprocessed_is_told_and_the_others_go_on": "the same",
    "test_another_tenants_are_not_seen": "the key says whose executions are seen: test_server.py",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "tenuto" in metafunc.fixturenames:
        module, test = metafunc.module.__name__.rpartition(".")[2], metafunc.function.__name__
        both = module in OVER_HTTP and test not in ON_A_DATABASE_ALONE
        metafunc.parametrize("way", ["database", "server"] if both else ["database"], indirect=True)


@pytest.fixture
def way(request: pytest.FixtureRequest, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Where commands work: on the database, or at a service on it."""
    if request.param == "database":
        yield
        return
    with service_on(url) as (address, key):
        monkeypatch.setenv("TENUTO_SERVER", address)
        monkeypatch.setenv("TENUTO_API_KEY", key)
        yield


@contextmanager
def service_on(url: str, tenant: str = "default", *roles: str) -> Iterator[tuple[str, str]]:
    """A service in a thread of its own, as commands have their own loop; its address, and a key for it."""
    ready: Future[tuple[str, str]] = Future()
    stopping: Future[Callable[[], object]] = Future()

    async def serve_it() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        stopping.set_result(lambda: loop.call_soon_threadsafe(stop.set))
        async with Engine(url, worker=False) as engine:
            made = await engine.keys.create(tenant=tenant, roles=roles or ("admin",), name="ada")
            listener = bind("127.0.0.1", 0)
            ready.set_result((address_of(listener), made.token))
            await serve(create_app(engine, Settings(rate_per_second=0)), listener, stop, grace_seconds=1)

    thread = Thread(target=lambda: asyncio.run(serve_it()), name="service")
    thread.start()
    try:
        yield ready.result(60)
    finally:
        stopping.result()()
        thread.join()


@pytest.fixture
def tenuto(way: None, url: str, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> Done:
        code = main(arguments)
        out, err = capsys.readouterr()
        return Done(code, out, err)

    return run


class Work(Protocol):
    def __call__(self, job: Callable[[Engine], Coroutine[Any, Any, Any]]) -> Any: ...


@pytest.fixture
def work(url: str) -> Work:
    """Does something with an engine that has the sagas of the shop, and closes it."""

    async def with_engine(job: Callable[[Engine], Coroutine[Any, Any, Any]]) -> Any:
        async with Engine(url) as engine:
            engine.register(*shop.ALL)
            return await job(engine)

    return lambda job: asyncio.run(with_engine(job))


_VARYING = [
    (re.compile(r"\b[0-9a-f]{22}\b"), "<id>"),
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z)"), "<time>"),
    (re.compile(r"\d\d:\d\d:\d\d\.\d{3}"), "<clock>"),
    (re.compile(r"\b\d+(\.\d)? (ms|s|min|h|d)\b"), "<span>"),
    (re.compile(r"just now|<span> ago"), "<ago>"),
]


def steady(text: str) -> str:
    """Without what differs from run to run: ids, moments and lengths of time."""
    for pattern, word in _VARYING:
        text = pattern.sub(word, text)
    return text

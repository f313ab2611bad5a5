"""Commands in this process, on a database of their own."""

import asyncio
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pytest

from tenuto import Engine
from tenuto.cli import main

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


@pytest.fixture
def tenuto(url: str, capsys: pytest.CaptureFixture[str]) -> Run:
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

"""Real databases: a SQLite file per test, a PostgreSQL server per run with a database per test."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tenuto.storage import Store, make_store
from tests.checking.soundness import assert_sound
from tests.servers.databases import database, empty_database
from tests.servers.postgres import Server


@pytest.fixture(scope="session")
def postgres(postgres_server: Server) -> Server:
    return postgres_server


@pytest.fixture
def postgres_url(request: pytest.FixtureRequest, postgres: Server) -> Iterator[str]:
    """A database with the schema in place, unless the test is marked to get an empty one."""
    is_empty = request.node.get_closest_marker("empty_database") is not None
    with (empty_database if is_empty else database)(postgres) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/x.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


class _Places(NamedTuple):
    url: str | None
    folder: Path | None

    def urls(self) -> list[str]:
        """What is there when the test is over."""
        files = [] if self.folder is None else sorted(self.folder.glob("*.db"))
        others = [] if self.url is None or self.url.startswith("sqlite") else [self.url]
        return [*others, *(f"sqlite:///{file}" for file in files)]


@pytest.fixture
def places(request: pytest.FixtureRequest) -> _Places:
    """Where this test has its databases."""
    names = request.fixturenames
    found = [request.getfixturevalue(name) if name in names else None for name in ("url", "tmp_path")]
    return _Places(*found)


@pytest.fixture(autouse=True)
async def sound(request: pytest.FixtureRequest, places: _Places) -> AsyncIterator[None]:
    """What a test leaves in its databases is sound, unless it says why that is not asked, or has the store in hand.

    What is written through a store is made up: rows that no engine wrote.
    """
    yield
    made_up = "store" in request.fixturenames or request.node.get_closest_marker("unchecked") is not None
    if not made_up:
        for url in places.urls():
            await assert_sound(url)


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    opened = make_store(url)
    await opened.open(migrate=True)
    yield opened
    await opened.close()

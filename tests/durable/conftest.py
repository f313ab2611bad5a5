"""Real databases: a SQLite file per test, a PostgreSQL server per run with a database per test."""

from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path

import asyncpg
import pytest

from tenuto.storage import Store, make_store
from tests.checking.soundness import assert_sound
from tests.servers.postgres import Server

_numbers = count()


@pytest.fixture(scope="session")
def postgres(postgres_server: Server) -> Server:
    return postgres_server


@pytest.fixture
async def postgres_url(postgres: Server) -> AsyncIterator[str]:
    name = f"test_{next(_numbers)}"
    await _run(postgres, f"CREATE DATABASE {name}")
    yield postgres.dsn(name)
    await _run(postgres, f"DROP DATABASE {name} WITH (FORCE)")


async def _run(server: Server, statement: str) -> None:
    connection = await asyncpg.connect(server.dsn())
    await connection.execute(statement)
    await connection.close()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/x.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
async def sound(url: str) -> AsyncIterator[None]:
    """What a test leaves in the database is sound."""
    yield
    await assert_sound(url)


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    opened = make_store(url)
    await opened.open(migrate=True)
    yield opened
    await opened.close()

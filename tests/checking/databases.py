"""A database with executions in every state, on both dialects: each test has a copy of its own to spoil."""

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg

from tenuto import Engine
from tests.servers import sqlite
from tests.servers.postgres import Server
from tests.upgrade.contents import documents
from tests.upgrade.make import FIXTURES

ANN, BEN = "user:ann", "user:ben"
SCHEMA = 1

# What only handlers and consumers leave behind.
LEFT = (
    "INSERT INTO inbox (consumer, id, at) VALUES ('mailer', 'm1', 1)",
    "INSERT INTO progress (execution, path, body) SELECT id, 'a', {seven} FROM executions WHERE definition = 'running'",
    "INSERT INTO sent_notifications (key, tenant, execution, path, channel, begun_at) "
    "SELECT 'k1', tenant, id, 'a', 'log', 1 FROM executions WHERE definition = 'running'",
    "INSERT INTO sessions (id, worker, build, queues, started_at, expires_at) "
    "VALUES ('holder', 'w', '', '[]', 1, 1000000000000000)",
    "INSERT INTO limit_holders (name, session, held, wanted, asked_at, served_at) "
    "VALUES ('bank', 'holder', 1, 0, 1, 1)",
)


def run(url: str, *statements: str) -> None:
    """In a connection of its own. `{seven}` is a JSON 7 as bytes, which the dialects write in two ways."""
    if url.startswith("sqlite"):
        connection = sqlite.connect(url)
        for statement in statements:
            connection.execute(statement.replace("{seven}", "X'37'"))
        connection.close()
        return
    with psycopg.connect(url, autocommit=True) as postgres:
        for statement in statements:
            postgres.execute(statement.replace("{seven}", r"'\x37'::bytea").encode())


async def _migrate(url: str) -> None:
    """And something that was done in names: one that was started and canceled, and one that was paused."""
    async with Engine(url, worker=False) as engine:
        for document in documents(SCHEMA):
            await engine.apply(document)
        ann, ben = (engine.scoped(tenant="default", actor=actor) for actor in (ANN, BEN))
        canceled = await ann.start("signal", target=("order", "1"), correlation_id="c1")
        await ben.get(canceled.id).cancel("terminate", reason="not wanted")
        paused = await ann.start("approval")
        await ben.get(paused.id).pause(reason="for the test")


@contextmanager
def migrated(folder: Path, server: Server | None) -> Iterator[str]:
    """The kept database of an earlier schema, brought up to date."""
    if server is None:
        shutil.copyfile(FIXTURES / f"schema-{SCHEMA}.db", folder / "filled.db")
        url = f"sqlite:///{folder}/filled.db"
    else:
        url = server.dsn(_create(server))
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute((FIXTURES / f"schema-{SCHEMA}.sql").read_bytes())
    asyncio.run(_migrate(url))
    run(url, *LEFT)
    yield url


@contextmanager
def copied(url: str, folder: Path, server: Server | None) -> Iterator[str]:
    if server is None:
        for end in ("", "-wal"):
            if (file := Path(url.removeprefix("sqlite:///") + end)).exists():
                shutil.copyfile(file, folder / f"copy.db{end}")
        yield f"sqlite:///{folder}/copy.db"
        return
    name = _create(server, template=url.rpartition("/")[2])
    yield server.dsn(name)
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def _create(server: Server, template: str = "template1") -> str:
    name = f"kept_{uuid4().hex[:12]}"
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')
    return name

"""Every database that was kept is opened by the present engine: migrated, found sound, finished, found sound again."""

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from tenuto import Engine, Message
from tenuto.checking import check_database
from tenuto.errors import InvalidTransition
from tenuto.kernel.address import Ref, lease_id
from tests.checking.soundness import assert_sound
from tests.servers import postgres

from .make import FIXTURES
from .states import CENTURY_MS, QUEUE, STATES, Handlers, documents

FILES = sorted(file.name for file in FIXTURES.iterdir() if file.suffix in (".db", ".sql"))
TERMINAL = ("succeeded", "failed", "canceled")


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    file = FIXTURES / request.param
    if file.suffix == ".db":
        shutil.copyfile(file, tmp_path / "x.db")
        return f"sqlite:///{tmp_path}/x.db"
    started: postgres.Server = request.getfixturevalue("postgres_server")
    name = f"upgrade_{uuid4().hex}"
    with psycopg.connect(started.dsn(), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    with psycopg.connect(started.dsn(name), autocommit=True) as connection:
        connection.execute(file.read_bytes())
    return started.dsn(name)


def test_there_are_fixtures_of_both_databases() -> None:
    assert {"schema-1.db", "schema-1.sql"} <= set(FILES)


@pytest.mark.slow
@pytest.mark.parametrize("url", FILES, indirect=True)
async def test_everything_in_an_earlier_database_is_finished(url: str) -> None:
    handlers = Handlers(mended=True)
    left: list[Message] = []

    async def publish(message: Message) -> None:
        left.append(message)

    queues = ("default", QUEUE)
    async with Engine(url, lease="5s", queues=queues, messages=["execution.*"], publish=publish) as engine:
        assert await check_database(url, slack_ms=CENTURY_MS) == []  # nobody was there for a long time
        ids = {found["execution_id"]: found["definition_id"] async for found in engine.summaries()}
        assert set(ids.values()) == set(STATES)
        handlers.provide(engine)
        for document in documents():
            await engine.apply(document)
        for id in ids:
            await _finish(engine, id)
        ends = {ids[id]: (await engine.get(id).status())["status"] for id in ids}
        while (await engine.outbox()).waiting:
            await asyncio.to_thread(lambda: None)
    assert ends == {name: end for name, (_, end) in STATES.items()}
    await assert_sound(url)
    assert {message.execution_id for message in left} == set(ids)
    # What was done before the upgrade is not done again.
    done = {("succeeded", "a"), ("succeeded", "b"), ("paused", "a"), ("approval", "a"), ("long", "a"), ("running", "a")}
    assert not done & set(handlers.calls)
    assert handlers.calls["running", "b"] == 1


async def _finish(engine: Engine, id: str) -> None:
    """Whatever it waits for, it gets."""
    handle = engine.get(id)
    while (status := await handle.status())["status"] not in TERMINAL:
        with suppress(InvalidTransition):  # it went on meanwhile
            await _help(engine, id, status)
        await asyncio.to_thread(lambda: None)


async def _help(engine: Engine, id: str, status: Any) -> None:
    handle = engine.get(id)
    if status["status"] == "paused":
        await handle.resume()
    reason = (status["blocked"] or {}).get("reason")
    if reason == "signal":
        await handle.signal("go", id="only")
    elif reason == "callback":
        number = max(row["attempt_number"] for row in await handle.history() if row["step_id"] == "r")
        await handle.answer("r", attempt=number, lease=lease_id(id, Ref("r", "forward", number)), result=1)
    async for review in engine.reviews():
        if review["execution_id"] == id:
            await engine.resolve(review["id"], "approved" if review["kind"] == "approval" else "not_completed")

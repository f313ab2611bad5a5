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
from tenuto.kernel.events import Resolution
from tenuto.storage.migrations import migrations
from tests.checking.soundness import assert_sound
from tests.servers import postgres

from .later import LATER_SINCE, documents, ends
from .make import FIXTURES
from .states import CENTURY_MS, QUEUE, Handlers

FILES = sorted(file.name for file in FIXTURES.iterdir() if file.suffix in (".db", ".sql"))
TERMINAL = ("succeeded", "failed", "canceled")
WORDS: dict[str, Resolution] = {
    "approval": "approved",
    "indeterminate": "not_completed",
    "compensation": "compensate",
    "compensation_failed": "compensate",
    "escalation": "retry",
}


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


@pytest.fixture
def schema(request: pytest.FixtureRequest) -> int:
    return int(str(request.node.callspec.params["url"]).removeprefix("schema-").partition(".")[0])


def test_there_is_a_fixture_of_every_earlier_schema_in_both_databases() -> None:
    earlier = [migration.number for migration in migrations("sqlite")][:-1]
    assert {f"schema-{number}{kind}" for number in earlier for kind in (".db", ".sql")} == set(FILES)


@pytest.mark.slow
@pytest.mark.parametrize("url", FILES, indirect=True)
async def test_everything_in_an_earlier_database_is_finished(url: str, schema: int) -> None:
    handlers = Handlers(mended=True)
    left: list[Message] = []

    async def publish(message: Message) -> None:
        left.append(message)

    queues = ("default", QUEUE)
    async with Engine(url, lease="5s", queues=queues, messages=["execution.*"], publish=publish) as engine:
        assert await check_database(url, slack_ms=CENTURY_MS) == []  # nobody was there for a long time
        ids = {found["execution_id"]: found["definition_id"] async for found in engine.summaries()}
        assert set(ids.values()) == set(ends(schema))
        handlers.provide(engine)
        for document in documents(schema):
            await engine.apply(document)
        for id in ids:
            await _finish(engine, id)
        if schema >= LATER_SINCE:
            await _check_audit(engine)
        ended = {ids[id]: (await engine.get(id).status())["status"] for id in ids}
        while (await engine.outbox()).waiting:
            await asyncio.to_thread(lambda: None)
    assert ended == ends(schema)
    await assert_sound(url)
    assert {message.execution_id for message in left} == set(ids)
    # What was done before the upgrade is not done again.
    done = {("succeeded", "a"), ("succeeded", "b"), ("paused", "a"), ("approval", "a"), ("long", "a"), ("running", "a")}
    assert not done & set(handlers.calls)
    assert handlers.calls["running", "b"] == 1


async def _check_audit(engine: Engine) -> None:
    """What people did before the upgrade is in it, and what they did afterwards is chained to that."""
    person = engine.scoped(tenant="default", actor="user:ben")
    before = (await person.audit.page(actor="user:ann", limit=100)).items
    assert {"execution.started", "execution.paused"} <= {row["action"] for row in before}
    (waiting,) = [row async for row in person.dlq(definition="failed")]
    await person.resolve(waiting["id"], "dismiss", reason="seen")
    (after,) = (await person.audit.page(actor="user:ben")).items
    assert (after["action"], after["reason"]) == ("review.dismiss", "seen")
    chain = await person.audit.verify()
    assert chain.broken_at is None
    assert chain.rows > len(before)
    (key,) = await engine.keys.list()
    assert (key.name, key.revoked_at) == ("kept", None)


async def _finish(engine: Engine, id: str) -> None:
    """Whatever it waits for, it gets."""
    handle = engine.get(id)
    while (status := await handle.status())["status"] not in TERMINAL:
        with suppress(InvalidTransition):  # it went on meanwhile
            await _help(engine, id, status)
        await asyncio.to_thread(lambda: None)


async def _help(engine: Engine, id: str, status: Any) -> None:
    handle = engine.get(id)
    async for review in engine.reviews():
        if review["execution_id"] == id:
            await engine.resolve(review["id"], WORDS[review["kind"]], reason="after the upgrade")
            return
    if status["status"] == "paused":
        await handle.resume()
    reason = (status["blocked"] or {}).get("reason")
    if reason == "signal":
        await handle.signal("go", id="only")
    elif reason == "callback":
        number = max(row["attempt_number"] for row in await handle.history() if row["step_id"] == "r")
        await handle.answer("r", attempt=number, lease=lease_id(id, Ref("r", "forward", number)), result=1)

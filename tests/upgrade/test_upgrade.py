"""Every database that was kept is opened by the present engine: migrated, found sound, finished, found sound again."""

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args
from uuid import uuid4

import psycopg
import pytest

from tenuto import Engine, Message
from tenuto.checker import check_database
from tenuto.errors import InvalidTransition
from tenuto.kernel import events as e
from tenuto.kernel.address import Ref, lease_id
from tenuto.kernel.events import Resolution
from tenuto.storage import make_store
from tenuto.storage.migrations import migrations
from tests.checking.soundness import assert_sound
from tests.seams import runtime_of
from tests.servers import postgres

from .contents import DEPRECATED, DRAFT, LATER_SINCE, RARER_SINCE, documents, ends
from .make import FIXTURES
from .states import CENTURY_MS, FAR, QUEUE, Handlers

FILES = sorted(file.name for file in FIXTURES.iterdir() if file.suffix in (".db", ".sql"))
# Roles are a server's, and in no dump of a database.
ROLE = "DO $$BEGIN CREATE ROLE tenuto_request; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END$$"
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
        connection.execute(ROLE)
    with psycopg.connect(started.dsn(name), autocommit=True) as connection:
        connection.execute(file.read_bytes())
    return started.dsn(name)


@pytest.fixture
def schema(request: pytest.FixtureRequest) -> int:
    return int(str(request.node.callspec.params["url"]).removeprefix("schema-").partition(".")[0])


def test_there_is_a_fixture_of_every_schema_in_both_databases() -> None:
    numbers = [migration.number for migration in migrations("sqlite")]
    assert {f"schema-{number}{kind}" for number in numbers for kind in (".db", ".sql")} == set(FILES)


# What no fixture has, because none of them has a run: a refused hold, and an attempt of a run that a worker claims.
NOWHERE = {e.HoldChanged, e.RunEntered}


@pytest.mark.parametrize("url", FILES[-2:], indirect=True)
async def test_every_kind_of_event_is_in_the_newest_fixtures(url: str, schema: int) -> None:
    """One that is new needs a state in `rarer.py`, or its reason above; then the fixture is made again."""
    assert schema == migrations("sqlite")[-1].number
    async with Engine(url, worker=False) as engine:
        ids = [found["execution_id"] async for found in engine.summaries()]
        readings = [await runtime_of(engine).executions.read(None, id) for id in ids]
    found = {type(entry.event) for reading in readings for entry in reading.history}
    assert found == set(get_args(e.Event)) - NOWHERE


@pytest.mark.parametrize("url", FILES[-2:], indirect=True)
async def test_definitions_of_every_status_and_tasks_that_somebody_took_are_in_the_newest_fixtures(url: str) -> None:
    store: Any = make_store(url)
    await store.open(migrate=False)
    try:  # before any process is there that would see that whoever took them is dead
        taken = await store.database.fetch(
            "SELECT path FROM tasks WHERE session IS NOT NULL AND begun_at IS NOT NULL", ()
        )
    finally:
        await store.close()
    assert {path for (path,) in taken} == {"b", "pay"}
    async with Engine(url, worker=False) as engine:
        statuses = {(found["name"], found["status"]) async for found in engine.definitions()}
    assert {(DRAFT["name"], "draft"), (DEPRECATED, "deprecated"), ("taken", "published")} <= statuses


@pytest.mark.parametrize("url", FILES, indirect=True)
async def test_everything_in_an_earlier_database_is_finished(url: str, schema: int) -> None:
    handlers = Handlers(mended=True)
    left: list[Message] = []

    async def publish(message: Message) -> None:
        left.append(message)

    queues = ("default", QUEUE, FAR)
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
        ended = {(ids[id], (await engine.get(id).status())["status"]) for id in ids}
        while (await engine.outbox()).waiting:
            await asyncio.to_thread(lambda: None)
    assert ended == set(ends(schema).items())
    await assert_sound(url)
    assert {message.execution_id for message in left} == set(ids)
    # What was done before the upgrade is not done again.
    done = {("succeeded", "a"), ("succeeded", "b"), ("paused", "a"), ("approval", "a"), ("long", "a"), ("running", "a")}
    assert not done & set(handlers.calls)
    assert handlers.calls["running", "b"] == 1
    # What may have been made before the upgrade was looked for before it was made again.
    for name in ("paying", "taken-payment") if schema >= RARER_SINCE else ("paying",):
        assert (handlers.calls[name, "find pay"], handlers.calls[name, "pay"]) == (1, 1)


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
        if review["execution_id"] == id and review["kind"] != "dead_letter":  # it has ended meanwhile
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

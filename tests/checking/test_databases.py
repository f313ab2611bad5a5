"""The same on real databases: what the engine leaves is sound, and what somebody does to the rows is found."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from tenuto import Engine, ExpandEach, Saga, SagaBuilder, StepInputs, approval, saga, step
from tenuto.checker import check_database, export_lines, find_stuck_in, records_of_lines
from tenuto.checker.check import Checker
from tenuto.cli import main
from tenuto.errors import NonRetryableError, StorageError
from tests.checking.soundness import assert_sound
from tests.servers import sqlite
from tests.servers.postgres import Server


@saga("trip")
class Trip(Saga[bool, str]):
    async def cancel_hotel(self) -> None: ...

    @step(compensate=cancel_hotel)
    async def hotel(self) -> str:
        return "h1"

    @step(depends_on=[hotel])
    async def charge(self, fails: bool) -> str:
        if fails:
            raise NonRetryableError("card refused")
        return "paid"

    ok = approval(depends_on=[charge])


@pytest.fixture(params=["sqlite", "postgres"])
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/x.db"
        return
    server: Server = request.getfixturevalue("postgres_server")
    name = f"check_{uuid4().hex}"
    connection = await asyncpg.connect(server.dsn())
    await connection.execute(f"CREATE DATABASE {name}")
    await connection.close()
    yield server.dsn(name)


async def _fill(url: str) -> list[str]:
    """One that waits for a person, one that failed and was undone."""
    async with Engine(url) as engine:
        engine.register(Trip())
        handles = [await engine.start(Trip, fails, idempotency_key=str(fails)) for fails in (False, True)]
        for handle in handles:
            await handle.result(return_when="settled")
        return [handle.id for handle in handles]


async def _run(url: str, *statements: str) -> None:
    if url.startswith("sqlite"):
        database = sqlite.connect(url)
        for statement in statements:
            database.execute(statement)
        database.close()
        return
    connection = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def _found(url: str) -> list[str]:
    return [found.invariant for found in await check_database(url)]


@pytest.mark.requirement("B18")
async def test_what_the_engine_leaves_is_sound(url: str) -> None:
    await _fill(url)
    await assert_sound(url)


async def test_an_export_can_be_checked_elsewhere(url: str) -> None:
    waiting, failed = await _fill(url)
    lines = [line async for line in export_lines(url, "1")]
    checker = Checker()
    assert [found async for found in checker.findings(records_of_lines(lines))] == []
    assert checker.counts.executions == 2
    rows = [json.loads(line) for line in lines]
    assert {row["id"] for row in rows if row["record"] == "execution"} == {waiting, failed}
    attempts = [
        (r["path"], r["phase"], r["state"]) for r in rows if r["record"] == "attempt" and r["execution"] == failed
    ]
    assert attempts == [
        ("hotel", "forward", "succeeded"),
        ("charge", "forward", "failed"),
        ("hotel", "compensate", "succeeded"),
    ]
    runs = {row["execution"]: row["status"] for row in rows if row["record"] == "run"}
    assert runs == {waiting: "waiting_approval", failed: "failed"}


async def test_a_record_that_was_cut_off_is_no_record(url: str) -> None:
    await _fill(url)
    lines = [line async for line in export_lines(url, "1")]
    with pytest.raises(StorageError) as caught:
        [found async for found in Checker().findings(records_of_lines(lines[:-1]))]
    assert caught.value.code == "bad_record"


async def test_events_that_somebody_deleted_are_missed(url: str) -> None:
    await _fill(url)
    if url.startswith("sqlite"):
        await _run(url, "DROP TRIGGER events_are_append_only_delete")
    else:
        await _run(url, "ALTER TABLE events DISABLE TRIGGER ALL")
    await _run(url, "DELETE FROM events WHERE seq = 2")
    assert "G3" in await _found(url)


async def test_a_status_that_somebody_set_is_noticed(url: str) -> None:
    await _fill(url)
    await _run(url, "UPDATE executions SET status = 'succeeded' WHERE status = 'failed'")
    assert await _found(url) == ["G4"]


async def test_a_key_that_is_not_unique_any_more_is_noticed(url: str) -> None:
    await _fill(url)
    await _run(url, "DROP INDEX executions_key", "UPDATE executions SET key = 'same'")
    assert await _found(url) == ["K2"]


async def test_rows_of_nobody_are_noticed(url: str) -> None:
    await _fill(url)
    await _run(url, "INSERT INTO admissions (tenant, definition, key, execution) VALUES ('t', 'd', 'k', 'nobody')")
    assert await _found(url) == ["G6"]


@pytest.mark.requirement("I7")
async def test_what_nobody_takes_is_stuck(url: str) -> None:
    waiting, _ = await _fill(url)
    assert [found async for found in find_stuck_in(url)] == []
    await _run(url, "UPDATE executions SET wake_at = 1 WHERE ended_at IS NULL")
    found = [found async for found in find_stuck_in(url)]
    assert [(one.invariant, one.execution) for one in found] == [("V5", waiting)]


@pytest.mark.requirement("I7")
async def test_what_a_dead_owner_left_is_stuck(url: str) -> None:
    await _fill(url)
    await _run(
        url,
        "INSERT INTO sessions (id, worker, build, queues, started_at, expires_at, ended_at) "
        "VALUES ('gone', 'w', '', '[]', 0, 1, 1)",
        "UPDATE executions SET owner = 'gone' WHERE ended_at IS NULL",
    )
    assert [one.invariant async for one in find_stuck_in(url)] == ["L8"]
    assert await _found(url) == ["L8"]


async def test_findings_hold_no_payloads(url: str) -> None:
    await _fill(url)
    await _run(url, "UPDATE executions SET status = 'paused'")
    told = "".join(line for found in await check_database(url) for line in found.lines())
    assert "G4" in told
    assert "h1" not in told


# -- The commands ------------------------------------------------------------------------------------------------------


@pytest.fixture
def filled(tmp_path: Path) -> str:
    import asyncio

    url = f"sqlite:///{tmp_path}/x.db"
    asyncio.run(_fill(url))
    return url


def test_the_commands(filled: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "record.ndjson"
    assert main(["check", filled]) == 0
    assert capsys.readouterr().out.startswith("2 executions")
    assert main(["export", filled, "--to", str(record)]) == 0
    assert main(["check", "--file", str(record)]) == 0
    assert main(["check", "--stuck", filled]) == 0
    assert "nothing is stuck" in capsys.readouterr().out


def test_a_violation_is_told_and_the_exit_code_says_so(filled: str, capsys: pytest.CaptureFixture[str]) -> None:
    database = sqlite.connect(filled)
    database.execute("UPDATE executions SET status = 'paused'")
    database.close()
    assert main(["check", filled]) == 1
    assert "G4 in" in capsys.readouterr().out
    assert main(["check", "--json", filled]) == 1
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {one["invariant"] for one in found} == {"G4"}


def test_a_database_that_is_not_there_is_no_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", f"sqlite:///{tmp_path}/missing.db"]) == 7
    assert "There is no database" in capsys.readouterr().err
    assert not (tmp_path / "missing.db").exists()


async def test_a_snapshot_is_compared_with_the_history(url: str) -> None:
    """One of a long history, which the engine wrote by itself; then one that somebody changed."""

    async def each(item: str) -> str:
        return item

    long = SagaBuilder("long").step("each", each).approval("ok", depends_on=["each"]).build()
    async with Engine(url) as engine:
        engine.register(long)
        await engine.execute("long", StepInputs({"each": ExpandEach([f"{n:0400}" for n in range(200)])}))
    await assert_sound(url)
    body = await _snapshot(url)
    assert body
    await _set_snapshot(url, body.replace(b'"status":"', b'"status":"x', 1))
    assert {found.invariant for found in await check_database(url)} == {"G4"}


async def _snapshot(url: str) -> bytes:
    query = "SELECT body FROM snapshots"
    if url.startswith("sqlite"):
        found = sqlite.connect(url).execute(query).fetchall()[0][0]
        assert isinstance(found, bytes)
        return found
    connection = await asyncpg.connect(url)
    body: bytes = await connection.fetchval(query)
    await connection.close()
    return body


async def _set_snapshot(url: str, body: bytes) -> None:
    if url.startswith("sqlite"):
        sqlite.connect(url).execute("UPDATE snapshots SET body = ?", (body,))
        return
    connection = await asyncpg.connect(url)
    await connection.execute("UPDATE snapshots SET body = $1", body)
    await connection.close()

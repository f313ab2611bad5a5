"""The verdict finds what it is there for: an outside that tells another story than the record."""

from pathlib import Path
from typing import Any

import pytest

from tenuto import Engine
from tests.servers.postgres import Server

from .client import Client
from .harness import Case, Harness, prepared_file
from .plants import PLANTS
from .scenario import SCENARIOS, Scenario
from .verdict import judge, record_at, settled
from .world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    (tmp_path / "x.db").write_bytes(prepared_file().read_bytes())
    return World(tmp_path / "log")


async def _played(world: World, name: str) -> tuple[Scenario, str]:
    scenario = SCENARIOS[name]
    url = f"sqlite:///{world.log.parent}/x.db"
    async with Engine(url) as engine:
        world.provide(engine)
        await engine.apply(scenario.document)
        await scenario.script(Client(engine, world, scenario.document["name"]))
    return scenario, url


def _again(world: World, what: str, **fields: Any) -> None:
    """One more line like the first of its kind."""
    line = {**world.lines(what)[0], **fields}
    world.note(line.pop("what"), **{name: value for name, value in line.items() if name != "pid"})


def _forget(world: World, what: str) -> None:
    lines = [line for line in world.log.read_text().splitlines() if f'"{what}"' not in line]
    world.log.write_text("".join(f"{line}\n" for line in lines))


async def test_nothing_is_found_where_nothing_is_wrong(world: World) -> None:
    assert await judge(*await _played(world, "paid once"), world) == []


async def test_an_effect_that_was_made_twice(world: World) -> None:
    scenario, url = await _played(world, "paid once")
    paid = next(line for line in world.lines("made") if line["path"] == "pay")
    world.note("made", x=paid["x"], path="pay", key=paid["key"])
    assert await judge(scenario, url, world) == ["made 2 times under one key"]


async def test_a_call_that_nobody_granted(world: World) -> None:
    played = await _played(world, "three in a row")
    _again(world, "began", number=7)
    assert await judge(*played, world) == ["began a 7, and there was no such attempt"]


async def test_a_call_under_another_key(world: World) -> None:
    played = await _played(world, "three in a row")
    _again(world, "began", key="other")
    assert await judge(*played, world) == ["began a 1 under another key"]


async def test_an_execution_that_was_acknowledged_and_is_gone(world: World) -> None:
    played = await _played(world, "three in a row")
    _again(world, "acknowledged", x="gone", key="another")
    assert await judge(*played, world) == ["execution gone was acknowledged, and is not there"]


async def test_an_effect_that_is_recorded_and_was_never_made(world: World) -> None:
    played = await _played(world, "three in a row")
    _forget(world, "made")
    assert await judge(*played, world) == [f"{id} succeeded, and nothing was made" for id in "abc"]


async def test_an_undo_that_is_recorded_and_never_happened(world: World) -> None:
    played = await _played(world, "refused at once")
    _forget(world, "undone")
    assert await judge(*played, world) == [f"{id} is recorded as undone, and was not" for id in "ab"]


async def test_an_undo_that_happened_and_is_not_recorded(world: World) -> None:
    played = await _played(world, "layers")
    made = world.lines("made")[0]
    world.note("undone", x=made["x"], path=made["path"], key="undo", undoes=made["key"])
    assert await judge(*played, world) == [f"{made['path']} was undone, and is recorded as not undone"]


async def test_a_step_that_its_second_run_has_not_tried_yet_owes_nothing(world: World) -> None:
    _, url = await _played(world, "refused at once")
    (execution,) = (await record_at(url)).executions
    async with Engine(url, worker=False) as engine:
        await engine.get(execution).retry(reason="once more")
    record = await record_at(url)
    assert {row.path: (row.generation, row.undo) for row in record.steps if row.compensable}["b"] == (2, "")
    assert settled(record, world) == []


async def test_an_end_that_was_not_expected(world: World) -> None:
    scenario, url = await _played(world, "refused at once")
    (line,) = await judge(SCENARIOS["three in a row"], url, world)
    assert line.endswith("ended failed")
    assert scenario.statuses == {"failed"}


@pytest.mark.prove(drawn=3)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found(name: str, request: pytest.FixtureRequest) -> None:
    scenario, _, on_postgres = PLANTS[name]
    server: Server | None = request.getfixturevalue("postgres_server") if on_postgres else None
    cases = [Case(scenario, (point,), plant=name) for point in Harness(server).points(scenario)]
    # A point is a commit by its number, which another moment of polling may shift: so it is looked for again.
    assert any(outcome.wrong for _ in range(3) for outcome in Harness(server, patience=15).crash_all(cases))

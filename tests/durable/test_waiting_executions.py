"""Executions that wait cost a worker nothing but their rows, however many they are."""

import gc

import asyncpg
import pytest

from tenuto import Engine, SagaBuilder
from tenuto.runtime.executor.held_execution import Record
from tenuto.runtime.executor.timers import STALE
from tenuto.storage.sqlite.store import SqliteStore
from tests.seams import (
    BY_INDEX,
    POSTGRES_CLAIM,
    SQLITE_DUE,
    durable_runtime,
    held_by,
    session_of,
    sqlite_store_of,
    store_of,
)

WAITING = 100_000
IN_MEMORY = 100  # of so many, some may be on their way out


async def one() -> int:
    return 1


def _waits() -> list[SagaBuilder]:
    """For a person, for a message, for a time: each in an execution of its own."""
    return [
        SagaBuilder("asks", output="done").approval("agreed").step("done", one, depends_on=["agreed"]),
        SagaBuilder("listens", output="done").signal("paid", "paid").step("done", one, depends_on=["paid"]),
        SagaBuilder("sleeps", output="done").wait("a-week", "7d").step("done", one, depends_on=["a-week"]),
    ]


@pytest.mark.unchecked("thousands of executions, which take their time")
async def test_executions_that_wait_take_no_memory_and_are_found_when_they_are_due(url: str) -> None:
    async with Engine(url) as engine:
        engine.register(*_waits())
        runtime = durable_runtime(engine)
        batches = [await engine.start_many(name, [None] * (WAITING // 3)) for name in ("asks", "listens", "sleeps")]
        await session_of(runtime).committer.drain()
        gc.collect()
        assert len(held_by(runtime).records) < IN_MEMORY
        held = [
            thing for thing in gc.get_objects() if isinstance(thing, Record) and thing.controller is held_by(runtime)
        ]
        assert len(held) < IN_MEMORY
        assert len(held_by(runtime).timer) <= 2 * IN_MEMORY + STALE
        asks, listens, sleeps = (batch.execution_ids[WAITING // 5] for batch in batches)
        await engine.get(asks).approve("agreed")
        await engine.get(listens).signal("paid")
        assert (await engine.get(asks).result()).output == 1
        assert (await engine.get(listens).result()).output == 1
        if isinstance(store_of(runtime), SqliteStore):
            assert await _is_due_by_index(sqlite_store_of(runtime))
        assert (await engine.get(sleeps).status())["blocked"] is not None


async def _is_due_by_index(store: SqliteStore) -> bool:
    plan = str(await store.database.fetch(f"EXPLAIN QUERY PLAN {SQLITE_DUE}", ('[["sleeps", 1]]', 0, 1, 200)))
    found = "SEARCH executions USING INDEX executions_due (definition=? AND version=? AND priority=? AND wake_at<?)"
    return found in plan and "SCAN e" not in plan


async def test_what_is_due_is_found_by_its_index_on_postgresql(postgres_url: str) -> None:
    async with Engine(postgres_url) as engine:
        engine.register(*_waits())
        await engine.start_many("sleeps", [None] * 3_000)
    connection = await asyncpg.connect(postgres_url, server_settings=BY_INDEX)
    await connection.execute("ANALYZE")
    await connection.execute("SET plan_cache_mode = force_generic_plan")
    await connection.execute(f"PREPARE claim (text, text[], bigint) AS {POSTGRES_CLAIM}")
    rows = await connection.fetch("EXPLAIN EXECUTE claim ('nobody', '{sleeps/1}', 200)")
    await connection.close()
    plan = "\n".join(row[0] for row in rows)
    (condition,) = [line for line in plan.splitlines() if "Index Cond" in line and "wake_at" in line]
    assert all(column in condition for column in ("definition", "version", "priority", "wake_at")), plan
    assert "Seq Scan on executions" not in plan

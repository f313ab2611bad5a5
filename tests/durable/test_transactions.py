"""Executions that are started in a caller's own transaction, and what is done once in one."""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from tenuto import Engine, Handle, SagaBuilder
from tenuto.errors import (
    ConcurrencyConflict,
    IdempotencyConflict,
    InvalidInput,
    NotFound,
    NotSupported,
    StorageError,
    TenantLimit,
)
from tests.durable.callers import DRIVERS, transaction
from tests.servers import sqlite


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def url(driver: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if driver == "apsw":
        return f"sqlite:///{tmp_path}/x.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


async def double(number: int) -> int:
    return 2 * number


def doubling(**options: Any) -> SagaBuilder:
    return SagaBuilder("double", output="double", **options).step("double", double)


async def _rows(driver: str, url: str, query: str) -> list[tuple[Any, ...]]:
    async with transaction(driver, url) as own:
        return await own.run(query)


@pytest.mark.requirement("D5")
async def test_an_execution_is_started_with_the_callers_rows(driver: str, url: str) -> None:
    async with Engine(url) as engine:
        engine.register(doubling())
        async with transaction(driver, url) as own:
            await own.run("CREATE TABLE orders (id INTEGER)")
            await own.run("INSERT INTO orders VALUES (7)")
            handle = await engine.start("double", 7, connection=own.connection)
            with pytest.raises(NotFound):
                await handle.status()
        assert (await handle.result()).output == 14
    assert await _rows(driver, url, "SELECT id FROM orders") == [(7,)]


@pytest.mark.requirement("D5")
async def test_what_is_rolled_back_was_never_started(driver: str, url: str) -> None:
    async with Engine(url) as engine:
        engine.register(doubling())
        started: list[Handle[Any]] = []
        with suppress(ZeroDivisionError):
            async with transaction(driver, url) as own:
                started.append(await engine.start("double", 7, idempotency_key="k", connection=own.connection))
                raise ZeroDivisionError
        with pytest.raises(NotFound):
            await started[0].status()
        assert await engine.count() == {}
        again = await engine.start("double", 8, idempotency_key="k")  # the key was not used, for another request either
        assert (await again.result()).output == 16
    assert len(await _rows(driver, url, "SELECT DISTINCT execution FROM events")) == 1


async def test_a_key_gives_the_same_execution_within_and_without_a_transaction(driver: str, url: str) -> None:
    async with Engine(url) as engine:
        engine.register(doubling())
        first = await engine.start("double", 7, idempotency_key="k")
        async with transaction(driver, url) as own:
            within = await engine.start("double", 7, idempotency_key="k", connection=own.connection)
            new = await engine.start("double", 7, idempotency_key="new", connection=own.connection)
            seen = await engine.start("double", 7, idempotency_key="new", connection=own.connection)
            with pytest.raises(IdempotencyConflict):
                await engine.start("double", 8, idempotency_key="k", connection=own.connection)
        after = await engine.start("double", 7, idempotency_key="new")
        assert (within.id, seen.id, after.id) == (first.id, new.id, new.id)
        assert (await new.result()).output == 14


async def test_a_refusal_leaves_the_callers_transaction_usable(driver: str, url: str) -> None:
    async with Engine(url) as engine:
        engine.register(doubling(concurrency_key="'one'", on_conflict="reject"))
        async with transaction(driver, url) as own:
            await own.run("CREATE TABLE orders (id INTEGER)")
            await own.run("INSERT INTO orders VALUES (7)")
            first = await engine.start("double", 1, connection=own.connection)
            with pytest.raises(ConcurrencyConflict):
                await engine.start("double", 2, connection=own.connection)
        assert (await first.result()).output == 2
    assert await _rows(driver, url, "SELECT id FROM orders") == [(7,)]
    assert await _rows(driver, url, "SELECT count(*) FROM executions") == [(1,)]


async def test_those_of_one_key_run_in_the_order_in_which_they_were_started(driver: str, url: str) -> None:
    order: list[int] = []

    async def note(number: int) -> None:
        order.append(number)

    async with Engine(url) as engine:
        engine.register(SagaBuilder("line", concurrency_key="'one'").step("note", note))
        async with transaction(driver, url) as own:
            handles = [await engine.start("line", number, connection=own.connection) for number in range(3)]
        handles.append(await engine.start("line", 3))
        for handle in handles:
            assert (await handle.result()).succeeded
    assert order == [0, 1, 2, 3]


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_a_concurrency_key_is_not_asked_of_an_old_snapshot(postgres_url: str, isolation: Any) -> None:
    """Who holds it now would not be seen there, and two would run at once."""
    async with Engine(postgres_url) as engine:
        engine.register(doubling())
        connection = await asyncpg.connect(postgres_url)
        async with connection.transaction(isolation=isolation):
            with pytest.raises(NotSupported, match="READ COMMITTED"):
                await engine.start("double", 1, concurrency_key="k", connection=connection)
            without = await engine.start("double", 2, connection=connection)
        await connection.close()
        assert (await without.result()).output == 4


async def test_a_tenants_limit_holds_within_a_transaction(driver: str, url: str) -> None:
    gate = asyncio.Event()

    async def held() -> None:
        await gate.wait()

    async with Engine(url) as engine:
        engine.register(SagaBuilder("held").step("held", held))
        await _rows(driver, url, "INSERT INTO tenant_limits (tenant, max_in_flight, in_flight) VALUES ('small', 1, 0)")
        async with transaction(driver, url) as own:
            first = await engine.start("held", tenant="small", connection=own.connection)
            with pytest.raises(TenantLimit):
                await engine.start("held", tenant="small", connection=own.connection)
        with pytest.raises(TenantLimit):
            await engine.start("held", tenant="small")
        gate.set()
        assert (await first.result()).succeeded
        async with transaction(driver, url) as own:
            second = await engine.start("held", tenant="small", connection=own.connection)
        assert (await second.result()).succeeded


async def test_an_engine_that_does_not_work_leaves_it_to_others(driver: str, url: str) -> None:
    async with Engine(url, worker=False) as submitter, Engine(url) as worker:
        for engine in (submitter, worker):
            engine.register(doubling())
        async with transaction(driver, url) as own:
            handle = await submitter.start("double", 4, connection=own.connection)
        assert (await handle.result()).output == 8


# Connections that are not what they should be -------------------------------------------------------------------------


async def test_a_connection_without_a_transaction_is_refused(driver: str, url: str) -> None:
    async with Engine(url) as engine:
        engine.register(doubling())
        connection: Any
        if driver == "apsw":
            connection = sqlite.connect(url)
        elif driver == "asyncpg":
            connection = await asyncpg.connect(url)
        else:
            connection = await psycopg.AsyncConnection.connect(url, autocommit=True)
        try:
            with pytest.raises(NotSupported) as refused:
                await engine.start("double", 1, connection=connection)
        finally:
            closing = connection.close()
            if closing is not None:
                await closing
        assert refused.value.code == "no_transaction"
        assert await engine.count() == {}


@pytest.mark.unchecked("the other database is not of Tenuto")
async def test_a_connection_to_another_database_is_refused(driver: str, url: str, tmp_path: Path) -> None:
    elsewhere = f"sqlite:///{tmp_path}/other.db" if driver == "apsw" else url.rpartition("/")[0] + "/postgres"
    async with Engine(url) as engine:
        engine.register(doubling())
        async with transaction(driver, elsewhere) as own:
            with pytest.raises(StorageError) as refused:
                await engine.start("double", 1, connection=own.connection)
            assert await own.run("SELECT 1") == [(1,)]  # the caller's transaction goes on
        assert refused.value.code == "other_database"


@pytest.mark.parametrize("driver", ["apsw"])
async def test_what_is_no_connection_is_refused_by_name(driver: str, url: str) -> None:
    class Connection:
        """As the standard library's, which is not imported here for the reason that it is refused for."""

    Connection.__module__, Connection.__qualname__ = "sqlite3", "Connection"
    async with Engine(url) as engine:
        engine.register(doubling())
        with pytest.raises(NotSupported, match="corrupt"):
            await engine.start("double", 1, connection=Connection())
        with pytest.raises(NotSupported, match="object"):
            await engine.start("double", 1, connection=object())


# Crashes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_caller_that_is_killed_around_his_commit(driver: str, url: str, when: str) -> None:
    """Killed before the commit, there is neither an order nor an execution; killed after it, there are both."""
    async with Engine(url) as engine:
        engine.register(doubling())
        await _rows(driver, url, "CREATE TABLE orders (id INTEGER)")
        command = [sys.executable, "-m", "tests.durable.transaction_caller", driver, url, when]
        child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        assert child.stdout is not None
        assert await child.stdout.readline() == f"{when}\n".encode()
        child.kill()
        await child.communicate()
        placed = when == "after"
        handle = await engine.start("double", 21, idempotency_key="order-21")
        assert (await handle.result()).output == 42
        assert await _rows(driver, url, "SELECT id FROM orders") == ([(21,)] if placed else [])
        assert await engine.count() == {"succeeded": 1}
        started_by = await _rows(driver, url, "SELECT correlation_id FROM executions")
        assert (started_by == [("placing",)]) == placed


# Once -----------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("D6")
async def test_a_message_is_met_once_by_each_consumer(driver: str, url: str) -> None:
    async def meet(consumer: str, message: str, fails: bool = False) -> bool:
        async with transaction(driver, url) as own, engine.inbox(consumer, message, own.connection) as first:
            if fails:
                raise ZeroDivisionError
            return first

    async with Engine(url) as engine:
        with pytest.raises(ZeroDivisionError):
            await meet("billing", "m1", fails=True)  # rolled back: it was not met
        assert [await meet("billing", "m1"), await meet("billing", "m1")] == [True, False]
        assert [await meet("shipping", "m1"), await meet("billing", "m2")] == [True, True]


@pytest.mark.requirement("D6")
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])  # SQLite has one writer: nobody else gets in at all
async def test_two_that_meet_a_message_at_once_do_not_both_act_on_it(driver: str, url: str) -> None:
    async with Engine(url) as engine:
        entered = asyncio.Event()

        async def second() -> bool:
            await entered.wait()
            async with transaction(driver, url) as own, engine.inbox("billing", "m", own.connection) as is_first:
                return is_first

        waiting = asyncio.create_task(second())
        async with transaction(driver, url) as own, engine.inbox("billing", "m", own.connection) as first:
            entered.set()
            await _until_it_waits(url)
            assert not waiting.done()
        assert (first, await waiting) == (True, False)


async def _until_it_waits(url: str) -> None:
    connection = await asyncpg.connect(url)
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    while not await connection.fetchval(query):
        pass
    await connection.close()


async def test_the_engines_own_consumer_is_not_for_callers(driver: str, url: str) -> None:
    async with Engine(url) as engine:
        for consumer, message in (("tenuto.once", "m"), ("", "m"), ("billing", "")):
            with pytest.raises(InvalidInput):
                engine.inbox(consumer, message)

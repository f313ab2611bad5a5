"""An engine that reads a database and writes nothing to it."""

import asyncio

import asyncpg
import pytest

from tenuto import Engine, SagaBuilder
from tenuto.cli.connection import open_engine
from tenuto.errors import StorageError
from tenuto.storage import make_store


async def double(n: int) -> int:
    return 2 * n


DOUBLES = SagaBuilder("doubles").step("double", double).build()


async def _sessions(url: str) -> int:
    store = make_store(url)
    await store.open(migrate=False)
    found = await store.operations.sessions()
    await store.close()
    return len(found)


async def test_it_reads_and_refuses_to_write(url: str) -> None:
    async with Engine(url) as engine:
        engine.register(DOUBLES)
        id = (await engine.execute("doubles", 2)).execution_id
    before = await _sessions(url)
    async with Engine(url, worker=False, read_only=True) as engine:
        assert (await engine.get(id).status())["status"] == "succeeded"
        assert [each["execution_id"] async for each in engine.summaries()] == [id]
        assert [each["name"] async for each in engine.definitions()] == ["doubles"]
        assert await engine.workers() == []
        for writing in (
            engine.start("doubles", 2),
            engine.get(id).cancel(),
            engine.tenant_limit("a", max_in_flight=1),
            engine.limit("a", concurrency=1),
            engine.keys.create(tenant="a", roles=["viewer"]),
        ):
            with pytest.raises(StorageError) as caught:
                await writing
            assert caught.value.code == "read_only"
    assert await _sessions(url) == before


async def test_a_result_of_another_process_arrives(url: str) -> None:
    async with Engine(url) as worker, Engine(url, worker=False, read_only=True) as reader:
        worker.register(SagaBuilder("waits").approval("gate").build())
        handle = await worker.start("waits", 1)
        waiting = asyncio.ensure_future(reader.get(handle.id).result(return_when="terminal"))
        await handle.result()
        await handle.approve("gate")
        assert (await waiting).status == "succeeded"


async def test_on_a_server_that_refuses_writes_only_an_engine_that_reads_opens(postgres_url: str) -> None:
    """As on a standby."""
    async with Engine(postgres_url) as engine:
        engine.register(DOUBLES)
        id = (await engine.execute("doubles", 2)).execution_id
    connection = await asyncpg.connect(postgres_url)
    name = await connection.fetchval("SELECT current_database()")
    await connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    await connection.close()
    async with open_engine(postgres_url, reads=True) as engine:
        assert (await engine.get(id).status())["status"] == "succeeded"
    with pytest.raises(StorageError) as caught:
        async with open_engine(postgres_url, reads=False):
            raise AssertionError("it opened")
    assert caught.value.code == "read_only"

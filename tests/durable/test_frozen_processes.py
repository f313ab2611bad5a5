"""A process that is frozen, or whose host is gone, in the middle of a transaction on PostgreSQL."""

import asyncio

import asyncpg
import pytest

from tenuto import Engine, SagaBuilder
from tenuto.storage.postgres import database as postgres
from tenuto.storage.postgres.store import PostgresStore
from tests.checking.soundness import assert_sound
from tests.durable.rows import started
from tests.seams import end_idle_transactions

_LOCK = "SELECT id FROM sessions WHERE id = $1 FOR SHARE"


async def one() -> int:
    return 1


async def test_whoever_has_a_transaction_open_is_left_for_later_and_the_others_are_reaped(postgres_url: str) -> None:
    store = PostgresStore(postgres_url)
    await store.open(migrate=True)
    for session in ("frozen", "dead"):
        await store.sessions.open(session, "worker", "", 0, None)
    holder = await asyncpg.connect(postgres_url)
    async with holder.transaction():
        await holder.fetch(_LOCK, "frozen")
        async with asyncio.timeout(20):  # less than a question to the database may take
            while not await store.sessions.reap():
                await asyncio.to_thread(lambda: None)
        assert [row.id for row in await store.operations.sessions()] == ["frozen"]
    await holder.close()
    assert await store.sessions.reap() == 1
    await store.close()


async def test_a_session_whose_execution_somebody_holds_is_left_for_later(postgres_url: str) -> None:
    store = PostgresStore(postgres_url)
    await store.open(migrate=True)
    for session in ("held", "dead"):
        await store.sessions.open(session, "worker", "", 0, None)
    await store.commit(started("x1", session="held"))
    holder = await asyncpg.connect(postgres_url)
    async with holder.transaction():
        await holder.fetch("SELECT id FROM executions WHERE id = 'x1' FOR UPDATE")
        assert await store.sessions.reap() == 1
        assert [row.id for row in await store.operations.sessions()] == ["held"]
    await holder.close()
    assert await store.sessions.reap() == 1
    await store.close()


async def test_a_database_that_is_up_to_date_is_opened_while_somebody_migrates(postgres_url: str) -> None:
    store = PostgresStore(postgres_url)
    await store.open(migrate=True)
    await store.close()
    holder = await asyncpg.connect(postgres_url)
    async with holder.transaction():
        await holder.fetch("SELECT pg_advisory_xact_lock($1)", postgres.MIGRATION_LOCK)
        await store.open(migrate=True)
        await store.close()
    await holder.close()


async def test_the_server_ends_the_transaction_of_a_process_that_is_frozen(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had in hand is taken over, although its connection is still there."""
    with monkeypatch.context() as patch:
        end_idle_transactions(patch, "300ms")
        frozen = PostgresStore(postgres_url)
        await frozen.open(migrate=True)
    await frozen.sessions.open("frozen", "worker", "", 0, None)
    transaction = frozen.database.committer.transaction()
    await transaction.start()
    await frozen.database.committer.fetch(_LOCK, "frozen")
    async with Engine(postgres_url) as engine:
        engine.register(SagaBuilder("quick", output="a").step("a", one))
        assert (await engine.execute("quick")).output == 1
        while any(row.id == "frozen" for row in await frozen.operations.sessions()):
            await asyncio.to_thread(lambda: None)
    await frozen.close()
    await assert_sound(postgres_url)

"""Somebody's open transaction on PostgreSQL holds what a commit needs: those concerned wait for it, and nobody else."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from tenuto import Engine, SagaBuilder
from tenuto.errors import InvalidInput, TenantLimit
from tenuto.storage.shared.admissions import lock_name
from tests.checking.soundness import assert_sound

PATIENCE_SECONDS = 60  # for what goes on at once; with one commit behind the other it never would
INNOCENTS = 20


async def one() -> int:
    return 1


@pytest.fixture
async def engine(postgres_url: str) -> AsyncIterator[Engine]:
    async with Engine(postgres_url) as opened:
        opened.register(SagaBuilder("quick", output="a").step("a", one))
        await opened.tenant_limit("acme", max_in_flight=1_000)
        yield opened
    await assert_sound(postgres_url)


@pytest.fixture
async def caller(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


HELD: dict[str, dict[str, Any]] = {
    "the row of a tenant with a limit": {"tenant": "acme"},
    "a concurrency key": {"concurrency_key": "k"},
    "an idempotency key": {"idempotency_key": "k"},
}


@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("what", HELD)
async def test_others_go_on_while_a_transaction_is_open(
    engine: Engine, caller: asyncpg.Connection, what: str, commits: bool
) -> None:
    options = HELD[what]
    transaction = caller.transaction()
    await transaction.start()
    held = await engine.start("quick", None, connection=caller, **options)
    behind = [asyncio.create_task(engine.start("quick", None, **options)) for _ in range(3)]
    async with asyncio.timeout(PATIENCE_SECONDS):
        for _ in range(3):
            innocent = [engine.execute("quick") for _ in range(INNOCENTS)]
            assert {result.status for result in await asyncio.gather(*innocent)} == {"succeeded"}
    assert not any(task.done() for task in behind)
    await (transaction.commit() if commits else transaction.rollback())
    async with asyncio.timeout(PATIENCE_SECONDS):
        handles = await asyncio.gather(*behind)
        assert {(await handle.result()).status for handle in handles} == {"succeeded"}
    if what == "an idempotency key":
        assert {handle.id for handle in handles} == {held.id if commits else handles[0].id}
    else:
        assert len({handle.id for handle in handles} | {held.id}) == 4


async def test_what_ends_meanwhile_waits_for_nobody_and_is_counted_once(
    engine: Engine, caller: asyncpg.Connection
) -> None:
    opened = asyncio.Event()

    async def wait() -> None:
        await opened.wait()

    engine.register(SagaBuilder("gated", output="b").step("a", wait).step("b", one, depends_on=["a"]))
    handles = [await engine.start("gated", None, tenant="acme") for _ in range(5)]
    transaction = caller.transaction()
    await transaction.start()
    await engine.start("quick", None, connection=caller, tenant="acme")
    opened.set()
    results = [asyncio.create_task(handle.result()) for handle in handles]
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert {(await result).status for result in results} == {"succeeded"}
    assert [row["in_flight"] for row in await engine.tenant_limits()] == [0]
    await transaction.rollback()
    await engine.tenant_limit("acme", max_in_flight=2)
    await engine.start("gated", None, tenant="acme")
    assert (await engine.execute("quick", tenant="acme")).status == "succeeded"


async def test_what_ended_makes_room_in_a_callers_transaction_too(engine: Engine, caller: asyncpg.Connection) -> None:
    await engine.tenant_limit("acme", max_in_flight=1)
    for _ in range(3):
        assert (await engine.execute("quick", tenant="acme")).status == "succeeded"
    async with caller.transaction():
        await engine.start("quick", None, connection=caller, tenant="acme")
        with pytest.raises(TenantLimit):
            await engine.start("quick", None, connection=caller, tenant="acme")


async def test_whoever_waits_for_a_tenants_row_counts_what_was_committed_meanwhile(
    engine: Engine, caller: asyncpg.Connection, postgres_url: str
) -> None:
    """What ended was noted before he came, and is counted while he waits: not twice."""
    gate = asyncio.Event()
    engine.register(SagaBuilder("gated").step("a", gate.wait))
    await engine.tenant_limit("acme", max_in_flight=1)
    assert (await engine.execute("quick", tenant="acme")).status == "succeeded"
    watching = await asyncpg.connect(postgres_url)
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%INTO executions%'"
    async with asyncio.timeout(PATIENCE_SECONDS):
        async with caller.transaction():
            held = await engine.start("gated", None, connection=caller, tenant="acme")
            behind = asyncio.create_task(engine.start("quick", None, tenant="acme"))
            while not await watching.fetchval(waits):
                await asyncio.to_thread(lambda: None)
        with pytest.raises(TenantLimit):
            await behind
        assert [row["in_flight"] for row in await engine.tenant_limits()] == [1]
        gate.set()
        assert (await held.result()).status == "succeeded"
        assert (await engine.execute("quick", tenant="acme")).status == "succeeded"
    await watching.close()


async def test_a_limit_is_not_exceeded_by_many_who_start_while_others_end(postgres_url: str) -> None:
    """Three engines on one tenant: what is in flight is never more than it may be, and none is lost."""
    most, under_way = 5, 0

    async def busy() -> None:
        nonlocal under_way
        under_way += 1
        assert under_way <= most
        await asyncio.to_thread(lambda: None)
        under_way -= 1

    async with Engine(postgres_url) as one, Engine(postgres_url) as two, Engine(postgres_url, worker=False) as client:
        for engine in (one, two, client):
            engine.register(SagaBuilder("busy").step("a", busy))
        await client.tenant_limit("acme", max_in_flight=most)

        async def insist(engine: Engine) -> str:
            while True:
                try:
                    return (await engine.execute("busy", tenant="acme")).status
                except TenantLimit:
                    await asyncio.to_thread(lambda: None)

        async with asyncio.timeout(PATIENCE_SECONDS):
            ended = await asyncio.gather(*(insist(engine) for engine in (one, two, client) for _ in range(20)))
        assert set(ended) == {"succeeded"}
        assert [row["in_flight"] for row in await client.tenant_limits()] == [0]
    await assert_sound(postgres_url)


async def test_a_limit_counts_who_looked_for_it_before_it_was_there(
    engine: Engine, caller: asyncpg.Connection, postgres_url: str
) -> None:
    """He found none, and waits for his key before he writes: whoever sets the limit waits for him."""
    stranger, watching = await asyncpg.connect(postgres_url), await asyncpg.connect(postgres_url)
    holding = stranger.transaction()
    await holding.start()
    await stranger.execute("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", lock_name("late", "k"))
    transaction = caller.transaction()
    await transaction.start()
    starting = asyncio.create_task(engine.start("quick", None, connection=caller, tenant="late", idempotency_key="k"))
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1"
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not await watching.fetchval(waits, "%pg_advisory_xact_lock%"):
            await asyncio.to_thread(lambda: None)
        setting = asyncio.create_task(engine.tenant_limit("late", max_in_flight=1))
        while not setting.done() and not await watching.fetchval(waits, "LOCK TABLE%"):
            await asyncio.to_thread(lambda: None)
        await holding.rollback()
        await starting
        await transaction.commit()
        await setting
        await (await starting).result()
    assert {row["tenant"]: row["in_flight"] for row in await engine.tenant_limits()}["late"] == 0
    await stranger.close()
    await watching.close()


async def test_whoever_is_killed_while_he_sets_a_tenants_limit_leaves_none(postgres_url: str) -> None:
    async with Engine(postgres_url) as engine:
        engine.register(SagaBuilder("asks").approval("ok"))
        await engine.execute("asks")
        stranger = await asyncpg.connect(postgres_url)
        async with stranger.transaction():
            await stranger.execute("LOCK TABLE executions IN ROW EXCLUSIVE MODE")
            setting = asyncio.create_task(engine.tenant_limit("default", max_in_flight=10))
            while not await stranger.fetchval("SELECT count(*) FROM tenant_limits"):
                await asyncio.to_thread(lambda: None)
            setting.cancel()
            await asyncio.wait([setting])
        await stranger.close()
        assert await engine.tenant_limits() == []
        await assert_sound(postgres_url)
        await engine.execute("asks")
        await engine.tenant_limit("default", max_in_flight=10)
        assert [row["in_flight"] for row in await engine.tenant_limits()] == [2]
        with pytest.raises(InvalidInput):
            await engine.tenant_limit("default", max_in_flight=2**31 - 1)
    await assert_sound(postgres_url)

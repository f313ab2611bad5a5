"""Processes wake one another. Polling is the truth; here it is as good as switched off, so that only hints are left."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from tenuto import Engine, SagaBuilder
from tenuto.storage.port import renewal_s
from tenuto.storage.postgres import notifications as notify
from tenuto.storage.postgres.store import PostgresStore
from tests.durable.rows import started
from tests.seams import pending_hints, wakeups_of

EXECUTIONS = 50


DAY_MS = 24 * 3_600_000


def _hardly_polling(url: str, **options: Any) -> Engine:
    engine = Engine(url, **options)
    wakeups_of(engine).poll_ms = DAY_MS
    return engine


@pytest.fixture
async def client(url: str) -> AsyncIterator[Engine]:
    async with _hardly_polling(url, worker=False) as engine:
        yield engine


@pytest.fixture
async def worker(url: str, client: Engine) -> AsyncIterator[Engine]:
    async with _hardly_polling(url) as engine:
        engine.register(_chain(), _signalled())
        _ = [each async for each in engine.definitions()]  # stores them, for the client that has no code
        yield engine


async def one() -> int:
    return 1


def _chain() -> SagaBuilder:
    return SagaBuilder("chain", output="b").step("a", one).step("b", one, depends_on=["a"])


def _signalled() -> SagaBuilder:
    return SagaBuilder("signalled", output="b").signal("paid", "paid").step("b", one, depends_on=["paid"])


@pytest.mark.usefixtures("worker")
async def test_a_worker_hears_of_work_and_a_client_of_its_end(client: Engine) -> None:
    handles = [await client.start("chain") for _ in range(EXECUTIONS)]
    results = [await handle.result() for handle in handles]
    assert {result.output for result in results} == {1}


async def test_an_owner_hears_of_mail(client: Engine, worker: Engine) -> None:
    """The execution is in the worker's hands while a step of it runs."""
    told = asyncio.Event()

    async def hold() -> None:
        await told.wait()

    worker.register(SagaBuilder("owned").step("hold", hold).signal("paid", "paid"))
    handle = await worker.start("owned")
    await client.get(handle.id).signal("paid")  # returns with the owner's verdict
    told.set()
    assert (await handle.result()).status == "succeeded"


@pytest.mark.usefixtures("worker")
async def test_a_command_to_an_execution_that_nobody_has_is_answered_by_whoever_sends_it(client: Engine) -> None:
    handle = await client.start("signalled")
    await handle.signal("paid")
    assert (await handle.result()).output == 1


async def test_hints_are_gathered_and_no_commit_carries_one(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A NOTIFY makes its commit wait for all others that notify. Here the next one may be sent in an hour."""
    monkeypatch.setattr(notify, "EVERY_SECONDS", 3_600)
    heard: asyncio.Queue[object] = asyncio.Queue()
    other = await asyncpg.connect(postgres_url)
    await other.add_listener(notify.CHANNEL, lambda *said: heard.put_nowait(said[3]))
    store = PostgresStore(postgres_url)
    await store.open(migrate=True)
    listening = asyncio.Event()
    store.listen(lambda hints: listening.set())
    await listening.wait()
    store.notify("first")
    assert await heard.get() == "first"  # after a silence, at once
    for number in range(1_000):
        store.notify(f"hint-{number % 3}")
    await store.sessions.open("s1", "worker", "build", 60_000, ())
    await store.commit(started("x1"))
    await other.execute("SELECT pg_notify($1, 'last')", notify.CHANNEL)
    assert await heard.get() == "last"  # notifications come in the order of their commits
    assert pending_hints(store) == ["hint-0", "hint-1", "hint-2"]
    await store.close()
    await other.close()


def test_leases_are_renewed_in_time_and_not_in_step() -> None:
    waits = [renewal_s(15_000) for _ in range(100)]
    assert len(set(waits)) > 1
    assert all(3.75 <= wait <= 5 for wait in waits)

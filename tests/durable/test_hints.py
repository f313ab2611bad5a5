"""Processes wake one another. Polling is the truth; here it is as good as switched off, so that only hints are left."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tenuto import Engine, SagaBuilder
from tenuto.runtimes.durable import DurableRuntime

EXECUTIONS = 50


DAY_MS = 24 * 3_600_000


def _hardly_polling(url: str, **options: Any) -> Engine:
    engine = Engine(url, **options)
    _runtime(engine)._poll_ms = DAY_MS
    return engine


def _runtime(engine: Engine) -> DurableRuntime:
    assert isinstance(engine._runtime, DurableRuntime)
    return engine._runtime


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

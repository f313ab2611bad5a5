"""Handlers that take their process with them. Whoever starts it again gets on with the rest, and with this one, too."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tenuto import Engine

from .crashing_worker import LEASE, sagas
from .sessions import expire
from .worker_process import noted

STARTS = 4  # the first one, and after each of three losses
HEALTHY = 5

pytestmark = pytest.mark.usefixtures("sound")


@asynccontextmanager
async def worker(url: str, log: Path) -> AsyncIterator[None]:
    """One that is started again whenever it ends, as a supervisor does."""
    command = [sys.executable, "-m", "tests.durable.crashing_worker", url, str(log)]
    process: asyncio.subprocess.Process | None = None

    async def supervise() -> None:
        nonlocal process
        while True:
            process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.DEVNULL)
            await process.wait()
            await expire(url, process.pid)

    task = asyncio.create_task(supervise())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("poison", ["exit", "kill", "crash"])
async def test_what_kills_its_worker_is_given_up_after_three_losses(url: str, tmp_path: Path, poison: str) -> None:
    log = tmp_path / "log"
    async with Engine(url, worker=False) as engine:
        engine.register(*sagas(str(log)))
        async with worker(url, log):
            bad = await engine.start("poisoned", poison)
            good = [await engine.start("healthy") for _ in range(HEALTHY)]
            assert (await bad.result()).status == "failed"
            assert {(await handle.result()).status for handle in good} == {"succeeded"}
            assert [letter["execution_id"] async for letter in engine.dlq()] == [bad.id]
    assert [int(line[2]) for line in noted(str(log))] == list(range(1, STARTS + 1))


async def test_memory_that_is_not_there_fails_the_step_one_way_or_the_other(url: str, tmp_path: Path) -> None:
    """Python is told before the system acts. If it is told elsewhere than in the handler, its worker may die of it."""
    log = tmp_path / "log"
    async with Engine(url, worker=False) as engine:
        engine.register(*sagas(str(log)))
        async with worker(url, log):
            assert (await engine.execute("poisoned", "eat")).status == "failed"
            assert (await engine.execute("healthy")).succeeded
    assert 1 <= len(noted(str(log))) <= STARTS


async def test_a_handler_that_stops_the_loop_of_its_worker_does_not_keep_what_that_owns(
    url: str, tmp_path: Path
) -> None:
    """Its process lives, and its lease could be renewed for ever. It is not, and others take over."""
    log = tmp_path / "log"
    command = [sys.executable, "-m", "tests.durable.crashing_worker", url, str(log)]
    async with Engine(url, worker=False) as client:
        client.register(*sagas(str(log)))
        process = await asyncio.create_subprocess_exec(*command)
        try:
            good = await client.start("healthy")
            await good.result()
            bad = await client.start("poisoned", "stand still")
            while not noted(str(log)):
                await asyncio.to_thread(lambda: None)
            async with Engine(url, lease=LEASE) as other:
                other.register(*sagas(str(log), poisons={}))  # a release that was mended
                assert (await bad.result()).output == "stand still"
            assert process.returncode is None
        finally:
            process.kill()
            await process.wait()

"""One execution with very many clones, on a database: whoever comes after it has his turn all the same."""

import asyncio
from typing import Any

import pytest

from tenuto import Engine, ExpandEach, SagaBuilder, StepInputs

pytestmark = pytest.mark.usefixtures("sound")

CLONES = 1_000
SLOTS = 4
TURNS = 50  # of the large one's, until the small one has had its own


async def test_an_execution_with_very_many_clones_starves_nobody(url: str) -> None:
    may_end = asyncio.Semaphore(0)
    ended: asyncio.Queue[int] = asyncio.Queue()

    async def clone(number: int) -> None:
        await may_end.acquire()
        ended.put_nowait(number)

    called = asyncio.Event()

    async def one() -> int:
        called.set()
        return 1

    async with Engine(url, slots=SLOTS) as engine:
        engine.register(SagaBuilder("large").step("all", clone), SagaBuilder("small", output="a").step("a", one))
        crowd: Any = await engine.start("large", StepInputs({"all": ExpandEach(range(CLONES))}))
        may_end.release()
        await ended.get()  # it has all the slots, and hundreds of clones wait for one
        small = await engine.start("small")
        turns = 0
        while not called.is_set():
            assert turns < TURNS
            turns += 1
            may_end.release()
            await ended.get()
        assert (await small.result()).output == 1
        for _ in range(CLONES):
            may_end.release()
        assert (await crowd.result()).status == "succeeded"

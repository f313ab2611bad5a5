"""Processes that take commands and run no steps: what they decide is run by those that can."""

import asyncio
from typing import Any

import pytest

from tenuto import Engine, Saga, approval, saga, step

PATIENCE = 120


@saga("asks", output="pay")
class Asks(Saga[int, str]):
    ok = approval()

    @step(depends_on=[ok])
    async def pay(self, euros: int) -> str:
        return f"{euros} paid"


@saga("other")
class Other(Saga[int, int]):
    @step
    async def a(self, n: int) -> int:
        return n


@pytest.mark.parametrize("works", [False, True], ids=["runs no steps", "runs other sagas"])
async def test_what_another_process_approves_is_run_by_a_worker(url: str, works: bool) -> None:
    async with Engine(url) as worker, Engine(url, worker=works) as other:
        worker.register(Asks())
        if works:
            other.register(Other())
        id = (await worker.execute(Asks, 7)).execution_id
        handle = other.get(id)
        await handle.approve("ok")
        result = await asyncio.wait_for(handle.result(), PATIENCE)
        assert result.output == "7 paid"
        pay: Any = [row for row in await handle.history() if row["step_id"] == "pay"]
        assert [(row["attempt_number"], row["status"]) for row in pay] == [(1, "succeeded")]


async def test_who_waits_before_the_approval_is_told_too(url: str) -> None:
    async with Engine(url) as worker, Engine(url, worker=False) as client:
        worker.register(Asks())
        id = (await worker.execute(Asks, 7)).execution_id
        waiting = asyncio.ensure_future(client.get(id).result(return_when="terminal"))
        await client.get(id).approve("ok")
        assert (await asyncio.wait_for(waiting, PATIENCE)).output == "7 paid"

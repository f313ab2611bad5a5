"""Limits that several engines, and several processes, share through their database."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tenuto import Engine, ExpandEach, SagaBuilder, StepInputs
from tests.contract.doubles import Stage, until_blocked
from tests.durable.limited_worker import kill, limited, start_child, until_started
from tests.durable.sessions import expire
from tests.durable.worker_process import LEASE, noted
from tests.seams import ask_for_permits, durable_runtime, permits_of

MakeEngine = Callable[..., Any]


@pytest.fixture
async def make_engine(url: str) -> AsyncIterator[MakeEngine]:
    """Engines on one database, each with a session of its own: to each other they are other processes."""
    async with AsyncExitStack() as stack:

        async def make(*sagas: object, **options: Any) -> Engine:
            engine = Engine(url, **{"shutdown_grace": "1s", **options})
            engine.register(*sagas)
            return await stack.enter_async_context(engine)

        yield make


class Crowd:
    """A handler that counts how many are in it at once, wherever they come from."""

    def __init__(self, *, full: int) -> None:
        self.inside = self.most = self.entered = 0
        self._full = full
        self._is_full = asyncio.Event()

    async def pass_through(self, number: int) -> int:
        self.inside += 1
        self.entered += 1
        self.most = max(self.most, self.inside)
        if self.inside == self._full:
            self._is_full.set()
        await self._is_full.wait()
        await asyncio.to_thread(os.sched_yield)
        self.inside -= 1
        return number


def a_saga(name: str, function: Any, *limits: str) -> object:
    return SagaBuilder(name, output="work").step("work", function, limits=limits or ["l"], timeout="60s").build()


def exchanges(engine: Engine) -> int:
    runtime = durable_runtime(engine)
    return permits_of(runtime).exchanges


async def test_so_many_run_at_once_in_all_engines_together(make_engine: MakeEngine) -> None:
    crowd = Crowd(full=3)
    first = await make_engine(a_saga("a", crowd.pass_through))
    second = await make_engine(a_saga("b", crowd.pass_through))
    await first.limit("l", concurrency=3)
    items = StepInputs({"work": ExpandEach(range(15))})
    results = await asyncio.gather(first.execute("a", items), second.execute("b", items))
    assert all(result.succeeded for result in results)
    assert (crowd.most, crowd.entered) == (3, 30)
    assert [result.steps["work"].attempts for result in results] == [15, 15]


async def test_so_many_start_in_a_time_in_all_engines_together(make_engine: MakeEngine) -> None:
    entered: list[int] = []

    async def work(number: int) -> None:
        entered.append(number)

    first = await make_engine(a_saga("a", work))
    second = await make_engine(a_saga("b", work))
    await first.limit("l", rate="5/d")
    handles = [await engine.start(name, n) for engine, name in ((first, "a"), (second, "b")) for n in range(4)]
    while len(entered) < 5:
        await asyncio.to_thread(os.sched_yield)
    done = [handle for handle in handles if await _is_over_or_blocked(handle)]
    assert (len(done), len(entered)) == (5, 5)
    await second.limit("l")
    for handle in handles:
        assert (await handle.result()).succeeded
    assert len(entered) == 8


async def _is_over_or_blocked(handle: Any) -> bool:
    while True:
        found = await handle.status()
        if found["status"] == "succeeded":
            return True
        if found["blocked"] and found["blocked"]["reason"] == "limit":
            assert found["blocked"]["waiting_for"] == "l"
            return False
        await asyncio.to_thread(os.sched_yield)


async def test_what_one_engine_sets_the_others_keep_to(make_engine: MakeEngine) -> None:
    """Also for steps that found no limit when they first asked."""
    crowd = Crowd(full=1)
    worker = await make_engine(a_saga("a", crowd.pass_through))
    other = await make_engine(worker=False)
    assert (await worker.execute("a", 0)).succeeded
    gate = Stage().gate("gate")
    worker.register(a_saga("b", gate.pass_through))
    held = await worker.start("b")
    await gate.reached.wait()
    await other.limit("l", concurrency=1)
    await ask_for_permits(worker)  # the next of those that happen by themselves
    waiting = await worker.start("a", 1)
    blocked = await until_blocked(waiting, "limit")
    assert blocked["waiting_for"] == "l"
    gate.open()
    assert (await waiting.result()).succeeded
    assert (await held.result()).succeeded


async def test_limits_are_listed_with_their_use(make_engine: MakeEngine) -> None:
    gate = Stage().gate("gate")
    engine = await make_engine(a_saga("a", gate.pass_through))
    await engine.limit("l", rate="100/10s", concurrency=1)
    await engine.limit("m", concurrency=7)
    handles = [await engine.start("a") for _ in range(3)]
    await gate.reached.wait()
    while (await engine.limits())[0]["waiting"] < 2:  # what is said is what was known at the last exchange
        await asyncio.to_thread(os.sched_yield)
    assert await engine.limits() == [
        {"name": "l", "rate": "100/10s", "concurrency": 1, "running": 1, "waiting": 2},
        {"name": "m", "rate": None, "concurrency": 7, "running": 0, "waiting": 0},
    ]
    gate.open()
    for handle in handles:
        assert (await handle.result()).succeeded


async def test_an_engine_with_much_to_do_leaves_others_their_share(make_engine: MakeEngine) -> None:
    order: list[str] = []

    def saga(name: str) -> object:
        async def work(number: int) -> None:
            order.append(name)
            await asyncio.to_thread(os.sched_yield)

        return a_saga(name, work)

    first = await make_engine(saga("much"))
    second = await make_engine(saga("little"))
    await first.limit("l", concurrency=1)
    much = await first.start("much", StepInputs({"work": ExpandEach(range(100_000))}))
    while "much" not in order:
        await asyncio.to_thread(os.sched_yield)
    for number in range(3):
        assert (await second.execute("little", number)).succeeded
    assert (await much.status())["status"] == "running"
    await much.cancel("terminate")


async def test_what_names_no_limit_asks_nobody(make_engine: MakeEngine) -> None:
    async def work(number: int) -> int:
        return number

    engine = await make_engine(SagaBuilder("s").step("work", work).build())
    await engine.limit("l", concurrency=1)
    before = exchanges(engine)
    assert (await engine.execute("s", StepInputs({"work": ExpandEach(range(100))}))).succeeded
    assert exchanges(engine) == before


async def test_permits_are_dealt_in_batches(make_engine: MakeEngine) -> None:
    async def work(number: int) -> int:
        return number

    engine = await make_engine(a_saga("s", work))
    await engine.limit("l", rate="1000000/s", concurrency=50)
    before = exchanges(engine)
    assert (await engine.execute("s", StepInputs({"work": ExpandEach(range(2_000))}))).succeeded
    assert exchanges(engine) - before < 400


async def test_a_step_under_two_limits_holds_neither_while_it_waits_for_the_other(make_engine: MakeEngine) -> None:
    crowd = Crowd(full=1)
    first = await make_engine(a_saga("ab", crowd.pass_through, "a", "b"))
    second = await make_engine(a_saga("ba", crowd.pass_through, "b", "a"))
    await first.limit("a", concurrency=1)
    await first.limit("b", concurrency=1)
    items = StepInputs({"work": ExpandEach(range(10))})
    results = await asyncio.gather(first.execute("ab", items), second.execute("ba", items))
    assert all(result.succeeded for result in results)
    assert (crowd.most, crowd.entered) == (1, 20)


# -- Processes ---------------------------------------------------------------------------------------------------------


def _most_inside(lines: list[list[str]]) -> int:
    inside = most = 0
    for line in lines:
        inside += 1 if line[0] == "in" else -1
        most = max(most, inside)
    return most


async def test_so_many_run_at_once_in_all_processes_together(url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with Engine(url, worker=False) as engine:
        await engine.limit("l", concurrency=3)
    children = [start_child(url, log, 40) for _ in range(2)]
    try:
        for child in children:
            until_started(child)
        while sum(line[0] == "out" for line in noted(str(log))) < 80:
            await asyncio.to_thread(os.sched_yield)
    finally:
        for child in children:
            kill(child)
    lines = noted(str(log))
    assert _most_inside(lines) <= 3
    assert {line[1] for line in lines} == {str(child.pid) for child in children}
    assert sorted((line[1], line[2]) for line in lines if line[0] == "in") == sorted(
        (line[1], line[2]) for line in lines if line[0] == "out"
    )


async def test_what_a_killed_process_held_comes_back(url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with Engine(url, lease=LEASE) as engine:
        await engine.limit("l", concurrency=2)
        child = start_child(url, log, 2, "hang")
        try:
            until_started(child)
            while len(noted(str(log))) < 2:
                await asyncio.to_thread(os.sched_yield)
            engine.register(limited(str(log), name="other"))
            waiting = await engine.start("other", 7)
            assert (await until_blocked(waiting, "limit"))["waiting_for"] == "l"
        finally:
            kill(child)
        await expire(url, child.pid)
        assert (await waiting.result()).output == 7
        (use,) = await engine.limits()
        assert use["concurrency"] == 2

"""One at a time per concurrency key, when several engines, and processes that die, stand in its line."""

import asyncio
import os
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tenuto import Engine, SagaBuilder
from tenuto.errors import ConcurrencyConflict, NonRetryableError
from tenuto.kernel.events import ExecutionAdmitted
from tenuto.runtime.durable.committer import Write
from tenuto.storage.shared.admissions import admission
from tests.contract.doubles import until_blocked
from tests.durable.limited_worker import kill, limited, start_child, until_started
from tests.durable.rows import standing
from tests.durable.sessions import expire
from tests.durable.worker_process import LEASE, noted
from tests.seams import merged_batch, runtime_of, store_of

LINE = ("t", "d", "k")


async def _engines(stack: AsyncExitStack, url: str, *sagas: object) -> list[Engine]:
    engines = [await stack.enter_async_context(Engine(url)) for _ in range(2)]
    for engine in engines:
        engine.register(*sagas)
    return engines


@pytest.mark.requirement("B5")
async def test_executions_of_two_engines_go_one_after_the_other_in_order(url: str) -> None:
    order: list[int] = []
    inside = 0

    async def work(number: int) -> None:
        nonlocal inside
        inside += 1
        assert inside == 1
        await asyncio.to_thread(os.sched_yield)
        order.append(number)
        inside -= 1

    async with AsyncExitStack() as stack:
        engines = await _engines(stack, url, SagaBuilder("s").step("work", work).build())
        handles = [await engines[number % 2].start("s", number, concurrency_key="k") for number in range(12)]
        for handle in handles:
            assert (await handle.result()).succeeded
        reading = await runtime_of(engines[0]).executions.read(None, handles[-1].id)
    assert order == list(range(12))
    told = [entry.event for entry in reading.history if isinstance(entry.event, ExecutionAdmitted)]
    assert [event.key for event in told] == ["k"], "once, and by the name that was given"


@pytest.mark.requirement("B5")
async def test_lines_of_many_keys_do_not_stop_each_other(url: str) -> None:
    """Both engines start and end executions in all lines at once: none may wait for another in a circle."""

    async def work(number: int) -> int:
        return number

    async with AsyncExitStack() as stack:
        engines = await _engines(stack, url, SagaBuilder("s", output="work").step("work", work).build())
        starts = [engines[n % 2].start("s", n, concurrency_key=f"k{n % 7}") for n in range(140)]
        handles = await asyncio.gather(*starts)
        results = await asyncio.gather(*(handle.result() for handle in handles))
    assert sorted(result.output for result in results) == list(range(140))


@pytest.mark.requirement("B5")
async def test_of_starts_at_once_all_but_one_are_rejected(url: str) -> None:
    builder = SagaBuilder("s", concurrency_key="input", on_conflict="reject")
    async with AsyncExitStack() as stack:
        engines = await _engines(stack, url, builder.signal("go", "go").build())
        starts: list[Any] = [engines[number % 2].start("s", "k") for number in range(20)]
        answers = await asyncio.gather(*starts, return_exceptions=True)
        assert sum(isinstance(answer, ConcurrencyConflict) for answer in answers) == 19
        assert await engines[0].count() == {"running": 1}


@pytest.mark.requirement("B5")
async def test_definitions_have_lines_of_their_own(url: str) -> None:
    sagas = [SagaBuilder(name, on_conflict="reject").signal("go", "go").build() for name in "ab"]
    async with AsyncExitStack() as stack:
        engine, _ = await _engines(stack, url, *sagas)
        await engine.start("a", concurrency_key="k")
        await engine.start("b", concurrency_key="k")
        await engine.start("a", concurrency_key="k", tenant="other")
        with pytest.raises(ConcurrencyConflict):
            await engine.start("a", concurrency_key="k")


@pytest.mark.requirement("B5")
async def test_the_turn_of_a_run_that_is_over_lets_no_later_one_in(url: str) -> None:
    """A database's clock may go back: what was posted for one run is then read after the next one is opened."""
    began, go_on = asyncio.Event(), asyncio.Event()
    ran: list[str] = []

    async def work(name: str) -> None:
        ran.append(name)
        if ran == ["failed"]:
            raise NonRetryableError
        if name == "other":
            began.set()
            await go_on.wait()
            ran.append("other is done")

    async with Engine(url) as engine:
        engine.register(SagaBuilder("s").step("work", work))
        failed = await engine.start("s", "failed", concurrency_key="k")
        assert (await failed.result()).status == "failed"
        other = await engine.start("s", "other", concurrency_key="k")
        await began.wait()
        await failed.retry(reason="again")
        store = store_of(engine)
        _, _, late, _ = admission(failed.id, 1, "k", 0)
        await store.mailbox.post("late", failed.id, late)
        while not await store.mailbox.verdicts(["late"]):
            await asyncio.to_thread(os.sched_yield)
        await until_blocked(failed, "concurrency_key")
        go_on.set()
        assert (await other.result()).succeeded
        assert (await failed.result()).succeeded
    assert ran == ["failed", "other", "other is done", "failed"]


@pytest.mark.requirement("B5")
def test_what_is_said_of_a_key_is_not_lost_in_a_batch() -> None:
    """A start, or another run, and a pause right after it are one commit."""
    asks = standing("x1")
    asks = type(asks)(**{**{f: getattr(asks, f) for f in asks.__struct_fields__}, "admission": "request", "line": LINE})
    batch = merged_batch(
        "s1", [Write(execution="x1", standing=asks), Write(execution="x1", standing=standing("x1", "paused"))]
    )
    found = batch.standings["x1"]
    assert (found.status, found.admission, found.line) == ("paused", "request", LINE)


@pytest.mark.requirement("B5")
async def test_a_killed_holder_keeps_its_key_until_another_has_finished_it(url: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    child = start_child(url, log, 1, "hang", "key")
    try:
        until_started(child)
        while not noted(str(log)):
            await asyncio.to_thread(os.sched_yield)
        async with Engine(url, lease=LEASE) as engine:
            engine.register(limited(str(log)))
            waiting = await engine.start("limited", 7, concurrency_key="k")
            assert (await until_blocked(waiting, "concurrency_key"))["waiting_for"] == "k"
            kill(child)
            await expire(url, child.pid)
            assert (await waiting.result()).output == 7
    finally:
        kill(child)
    assert [(line[0], line[2]) for line in noted(str(log))] == [
        ("in", "0"),
        ("in", "0"),
        ("out", "0"),
        ("in", "7"),
        ("out", "7"),
    ]


# -- Batches -----------------------------------------------------------------------------------------------------------


async def test_a_batch_whose_process_was_killed_is_begun_again_and_starts_what_is_missing(
    url: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    child = start_child(url, log, 100_000, "many")
    try:
        async with Engine(url, lease=LEASE) as engine:
            while sum((await engine.count()).values()) < 300:
                await asyncio.to_thread(os.sched_yield)
            kill(child)
            await expire(url, child.pid)
            engine.register(limited(str(log)))
            started = sum((await engine.count()).values())
            batch = await engine.start_many("limited", range(started + 200), key=str)
            assert len(set(batch.execution_ids)) == started + 200
            results = [result.output async for result in batch.results()]
            assert results == list(range(started + 200))
            assert await engine.count() == {"succeeded": started + 200}
    finally:
        kill(child)

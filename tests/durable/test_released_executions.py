"""What a worker holds in memory is what it works on: whatever else happens, the rest is let go of, and found again."""

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Annotated, Any

import pytest

from tenuto import Engine, FromStep, SagaBuilder
from tenuto.errors import ResultTimeout, StorageError
from tenuto.kernel import facts as f
from tenuto.kernel.codec import encode_fact
from tenuto.kernel.decide import decide
from tenuto.runtime.durable import DurableRuntime, parked_executions
from tenuto.runtime.durable import claimer as claiming
from tenuto.runtime.durable import starter as starting
from tenuto.runtime.executor import held_execution
from tenuto.runtime.executor.held_execution import Record
from tests.contract.doubles import until_blocked
from tests.seams import durable_runtime, held_by, parked_in_memory, restorer_of, store_of, worker_of

ROOM = 5
PATIENCE_S = 60


async def one() -> int:
    return 1


async def text() -> str:
    return "x"


async def takes_text(value: Annotated[str, FromStep("a")]) -> int:
    return len(value)


async def takes_number(value: Annotated[int, FromStep("a")]) -> int:
    return value


def asks() -> SagaBuilder:
    return SagaBuilder("asks", output="done").approval("agreed").step("done", one, depends_on=["agreed"])


def listens() -> SagaBuilder:
    return SagaBuilder("listens", output="done").signal("paid", "paid").step("done", one, depends_on=["paid"])


def quick() -> SagaBuilder:
    return SagaBuilder("quick", output="a").step("a", one)


async def until(is_so: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not is_so():
            await asyncio.to_thread(lambda: None)


async def until_set_aside(runtime: DurableRuntime, id: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (row := await store_of(runtime).executions.find(id)) is None or not row.parked:
            pass
    assert row.owner is None


async def knock(runtime: DurableRuntime, id: str) -> None:
    """What was set aside is looked at again after a while, or when there is mail."""
    await store_of(runtime).mailbox.post(f"mail-{id}", id, encode_fact(f.Tick(at=0)))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that has room for few."""
    monkeypatch.setattr(starting, "MAX_HELD", ROOM)
    monkeypatch.setattr(claiming, "MAX_HELD", ROOM)


@pytest.mark.usefixtures("small", "sound")
async def test_callers_who_wait_keep_nothing_in_memory(url: str) -> None:
    async with Engine(url) as engine:
        engine.register(listens(), quick())
        runtime = durable_runtime(engine)
        handles = [await engine.start("listens") for _ in range(4 * ROOM)]
        results = [asyncio.create_task(handle.result()) for handle in handles]
        with pytest.raises(ResultTimeout):
            await handles[0].result(timeout="10ms")
        await until(lambda: not held_by(runtime).records)
        assert (await engine.execute("quick")).output == 1
        for handle in handles:
            await handle.signal("paid")
        assert [(await result).output for result in results] == [1] * len(handles)


@pytest.mark.usefixtures("small", "sound")
async def test_what_a_release_cannot_go_on_with_leaves_room_for_others(url: str) -> None:
    def saga(first: Any, last: Any) -> SagaBuilder:
        steps = SagaBuilder("changed", output="b").step("a", first).signal("go", "go", depends_on=["a"])
        return steps.step("b", last, depends_on=["go"])

    async with Engine(url) as engine:
        engine.register(saga(text, takes_text))
        batch = await engine.start_many("changed", [None] * (4 * ROOM))
        for id in batch.execution_ids:
            await until_blocked(engine.get(id), "signal")
    async with Engine(url) as engine:
        engine.register(saga(one, takes_number), quick())
        runtime = durable_runtime(engine)
        await asyncio.gather(*(engine.get(id).signal("go") for id in batch.execution_ids))
        assert (await engine.execute("quick")).output == 1
        await until(lambda: len(held_by(runtime).records) < ROOM)
        for id in batch.execution_ids:
            await until_blocked(engine.get(id), "incompatible")
    async with Engine(url) as engine:
        engine.register(saga(text, takes_text))
        for id in batch.execution_ids:
            await knock(durable_runtime(engine), id)
        results = [await engine.get(id).result() for id in batch.execution_ids]
        assert [result.output for result in results] == [1] * len(batch.execution_ids)


@pytest.mark.usefixtures("sound")
async def test_an_execution_leaves_memory_when_the_handler_ends_that_outlived_it(url: str) -> None:
    release = threading.Event()

    def work() -> int:
        release.wait(PATIENCE_S)
        return 1

    saga = SagaBuilder("slow", output="a").step("a", work, timeout="100ms", retry=0)
    async with Engine(url) as engine:
        engine.register(saga)
        runtime = durable_runtime(engine)
        handle = await engine.start("slow")
        assert (await handle.result()).status == "failed"
        assert handle.id in held_by(runtime).records  # its thread still runs
        async with Engine(url) as other:
            other.register(saga)
            release.set()
            await other.get(handle.id).retry(reason="again")
            assert (await other.get(handle.id).result()).status == "succeeded"
        assert (await handle.status())["status"] == "succeeded"
        await until(lambda: not held_by(runtime).records)


async def test_a_client_keeps_nothing_of_what_it_decided_for_others(url: str) -> None:
    async with Engine(url) as engine:
        engine.register(asks())
        batch = await engine.start_many("asks", [None] * ROOM)
    async with Engine(url, worker=False) as client:
        for id in batch.execution_ids:
            await client.get(id).approve("agreed")
        runtime = durable_runtime(client)
        await until(lambda: not held_by(runtime).records)
        gc.collect()
        assert not parked_in_memory(runtime)
        held = [
            thing for thing in gc.get_objects() if isinstance(thing, Record) and thing.controller is held_by(runtime)
        ]
        assert len(held) <= 1  # the last one, on its way out


@pytest.mark.parametrize("where", ["claim", "load"])
@pytest.mark.usefixtures("sound")
async def test_a_command_that_its_caller_gives_up_strands_nothing(
    url: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parked_executions, "LOST_CLAIM_SECONDS", (0.0, 0.1, 0.3))
    async with Engine(url) as engine, Engine(url, worker=False) as client:
        engine.register(listens())
        handle = await engine.start("listens")
        await until(lambda: not held_by(engine).records and not held_by(engine).releasing)
        runtime = durable_runtime(client)
        reached, given_up = asyncio.Event(), asyncio.Event()
        real: Any = store_of(runtime).claims.claim_one if where == "claim" else restorer_of(runtime).restore

        async def answers_late(*given: Any) -> Any:
            answer = await real(*given)
            reached.set()
            await given_up.wait()
            return answer

        if where == "claim":
            monkeypatch.setattr(store_of(runtime).claims, "claim_one", answers_late)
        else:
            monkeypatch.setattr(restorer_of(runtime), "restore", answers_late)
        monkeypatch.setattr(worker_of(engine), "works", False)  # it is the client that claims it
        command = asyncio.create_task(client.get(handle.id).signal("paid"))
        await reached.wait()
        command.cancel()
        with pytest.raises(asyncio.CancelledError):
            await command
        given_up.set()
        monkeypatch.setattr(worker_of(engine), "works", True)
        assert (await handle.result()).output == 1  # what was sent is acted upon


@pytest.mark.usefixtures("sound")
async def test_what_is_to_be_set_aside_while_the_database_is_away_is_when_it_is_back(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Engine(url) as engine:
        engine.register(listens())
        runtime = durable_runtime(engine)
        asyncio.get_running_loop().set_exception_handler(lambda _, __: None)
        handle = await engine.start("listens")
        real = store_of(runtime).claims.park
        failures = 1

        async def park(*given: Any) -> None:
            nonlocal failures
            if failures:
                failures -= 1
                raise StorageError("gone", code="unreachable", hint="")
            await real(*given)

        monkeypatch.setattr(store_of(runtime).claims, "park", park)
        await store_of(runtime).mailbox.post("bad", handle.id, b'["NoSuchFact"]')
        await until_set_aside(runtime, handle.id)
        assert not failures


@pytest.mark.usefixtures("sound")
async def test_nothing_is_recorded_on_top_of_what_the_kernel_contradicted(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    armed = True

    def flawed(state: Any, fact: Any, now: int, epoch: int) -> Any:
        nonlocal armed
        decision = decide(state, fact, now, epoch)
        if armed and isinstance(fact, f.Pause):
            armed = False
            raise AssertionError("a contradiction, when events were applied")
        return decision

    monkeypatch.setattr(held_execution, "decide", flawed)
    go_on = asyncio.Event()

    async def slow() -> int:
        await go_on.wait()
        return 1

    async with Engine(url) as engine:
        engine.register(SagaBuilder("s", output="b").step("a", slow).step("b", one, depends_on=["a"]))
        runtime = durable_runtime(engine)
        handle = await engine.start("s")
        with pytest.raises(AssertionError):
            await handle.pause()
        go_on.set()
        await until_set_aside(runtime, handle.id)
        assert handle.id not in held_by(runtime).records
        assert (await handle.status())["status"] == "running"
        await knock(runtime, handle.id)
        assert (await handle.result()).output == 1


@pytest.mark.usefixtures("sound")
async def test_a_thread_that_cannot_be_started_fails_the_attempt_alone(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def work() -> int:
        return 1

    real = threading.Thread.start
    failures = 1

    def start(thread: threading.Thread) -> None:
        nonlocal failures
        if failures and thread.name.removeprefix("tenuto-").isdigit():
            failures -= 1
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    async with Engine(url) as engine:
        engine.register(SagaBuilder("t", output="a").step("a", work, retry=2))
        result = await engine.execute("t")
        assert result.output == 1
        assert "no_thread" in str(await engine.get(result.execution_id).history())
        assert worker_of(engine).thread_lane.running == 0

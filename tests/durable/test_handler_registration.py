"""A task that was given back for want of a handler is taken when there is one, whatever fails meanwhile."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tenuto import Engine, Handle, SagaBuilder, SagaContext
from tenuto.errors import StorageError
from tenuto.runtime.durable import DurableRuntime
from tenuto.storage.tasks import Taking, Task
from tests.durable.test_unknown_outcomes import Altered
from tests.seams import (
    durable_runtime,
    replace_task_method,
    return_task,
    served_steps,
    store_of,
    task_method,
    unreported_tasks,
)

pytestmark = pytest.mark.usefixtures("sound")

FULL = StorageError("the disk is full", code="full")


async def _one() -> int:
    return 1


def _worker(url: str) -> tuple[Engine, DurableRuntime]:
    engine = Engine(url, queues=("default", "mail"), shutdown_grace="1s")
    return engine, durable_runtime(engine)


async def _given_back(engine: Engine, runtime: DurableRuntime, monkeypatch: pytest.MonkeyPatch) -> Handle[Any]:
    """Started, and given back when it was first taken: as if its handler were not there."""
    enter = task_method(runtime)
    returned = asyncio.Event()

    def enter_later(visit: Any, task: Task) -> None:
        replace_task_method(monkeypatch, runtime, enter)
        return_task(runtime, task.taking, "no handler")
        returned.set()

    replace_task_method(monkeypatch, runtime, enter_later)
    engine.register(SagaBuilder("q", output="a").step("a", _one, queue="mail"))
    handle = await engine.start("q")
    await returned.wait()
    return handle


def _learn(engine: Engine) -> None:
    engine.register(SagaBuilder("other", output="a").step("a", _one))


async def test_when_the_first_word_that_it_can_now_is_lost(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, runtime = _worker(url)
    async with engine:
        real = store_of(runtime).tasks
        failed: list[str] = []

        async def try_again(session: str) -> None:
            if not failed:
                failed.append(session)
                raise FULL
            await real.try_again(session)

        monkeypatch.setattr(store_of(runtime), "tasks", Altered(real, try_again=try_again))
        handle = await _given_back(engine, runtime, monkeypatch)
        while unreported_tasks(runtime):
            await asyncio.to_thread(lambda: None)
        _learn(engine)
        assert (await handle.result()).output == 1
        assert failed


@pytest.mark.parametrize("when", ["before it is said", "while it is said"])
async def test_when_it_learns_before_it_has_said_that_it_cannot(
    url: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, runtime = _worker(url)
    async with engine:
        real = store_of(runtime).tasks
        learned = asyncio.Event()

        async def give_back(session: str, takings: Sequence[Taking], why: str = "") -> None:
            if not learned.is_set():
                _learn(engine)
                learned.set()
                while not served_steps(runtime) & {"other/1/other.a"}:
                    await asyncio.to_thread(lambda: None)  # and that is known to the database before this arrives
                if when == "before it is said":
                    raise FULL
            await real.give_back(session, takings, why)

        monkeypatch.setattr(store_of(runtime), "tasks", Altered(real, give_back=give_back))
        handle = await _given_back(engine, runtime, monkeypatch)
        assert (await handle.result()).output == 1
        assert learned.is_set()


async def test_progress_whose_writing_failed_is_written_the_next_time(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = asyncio.Event()

    async def works(ctx: SagaContext) -> int:
        await ctx.heartbeat({"at": 7})
        await gate.wait()
        return 1

    engine, runtime = _worker(url)
    async with engine:
        real = store_of(runtime).tasks
        failed: list[str] = []

        async def beat(session: str, progress: dict[Any, bytes]) -> None:
            if progress and not failed:
                failed.append(session)
                raise FULL
            await real.beat(session, progress)

        monkeypatch.setattr(store_of(runtime), "tasks", Altered(real, beat=beat))
        engine.register(SagaBuilder("w", output="a").step("a", works, queue="mail"))
        handle = await engine.start("w")
        while not await store_of(runtime).progress.of([handle.id]):
            await asyncio.to_thread(lambda: None)
        gate.set()
        await handle.result()
        assert failed

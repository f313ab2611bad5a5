"""An async handler that blocks the event loop draws a warning that names its step. Here it moves the clock instead."""

import asyncio
import logging
import time

import pytest

from tenuto import Engine, Retry, SagaBuilder
from tenuto.errors import TransientError
from tenuto.runtime.executor import job

from .conftest import MakeEngine


class MovedClock:
    def __init__(self) -> None:
        self._ahead = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead

    def move(self, seconds: float) -> None:
        self._ahead += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> MovedClock:
    moved = MovedClock()
    monkeypatch.setattr(job, "monotonic", moved.monotonic)
    return moved


def warnings(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [line for line in caplog.records if getattr(line, "action", "") == "event_loop_blocked"]


async def other_turns() -> None:
    await asyncio.to_thread(lambda: None)


async def finish(engine: Engine, saga: str) -> str:
    handle = await engine.start(saga)
    await handle.result()
    return handle.id


@pytest.mark.parametrize("waits_first", [False, True])
async def test_a_step_that_blocks_is_named_once(
    make_engine: MakeEngine, clock: MovedClock, caplog: pytest.LogCaptureFixture, waits_first: bool
) -> None:
    async def compute() -> None:
        if waits_first:
            await other_turns()
        clock.move(1.5)
        raise TransientError("not yet")

    saga = SagaBuilder("s").step("compute", compute, retry=Retry(2, initial="1ms"))
    engine = await make_engine(saga.build())
    id = await finish(engine, "s")
    (line,) = warnings(caplog)
    assert (line.name, line.levelno) == ("tenuto.executions", logging.WARNING)
    assert (line.execution_id, line.step_id, line.attempt) == (id, "compute", 1)  # type: ignore[attr-defined]
    text = line.getMessage()
    assert "'compute' of s blocked the event loop for 1." in text
    assert id in text
    assert "plain `def`" in text
    assert "asyncio.to_thread" in text
    await finish(engine, "s")
    assert len(warnings(caplog)) == 1


async def test_each_step_that_blocks_draws_its_own_warning(
    make_engine: MakeEngine, clock: MovedClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def block() -> None:
        clock.move(1.5)

    saga = SagaBuilder("s").step("a", block).step("b", block, depends_on=["a"])
    await finish(await make_engine(saga.build()), "s")
    assert [line.step_id for line in warnings(caplog)] == ["a", "b"]  # type: ignore[attr-defined]


async def test_waiting_and_threads_do_not_block(
    make_engine: MakeEngine, clock: MovedClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def wait() -> None:
        asyncio.get_running_loop().call_soon(clock.move, 1.5)
        await other_turns()

    def compute() -> None:
        clock.move(1.5)

    saga = SagaBuilder("s").step("wait", wait).step("compute", compute, depends_on=["wait"])
    await finish(await make_engine(saga.build()), "s")
    assert warnings(caplog) == []

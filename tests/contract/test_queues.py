"""Steps that name a queue run on workers that serve it, and mean the same as all others."""

import asyncio
import os
from typing import Annotated, Any

import pytest

from tenuto import (
    Done,
    ExpandEach,
    FromStep,
    NotDone,
    Outcome,
    SagaBuilder,
    SagaContext,
    StepInputs,
)
from tenuto.errors import IndeterminateError, NonRetryableError, TransientError

from .conftest import MakeEngine
from .doubles import Stage, ThreadGate, until, until_blocked
from .sagas import FAST, one_step
from .test_callbacks import Bus, remote

GPU = {"queues": ("gpu",)}


async def test_a_step_of_a_queue_takes_part_like_any_other(make_engine: MakeEngine) -> None:
    """It reads results of steps that ran here, and others read its own."""

    async def double(number: int) -> int:
        return 2 * number

    def add_one(doubled: Annotated[int, FromStep("double")], ctx: SagaContext) -> int:
        return doubled + ctx.attempt

    async def show(number: int, added: Annotated[int, FromStep("add_one")]) -> str:
        return f"{number}: {added}"

    builder = SagaBuilder("s", output="show").step("double", double)
    builder.step("add_one", add_one, depends_on=["double"], queue="gpu").step("show", show, depends_on=["add_one"])
    engine = await make_engine(builder.build(), **GPU)
    result = await engine.execute("s", 20)
    assert (result.output, result.steps["add_one"].attempts) == ("20: 41", 1)


async def test_nobody_serves_the_queue(make_engine: MakeEngine) -> None:
    stage = Stage()
    engine = await make_engine(one_step("s", stage.does("a"), queue="gpu").build())
    handle = await engine.start("s")
    blocked = await until_blocked(handle, "no_worker")
    assert (blocked["waiting_for"], blocked["commands"]) == ("queue gpu", ["pause", "cancel"])
    assert (await handle.status())["status"] == "running"
    await handle.cancel("terminate")
    assert ((await handle.result()).status, stage.log) == ("canceled", [])


async def test_the_default_queue_is_served_by_default(make_engine: MakeEngine) -> None:
    engine = await make_engine(one_step("s", Stage().does("a"), queue="default").build())
    assert (await engine.execute("s")).output == "a"


async def test_a_failed_attempt_is_tried_again(make_engine: MakeEngine) -> None:
    stage = Stage()
    work = stage.does("a", TransientError("busy"), TransientError("busy"), "done")
    engine = await make_engine(one_step("s", work, queue="gpu", retry=FAST).build(), **GPU)
    result = await engine.execute("s")
    assert (result.output, result.steps["work"].attempts) == ("done", 3)


async def test_undo_runs_on_the_queue_of_its_step(make_engine: MakeEngine) -> None:
    stage = Stage()
    builder = SagaBuilder("s").step("a", stage.does("a"), compensate=stage.does("undo a"), queue="gpu")
    builder.step("b", stage.fails("b", NonRetryableError()), depends_on=["a"])
    engine = await make_engine(builder.build(), **GPU)
    result = await engine.execute("s")
    assert (result.status, stage.log) == ("failed", ["a", "b", "undo a"])


async def test_a_guard_is_asked_before_another_attempt(make_engine: MakeEngine) -> None:
    stage = Stage()
    guard = stage.does("guard", NotDone(), Done("found"))
    work = stage.does("a", TransientError("busy"), TransientError("busy"))
    options: Any = {"safety": "safe_to_retry_with_guard", "guard": guard, "retry": FAST, "queue": "gpu"}
    engine = await make_engine(one_step("s", work, **options).build(), **GPU)
    result = await engine.execute("s")
    assert (result.output, stage.log) == ("found", ["a", "guard", "a", "guard"])


async def test_an_unknown_outcome_is_looked_for(make_engine: MakeEngine) -> None:
    stage = Stage()
    begun: list[str] = []

    async def find(ctx: SagaContext) -> Outcome[str]:
        stage.log.append("find")
        return Done(ctx.forward_key)

    async def pay(ctx: SagaContext) -> str:
        begun.append(ctx.idempotency_key)
        raise IndeterminateError("no answer")

    options: Any = {"safety": "not_safe_to_retry", "reconcile": find, "queue": "gpu"}
    engine = await make_engine(one_step("s", pay, **options).build(), **GPU)
    handle = await engine.start("s")
    result = await handle.result()
    assert ([result.output], stage.log) == (begun, ["find"])
    assert [(row["kind"], row["attempt_number"]) for row in await handle.history()] == [
        ("forward", 1),
        ("reconcile", 1),
    ]


async def test_a_handler_on_a_queue_has_only_its_time(make_engine: MakeEngine) -> None:
    never = Stage().gate("never")
    options: Any = {"queue": "gpu", "timeout": "50ms", "retry": 0}
    engine = await make_engine(one_step("s", never.pass_through, **options).build(), **GPU)
    result = await engine.execute("s")
    assert result.error is not None
    assert (result.status, result.error["code"]) == ("failed", "attempt_timeout")


async def test_a_thread_that_goes_on_after_its_time_holds_up_nobody(make_engine: MakeEngine) -> None:
    gate = ThreadGate()
    options: Any = {"queue": "gpu", "timeout": "500ms", "retry": 0}
    engine = await make_engine(one_step("s", gate.pass_through, **options).build(), **GPU)
    while not gate.calls:  # on a busy machine its time may be over before its thread begins
        assert (await engine.execute("s")).status == "failed"
    gate.open()


async def test_a_fan_out_on_a_queue(make_engine: MakeEngine) -> None:
    async def square(number: int) -> int:
        return number * number

    async def total(squares: Annotated[list[int], FromStep("square")]) -> int:
        return sum(squares)

    builder = SagaBuilder("s", output="total").step("square", square, queue="gpu")
    builder.step("total", total, depends_on=["square"])
    engine = await make_engine(builder.build(), **GPU)
    result = await engine.execute("s", StepInputs({"square": ExpandEach(list(range(30)))}))
    assert result.output == sum(n * n for n in range(30))


async def test_progress_is_shown_and_given_to_the_next_attempt(make_engine: MakeEngine) -> None:
    gate = Stage().gate("a")
    seen: list[Any] = []

    async def work(ctx: SagaContext) -> None:
        seen.append(ctx.progress)
        await ctx.heartbeat(progress={"page": ctx.attempt})
        if ctx.attempt == 1:
            await gate.pass_through()
            raise TransientError

    engine = await make_engine(one_step("s", work, queue="gpu", retry=FAST).build(), **GPU)
    handle = await engine.start("s")
    await gate.reached.wait()
    await until(handle, lambda found: found["steps"][0]["progress"] == {"page": 1})
    gate.open()
    assert (await handle.result()).succeeded
    assert seen == [None, {"page": 1}]


async def test_a_heartbeat_tells_of_a_pause_and_of_a_cancel(make_engine: MakeEngine) -> None:
    reached = asyncio.Event()
    told: list[str] = []

    async def until_told(ctx: SagaContext, word: str) -> None:
        while not getattr(await ctx.heartbeat(), word):
            await asyncio.to_thread(os.sched_yield)
        told.append(word)

    async def work(ctx: SagaContext) -> None:
        reached.set()
        await until_told(ctx, "paused")
        await until_told(ctx, "cancelled")

    engine = await make_engine(one_step("s", work, queue="gpu").build(), **GPU)
    handle = await engine.start("s")
    await reached.wait()
    await handle.pause()
    await until(handle, lambda _: told == ["paused"])
    await handle.cancel("drain")
    result = await handle.result()
    assert (result.status, told) == ("canceled", ["paused", "cancelled"])


async def test_what_is_no_longer_wanted_is_stopped(make_engine: MakeEngine) -> None:
    reached, stopped = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    engine = await make_engine(one_step("s", work, queue="gpu").build(), **GPU)
    handle = await engine.start("s")
    await reached.wait()
    await handle.cancel("terminate")
    await stopped.wait()
    assert (await handle.result()).status == "canceled"


@pytest.mark.parametrize("safety", ["SAFE_TO_RETRY", "NOT_SAFE_TO_RETRY"])
async def test_a_directive_is_sent_by_the_workers_of_a_queue(make_engine: MakeEngine, safety: str) -> None:
    """And once only: a step that is answered from outside is not sent again because its execution changes hands."""
    bus = Bus()
    engine = await make_engine(**GPU)
    engine.handler("send", bus.send)
    step = remote("ocr", queue="gpu", idempotency_strategy=safety, compensation_policy="manual")
    await engine.apply({"name": "protocol", "mode": "sequence", "steps": [step]})
    handle = await engine.start("protocol")
    await until_blocked(handle, "callback")
    await handle.acknowledge("ocr", **bus.last)
    assert await handle.answer("ocr", **bus.last, result=7) == "applied"
    assert ((await handle.result()).output, len(bus.sent)) == (7, 1)


async def test_many_executions_share_a_few_slots(make_engine: MakeEngine) -> None:
    running, most = 0, 0
    full, opened = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        if running == 3:
            full.set()
        await opened.wait()
        running -= 1

    engine = await make_engine(one_step("s", work, queue="gpu").build(), slots=3, **GPU)
    batch = await engine.start_many("s", range(20))
    await full.wait()
    opened.set()
    results = [result async for result in batch.results()]
    assert ({result.status for result in results}, len(results), most) == ({"succeeded"}, 20, 3)


@pytest.mark.requirement("G6")
async def test_what_matters_more_runs_first(make_engine: MakeEngine) -> None:
    stage = Stage()
    gate = stage.gate("gate")
    sagas = [one_step("first", gate.pass_through, queue="gpu").build()]
    sagas += [one_step(name, stage.does(name), queue="gpu").build() for name in ("normal", "high")]
    engine = await make_engine(*sagas, slots=1, **GPU)
    first = await engine.start("first")
    await gate.reached.wait()
    normal = await engine.start("normal")
    high = await engine.start("high", priority="high")
    for handle in (normal, high):
        await until_blocked(handle, "slot")
    gate.open()
    assert all([(await handle.result()).succeeded for handle in (first, normal, high)])
    assert stage.log == ["gate", "high", "normal"]

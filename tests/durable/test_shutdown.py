"""A worker that is told to end waits for its handlers. What else it has in hand goes on elsewhere meanwhile."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tenuto import Engine, Handle, SagaBuilder
from tenuto.errors import NonRetryableError
from tenuto.kernel.codec import decode_entries
from tenuto.kernel.events import AttemptBegun
from tenuto.storage.port import Batch, Committed
from tests.contract.doubles import Gate, Stage, until_blocked
from tests.durable.test_unknown_outcomes import Altered
from tests.seams import durable_runtime, session_of, store_of, use_store

PATIENCE_S = 100
LEASE = "10m"  # a busy machine takes nobody for dead here


class Leaving:
    """Two workers. The first has few slots, and a handler in one of them that ends when the gate opens."""

    def __init__(self, first: Engine, second: Engine, gate: Gate) -> None:
        self.first = first
        self.second = second
        self.gate = gate
        self.closing: asyncio.Task[None] | None = None

    def leave(self) -> None:
        self.closing = asyncio.create_task(self.first.close())

    async def came_to(self, handle: Handle[Any]) -> Any:
        """What came of it while the first worker is still waiting for its handler."""
        async with asyncio.timeout(PATIENCE_S):
            result = await self.second.get(handle.id).result()
        assert self.closing is not None
        assert not self.closing.done()
        return result

    async def attempts(self, *handles: Handle[Any]) -> set[int]:
        return {row["attempt_number"] for each in handles for row in await self.second.get(each.id).history()}


@asynccontextmanager
async def leaving(
    url: str, *sagas: SagaBuilder, slots: int = 1, queues: tuple[str, ...] = ()
) -> AsyncIterator[Leaving]:
    gate = Stage().gate("held")
    held = SagaBuilder("held", output="a").step("a", gate.pass_through, timeout="10m")
    async with (
        Engine(url, slots=slots, queues=(), shutdown_grace="10m", lease=LEASE) as first,
        Engine(url, queues=queues, lease=LEASE) as second,
    ):
        for engine in (first, second):
            engine.register(held, *sagas)
        handle = await first.start("held")
        await gate.reached.wait()
        both = Leaving(first, second, gate)
        try:
            yield both
        finally:
            gate.open()
            if both.closing is not None:
                await both.closing
        assert (await second.get(handle.id).result()).output == "held"
        assert await both.attempts(handle) == {1}


async def test_what_waits_for_a_slot_goes_on_elsewhere_at_once(url: str) -> None:
    stage = Stage()
    quick = SagaBuilder("quick", output="b").step("a", stage.does("a")).step("b", stage.does("b"), depends_on=["a"])
    async with leaving(url, quick) as both:
        handles = [await both.first.start("quick") for _ in range(20)]
        both.leave()
        assert {(await both.came_to(handle)).output for handle in handles} == {"b"}
        assert await both.attempts(*handles) == {1}
    assert (stage.count("a"), stage.count("b")) == (20, 20)


async def test_an_execution_goes_on_elsewhere_when_its_own_handler_has_ended(url: str) -> None:
    """It need not wait for the handlers of others. What was granted beside that handler waits for it, and no longer."""
    stage = Stage()
    own = stage.gate("own")
    saga = (
        SagaBuilder("own", output="b")
        .step("a", own.pass_through, timeout="10m", safety="not_safe_to_retry", compensation_policy="manual")
        .step("beside", stage.does("beside"))
        .step("b", stage.does("b"), depends_on=["a", "beside"])
    )
    async with leaving(url, saga, slots=2) as both:
        handle = await both.first.start("own")
        await own.reached.wait()
        both.leave()
        own.open()
        assert (await both.came_to(handle)).output == "b"
        assert await both.attempts(handle) == {1}
    assert sorted(stage.log) == ["b", "beside", "own"]


async def test_what_could_not_begin_before_the_worker_left_begins_elsewhere(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That an attempt begins was on its way to the record: it does not begin, and whoever has it next is not misled."""
    stage = Stage()
    unsafe = SagaBuilder("unsafe", output="a").step(
        "a", stage.does("a"), safety="not_safe_to_retry", compensation_policy="manual"
    )
    async with leaving(url, unsafe, slots=2) as both:
        runtime = durable_runtime(both.first)
        real, on_its_way, goes_on = store_of(runtime), asyncio.Event(), asyncio.Event()

        async def commit(batch: Batch) -> Committed:
            if any(isinstance(entry.event, AttemptBegun) for a in batch.appends for entry in decode_entries(a.body)):
                on_its_way.set()
                await goes_on.wait()
            return await real.commit(batch)

        use_store(monkeypatch, session_of(runtime).committer, Altered(real, commit=commit))
        handle = await both.first.start("unsafe")
        await on_its_way.wait()
        both.leave()
        await asyncio.to_thread(lambda: None)
        goes_on.set()
        assert (await both.came_to(handle)).output == "a"
        assert await both.attempts(handle) == {1}
    assert stage.log == ["a"]


async def test_signals_and_commands_reach_what_was_left_to_others(url: str) -> None:
    stage = Stage()
    listens = (
        SagaBuilder("listens", output="b")
        .step("a", stage.does("a"))
        .signal("go", "go")
        .step("b", stage.does("b"), depends_on=["a", "go"])
    )
    async with leaving(url, listens) as both:
        heard, canceled = [await both.first.start("listens") for _ in range(2)]
        both.leave()
        async with asyncio.timeout(PATIENCE_S):
            await both.second.get(heard.id).signal("go", 1)
            await both.second.get(canceled.id).cancel()
        assert (await both.came_to(heard)).output == "b"
        assert (await both.came_to(canceled)).status == "canceled"
        assert await both.attempts(heard) == {1}


async def test_timers_of_what_was_in_hand_ring_elsewhere(url: str) -> None:
    stage = Stage()
    waits = SagaBuilder("waits", output="b").wait("a", "500ms").step("b", stage.does("b"), depends_on=["a"])
    async with leaving(url, waits) as both:
        handle = await both.first.start("waits")  # not long enough to leave memory
        both.leave()
        assert (await both.came_to(handle)).output == "b"
    assert stage.log == ["b"]


async def test_whoever_waits_for_a_concurrency_key_gets_it(url: str) -> None:
    stage = Stage()
    keyed = SagaBuilder("keyed", output="a").step("a", stage.does("a"))
    async with leaving(url, keyed) as both:
        handles = [await both.first.start("keyed", concurrency_key="k") for _ in range(3)]
        await until_blocked(handles[2], "concurrency_key")
        both.leave()
        assert [(await both.came_to(handle)).output for handle in handles] == ["a", "a", "a"]
    assert stage.log == ["a", "a", "a"]


async def test_what_is_being_undone_is_undone_elsewhere(url: str) -> None:
    stage = Stage()
    undoing = stage.gate("undo b")
    saga = (
        SagaBuilder("undone")
        .step("a", stage.does("a"), compensate=stage.does("undo a"))
        .step("b", stage.does("b"), depends_on=["a"], compensate=undoing.pass_through, compensation_timeout="10m")
        .step("c", stage.fails("c", NonRetryableError("no")), depends_on=["b"])
    )
    async with leaving(url, saga, slots=2) as both:
        handle = await both.first.start("undone")
        await undoing.reached.wait()
        both.leave()
        undoing.open()
        assert (await both.came_to(handle)).status == "failed"
    assert stage.log == ["a", "b", "c", "undo b", "undo a"]


async def test_what_comes_of_an_attempt_of_a_queue_is_followed_elsewhere(url: str) -> None:
    stage = Stage()
    work = stage.gate("work")
    saga = (
        SagaBuilder("queued", output="after")
        .step("work", work.pass_through, queue="gpu", timeout="10m")
        .step("after", stage.does("after"), depends_on=["work"])
    )
    async with leaving(url, saga, queues=("gpu",)) as both:
        handle = await both.first.start("queued")
        await work.reached.wait()
        both.leave()
        work.open()
        assert (await both.came_to(handle)).output == "after"
        assert await both.attempts(handle) == {1}
    assert stage.log == ["work", "after"]


async def test_an_attempt_that_had_to_be_stopped_is_not_handed_back(url: str) -> None:
    """Nobody knows what came of it: a person is asked, and it is not made again."""
    stage = Stage()
    gate = stage.gate("paid")
    pays = SagaBuilder("pays", output="pay").step(
        "pay", gate.pass_through, timeout="10m", safety="not_safe_to_retry", compensation_policy="manual"
    )
    async with Engine(url, shutdown_grace="10ms", lease=LEASE) as first:
        first.register(pays)
        handle = await first.start("pays")
        await gate.reached.wait()
    async with Engine(url) as second:
        second.register(pays)
        async with asyncio.timeout(PATIENCE_S):
            assert (await second.get(handle.id).result()).status == "waiting_approval"
        assert [review["kind"] async for review in second.reviews()] == ["indeterminate"]
    assert stage.log == []

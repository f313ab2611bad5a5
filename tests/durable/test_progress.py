"""How far a step is: other processes are shown it, and its next attempt goes on from there."""

import asyncio

import pytest

from tenuto import Engine, SagaBuilder, SagaContext
from tenuto.runtime.durable import poller
from tenuto.storage import make_store
from tests.seams import session_of, store_of


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "EVERY_SECONDS", 0.01)


class Counting:
    """A step that says how far it is, and hangs the first time."""

    def __init__(self) -> None:
        self.found: list[object] = []
        self.go = asyncio.Event()

    def saga(self) -> SagaBuilder:
        async def count(ctx: SagaContext) -> int:
            self.found.append(ctx.progress)
            await ctx.heartbeat({"done": 5})
            if len(self.found) == 1:
                await self.go.wait()
            return 1

        return SagaBuilder("counts", output="count").step("count", count)


async def _until_shown(engine: Engine, id: str) -> object:
    while True:
        (step,) = (await engine.get(id).status())["steps"]
        if step["progress"] is not None:
            return step["progress"]


@pytest.mark.requirement("G7")
async def test_progress_is_shown_elsewhere_and_given_to_the_attempt_after_a_takeover(url: str) -> None:
    counting = Counting()
    async with Engine(url) as first, Engine(url, worker=False) as other:
        first.register(counting.saga())
        handle = await first.start("counts")
        assert await _until_shown(other, handle.id) == {"done": 5}
        await _end_session(first, url)  # as if it had died
        assert (await handle.result()).output == 1
        assert counting.found == [None, {"done": 5}]
        counting.go.set()


async def test_what_is_over_leaves_no_progress_behind(url: str) -> None:
    counting = Counting()
    async with Engine(url) as engine:
        engine.register(counting.saga())
        handle = await engine.start("counts")
        await _until_shown(engine, handle.id)
        store = store_of(engine)
        while not await store.progress.of([handle.id]):
            await asyncio.to_thread(lambda: None)
        counting.go.set()
        await handle.result()
        while await store.progress.of([handle.id]):
            await asyncio.to_thread(lambda: None)


@pytest.mark.requirement("G8")
async def test_a_worker_that_leaves_writes_how_far_it_came(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poller, "EVERY_SECONDS", 3_600.0)
    counting = Counting()
    async with Engine(url, shutdown_grace=0) as engine:
        engine.register(counting.saga())
        handle = await engine.start("counts")
        while not counting.found:
            await asyncio.to_thread(lambda: None)
    async with Engine(url) as engine:
        engine.register(counting.saga())
        assert (await engine.get(handle.id).result()).output == 1
    assert counting.found == [None, {"done": 5}]


async def _end_session(engine: Engine, url: str) -> None:
    store = make_store(url)
    await store.open(migrate=False)
    await store.sessions.end(session_of(engine).session.id)
    await store.close()

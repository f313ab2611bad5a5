"""Who can run what, as those hear it who start things for others."""

import asyncio

import pytest

from tenuto import SagaBuilder
from tenuto.errors import StorageError
from tenuto.runtime.durable import worker_capabilities as serving
from tenuto.runtime.durable.worker_capabilities import Workers
from tenuto.runtime.shared import single_flight as shared
from tenuto.runtime.shared.single_flight import SingleFlight
from tenuto.storage.tasks import Serving


async def work() -> None: ...


SAGA = SagaBuilder("s").step("a", work).step("b", work, queue="gpu").build()
WAITS = SagaBuilder("waits").approval("ok").build()


class Sessions:
    """What live sessions say of themselves. They say it when they are told to."""

    def __init__(self, *handlers: list[str]) -> None:
        self.handlers = handlers
        self.asked = 0
        self.fails = False
        self.open = asyncio.Event()
        self.open.set()

    async def serving(self) -> list[Serving]:
        self.asked += 1
        await self.open.wait()
        if self.fails:
            raise StorageError("it is not there", code="unreachable")
        return [Serving(["default"], handlers) for handlers in self.handlers]


async def test_many_who_ask_at_once_and_soon_after_are_one_question() -> None:
    sessions = Sessions(["s/1/s.a"])
    workers = Workers(sessions.serving)
    assert await asyncio.gather(*(workers.can_run(SAGA) for _ in range(100))) == [True] * 100
    assert await workers.can_run(SAGA)
    assert sessions.asked == 1


async def test_what_is_known_is_asked_again_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "KNOWN_SECONDS", 0.0)
    sessions = Sessions()
    workers = Workers(sessions.serving)
    assert not await workers.can_run(SAGA)
    sessions.handlers = (["s/1/s.a"],)
    assert await workers.can_run(SAGA)


async def test_what_a_queue_runs_is_not_asked_for_and_one_session_must_have_all_else() -> None:
    assert await Workers(Sessions(["*/s.a"]).serving).can_run(SAGA)
    assert not await Workers(Sessions(["s/2/s.a", "s/1/s.b"]).serving).can_run(SAGA)
    both = SagaBuilder("s").step("a", work).step("b", work).build()
    assert not await Workers(Sessions(["s/1/s.a"], ["s/1/s.b"]).serving).can_run(both)
    assert await Workers(Sessions([], ["s/1/s.a", "*/s.b"]).serving).can_run(both)


async def test_what_calls_nothing_is_for_any_worker() -> None:
    assert await Workers(Sessions([]).serving).can_run(WAITS)
    assert not await Workers(Sessions().serving).can_run(WAITS)


async def test_where_the_database_does_not_tell_nobody_hears_that_there_is_no_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sessions = Sessions()
    workers = Workers(sessions.serving)
    sessions.fails = True
    assert await workers.can_run(SAGA)
    sessions.fails = False
    sessions.open.clear()
    monkeypatch.setattr(serving, "PATIENCE_SECONDS", 0.01)
    assert await workers.can_run(SAGA)
    sessions.open.set()
    monkeypatch.setattr(serving, "PATIENCE_SECONDS", 60.0)
    assert not await workers.can_run(SAGA)


async def test_who_stops_waiting_for_a_shared_answer_leaves_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes to give the question up: it is asked anew when it has taken too long."""
    asked, may_end = 0, asyncio.Event()

    async def ask() -> int:
        nonlocal asked
        asked += 1
        number = asked
        try:
            await may_end.wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()
        return number

    question = SingleFlight(ask)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await question.call()
    assert asked == 1
    monkeypatch.setattr(shared, "STALE_SECONDS", -1.0)
    waiting = asyncio.create_task(question.call())
    await asyncio.to_thread(lambda: None)
    may_end.set()
    assert (await waiting, asked) == (2, 2)

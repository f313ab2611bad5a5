"""What a worker does for ever goes on after any error; what it must not do while it may be taken for dead, waits."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tenuto import Engine, Retry, SagaBuilder, SagaContext
from tenuto.errors import TransientError
from tenuto.kernel.events import AttemptBegun
from tenuto.runtime.clock import Environment
from tenuto.runtime.durable import DatabaseClock
from tenuto.runtime.durable.session import Session
from tenuto.runtime.executor.timers import WakeTimer
from tenuto.storage.port import Claim
from tests.durable.test_unknown_outcomes import Altered
from tests.seams import (
    claimer_of,
    clock_offset_ms,
    durable_runtime,
    observe,
    poller_of,
    starts_held_back,
    store_of,
    use_store,
)

PATIENCE = 120


async def _one() -> int:
    return 1


@pytest.fixture
async def said() -> list[str]:
    """What was reported to the loop."""
    reports: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context["message"]))
    return reports


async def test_whoever_looks_for_work_goes_on_looking(
    url: str, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even after an error that nobody thought of; and what is done beside it does not keep it from work."""
    worker = Engine(url)
    real = store_of(worker)
    failures = iter(["claim", "reap", "seal"])

    async def claim(session: str, plans: list[str], limit: int) -> list[Claim]:
        if next(failures, None):
            raise RuntimeError("nobody thought of this")
        return await real.claims.claim(session, plans, limit)

    async def reap(own: str) -> int:
        raise RuntimeError("never works")

    use_store(monkeypatch, claimer_of(worker), Altered(real, claims=Altered(real.claims, claim=claim)))
    use_store(monkeypatch, poller_of(worker), Altered(real, sessions=Altered(real.sessions, reap=reap)))
    async with worker, Engine(url, worker=False) as client:
        for engine in (worker, client):
            engine.register(SagaBuilder("s", output="a").step("a", _one))
        handle = await client.start("s")
        assert (await handle.result()).output == 1
        assert worker.alive().ok
    assert {
        "Looking for work failed, and will be tried again.",
        "Ending sessions that are over failed, and will be tried again.",
    } <= set(said)


class Lease:
    """Whether the lease is over, by the process's own clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_over = False
        monkeypatch.setattr(Session, "may_start", property(self.may_start))

    def may_start(self, session: Session) -> bool:
        return session.alive and not self.is_over


async def test_nothing_begins_while_the_lease_is_over(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was granted in time, and its turn comes too late: others may have it by now."""
    lease = Lease(monkeypatch)
    begun: list[str] = []

    async def note(ctx: SagaContext) -> None:
        begun.append(ctx.step_id)

    async with Engine(url, slots=1) as engine:
        engine.register(SagaBuilder("s").step("a", note), SagaBuilder("t").step("b", note))
        lease.is_over = True
        first, second = await engine.start("s"), await engine.start("t")
        while len(starts_held_back(engine)) < 2:
            await asyncio.to_thread(lambda: None)
        assert begun == []
        lease.is_over = False
        assert (await first.result()).succeeded
        assert (await second.result()).succeeded
    assert sorted(begun) == ["a", "b"]


async def test_what_is_on_record_as_begun_does_not_begin_either(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = Lease(monkeypatch)
    begun: list[str] = []

    async def note(ctx: SagaContext) -> None:
        begun.append(ctx.step_id)

    class Watching:
        """The lease ends when it is on record that the attempt begins."""

        hears_starts = False

        def started(self, reading: Any, ref: Any) -> None:
            """Not of interest."""

        def decided(self, reading: Any, entries: list[Any]) -> None:
            lease.is_over = lease.is_over or any(isinstance(entry.event, AttemptBegun) for entry in entries)

    async with Engine(url) as engine:
        runtime = durable_runtime(engine)
        observe(runtime, Watching())
        builder = SagaBuilder("pay").step("pay", note, safety="not_safe_to_retry", compensation_policy="manual")
        engine.register(builder)
        handle = await engine.start("pay")
        while not starts_held_back(runtime):
            await asyncio.to_thread(lambda: None)
        assert begun == []
        observe(runtime)
        lease.is_over = False
        assert (await handle.result()).succeeded
    assert begun == ["pay"]


async def test_a_process_that_commits_nothing_hears_what_time_it_is(url: str) -> None:
    """The database's clock was an hour late when it last said anything. With the next renewal that is over."""
    async with Engine(url, lease="1s") as engine:
        clock = durable_runtime(engine).environment.clock
        assert isinstance(clock, DatabaseClock)
        now = clock.now_ms()
        clock.note(now - 3_600_000)
        while clock_offset_ms(clock) + asyncio.get_running_loop().time() * 1_000 < now - 60_000:
            await asyncio.to_thread(lambda: None)


def test_a_clock_that_is_set_back_goes_on_slowly_and_never_back() -> None:
    ticks = 0
    clock = DatabaseClock(lambda: ticks)
    clock.note(1_000_000)
    said = [clock.now_ms()]
    clock.note(990_000)  # ten seconds back
    while ticks < 25_000:
        ticks += 1
        said.append(clock.now_ms())
    assert said == sorted(said)
    assert said[2_000] == 1_001_000, "half as fast"
    assert said[19_999:20_002] == [1_009_999, 1_010_000, 1_010_001], "after twice as long the database has caught up"
    assert said[-1] == 990_000 + 25_000


async def test_a_clock_that_is_set_back_stops_no_timer(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an hour, as the database tells it with each answer."""
    attempts: list[int] = []

    async def work(ctx: SagaContext) -> None:
        attempts.append(ctx.attempt)
        if len(attempts) < 3:
            raise TransientError("not yet")

    async with Engine(url) as engine:
        engine.register(SagaBuilder("s").step("work", work, retry=Retry(max_attempts=5, initial="10ms")))
        clock: Any = durable_runtime(engine).environment.clock
        clock.now_ms()
        monkeypatch.setattr(clock, "note", lambda now_ms: DatabaseClock.note(clock, now_ms - 3_600_000))
        handle = await engine.start("s")
        assert (await asyncio.wait_for(handle.result(), PATIENCE)).succeeded
        told = [entry.at for entry in (await durable_runtime(engine).executions.read(None, handle.id)).history]
        assert told == sorted(told)
    assert attempts == [1, 2, 3]


class Bell:
    """A clock whose one timer is rung by hand."""

    def __init__(self) -> None:
        self.now = 0
        self.ring: Callable[[], None]

    def now_ms(self) -> int:
        return self.now

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> "Bell":
        self.ring = callback
        return self

    def cancel(self) -> None: ...


def test_one_execution_that_cannot_be_woken_does_not_keep_others_from_waking() -> None:
    woken: list[str] = []

    def wake(record: Any, now: int) -> None:
        woken.append(record.state.id)
        if record.state.id == "broken":
            raise RuntimeError("a bug of its own")

    records: Any = {
        id: SimpleNamespace(state=SimpleNamespace(id=id, wake_at=due), wake_at=None)
        for id, due in (("broken", 1), ("well", 2))
    }
    bell = Bell()
    timer = WakeTimer(Environment(bell), records, wake)
    for record in records.values():
        timer.schedule(record)
    bell.now = 5
    with pytest.raises(RuntimeError):
        bell.ring()
    bell.ring()
    assert woken == ["broken", "well"]

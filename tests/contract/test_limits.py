"""Limits: of steps, of tenants, and batches that meet them. How engines share them is in `tests/durable`."""

import asyncio
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tenuto import Engine, SagaBuilder
from tenuto.errors import ConcurrencyConflict, InvalidInput, NonRetryableError, NotPermitted, TenantLimit
from tests.contract.conftest import MakeEngine, MakeHarness
from tests.contract.doubles import Gate, Stage, until_blocked
from tests.contract.sagas import one_step


def waiting() -> object:
    """A saga that is under way until its signal comes."""
    return SagaBuilder("s").signal("go", "go").build()


async def in_flight(engine: Engine) -> list[tuple[str, int, int]]:
    return [(row["tenant"], row["max_in_flight"], row["in_flight"]) for row in await engine.tenant_limits()]


# -- Of steps ----------------------------------------------------------------------------------------------------------


async def test_limits_are_listed(engine: Engine) -> None:
    await engine.limit("ses", rate="14/s", concurrency=20)
    await engine.limit("bank", rate="100/10s")
    await engine.limit("gone", concurrency=1)
    await engine.limit("gone")
    nothing = {"running": 0, "waiting": 0}
    assert await engine.limits() == [
        {"name": "bank", "rate": "100/10s", "concurrency": None, **nothing},
        {"name": "ses", "rate": "14/s", "concurrency": 20, **nothing},
    ]


async def test_a_step_under_two_limits_waits_for_both(engine: Engine) -> None:
    gate, other = Stage().gate("a"), Stage().gate("b")
    engine.register(
        one_step("one", gate.pass_through, limits=["x"]).build(),
        one_step("two", other.pass_through, limits=["y", "x"]).build(),
    )
    await engine.limit("x", concurrency=1)
    await engine.limit("y", concurrency=1)
    first = await engine.start("one")
    await gate.reached.wait()
    second = await engine.start("two")
    assert (await until_blocked(second, "limit"))["waiting_for"] in ("x", "y")
    other.open()
    gate.open()
    assert (await first.result()).succeeded
    assert (await second.result()).succeeded


# -- Of tenants --------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("G3")
async def test_a_tenant_has_so_many_executions_in_flight(engine: Engine) -> None:
    engine.register(waiting())
    await engine.tenant_limit("acme", max_in_flight=2)
    first = await engine.start("s", tenant="acme", idempotency_key="k")
    await engine.start("s", tenant="acme")
    with pytest.raises(TenantLimit) as refused:
        await engine.start("s", tenant="acme")
    assert (refused.value.code, refused.value.retry_after > 0) == ("tenant_limit", True)
    assert await in_flight(engine) == [("acme", 2, 2)]
    assert sum((await engine.count()).values()) == 2, "nothing was created"

    assert (await engine.start("s", tenant="acme", idempotency_key="k")).id == first.id, "a replay is answered"
    await engine.start("s", tenant="other")

    await first.signal("go")
    assert (await first.result()).succeeded
    await engine.start("s", tenant="acme")
    assert await in_flight(engine) == [("acme", 2, 2)]


@pytest.mark.requirement("G3")
async def test_what_is_under_way_when_a_limit_is_set_counts(engine: Engine) -> None:
    engine.register(waiting())
    handles = [await engine.start("s", tenant="acme") for _ in range(3)]
    await handles[0].signal("go")
    await handles[0].result()
    await engine.tenant_limit("acme", max_in_flight=1)
    assert await in_flight(engine) == [("acme", 1, 2)]
    with pytest.raises(TenantLimit):
        await engine.start("s", tenant="acme")
    await engine.tenant_limit("acme", max_in_flight=3)
    await engine.start("s", tenant="acme")
    await engine.tenant_limit("acme", max_in_flight=None)
    assert await in_flight(engine) == []
    for _ in range(3):
        await engine.start("s", tenant="acme")


@pytest.mark.requirement("G3")
@pytest.mark.parametrize("ending", ["succeeded", "failed", "canceled", "at once"])
async def test_every_end_makes_room(engine: Engine, ending: str) -> None:
    async def work() -> None:
        raise NonRetryableError

    never = SagaBuilder("s").step("work", work, when="false").build()
    engine.register(waiting() if ending != "at once" else never, one_step("fails", work).build())
    await engine.tenant_limit("default", max_in_flight=1)
    for _ in range(3):
        handle = await engine.start("fails" if ending == "failed" else "s")
        if ending == "canceled":
            await handle.cancel()
        elif ending == "succeeded":
            await handle.signal("go")
        await handle.result()
        assert await in_flight(engine) == [("default", 1, 0)]


@pytest.mark.requirement("G3")
async def test_another_run_counts_again(engine: Engine) -> None:
    stage = Stage()
    gate = Gate(stage, "work")
    failing = [NonRetryableError("no"), NonRetryableError("no")]

    async def work() -> Any:
        if failing:
            raise failing.pop()
        return await gate.pass_through()

    engine.register(one_step("s", work).build(), SagaBuilder("other").signal("go", "go").build())
    await engine.tenant_limit("default", max_in_flight=1)
    failed = await engine.start("s")
    assert (await failed.result()).status == "failed"
    other = await engine.start("other")
    with pytest.raises(TenantLimit):
        await failed.retry(reason="there is no room")
    await other.cancel()
    await other.result()
    await failed.retry(reason="it fails again")
    assert (await failed.result()).status == "failed"
    assert await in_flight(engine) == [("default", 1, 0)]
    await failed.retry(reason="mended")
    await gate.reached.wait()
    assert await in_flight(engine) == [("default", 1, 1)]
    with pytest.raises(TenantLimit):
        await engine.start("other")
    gate.open()
    assert (await failed.result()).succeeded
    assert await in_flight(engine) == [("default", 1, 0)]


@pytest.mark.requirement("G3")
async def test_what_happens_after_the_end_changes_no_count(engine: Engine) -> None:
    async def fail() -> None:
        raise NonRetryableError

    engine.register(one_step("s", fail).build())
    await engine.tenant_limit("default", max_in_flight=3)
    handle = await engine.start("s")
    await handle.result()
    engine.register(waiting_as("other"))
    await engine.start("other")
    assert await in_flight(engine) == [("default", 3, 1)]
    async for letter in engine.dlq():
        await engine.resolve(letter["id"], "dismiss", reason="seen")
    for _ in range(2):
        await engine.start("other")
    with pytest.raises(TenantLimit):
        await engine.start("other")
    assert await in_flight(engine) == [("default", 3, 3)]


def waiting_as(name: str) -> object:
    return SagaBuilder(name).signal("go", "go").build()


@pytest.mark.requirement("G3")
async def test_a_start_that_is_refused_for_its_key_takes_no_room(engine: Engine) -> None:
    engine.register(SagaBuilder("s", concurrency_key="input", on_conflict="reject").signal("go", "go").build())
    await engine.tenant_limit("default", max_in_flight=5)
    await engine.start("s", "order-1")
    for _ in range(3):
        with pytest.raises(ConcurrencyConflict):
            await engine.start("s", "order-1")
    assert await in_flight(engine) == [("default", 5, 1)]


@pytest.mark.requirement("G3")
async def test_starts_at_once_are_within_the_limit(engine: Engine) -> None:
    engine.register(waiting())
    await engine.tenant_limit("acme", max_in_flight=7)
    same = [engine.start("s", tenant="acme", idempotency_key="k") for _ in range(5)]
    answers = await asyncio.gather(
        *same, *(engine.start("s", tenant="acme") for _ in range(20)), return_exceptions=True
    )
    started = {answer.id for answer in answers if not isinstance(answer, BaseException)}
    assert len(started) == 7
    assert {type(answer) for answer in answers if isinstance(answer, BaseException)} == {TenantLimit}
    assert await in_flight(engine) == [("acme", 7, 7)]


async def test_an_engine_of_one_tenant_sees_and_sets_its_own_limit(engine: Engine) -> None:
    await engine.tenant_limit("acme", max_in_flight=2)
    await engine.tenant_limit("other", max_in_flight=3)
    ours = engine.scoped(tenant="acme", actor="ann")
    assert await in_flight(ours) == [("acme", 2, 0)]
    with pytest.raises(NotPermitted):
        await ours.tenant_limit("other", max_in_flight=9)
    with pytest.raises(InvalidInput):
        await engine.tenant_limit("acme", max_in_flight=-1)


# -- Batches -----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("G10")
async def test_a_batch_waits_for_room(engine: Engine) -> None:
    most = now = 0

    async def work(number: int) -> int:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await asyncio.to_thread(os.sched_yield)
        now -= 1
        return number

    engine.register(one_step("s", work).build())
    await engine.tenant_limit("default", max_in_flight=5)
    batch = await engine.start_many("s", range(60))
    results = [result async for result in batch.results()]
    assert [result.output for result in results] == list(range(60))
    assert most <= 5
    assert await in_flight(engine) == [("default", 5, 0)]


@pytest.mark.requirement("G10")
async def test_a_batch_can_raise_instead_and_is_taken_up_again(engine: Engine) -> None:
    engine.register(waiting())
    await engine.tenant_limit("default", max_in_flight=3)
    with pytest.raises(TenantLimit):
        await engine.start_many("s", range(10), key=str, on_limit="raise")
    assert await in_flight(engine) == [("default", 3, 3)]
    await engine.tenant_limit("default", max_in_flight=100)
    batch = await engine.start_many("s", range(10), key=str, on_limit="raise")
    assert len(set(batch.execution_ids)) == 10
    assert await engine.count() == {"running": 10}


async def test_a_batch_that_was_begun_under_another_name_is_counted_whole(engine: Engine) -> None:
    async def bill(number: int) -> int:
        return number

    engine.register(one_step("s", bill).build())
    await engine.start_many("s", range(4), key=str)
    batch = await engine.start_many("s", range(6), key=str)
    (*_, last) = [progress async for progress in batch.progress(every="1ms")]
    assert (last.succeeded, last.total) == (6, 6)


async def test_the_items_of_a_batch_may_come_one_by_one(engine: Engine) -> None:
    async def bill(number: int) -> int:
        return number

    async def bills() -> AsyncIterator[int]:
        for number in range(30):
            await asyncio.to_thread(os.sched_yield)
            yield number

    engine.register(one_step("s", bill).build())
    batch = await engine.start_many("s", bills())
    assert [result.output async for result in batch.results()] == list(range(30))


async def test_a_batch_with_a_bad_item_raises_and_leaves_what_was_started(engine: Engine) -> None:
    async def bill(number: int) -> int:
        return number

    def bills() -> Any:
        yield from range(300)
        raise LookupError("no more bills")

    engine.register(one_step("s", bill).build())
    with pytest.raises(LookupError):
        await engine.start_many("s", bills(), key=str)
    batch = await engine.start_many("s", range(300), key=str)
    assert len(set(batch.execution_ids)) == 300
    assert sum((await engine.count()).values()) == 300


async def test_an_empty_batch_is_over_at_once(engine: Engine) -> None:
    engine.register(waiting())
    batch = await engine.start_many("s", [])
    assert [result async for result in batch.results()] == []
    assert [progress.total async for progress in batch.progress()] == [0]


async def test_canceling_a_batch_leaves_what_is_over(engine: Engine) -> None:
    engine.register(waiting())
    batch = await engine.start_many("s", range(40))
    await engine.get(batch.execution_ids[7]).signal("go")
    assert (await engine.get(batch.execution_ids[7]).result()).succeeded
    await batch.cancel(reason="enough")
    statuses = [result.status async for result in batch.results()]
    assert statuses == ["canceled"] * 7 + ["succeeded"] + ["canceled"] * 32


@pytest.mark.requirement("G10")
async def test_time_goes_on_while_a_batch_waits_for_room(make_harness: MakeHarness) -> None:
    t = await make_harness(SagaBuilder("s").wait("nap", "1h").build())
    await t.tenant_limit("default", max_in_flight=2)
    batch = await t.start_many("s", range(6))
    assert [result.status async for result in batch.results()] == ["succeeded"] * 6
    assert t.elapsed.total_seconds() == 3 * 3_600


async def test_two_engines_count_together(make_engine: MakeEngine, url: str) -> None:
    """In memory there is one engine to a place."""
    if url == "memory://":
        first = second = await make_engine(waiting())
    else:
        first, second = await make_engine(waiting()), await make_engine(waiting())
    await first.tenant_limit("default", max_in_flight=10)
    answers = await asyncio.gather(
        *(engine.start("s") for engine in (first, second) for _ in range(10)), return_exceptions=True
    )
    assert sum(isinstance(answer, TenantLimit) for answer in answers) == 10
    assert await in_flight(second) == [("default", 10, 10)]

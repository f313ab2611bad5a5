"""How executions come to be: once per key, one at a time per object, for a tenant; alone or by the thousand."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tenuto import Batch, Engine, Progress, Retry, SagaBuilder, SagaContext
from tenuto.errors import (
    ConcurrencyConflict,
    EngineClosed,
    ExecutionFailed,
    IdempotencyConflict,
    InvalidInput,
    NonRetryableError,
    NotFound,
    ResultTimeout,
)

from .conftest import MakeEngine, MakeHarness
from .doubles import Gate, Heard, Stage, until, until_blocked
from .sagas import BookTrip, Charge, Trip, one_step

# -- Once per key ------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("B4")
async def test_the_same_key_gives_the_same_execution(engine: Engine) -> None:
    trip = BookTrip()
    engine.register(trip)

    first = await engine.start(BookTrip, Trip("Oslo"), idempotency_key="trip-42")
    again = await engine.start(BookTrip, Trip("Oslo"), idempotency_key="trip-42")
    done = await engine.execute(BookTrip, Trip("Oslo"), idempotency_key="trip-42")
    after_it_ended = await engine.start(BookTrip, Trip("Oslo"), idempotency_key="trip-42")

    assert first.id == again.id == done.execution_id == after_it_ended.id
    assert Counter(trip.log) == {"flight": 1, "hotel": 1, "charge": 1}
    assert (await first.status())["idempotency_key"] == "trip-42"


@pytest.mark.requirement("B4")
async def test_without_a_key_every_start_is_a_new_execution(engine: Engine) -> None:
    engine.register(BookTrip())
    handles = [await engine.start(BookTrip, Trip("Oslo")) for _ in range(3)]
    assert len({handle.id for handle in handles}) == 3


@pytest.mark.requirement("B4")
@pytest.mark.parametrize("field", ["idempotency_key", "concurrency_key", "tenant"])
async def test_empty_text_is_no_name(engine: Engine, field: str) -> None:
    """A variable that nobody filled in: taken for a key, all such starts would be one execution."""
    engine.register(BookTrip())
    option: dict[str, Any] = {field: ""}
    with pytest.raises(InvalidInput, match=field):
        await engine.start(BookTrip, Trip("Oslo"), **option)
    assert [handle async for handle in engine.executions()] == []


UNFIT: dict[str, dict[str, Any]] = {
    "a long idempotency key": {"idempotency_key": "k" * 257},
    "a long concurrency key": {"concurrency_key": "k" * 257},
    "a long correlation id": {"correlation_id": "k" * 257},
    "a long target": {"target": ("Order", "k" * 257)},
    "a long tenant": {"tenant": "k" * 257},
    "a NUL": {"idempotency_key": "a\0b"},
    "half a character": {"idempotency_key": "\ud800"},
    "half a character in a target": {"target": ("Order", "\ud800")},
    "half a character in a header": {"headers": {"a": "\ud800"}},
    "a number": {"idempotency_key": 7},
}


@pytest.mark.requirement("B4")
@pytest.mark.parametrize("what", UNFIT)
async def test_a_name_that_no_database_could_find_is_refused(engine: Engine, what: str) -> None:
    engine.register(BookTrip())
    with pytest.raises(InvalidInput):
        await engine.start(BookTrip, Trip("Oslo"), **UNFIT[what])
    longest: dict[str, Any] = dict.fromkeys(("idempotency_key", "correlation_id"), "k" * 255)
    longest |= {"target": ("Order", "é" * 256), "concurrency_key": "\U0001f680" * 256}
    handle = await engine.start(BookTrip, Trip("Oslo"), **longest)
    assert (await handle.result()).succeeded
    assert [found.id async for found in engine.executions()] == [handle.id]


@pytest.mark.requirement("B4")
async def test_a_concurrency_key_that_comes_of_the_input_may_be_too_long(engine: Engine) -> None:
    engine.register(SagaBuilder("s", concurrency_key="input").step("a", _one))
    with pytest.raises(InvalidInput, match="concurrency_key"):
        await engine.start("s", "k" * 257)
    assert (await engine.execute("s", "k" * 256)).succeeded


async def _one(given: str) -> int:
    return len(given)


@pytest.mark.requirement("B4")
async def test_a_key_used_with_another_request_is_refused_with_what_differs(engine: Engine, runtime: str) -> None:
    engine.register(BookTrip(), one_step("other", Stage().does("x")).build())
    first = await engine.start(BookTrip, Trip("Oslo"), idempotency_key="k")
    used = (
        f"The idempotency key 'k' was used before with another request: it started execution {first.id}, and differs in"
    )

    async def refused(saga: Any, input: object, **options: Any) -> str:
        with pytest.raises(IdempotencyConflict) as conflict:
            await engine.start(saga, input, idempotency_key="k", **options)
        assert conflict.value.hint is not None
        return conflict.value.message.removeprefix(used)

    assert await refused(BookTrip, Trip("Rome")) == " the input."
    assert await refused("other", {"city": "Oslo", "cents": 0}) == " the definition ('book-trip', now 'other')."
    if runtime != "http":  # its client always names a version
        assert await refused(BookTrip, Trip("Oslo"), version=1) == " the version that was asked for."
    options = {"variables": {"a": 1}, "target": ("order", "7"), "priority": "high", "concurrency_key": "c"}
    assert await refused(BookTrip, Trip("Oslo"), **options) == (
        " the variables, the target, the priority (normal, now high), the concurrency key."
    )
    assert sum((await engine.count()).values()) == 1


@pytest.mark.requirement("B4")
async def test_keys_are_a_tenants_own(engine: Engine) -> None:
    engine.register(BookTrip())
    ours = await engine.start(BookTrip, Trip("Oslo"), idempotency_key="k", tenant="acme")
    theirs = await engine.start(BookTrip, Trip("Rome"), idempotency_key="k", tenant="other")
    assert ours.id != theirs.id


@pytest.mark.requirement("B4")
async def test_a_refused_request_uses_no_key(engine: Engine) -> None:
    engine.register(BookTrip())
    with pytest.raises(InvalidInput):
        await engine.start("book-trip", {"no": "city"}, idempotency_key="k")
    assert (await engine.execute(BookTrip, Trip("Oslo"), idempotency_key="k")).succeeded


@pytest.mark.requirement("B3")
async def test_many_starts_at_once_with_one_key_make_one_execution(engine: Engine) -> None:
    trip = BookTrip()
    engine.register(trip)
    starts = (engine.start(BookTrip, Trip("Oslo"), idempotency_key="k") for _ in range(20))
    handles = await asyncio.gather(*starts)

    assert len({handle.id for handle in handles}) == 1
    await handles[0].result()
    assert Counter(trip.log) == {"flight": 1, "hotel": 1, "charge": 1}


@pytest.mark.requirement("B3")
async def test_of_many_decisions_at_once_one_is_taken(engine: Engine) -> None:
    engine.register(SagaBuilder("s").approval("ok").build())
    handle = await engine.start("s")
    await until_blocked(handle, "approval")

    answers = await asyncio.gather(
        *(handle.approve("ok") if n % 2 else handle.reject("ok") for n in range(10)), return_exceptions=True
    )

    assert sum(answer is None for answer in answers) == 1
    refused = [answer for answer in answers if answer is not None]
    assert {getattr(answer, "code", answer) for answer in refused} <= {"not_waiting", "invalid_transition", "terminal"}


# -- One at a time per object ------------------------------------------------------------------------------------------


def keyed(stage: Stage, on_conflict: Any = "queue") -> tuple[object, dict[str, Gate]]:
    """One execution per order: each passes through the gate of its own name."""
    gates = {name: stage.gate(name) for name in "abc"}

    async def work(given: dict[str, str]) -> Any:
        return await gates[given["name"]].pass_through()

    builder = SagaBuilder("keyed", concurrency_key="input.order", on_conflict=on_conflict)
    return builder.step("work", work).build(), gates


@pytest.mark.requirement("B5")
async def test_one_execution_per_key_is_active_and_the_rest_wait_in_order(engine: Engine) -> None:
    stage = Stage()
    saga, gates = keyed(stage)
    engine.register(saga)

    first, second, third = [await engine.start("keyed", {"order": "1", "name": name}) for name in "abc"]
    await gates["a"].reached.wait()
    blocked = await until_blocked(second, "concurrency_key")

    assert (await second.status())["status"] == "running"
    assert (blocked["waiting_for"], blocked["commands"]) == ("1", ["cancel"])
    assert not gates["b"].reached.is_set()

    for gate in gates.values():
        gate.open()
    for handle in (first, second, third):
        assert (await handle.result()).succeeded
    assert stage.log == ["a", "b", "c"]


@pytest.mark.requirement("B5")
async def test_another_key_does_not_wait(engine: Engine) -> None:
    stage = Stage()
    saga, gates = keyed(stage)
    engine.register(saga)
    held = await engine.start("keyed", {"order": "1", "name": "a"})
    await gates["a"].reached.wait()
    gates["b"].open()
    assert (await engine.execute("keyed", {"order": "2", "name": "b"})).succeeded
    gates["a"].open()
    assert (await held.result()).succeeded


@pytest.mark.requirement("B5")
async def test_a_conflict_can_be_rejected(engine: Engine) -> None:
    stage = Stage()
    saga, gates = keyed(stage, on_conflict="reject")
    engine.register(saga)
    held = await engine.start("keyed", {"order": "1", "name": "a"})

    with pytest.raises(ConcurrencyConflict):
        await engine.start("keyed", {"order": "1", "name": "b"})
    assert sum((await engine.count()).values()) == 1, "nothing was created"

    gates["a"].open()
    await held.result()
    gates["b"].open()
    assert (await engine.execute("keyed", {"order": "1", "name": "b"})).succeeded, "the key is free again"


@pytest.mark.requirement("B5")
async def test_whoever_waits_can_be_canceled_and_the_next_one_goes_on(engine: Engine) -> None:
    stage = Stage()
    saga, gates = keyed(stage)
    engine.register(saga)
    first, second, third = [await engine.start("keyed", {"order": "1", "name": name}) for name in "abc"]
    await until_blocked(second, "concurrency_key")
    await second.cancel()
    assert (await second.result()).status == "canceled"

    gates["a"].open()
    gates["c"].open()
    assert (await first.result()).succeeded
    assert (await third.result()).succeeded
    assert stage.log == ["a", "c"]


@pytest.mark.requirement("B5")
async def test_the_callers_key_goes_before_the_definitions(engine: Engine) -> None:
    stage = Stage()
    saga, gates = keyed(stage)
    engine.register(saga)
    first = await engine.start("keyed", {"order": "1", "name": "a"}, concurrency_key="mine")
    second = await engine.start("keyed", {"order": "2", "name": "b"}, concurrency_key="mine")
    assert (await until_blocked(second, "concurrency_key"))["waiting_for"] == "mine"
    for gate in gates.values():
        gate.open()
    assert (await first.result()).succeeded
    assert (await second.result()).succeeded


@pytest.mark.requirement("B5")
async def test_a_retry_asks_for_the_key_again(engine: Engine) -> None:
    stage = Stage()
    gate = stage.gate("other")

    async def work(name: str) -> None:
        if name == "other":
            await gate.pass_through()
        elif "mended" not in stage.log:
            raise NonRetryableError
        stage.log.append(name)

    engine.register(one_step("s", work).build())
    failed = await engine.start("s", "failed", concurrency_key="k")
    assert (await failed.result()).status == "failed"
    with pytest.raises(NotFound):
        await failed.retry(from_step="nobody", reason="a refused retry keeps no key")
    other = await engine.start("s", "other", concurrency_key="k")
    await gate.reached.wait()
    stage.log.append("mended")
    await failed.retry(reason="again")
    await until_blocked(failed, "concurrency_key")
    gate.open()
    assert (await other.result()).succeeded
    assert (await failed.result()).succeeded
    assert stage.log == ["mended", "other", "other", "failed"]


@pytest.mark.requirement("B5")
async def test_a_key_that_was_seen_is_answered_before_a_conflict(engine: Engine) -> None:
    saga, gates = keyed(Stage(), on_conflict="reject")
    engine.register(saga)
    given = {"order": "1", "name": "a"}
    first = await engine.start("keyed", given, idempotency_key="once")
    again = await engine.start("keyed", given, idempotency_key="once")
    assert first.id == again.id
    gates["a"].open()
    assert (await first.result()).succeeded


@pytest.mark.requirement("B5")
async def test_an_execution_is_about_an_object(engine: Engine) -> None:
    engine.register(BookTrip())
    handle = await engine.start(BookTrip, Trip("Oslo"), target=("Invoice", "i-7"))
    await engine.start(BookTrip, Trip("Oslo"), target=("Invoice", "i-8"))

    found = await handle.status()
    assert (found["target_object_type"], found["target_object_id"]) == ("Invoice", "i-7")
    assert [each.id async for each in engine.executions(target_id="i-7")] == [handle.id]


@pytest.mark.requirement("C22")
async def test_a_hot_key_queues_and_a_conflict_of_versions_is_retried(engine: Engine) -> None:
    """Seed 3: whoever loses an optimistic lock tries again; whoever works on the same object waits in line."""

    class VersionConflict(Exception): ...

    versions = {"order": 0}
    running = 0

    async def update(given: dict[str, str], ctx: SagaContext) -> int:
        nonlocal running
        running += 1
        assert running == 1, "one at a time per key"
        seen = versions["order"]
        if ctx.attempt == 1:
            versions["order"] += 1  # somebody else was faster
        try:
            if seen != versions["order"]:
                raise VersionConflict
            versions["order"] += 1
            return versions["order"]
        finally:
            running -= 1

    builder = SagaBuilder("s", concurrency_key="input.id", classify={VersionConflict: "RETRYABLE"}, output="update")
    engine.register(builder.step("update", update, retry=Retry(3, initial="1ms")).build())
    handles = [await engine.start("s", {"id": "1"}) for _ in range(5)]
    results = [await handle.result() for handle in handles]

    assert [result.output for result in results] == [2, 4, 6, 8, 10]
    assert [result.steps["update"].attempts for result in results] == [2] * 5


# -- What is carried along ---------------------------------------------------------------------------------------------


@pytest.mark.requirement("B6")
async def test_the_root_correlation_id_is_carried_everywhere(make_engine: MakeEngine) -> None:
    heard = Heard()
    seen: list[str] = []

    async def work(ctx: SagaContext) -> None:
        seen.append(ctx.correlation_id)
        if ctx.step_id == "fail":
            raise NonRetryableError

    async def undo(ctx: SagaContext) -> None:
        seen.append(ctx.correlation_id)

    builder = SagaBuilder("s").step("work", work, compensate=undo).step("fail", work, depends_on=["work"])
    engine = await make_engine(builder.build(), events=[heard])
    result = await engine.execute("s", correlation_id="root-1")

    assert result.correlation_id == "root-1"
    assert seen == ["root-1"] * 3
    assert {context.correlation_id for context in heard.contexts} == {"root-1"}
    assert [handle.id async for handle in engine.executions(correlation_id="root-1")] == [result.execution_id]


@pytest.mark.requirement("B6")
async def test_an_execution_without_one_is_its_own_root(engine: Engine) -> None:
    engine.register(BookTrip())
    result = await engine.execute(BookTrip, Trip("Oslo"))
    assert result.correlation_id == result.execution_id


@pytest.mark.requirement("B20")
async def test_input_and_output_are_stored_with_the_execution(engine: Engine) -> None:
    engine.register(BookTrip())
    trip = {"city": "Oslo", "cents": 5}
    result = await engine.execute("book-trip", trip)
    trip["city"] = "Rome"  # what the caller does afterwards changes nothing

    found = await engine.get(result.execution_id).status()
    assert found["input"] == {"city": "Oslo", "cents": 5}
    assert found["output"] == {"id": "F-Oslo/charge", "cents": 5}
    assert result.output == Charge("F-Oslo/charge", 5)


# -- Turns -------------------------------------------------------------------------------------------------------------


async def test_a_high_priority_goes_first_when_slots_are_scarce(make_engine: MakeEngine) -> None:
    stage = Stage()
    gate = stage.gate("first")

    async def work(name: str) -> None:
        if name == "first":
            await gate.pass_through()
        else:
            stage.log.append(name)

    engine = await make_engine(one_step("s", work).build(), slots=1)
    first = await engine.start("s", "first")
    await gate.reached.wait()
    normal = await engine.start("s", "normal")
    high = await engine.start("s", "high", priority="high")
    gate.open()

    for handle in (first, normal, high):
        assert (await handle.result()).succeeded
    assert stage.log == ["first", "high", "normal"]


# -- Tenants -----------------------------------------------------------------------------------------------------------


async def test_what_is_another_tenants_is_not_found(engine: Engine) -> None:
    engine.register(SagaBuilder("s").approval("ok").build())
    ours = engine.scoped(tenant="acme", actor="user:ann", roles=["operator", "approver"])
    theirs = engine.scoped(tenant="other", actor="user:bob", roles=["admin"])
    handle = await ours.start("s")
    await until_blocked(handle, "approval")
    (review,) = [row async for row in ours.reviews()]

    foreign = theirs.get(handle.id)
    attempts: list[Callable[[], Awaitable[Any]]] = [
        foreign.status,
        foreign.history,
        foreign.result,
        foreign.pause,
        foreign.resume,
        foreign.cancel,
        lambda: foreign.approve("ok"),
        lambda: foreign.reject("ok"),
        lambda: foreign.signal("x"),
        lambda: foreign.retry(reason="mine"),
        lambda: foreign.acknowledge("ok", attempt=1, lease="x"),
        lambda: foreign.answer("ok", attempt=1, lease="x"),
        lambda: theirs.resolve(review["id"], "approved"),
    ]
    for attempt in attempts:
        with pytest.raises(NotFound):
            await attempt()

    assert [each.id async for each in theirs.executions()] == []
    assert [row async for row in theirs.reviews()] == []
    assert await theirs.count() == {}
    assert await ours.count() == {"waiting_approval": 1}
    assert (await handle.status())["tenant_id"] == "acme"


async def test_a_scoped_engine_acts_for_its_tenant_alone(engine: Engine) -> None:
    engine.register(BookTrip())
    ours = engine.scoped(tenant="acme", actor="user:ann")
    result = await ours.execute(BookTrip, Trip("Oslo"), idempotency_key="k")
    assert (await ours.get(result.execution_id).status())["tenant_id"] == "acme"
    with pytest.raises(InvalidInput):
        await ours.start(BookTrip, Trip("Oslo"), tenant="other")


# -- Many at once ------------------------------------------------------------------------------------------------------


async def bill(number: int) -> int:
    if number % 5 == 4:
        raise NonRetryableError("no such account")
    return number


async def test_a_batch_starts_one_execution_per_item(engine: Engine) -> None:
    engine.register(one_step("bill", bill).build())
    batch = await engine.start_many("bill", range(10), key=lambda number: f"bill-{number}", correlation_id="today")

    results = [result async for result in batch.results()]
    assert [result.output if result.succeeded else None for result in results] == [0, 1, 2, 3, None, 5, 6, 7, 8, None]
    (*_, last) = [progress async for progress in batch.progress(every="1ms")]
    assert last == Progress(started=10, succeeded=8, failed=2, total=10)
    assert batch.id == "today"
    assert await engine.count(correlation_id="today") == {"succeeded": 8, "failed": 2}


async def test_a_batch_that_is_started_again_is_the_same_batch(engine: Engine) -> None:
    engine.register(one_step("bill", bill).build())
    keys: Any = {"key": lambda number: f"bill-{number}", "correlation_id": "today"}
    first = await engine.start_many("bill", range(3), **keys)
    again = await engine.start_many("bill", range(5), **keys)

    assert list(again.execution_ids[:3]) == list(first.execution_ids)
    assert len([result async for result in again.results()]) == 5
    assert sum((await engine.count()).values()) == 5


async def _last(batch: Batch[Any]) -> Progress:
    (*_, last) = [progress async for progress in batch.progress(every="1ms")]
    return last


async def test_a_batch_counts_its_own_executions_each_once(engine: Engine) -> None:
    """Whatever else was started under its correlation id, and under whichever its own were."""
    engine.register(one_step("bill", bill).build())

    async def start(items: list[int], **options: Any) -> Batch[Any]:
        return await engine.start_many("bill", items, key=lambda number: f"bill-{number}", **options)

    repeated = await start([1, 2, 3, 2, 1], correlation_id="first")
    assert len(repeated.execution_ids) == 5
    assert await _last(repeated) == Progress(started=3, succeeded=3, total=3)
    assert await _last(await start([5, 6, 5])) == Progress(started=2, succeeded=2, total=2)
    partly = await start([2, 3, 7], correlation_id="second")
    assert await _last(partly) == Progress(started=3, succeeded=3, total=3)
    assert await _last(await start([8], correlation_id="first")) == Progress(started=1, succeeded=1, total=1)


async def test_a_batch_is_canceled_as_a_whole(engine: Engine) -> None:
    engine.register(SagaBuilder("s").signal("never", "never").build())
    batch = await engine.start_many("s", [None] * 3)
    await batch.cancel(reason="changed our minds")
    assert [result.status async for result in batch.results()] == ["canceled"] * 3


async def test_progress_counts_those_that_wait_for_a_person(engine: Engine) -> None:
    engine.register(SagaBuilder("s").approval("ok").build())
    batch = await engine.start_many("s", [1, 2])
    (*_, last) = [progress async for progress in batch.progress(every="1ms")]
    assert (last.waiting, last.succeeded, last.total) == (2, 0, 2)


# -- Looking -----------------------------------------------------------------------------------------------------------


async def test_executions_are_listed_oldest_first_and_filtered(engine: Engine) -> None:
    before = datetime.now(UTC)
    engine.register(one_step("bill", bill).build(), SagaBuilder("wait").signal("never", "never").build())
    ids = [(await engine.start("bill", number)).id for number in range(5)]
    waiting = await engine.start("wait")
    for id in ids:
        await engine.get(id).result()

    async def found(**wanted: Any) -> list[str]:
        return [handle.id async for handle in engine.executions(**wanted)]

    assert await found() == [*ids, waiting.id]
    assert await found(definition="bill") == ids
    assert await found(status="succeeded") == ids[:4]
    assert await found(status="failed", definition="bill") == ids[4:]
    assert await found(status="running") == [waiting.id]
    assert await found(since=before - timedelta(hours=1)) == [*ids, waiting.id]
    assert await found(since=before + timedelta(hours=1)) == []
    assert await engine.count() == {"succeeded": 4, "failed": 1, "running": 1}
    assert await engine.count(group_by="definition") == {"bill": 5, "wait": 1}


async def test_a_list_pages_on_by_itself(engine: Engine) -> None:
    engine.register(one_step("bill", bill).build())
    batch = await engine.start_many("bill", [0] * 250)
    assert [handle.id async for handle in engine.executions()] == list(batch.execution_ids)


async def test_an_execution_that_is_not_there_is_not_found(engine: Engine) -> None:
    handle = engine.get("nobody")
    for question in (handle.status, handle.history, handle.result, handle.cancel):
        with pytest.raises(NotFound):
            await question()
    with pytest.raises(NotFound):
        await engine.resolve("nobody.3", "dismiss", reason="seen")
    with pytest.raises(NotFound):
        await engine.resolve("nobody", "dismiss", reason="seen")


# -- Waiting for results -----------------------------------------------------------------------------------------------


async def test_waiting_can_be_given_up_and_the_execution_goes_on(engine: Engine) -> None:
    gate = Stage().gate("done")
    engine.register(one_step("s", gate.pass_through).build())
    handle = await engine.start("s")
    with pytest.raises(ResultTimeout):
        await handle.result(timeout="5ms")
    gate.open()
    assert await handle.output() == "done"


async def test_settled_is_over_or_waiting_for_a_person(engine: Engine) -> None:
    engine.register(SagaBuilder("s").approval("ok").build())
    handle = await engine.start("s")
    settled = await handle.result()
    assert (settled.status, settled.done, settled.succeeded) == ("waiting_approval", False, False)
    with pytest.raises(ResultTimeout):
        await handle.result(timeout="2ms", return_when="terminal")

    await handle.approve("ok")
    assert (await handle.result(return_when="terminal")).succeeded


async def test_a_result_that_is_demanded_and_not_there_is_an_error(engine: Engine) -> None:
    engine.register(BookTrip(), SagaBuilder("s").approval("ok").build())
    failed = await engine.execute(BookTrip, Trip("nowhere"))
    with pytest.raises(ExecutionFailed, match="no such place") as error:
        failed.raise_for_status()
    assert (error.value.status, error.value.error_class) == ("failed", "NON_RETRYABLE")
    assert error.value.execution_id == failed.execution_id
    with pytest.raises(ExecutionFailed):
        _ = failed.output

    waiting = await engine.start("s")
    with pytest.raises(ExecutionFailed, match="approval") as error:
        await waiting.output()
    assert error.value.blocked is not None
    assert error.value.blocked["reason"] == "approval"


async def test_a_closed_engine_says_so(make_engine: MakeEngine) -> None:
    engine = await make_engine(BookTrip())
    await engine.close()
    with pytest.raises(EngineClosed):
        await engine.start(BookTrip, Trip("Oslo"))


async def test_a_result_is_of_the_moment_it_was_given(engine: Engine) -> None:
    """What happens to the execution afterwards does not change it."""
    stage = Stage()
    builder = SagaBuilder("s").step("a", stage.does("a", NonRetryableError("first time")))
    engine.register(builder.build())
    failed = await engine.execute("s")
    handle = engine.get(failed.execution_id)
    await handle.retry(reason="again")
    assert (await handle.result()).succeeded
    assert (failed.status, failed.steps["a"].status, failed.steps["a"].error) == ("failed", "failed", "first time")


async def test_waiting_in_line_for_a_key_survives_a_pause(make_harness: MakeHarness) -> None:
    stage = Stage()
    saga, gates = keyed(stage)
    t = await make_harness(saga)
    first = await t.start("keyed", {"order": "1", "name": "a"})
    second = await t.start("keyed", {"order": "1", "name": "b"})
    await second.pause()
    for gate in gates.values():
        gate.open()
    assert (await first.result()).succeeded
    assert (await second.status())["status"] == "paused"
    await second.resume()
    assert (await second.result()).succeeded
    document = await until(second, lambda found: found["status"] == "succeeded")
    assert document["blocked"] is None


@pytest.mark.requirement("B4")
async def test_a_key_is_free_again_when_its_execution_is_pruned(engine: Engine) -> None:
    engine.register(one_step("s", Stage().does("work")).build())
    first = await engine.start("s", idempotency_key="k")
    await first.result()
    while (await engine.prune(older_than=0)).executions == 0:
        pass  # it ended in this very millisecond
    with pytest.raises(NotFound):
        await first.status()
    second = await engine.start("s", idempotency_key="k")
    assert second.id != first.id
    assert (await second.result()).succeeded
    assert (await engine.prune(older_than="1h")).executions == 0

"""What only a runtime with a database can promise: an execution outlives the process that began it."""

import asyncio
from typing import Any

import pytest

from tenuto import Engine, SagaBuilder, SagaContext
from tenuto.errors import DefinitionError, NonRetryableError

from .conftest import DURABLE, MakeEngine
from .doubles import Stage, until_blocked
from .sagas import BookTrip, Charge, Trip, chain, one_step
from .test_callbacks import Bus, document, remote

pytestmark = pytest.mark.parametrize("runtime", DURABLE, indirect=True)

FAST_STOP: dict[str, Any] = {"shutdown_grace": "10ms"}


@pytest.mark.requirement("B9")
async def test_an_execution_goes_on_after_a_restart(make_engine: MakeEngine) -> None:
    """What was done stays done; what was under way is tried again, under the same key."""
    stage = Stage()
    held = stage.gate("never comes so far")
    keys: list[str] = []

    async def second(ctx: SagaContext) -> None:
        keys.append(ctx.idempotency_key)
        if len(keys) == 1:
            await held.pass_through()
        stage.log.append("second")

    def saga() -> object:
        builder = SagaBuilder("s", output="third").step("first", stage.does("first"))
        builder.step("second", second, depends_on=["first"])
        return builder.step("third", stage.does("third"), depends_on=["second"]).build()

    before = await make_engine(saga(), **FAST_STOP)
    handle = await before.start("s")
    await held.reached.wait()
    await before.close()

    after = await make_engine(saga())
    result = await after.get(handle.id).result()
    assert (result.output, stage.log) == ("third", ["first", "second", "third"])
    assert (len(keys), len(set(keys))) == (2, 1)


@pytest.mark.requirement("B9")
async def test_an_undo_goes_on_after_a_restart(make_engine: MakeEngine) -> None:
    stage = Stage()

    def saga(undo_b: Any) -> object:
        builder = SagaBuilder("s").step("a", stage.does("a"), compensate=stage.does("undo a"))
        builder.step("b", stage.does("b"), depends_on=["a"], compensate=undo_b)
        return builder.step("c", stage.fails("c", NonRetryableError()), depends_on=["b"]).build()

    gate = stage.gate("undo b")
    before = await make_engine(saga(gate.pass_through), **FAST_STOP)
    handle = await before.start("s")
    await gate.reached.wait()
    await before.close()

    after = await make_engine(saga(stage.does("undo b")))
    result = await after.get(handle.id).result()
    assert (result.status, stage.log) == ("failed", ["a", "b", "c", "undo b", "undo a"])


@pytest.mark.requirement("C10")
async def test_a_step_that_is_not_safe_is_not_repeated_by_a_restart(make_engine: MakeEngine) -> None:
    stage = Stage()
    gate = stage.gate("pay")
    options: Any = {"safety": "not_safe_to_retry", "compensation_policy": "manual"}
    before = await make_engine(one_step("s", gate.pass_through, **options).build(), **FAST_STOP)
    handle = await before.start("s")
    await gate.reached.wait()
    await before.close()

    after = await make_engine(one_step("s", stage.does("pay again"), **options).build())
    blocked = await until_blocked(after.get(handle.id), "review")
    assert stage.log == []
    assert [row["kind"] async for row in after.reviews()] == ["indeterminate"]
    await after.resolve(blocked["review_id"], "completed", result="paid", reason="it is on the statement")
    assert (await after.get(handle.id).result()).output == "paid"


@pytest.mark.requirement("B4")
async def test_a_key_is_remembered_after_a_restart(make_engine: MakeEngine) -> None:
    before = await make_engine(BookTrip())
    first = await before.execute(BookTrip, Trip("Oslo"), idempotency_key="k")
    await before.close()
    trip = BookTrip()
    after = await make_engine(trip)
    again = await after.execute(BookTrip, Trip("Oslo"), idempotency_key="k")
    assert (again.execution_id, again.output, trip.log) == (first.execution_id, Charge("F-Oslo/charge", 0), [])


@pytest.mark.requirement("B7")
async def test_history_and_results_outlive_the_process(make_engine: MakeEngine) -> None:
    before = await make_engine(BookTrip())
    result = await before.execute(BookTrip, Trip("nowhere"))
    handle = before.get(result.execution_id)
    kept = (await handle.status(), await handle.history())
    await before.close()

    after = await make_engine(worker=False)  # which has no code for it
    found = after.get(result.execution_id)
    assert (await found.status(), await found.history()) == kept
    assert (await found.result()).compensated_steps == result.compensated_steps
    assert [row["execution_id"] async for row in after.dlq()] == [result.execution_id]


@pytest.mark.requirement("I1")
async def test_a_decision_is_taken_after_a_restart(make_engine: MakeEngine) -> None:
    stage = Stage()

    def saga() -> object:
        builder = SagaBuilder("s").approval("ok").step("then", stage.does("then"), depends_on=["ok"])
        return builder.build()

    before = await make_engine(saga())
    handle = await before.start("s")
    await until_blocked(handle, "approval")
    await before.close()
    after = await make_engine(saga())
    assert [row["step_id"] async for row in after.reviews()] == ["ok"]
    await after.get(handle.id).approve("ok")
    assert (await after.get(handle.id).result()).succeeded
    assert stage.log == ["then"]


async def test_signals_and_timers_outlive_the_process(make_engine: MakeEngine) -> None:
    def saga() -> object:
        builder = SagaBuilder("s", output="paid").wait("nap", "20ms")
        return builder.signal("paid", "paid", depends_on=["nap"]).build()

    before = await make_engine(saga())
    handle = await before.start("s")
    await handle.signal("paid", 5)
    await before.close()
    after = await make_engine(saga())
    assert (await after.get(handle.id).result()).output == 5


@pytest.mark.requirement("B5")
async def test_a_line_for_a_key_outlives_the_process(make_engine: MakeEngine) -> None:
    stage = Stage()
    gate = stage.gate("first")
    before = await make_engine(one_step("s", gate.pass_through).build(), **FAST_STOP)
    first = await before.start("s", concurrency_key="k")
    await gate.reached.wait()
    second = await before.start("s", concurrency_key="k")
    await before.close()
    after = await make_engine(one_step("s", stage.does("work")).build())
    for handle in (first, second):
        assert (await after.get(handle.id).result()).succeeded
    assert stage.log == ["work", "work"]


async def names_seen_by(engine: Engine) -> list[str]:
    return [each["name"] async for each in engine.definitions()]


async def test_the_sagas_of_an_engine_are_published_when_it_opens(make_engine: MakeEngine) -> None:
    stage = Stage()
    await make_engine(one_step("s", stage.does("work")).build())
    submitter = await make_engine(worker=False)
    assert await names_seen_by(submitter) == ["s"]
    assert (await submitter.execute("s")).succeeded


async def test_a_saga_that_is_registered_with_an_open_engine_is_published_without_a_call(
    make_engine: MakeEngine,
) -> None:
    stage = Stage()
    worker, submitter = await make_engine(), await make_engine(worker=False)
    worker.register(one_step("s", stage.does("work")).build())
    async with asyncio.timeout(60):
        while await names_seen_by(submitter) != ["s"]:
            pass
    assert (await submitter.execute("s")).succeeded


async def test_a_changed_plan_is_reported_once_and_hinders_no_other_saga(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    before, stage = await make_engine(chain("s", Stage(), "a").build()), Stage()
    await before.close()
    changed = chain("s", stage, "a", "b").build()
    after = await make_engine(changed, one_step("t", stage.does("work")).build())
    after.register(one_step("u", stage.does("work")).build())  # a second round of publishing
    assert (await after.execute("u")).succeeded
    assert (await after.execute("t")).succeeded
    refusals = [record for record in caplog.records if record.name == "tenuto.definitions"]
    assert [(record.levelname, record.code) for record in refusals] == [("ERROR", "definition_changed")]  # type: ignore[attr-defined]
    assert "step `b` is not stored; set `version=2` in `@saga`" in refusals[0].getMessage()
    assert sorted(await names_seen_by(after)) == ["s", "t", "u"]


async def test_a_worker_with_a_changed_plan_claims_nothing_of_that_saga(make_engine: MakeEngine) -> None:
    first = Stage()
    before = await make_engine(chain("s", first, "a").build())
    await before.close()
    other = Stage()
    await make_engine(chain("s", other, "a", "b").build())
    submitter = await make_engine(worker=False)
    handle = await submitter.start("s")
    await until_blocked(handle, "no_worker")
    assert other.log == []
    await make_engine(chain("s", first, "a").build())
    assert (await handle.result()).succeeded
    assert (first.log, other.log) == (["a"], [])


async def test_a_changed_plan_is_refused_at_every_start_until_the_right_one_is_registered(
    make_engine: MakeEngine,
) -> None:
    before = await make_engine(chain("s", Stage(), "a").build())
    await before.close()
    after = await make_engine(chain("s", Stage(), "a", "b").build())
    for _ in range(2):
        with pytest.raises(DefinitionError):
            await after.start("s")
    after.register(chain("s", Stage(), "a").build())
    assert (await after.execute("s")).succeeded


async def test_a_plan_that_is_refused_when_it_is_applied_hinders_no_start_of_the_stored_one(
    make_engine: MakeEngine,
) -> None:
    await make_engine(chain("s", Stage(), "a").build())
    other = await make_engine(worker=False)
    with pytest.raises(DefinitionError):
        await other.apply({"name": "s", "version": 1, "steps": [{"step_id": "a", "handler": "log"}]})
    assert (await (await other.start("s")).result()).succeeded


@pytest.mark.requirement("A3")
async def test_a_changed_plan_is_refused_by_the_next_process(make_engine: MakeEngine) -> None:
    before = await make_engine(chain("s", Stage(), "a").build())
    await before.execute("s")
    await before.close()
    after = await make_engine(chain("s", Stage(), "a", "b").build())
    with pytest.raises(DefinitionError) as refused:
        await after.start("s")
    assert "step `b` is not stored; set `version=2` in `@saga`" in str(refused.value)


async def test_two_engines_share_the_work(make_engine: MakeEngine) -> None:
    """Whoever starts an execution, any of them may be asked about it, and it is run once."""
    stage = Stage()
    one = await make_engine(one_step("s", stage.does("work")).build())
    two = await make_engine(one_step("s", stage.does("work")).build())
    handles = [await (one if n % 2 else two).start("s") for n in range(6)]
    for handle in handles:
        assert (await one.get(handle.id).result()).succeeded
        assert (await two.get(handle.id).result()).succeeded
    assert stage.count("work") == 6
    assert await two.count() == {"succeeded": 6}


async def test_a_submitter_needs_no_code(make_engine: MakeEngine) -> None:
    """`worker=False` starts what others run."""
    worker = await make_engine(BookTrip())
    await worker.execute(BookTrip, Trip("Oslo"))  # now the definition is stored
    submitter = await make_engine(worker=False)
    result = await (await submitter.start("book-trip", {"city": "Rome", "cents": 3})).result()
    assert result.output == {"id": "F-Rome/charge", "cents": 3}


@pytest.mark.parametrize("worker", [True, False])
async def test_an_attempt_that_waited_for_its_handler_runs_elsewhere_under_its_number(
    make_engine: MakeEngine, worker: bool
) -> None:
    first = await make_engine(worker=worker)
    step = {"step_id": "a", "type": "task", "handler": "a", "idempotency_strategy": "SAFE_TO_RETRY"}
    await first.apply({"name": "doc", "steps": [step]})
    handle = await first.start("doc")
    await until_blocked(handle, "no_worker")
    [row] = await handle.history()
    assert (row["status"], row["started_at"], row["attempt_number"]) == ("pending", None, 1)
    second = await make_engine()
    second.handler("a", Stage().does("a"))
    assert (await handle.result()).succeeded
    [row] = await handle.history()
    assert (row["status"], row["attempt_number"]) == ("succeeded", 1)


async def test_a_directive_that_comes_first_is_sent_whoever_starts_it(make_engine: MakeEngine) -> None:
    bus = Bus()
    submitter = await make_engine(worker=False)
    await submitter.apply(document(remote("ocr")))
    handle = await submitter.start("protocol")
    assert (await until_blocked(handle, "no_worker"))["waiting_for"] == "send"
    worker = await make_engine()
    worker.handler("send", bus.send)
    await until_blocked(handle, "callback")
    assert await handle.answer("ocr", **bus.last, result=3) == "applied"
    assert (await handle.result()).output == 3


async def test_what_comes_first_and_is_fetched_by_whoever_answers_it_has_its_times(make_engine: MakeEngine) -> None:
    submitter = await make_engine(worker=False)
    call = {"step_id": "ask", "type": "external_call", "completion": "callback", "queue": "elsewhere"}
    await submitter.apply(document({**call, "idempotency_strategy": "SAFE_TO_RETRY", "result_timeout_ms": 60_000}))
    handle = await submitter.start("protocol")
    await make_engine()
    await until_blocked(handle, "callback")

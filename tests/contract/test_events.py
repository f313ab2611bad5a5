"""What is told: to sinks as it happens, and in results and reports afterwards."""

import asyncio
import json
import logging
from typing import Annotated, Any

import pytest

from tenuto import (
    Engine,
    EventContext,
    ExpandEach,
    FromStep,
    SagaBuilder,
    SagaContext,
    SagaEvents,
    SagaReport,
    StepInputs,
)
from tenuto.errors import IndeterminateError, NonRetryableError, TransientError

from .conftest import MakeEngine, MakeHarness
from .doubles import Heard, Stage, until_blocked
from .sagas import FAST, BookTrip, Charge, Flight, Trip, chain, one_step

# -- Sinks -------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("E17")
async def test_a_sink_hears_of_a_success_in_order(make_engine: MakeEngine) -> None:
    heard = Heard()
    engine = await make_engine(chain("s", Stage(), "a", "b").build(), events=[heard])
    result = await engine.execute("s", tenant="acme", correlation_id="c", headers={"x": "y"})
    await engine.close()

    assert heard.log == [
        ("start",),
        ("started", "a", 1),
        ("success", "a", "a", 1),
        ("started", "b", 1),
        ("success", "b", "b", 1),
        ("completed", "succeeded"),
    ]
    context = heard.contexts[0]
    assert context == EventContext(
        execution_id=result.execution_id,
        saga="s",
        version=1,
        tenant="acme",
        correlation_id="c",
        headers={"x": "y"},
    )
    assert heard.result is not None
    assert heard.result.steps["b"].result == "b"


@pytest.mark.requirement("E17")
async def test_a_sink_hears_of_retries_failures_and_undos(make_engine: MakeEngine) -> None:
    heard = Heard()
    stage = Stage()
    builder = SagaBuilder("s").step("a", stage.does("a"), compensate=stage.does("undo", "undone"))
    builder.step("b", stage.fails("b", TransientError("busy")), depends_on=["a"], retry=FAST)
    engine = await make_engine(builder.build(), events=[heard])
    await engine.execute("s")
    await engine.close()

    assert heard.log == [
        ("start",),
        ("started", "a", 1),
        ("success", "a", "a", 1),
        ("started", "b", 1),
        ("retrying", "b", "busy", "TRANSIENT", 1),
        ("started", "b", 2),
        ("retrying", "b", "busy", "TRANSIENT", 2),
        ("started", "b", 3),
        ("failed", "b", "busy", "TRANSIENT", 3),
        ("compensated", "a", "undone"),
        ("completed", "failed"),
    ]


@pytest.mark.requirement("E17")
async def test_a_sink_hears_of_undos_that_fail_and_of_an_open_circuit(make_engine: MakeEngine) -> None:
    heard = Heard()
    stage = Stage()
    builder = SagaBuilder("s", compensation="circuit_breaker").step("a", stage.does("a"), compensate=stage.does("u"))
    critical: Any = {"compensate": stage.fails("u", NonRetryableError("stuck")), "compensation_critical": True}
    builder.step("b", stage.does("b"), depends_on=["a"], **critical)
    builder.step("c", stage.fails("c", NonRetryableError("no")), depends_on=["b"])
    engine = await make_engine(builder.build(), events=[heard])
    await engine.execute("s")
    await engine.close()
    assert heard.log[-3:] == [
        ("failed", "c", "no", "NON_RETRYABLE", 1),
        ("compensation_failed", "b", "stuck"),
        ("circuit_open", "b", ["a"]),
    ]


@pytest.mark.requirement("E17")
async def test_results_are_decoded_for_sinks(make_engine: MakeEngine) -> None:
    heard = Heard()
    engine = await make_engine(BookTrip(), events=[heard])
    await engine.execute(BookTrip, Trip("Oslo", 5))
    await engine.close()
    successes = {step: result for kind, step, result, *_ in (each for each in heard.log if each[0] == "success")}
    assert (successes["flight"], successes["charge"]) == (Flight("F-Oslo"), Charge("F-Oslo/charge", 5))


class Faulty(SagaEvents):
    """A sink that fails at everything, once at once and once later."""

    def __init__(self, later: bool) -> None:
        self.calls = 0
        self._later = later

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("on_"):
            return super().__getattribute__(name)

        def fail(*args: object) -> Any:
            self.calls += 1
            if not self._later:
                raise RuntimeError("a broken sink")
            return self._fail_later()

        return fail

    async def _fail_later(self) -> None:
        raise RuntimeError("a broken sink")


@pytest.mark.requirement("E17")
@pytest.mark.parametrize("later", [False, True], ids=["plain", "async"])
async def test_an_error_in_a_sink_never_touches_the_execution(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture, later: bool
) -> None:
    caplog.set_level(logging.CRITICAL, logger="tenuto.events")
    faulty, heard = Faulty(later), Heard()
    engine = await make_engine(chain("s", Stage(), "a", fails=NonRetryableError()).build(), events=[faulty, heard])
    result = await engine.execute("s")
    await engine.close()
    assert (result.status, result.compensated_steps) == ("failed", ["a"])
    assert faulty.calls == len(heard.log) > 5, "each was told everything"


@pytest.mark.requirement("E17")
async def test_async_sinks_hear_everything_in_order_and_hold_nobody_up(make_engine: MakeEngine) -> None:
    class Slow(SagaEvents):
        def __init__(self) -> None:
            self.log: list[str] = []
            self.open = asyncio.Event()

        async def on_step_started(self, ctx: EventContext, step_id: str, attempt: int) -> None:
            await self.open.wait()
            self.log.append(step_id)

        async def on_completed(self, ctx: EventContext, result: Any) -> None:
            self.log.append(result.status)

    slow = Slow()
    engine = await make_engine(chain("s", Stage(), "a", "b").build(), events=[slow])
    assert (await engine.execute("s")).succeeded, "although the sink has not heard of its first step"
    assert slow.log == []
    slow.open.set()
    await engine.close()
    assert slow.log == ["a", "b", "succeeded"]


@pytest.mark.requirement("E17")
async def test_a_sink_with_plain_and_async_methods_receives_events_in_recorded_order(
    make_engine: MakeEngine,
) -> None:
    class Mixed(SagaEvents):
        def __init__(self) -> None:
            self.log: list[str] = []
            self.open = asyncio.Event()

        async def on_step_started(self, ctx: EventContext, step_id: str, attempt: int) -> None:
            await self.open.wait()
            self.log.append(f"{step_id} started")

        def on_step_success(self, ctx: EventContext, step_id: str, result: Any, attempts: int, latency_ms: int) -> None:
            self.log.append(f"{step_id} succeeded")

        def on_completed(self, ctx: EventContext, result: Any) -> Any:
            return self._completed()

        async def _completed(self) -> None:
            self.log.append("completed")

    mixed = Mixed()
    engine = await make_engine(chain("s", Stage(), "a", "b").build(), events=[mixed])
    assert (await engine.execute("s")).succeeded
    assert mixed.log == [], "the first async call has not ended"
    mixed.open.set()
    await engine.close()
    assert mixed.log == ["a started", "a succeeded", "b started", "b succeeded", "completed"]


@pytest.mark.requirement("E17")
async def test_what_a_person_decides_is_a_success_like_any_other(make_engine: MakeEngine) -> None:
    heard = Heard()
    builder = SagaBuilder("s").approval("ok").signal("paid", "paid")
    engine = await make_engine(builder.build(), events=[heard])
    handle = await engine.start("s")
    await handle.signal("paid", 5)
    await until_blocked(handle, "approval")
    await handle.approve("ok", data="yes")
    await handle.result()
    await engine.close()
    told = [(kind, *rest[:2]) for kind, *rest in heard.log if kind == "success"]
    assert told == [("success", "paid", 5), ("success", "ok", "yes")]


# -- One effect per key ------------------------------------------------------------------------------------------------


@pytest.mark.requirement("D10")
async def test_a_key_that_was_used_in_this_run_skips_the_step(make_engine: MakeEngine) -> None:
    """Its effect is made already; the sink is told, and what depends on it goes on."""
    heard = Heard()
    stage = Stage()
    builder = SagaBuilder("s")
    builder.step("mail", stage.does("mail"), idempotency_key="mail-${input.to}")
    builder.step("again", stage.does("again"), idempotency_key="mail-${input.to}", depends_on=["mail"])
    builder.step("other", stage.does("other"), idempotency_key="mail-${input.cc}", depends_on=["again"])
    engine = await make_engine(builder.build(), events=[heard])
    result = await engine.execute("s", {"to": "ann", "cc": "bob"})
    other = await engine.execute("s", {"to": "ann", "cc": "bob"})
    await engine.close()

    assert result.succeeded
    assert result.steps["again"].status == "skipped"
    assert stage.log == ["mail", "other"] * 2, "another run has keys of its own"
    assert other.succeeded
    assert heard.log.count(("skipped", "again")) == 2


@pytest.mark.requirement("D10")
async def test_a_step_that_failed_used_no_key(engine: Engine) -> None:
    stage = Stage()
    builder = SagaBuilder("s")
    builder.step("first", stage.fails("first", NonRetryableError()), idempotency_key="k", failure_mode="continue")
    builder.step("second", stage.does("second"), idempotency_key="k")
    engine.register(builder.group("both", "first", "second").build())
    assert (await engine.execute("s")).succeeded
    assert stage.log == ["first", "second"]


# -- Keys --------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("D1")
async def test_a_steps_key_is_the_same_for_all_its_attempts_and_for_no_other_step(engine: Engine) -> None:
    keys: dict[tuple[str, str, str], set[str]] = {}

    async def work(ctx: SagaContext) -> None:
        keys.setdefault((ctx.tenant, ctx.execution_id, ctx.step_id), set()).add(ctx.idempotency_key)
        if ctx.attempt < 3:
            raise TransientError

    engine.register(SagaBuilder("s").step("a", work, retry=FAST).step("b", work, retry=FAST).build())
    for tenant in ("one", "two"):
        for _ in range(2):
            assert (await engine.execute("s", tenant=tenant)).succeeded

    assert len(keys) == 8
    assert all(len(found) == 1 for found in keys.values()), "stable over attempts"
    assert len(set.union(*keys.values())) == 8, "and nobody else's"
    assert {len(key) for found in keys.values() for key in found} == {64}


@pytest.mark.requirement("D1")
async def test_the_key_is_kept_over_runs_and_workers(make_harness: MakeHarness) -> None:
    keys: list[str] = []

    async def work(ctx: SagaContext) -> None:
        keys.append(ctx.idempotency_key)
        if len(keys) == 1:
            raise NonRetryableError

    t = await make_harness(one_step("s", work).build())
    handle = await t.start("s")
    assert (await handle.result()).status == "failed"
    t.crash("work", when="after")
    await handle.retry(reason="again")
    assert (await handle.result()).succeeded
    assert (len(keys), len(set(keys))) == (3, 1)
    assert {row["idempotency_key"] for row in await handle.history()} == set(keys)


# -- Results and reports -----------------------------------------------------------------------------------------------


async def failed_trip(engine: Engine) -> Any:
    stage = Stage()

    async def use(a: Annotated[str, FromStep("a")]) -> str:
        raise NonRetryableError("no seats", code="full")

    builder = SagaBuilder("trip").step(
        "a", stage.does("a", TransientError()), retry=FAST, compensate=stage.does("u", 7)
    )
    builder.step("b", use).step("c", stage.does("c"), depends_on=["b"])
    engine.register(builder.build())
    return await engine.execute("trip", correlation_id="root")


@pytest.mark.requirement("E16")
async def test_a_result_has_everything_about_every_step(engine: Engine) -> None:
    result = await failed_trip(engine)

    assert (result.status, result.succeeded, result.done, result.saga) == ("failed", False, True, "trip")
    a, b, c = (result.steps[id] for id in "abc")
    assert (a.status, a.result, a.attempts, a.error, a.compensated, a.compensation_result) == (
        "succeeded",
        "a",
        2,
        a.error,
        True,
        7,
    )
    assert (b.status, b.result, b.attempts, b.error, b.error_class, b.error_code, b.compensated) == (
        "failed",
        None,
        1,
        "no seats",
        "NON_RETRYABLE",
        "full",
        False,
    )
    assert (c.status, c.result, c.attempts, c.latency_ms) == ("skipped", None, 0, None)
    assert a.latency_ms is not None
    assert a.latency_ms >= 0
    assert (result.failed_steps, result.compensated_steps) == (["b"], ["a"])


@pytest.mark.requirement("E16")
async def test_an_undo_that_failed_is_in_the_result(engine: Engine) -> None:
    stage = Stage()
    builder = SagaBuilder("s").step("a", stage.does("a"), compensate=stage.fails("u", NonRetryableError("stuck")))
    engine.register(builder.step("b", stage.fails("b", NonRetryableError()), depends_on=["a"]).build())
    result = await engine.execute("s")
    assert (result.steps["a"].compensated, result.steps["a"].compensation_error) == (False, "stuck")
    assert "compensation failed: stuck" in str(result.report())


@pytest.mark.requirement("E16")
async def test_a_report_is_for_people_and_for_programs(engine: Engine) -> None:
    result = await failed_trip(engine)
    report = result.report()
    assert isinstance(report, SagaReport)

    text = str(report)
    assert text.splitlines()[0] == f"trip {result.execution_id}: failed"
    for expected in ("no seats", "a  succeeded, 2 attempts", "compensated", "c  skipped"):
        assert expected in text

    told = json.loads(json.dumps(report.to_dict()))
    assert (told["saga"], told["status"], told["correlation_id"]) == ("trip", "failed", "root")
    assert (told["failed_steps"], told["compensated_steps"]) == (["b"], ["a"])
    assert [step["step_id"] for step in told["steps"]] == ["a", "b", "c"]
    assert told["steps"][1]["error_class"] == "NON_RETRYABLE"
    assert [(step["result"], step["compensation_result"]) for step in told["steps"]] == [
        ("a", 7),
        (None, None),
        (None, None),
    ]
    assert told["started_at"] <= told["completed_at"]
    assert (list(report.failed_steps), list(report.compensated_steps)) == (["b"], ["a"])


@pytest.mark.requirement("E16")
async def test_a_report_of_a_fan_out_has_the_results_of_its_clones(engine: Engine) -> None:
    async def work(item: int) -> Flight:
        return Flight(f"F{item}")

    builder = SagaBuilder("s").step("work", work, compensate=Stage().does("undone"))
    engine.register(builder.step("fail", Stage().fails("x", NonRetryableError()), depends_on=["work"]).build())
    result = await engine.execute("s", StepInputs({"work": ExpandEach([1, 2])}))
    (work_told, _) = json.loads(json.dumps(result.report().to_dict()))["steps"]
    assert work_told["result"] == [{"pnr": "F1"}, {"pnr": "F2"}]
    assert work_told["compensation_result"] == ["undone", "undone"]
    assert "2 of 2 clones" in str(result.report())


@pytest.mark.requirement("E16")
async def test_without_an_output_the_last_result_is_the_output(engine: Engine) -> None:
    engine.register(chain("s", Stage(), "a", "b").build())
    assert (await engine.execute("s")).output == "b"


@pytest.mark.requirement("E16")
async def test_the_outcome_of_a_success_says_what_was_passed_over(engine: Engine) -> None:
    stage = Stage()
    partial = SagaBuilder("partial").step("a", stage.does("a"))
    partial.step("b", stage.fails("b", NonRetryableError()), failure_mode="continue")
    engine.register(
        chain("whole", stage, "a").build(),
        partial.build(),
        SagaBuilder("skipped").step("a", stage.does("a"), when="false").build(),
    )
    outcomes = {name: (await engine.execute(name)).outcome for name in ("whole", "partial", "skipped")}
    assert outcomes == {"whole": "", "partial": "partial", "skipped": "skipped"}


async def test_an_unknown_outcome_is_told_as_retrying(make_engine: MakeEngine) -> None:
    heard = Heard()
    stage = Stage()
    options: Any = {"safety": "not_safe_to_retry", "compensation_policy": "manual"}
    engine = await make_engine(one_step("s", stage.fails("x", IndeterminateError()), **options).build(), events=[heard])
    await engine.execute("s")
    await engine.close()
    assert [each[0] for each in heard.log] == ["start", "started"], "that it failed, nobody knows"

"""The engine as users hold it: definitions, results, batches, scopes, events."""

import asyncio
import logging
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import pytest

from tenuto import (
    Engine,
    EventContext,
    ExpandEach,
    FromStep,
    Handle,
    Progress,
    Retry,
    Saga,
    SagaBuilder,
    SagaContext,
    SagaEvents,
    SagaResult,
    StepInputs,
    handler,
    saga,
    step,
)
from tenuto.errors import (
    DefinitionError,
    EngineClosed,
    ExecutionFailed,
    InvalidInput,
    NonRetryableError,
    NotFound,
    NotSupported,
    PayloadError,
    TransientError,
)
from tenuto.testing import Harness


@dataclass
class Bill:
    id: int


@saga("bill", output="send")
class Billing(Saga[Bill, str]):
    @step(compensate="unsend")
    async def send(self, bill: Bill) -> str:
        return f"sent {bill.id}"

    @step(depends_on=[send])
    def note(self, sent: Annotated[str, FromStep(send)]) -> int:
        return len(sent)

    async def unsend(self, bill: Bill) -> int:
        return bill.id


# -- Where executions live ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["temporal://host:7233/ns", "ftp://x"])
def test_what_is_not_built_yet_says_so(url: str) -> None:
    with pytest.raises(NotSupported):
        Engine(url)


async def test_an_engine_is_used_inside_its_block() -> None:
    engine = Engine()
    engine.register(Billing())
    with pytest.raises(EngineClosed):
        await engine.execute(Billing, Bill(1))


# -- Definitions -------------------------------------------------------------------------------------------------------


async def test_what_is_not_registered_is_not_found() -> None:
    async with Engine() as engine:
        with pytest.raises(NotFound, match="bill"):
            await engine.execute(Billing, Bill(1))
        engine.register(Billing())
        with pytest.raises(NotFound):
            await engine.execute(Billing, Bill(1), version=2)


async def test_a_changed_plan_needs_a_new_version() -> None:
    async def work() -> None: ...

    async with Engine() as engine:
        engine.register(SagaBuilder("s").step("a", work))
        engine.register(SagaBuilder("s").step("a", work))  # the same plan: other code is welcome
        with pytest.raises(DefinitionError, match="version"):
            engine.register(SagaBuilder("s").step("b", work))
        engine.register(SagaBuilder("s", version=2).step("b", work))
        assert list((await engine.execute("s")).steps) == ["b"]
        assert list((await engine.execute("s", version=1)).steps) == ["a"]
        assert [(d["name"], d["version"], d["status"]) async for d in engine.definitions()] == [
            ("s", 1, "published"),
            ("s", 2, "published"),
        ]


@handler("double")
async def double(amount: int) -> int:
    return 2 * amount


async def test_json_definitions_run_with_named_handlers() -> None:
    document = {
        "name": "doubling",
        "input_schema": {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}},
        "steps": [
            {"step_id": "a", "type": "task", "handler": "double", "with": "${input.n + 1}",
             "idempotency_strategy": "SAFE_TO_RETRY", "on_success": "b"},
            {"step_id": "b", "type": "task", "handler": "double", "with": "${steps.a.result}",
             "idempotency_strategy": "SAFE_TO_RETRY"},
        ],
        "output": {"was": "${input.n}", "is": "${steps.b.result}"},
    }  # fmt: skip
    async with Engine() as engine:
        engine.register(double)
        await engine.apply(document)
        assert (await engine.execute("doubling", {"n": 4})).output == {"was": 4, "is": 20}
        with pytest.raises(InvalidInput) as refused:
            await engine.execute("doubling", {"n": "four"})
        assert refused.value.problems[0].path == "/input/n"
        assert "four" not in str(refused.value)
        assert await engine.count() == {"succeeded": 1}  # nothing was made of what was refused


async def test_a_template_that_fails_fails_the_step_for_good() -> None:
    document = {
        "name": "d",
        "steps": [{"step_id": "a", "type": "task", "handler": "double", "with": "${input.missing + 1}",
                   "idempotency_strategy": "SAFE_TO_RETRY"}],
    }  # fmt: skip
    async with Engine() as engine:
        engine.register(double)
        await engine.apply(document)
        result = await engine.execute("d", {})
        assert (result.steps["a"].error_class, result.steps["a"].attempts) == ("NON_RETRYABLE", 1)
        assert "input.missing" in str(result.steps["a"].error)


# -- Inputs and results ------------------------------------------------------------------------------------------------


async def test_results_come_back_as_their_types() -> None:
    async with Engine() as engine:
        engine.register(Billing())
        result = await engine.execute(Billing, Bill(7))
        assert result.output == "sent 7"
        assert result.result_of(Billing.send) == "sent 7"
        assert result.result_of(Billing.note) == result.result_of("note") == 6
        assert result.raise_for_status() is result
        assert list(result.steps) == ["send", "note"]
        with pytest.raises(NotFound):
            result.result_of("nothing")


async def test_a_failure_is_told_where_a_result_is_demanded() -> None:
    async with Harness(Billing()) as t:
        t.script(Billing.note, NonRetryableError("too long", code="too_long"))
        result = await t.execute(Billing, Bill(7))
        assert (result.status, result.succeeded, result.done) == ("failed", False, True)
        assert list(result.failed_steps) == ["note"]
        assert list(result.compensated_steps) == ["send"]
        assert result.steps["send"].compensated
        assert result.steps["send"].compensation_result == 7
        assert result.result_of(Billing.send) == "sent 7"
        with pytest.raises(ExecutionFailed, match="too long") as raised:
            _ = result.output
        assert (raised.value.error_class, raised.value.status) == ("NON_RETRYABLE", "failed")


async def test_a_report_is_for_reading() -> None:
    async with Harness(Billing()) as t:
        t.script(Billing.note, TransientError("503"), NonRetryableError("too long"))
        result = await t.execute(Billing, Bill(7))
        text = str(result.report())
        assert "bill" in text
        assert "note  failed, 2 attempts" in text
        assert "compensated" in text
        document = result.report().to_dict()
        assert document["failed_steps"] == ["note"]
        assert document["steps"][1]["error"] == "too long"


async def test_a_result_stays_what_it_was() -> None:
    async with Harness(Billing()) as t:
        t.script(Billing.note, NonRetryableError("no"))
        before = await t.execute(Billing, Bill(7))
        handle = t.get(before.execution_id)
        await handle.retry(reason="again")
        after = await handle.result()
        assert (before.status, before.steps["note"].status, list(before.failed_steps)) == ("failed", "failed", ["note"])
        assert (after.status, after.steps["note"].status, after.steps["note"].attempts) == ("succeeded", "succeeded", 2)


async def test_what_cannot_be_stored_is_refused_before_anything_exists() -> None:
    async def work(value: Any) -> None: ...

    async with Engine() as engine:
        engine.register(SagaBuilder("s").step("a", work), Billing())
        with pytest.raises(PayloadError):
            await engine.start("s", object())
        with pytest.raises(InvalidInput):
            await engine.start("bill", {"id": "seven"})
        with pytest.raises(InvalidInput):
            await engine.start("s", 1, headers={"x": 1})  # type: ignore[dict-item]
        assert await engine.count() == {}


async def test_headers_variables_and_context_reach_the_handlers() -> None:
    seen: dict[str, object] = {}

    async def look(ctx: SagaContext) -> None:
        seen.update(
            headers=ctx.headers,
            variables=ctx.variables,
            tenant=ctx.tenant,
            correlation=ctx.correlation_id,
            saga=ctx.saga,
        )

    async with Engine() as engine:
        engine.register(SagaBuilder("s").step("a", look))
        await engine.execute("s", headers={"X-User": "u1"}, variables={"k": [1]}, tenant="acme", correlation_id="c")
    expected = {"headers": {"X-User": "u1"}, "variables": {"k": [1]}, "tenant": "acme", "correlation": "c", "saga": "s"}
    assert seen == expected


# -- Batches -----------------------------------------------------------------------------------------------------------


async def test_a_batch_is_the_same_when_it_is_started_again() -> None:
    bills = [Bill(n) for n in range(250)]
    async with Harness(Billing()) as t:
        batch = await t.start_many(Billing, bills, key=lambda bill: f"b{bill.id}", correlation_id="day-1")
        seen: list[Progress] = [progress async for progress in batch.progress(every="1s")]
        assert seen[-1] == Progress(started=250, running=0, succeeded=250, failed=0, waiting=0, canceled=0, total=250)
        again = await t.start_many(Billing, bills, key=lambda bill: f"b{bill.id}", correlation_id="day-1")
        assert again.execution_ids == batch.execution_ids
        assert [result.output async for result in again.results()][:2] == ["sent 0", "sent 1"]
        assert await t.count(correlation_id="day-1") == {"succeeded": 250}


async def test_a_batch_can_be_cancelled_and_counts_those_that_wait() -> None:
    async with Harness(SagaBuilder("s").approval("ok")) as t:
        batch = await t.start_many("s", range(3))
        await t.get(batch.execution_ids[0]).approve("ok")
        last = [progress async for progress in batch.progress()][-1]
        assert (last.succeeded, last.waiting, last.total) == (1, 2, 3)
        await batch.cancel(reason="enough")
        assert [result.status async for result in batch.results()] == ["succeeded", "canceled", "canceled"]


# -- Scopes ------------------------------------------------------------------------------------------------------------


async def test_what_is_another_tenants_is_not_found() -> None:
    async with Harness(SagaBuilder("s").approval("ok")) as t:
        acme = t.scoped(tenant="acme", actor="user:ann")
        other = t.scoped(tenant="other", actor="user:bob")
        handle = await acme.start("s")
        with pytest.raises(NotFound):
            await other.get(handle.id).status()
        with pytest.raises(NotFound):
            await other.get(handle.id).approve("ok")
        with pytest.raises(InvalidInput):
            await acme.start("s", tenant="other")
        assert [row async for row in other.reviews()] == []
        await acme.get(handle.id).approve("ok", comment="fine")
        result = await handle.result()
        assert result.result_of("ok") == {"approved": True, "by": "user:ann", "comment": "fine"}


# -- Events ------------------------------------------------------------------------------------------------------------


class Heard(SagaEvents):
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def on_start(self, ctx: EventContext) -> None:
        self.calls.append(("start", ctx.saga))

    async def on_step_started(self, ctx: EventContext, step_id: str, attempt: int) -> None:
        self.calls.append(("started", step_id, attempt))

    async def on_step_success(
        self, ctx: EventContext, step_id: str, result: Any, attempts: int, latency_ms: int
    ) -> None:
        self.calls.append(("success", step_id, result, attempts))

    async def on_step_retrying(
        self, ctx: EventContext, step_id: str, error: str, error_class: str, attempt: int, retry_at: datetime | None
    ) -> None:
        self.calls.append(("retrying", step_id, error, error_class, attempt))

    async def on_step_failed(
        self, ctx: EventContext, step_id: str, error: str, error_class: str, attempts: int
    ) -> None:
        self.calls.append(("failed", step_id, error, error_class, attempts))

    async def on_compensated(self, ctx: EventContext, step_id: str, result: Any) -> None:
        self.calls.append(("compensated", step_id, result))

    async def on_completed(self, ctx: EventContext, result: SagaResult[Any]) -> None:
        self.calls.append(("completed", result.status))


class Failing(SagaEvents):
    def on_start(self, ctx: EventContext) -> None:
        raise RuntimeError("a sink's error")

    async def on_completed(self, ctx: EventContext, result: SagaResult[Any]) -> None:
        raise RuntimeError("a sink's error")


async def test_sinks_hear_everything_in_order_and_can_do_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    heard = Heard()
    with caplog.at_level(logging.ERROR, "tenuto.events"):
        async with Harness(Billing(), events=[Failing(), heard]) as t:
            t.script(Billing.note, TransientError("503"), NonRetryableError("no"))
            assert (await t.execute(Billing, Bill(1))).status == "failed"
    assert heard.calls == [
        ("start", "bill"),
        ("started", "send", 1),
        ("success", "send", "sent 1", 1),
        ("started", "note", 1),
        ("retrying", "note", "503", "TRANSIENT", 1),
        ("started", "note", 2),
        ("failed", "note", "no", "NON_RETRYABLE", 2),
        ("compensated", "send", 1),
        ("completed", "failed"),
    ]
    assert len(caplog.records) == 2


async def test_a_sink_that_never_answers_does_not_keep_the_engine_open() -> None:
    class Stuck(SagaEvents):
        async def on_start(self, ctx: EventContext) -> None:
            await asyncio.Event().wait()

    async with Engine(events=[Stuck()], shutdown_grace="10ms") as engine:
        engine.register(Billing())
        assert (await engine.execute(Billing, Bill(1))).succeeded
        await engine.execute(Billing, Bill(2))


async def test_a_skipped_repetition_is_told() -> None:
    skipped: list[str] = []

    class Skips(SagaEvents):
        def on_step_skipped_idempotent(self, ctx: EventContext, step_id: str) -> None:
            skipped.append(step_id)

    async def work() -> None: ...

    saga = SagaBuilder("s").step("a", work, idempotency_key="k").step("b", work, idempotency_key="k", depends_on=["a"])
    async with Engine(events=[Skips()]) as engine:
        engine.register(saga)
        result = await engine.execute("s")
        assert result.succeeded
    assert skipped == ["b"]


async def test_the_breaker_is_told_of() -> None:
    heard: list[Any] = []

    class Breaker(SagaEvents):
        def on_circuit_open(self, ctx: EventContext, step_id: str, skipped: Any) -> None:
            heard.append((step_id, list(skipped)))

        def on_compensation_failed(self, ctx: EventContext, step_id: str, error: str) -> None:
            heard.append((step_id, error))

    async def work() -> None: ...
    async def undo() -> None: ...
    async def bad_undo() -> None:
        raise NonRetryableError("stuck")

    async def refuse() -> None:
        raise NonRetryableError("no")

    saga = (
        SagaBuilder("s", compensation="circuit_breaker")
        .step("a", work, compensate=undo)
        .step("b", work, compensate=bad_undo, compensation_critical=True, depends_on=["a"])
        .step("c", refuse, depends_on=["b"])
    )
    async with Harness(saga, events=[Breaker()]) as t:
        result = await t.execute("s")
        assert result.status == "waiting_approval"
        assert result.steps["b"].compensation_error == "stuck"
    assert heard == [("b", "stuck"), ("b", ["a"])]


async def test_clones_have_names() -> None:
    async def send(to: str) -> str:
        return f"to {to}"

    async with Engine() as engine:
        engine.register(SagaBuilder("s").step("send", send, retry=Retry(1)))
        people = StepInputs({"send": ExpandEach(["ann", "bob"], suffix=lambda name: name)})
        result = await engine.execute("s", people)
        assert [clone.id for clone in result.steps["send"].clones] == ["send#ann", "send#bob"]
        assert result.steps["send#bob"].result == result.steps["send#1"].result == "to bob"
        assert result.steps["send"].clones[-1].attempts == 1
        with pytest.raises(KeyError):
            result.steps["send#eve"]
        handle: Handle[Any] = engine.get(result.execution_id)
        assert [row["step_id"] for row in await handle.history()] == ["send#ann", "send#bob"]


def test_a_lease_has_a_least_length() -> None:
    with pytest.raises(InvalidInput, match="lease: must be at least 1s"):
        Engine(lease="999ms")

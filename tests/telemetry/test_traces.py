"""Spans: one for each attempt and one for the execution, in the caller's trace, whoever makes them."""

from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tenuto import Engine, HttpCall, Retry, SagaBuilder, SagaContext
from tenuto.errors import NonRetryableError, TransientError
from tenuto.telemetry import Telemetry
from tenuto.telemetry.traces import Tracing

from .conftest import MakeEngine
from .test_metrics import fails_first, fine

TRACE, CALLER = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Traced:
    def __init__(self, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self.telemetry = Telemetry(logs=False, traces=Tracing(SimpleSpanProcessor(self._exporter), **options))

    @property
    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name == name]


def ids(span: ReadableSpan) -> tuple[str, str, str]:
    context = span.context
    assert context is not None
    parent = f"{span.parent.span_id:016x}" if span.parent is not None else ""
    return f"{context.trace_id:032x}", f"{context.span_id:016x}", parent


@pytest.mark.requirement("J3")
async def test_every_attempt_has_a_span_under_its_execution(make_engine: MakeEngine) -> None:
    traced = Traced()
    saga = SagaBuilder("order").step("pay", fails_first(TransientError()), retry=Retry(2, initial="1ms")).build()
    engine = await make_engine(saga, telemetry=traced.telemetry)
    handle = await engine.start(
        "order", target=("order", "o-7"), headers={"traceparent": f"00-{TRACE}-{CALLER}-01"}, correlation_id="root"
    )
    await handle.result()

    (execution,) = traced.named("order")
    first, second = traced.named("order/pay")
    assert ids(execution)[::2] == (TRACE, CALLER)
    assert [ids(span)[::2] for span in (first, second)] == [(TRACE, ids(execution)[1])] * 2
    assert ids(first)[1] != ids(second)[1]
    assert first.attributes is not None
    assert {name: first.attributes[name] for name in ("order.id", "saga.step", "retry.attempt", "dep.name")} == {
        "order.id": "o-7",
        "saga.step": "pay",
        "retry.attempt": 1,
        "dep.name": "order.pay",
    }
    assert first.attributes["error.type"] == "TRANSIENT"
    assert not first.status.is_ok
    assert second.attributes is not None
    assert second.attributes["retry.attempt"] == 2
    assert execution.start_time is not None
    assert first.start_time is not None
    assert second.end_time is not None
    assert execution.end_time is not None
    assert execution.start_time <= first.start_time <= second.end_time <= execution.end_time


@pytest.mark.requirement("J3")
async def test_a_handler_sets_attributes_of_its_span(make_engine: MakeEngine) -> None:
    async def pay(ctx: SagaContext) -> None:
        ctx.set_attribute("dep.name", "bank")
        ctx.set_attribute("amount.large", True)
        if ctx.attempt == 1:
            raise TransientError

    def in_thread(ctx: SagaContext) -> None:
        ctx.set_attribute("dep.name", "printer")

    traced = Traced()
    saga = SagaBuilder("order").step("pay", pay, retry=Retry(2, initial="1ms")).step("print", in_thread).build()
    engine = await make_engine(saga, telemetry=traced.telemetry)
    await engine.execute("order")

    attributes = [span.attributes or {} for span in traced.named("order/pay")]
    assert [(found["retry.attempt"], found["dep.name"], found["amount.large"]) for found in attributes] == [
        (1, "bank", True),
        (2, "bank", True),
    ]
    (printed,) = traced.named("order/print")
    assert (printed.attributes or {})["dep.name"] == "printer"
    (execution,) = traced.named("order")
    assert "dep.name" not in (execution.attributes or {})


async def test_an_execution_without_a_caller_has_a_trace_of_its_own(make_engine: MakeEngine) -> None:
    traced = Traced()
    engine = await make_engine(SagaBuilder("s").step("work", fine).build(), telemetry=traced.telemetry)
    await engine.execute("s")
    await engine.execute("s", headers={"traceparent": "nonsense"})
    traces = {ids(span)[0] for span in traced.spans}
    assert (len(traces), len(traced.spans)) == (2, 4)
    assert [ids(span)[2] for span in traced.named("s")] == ["", ""]


async def test_a_caller_that_does_not_keep_its_trace_is_followed(make_engine: MakeEngine) -> None:
    traced = Traced()
    engine = await make_engine(SagaBuilder("s").step("work", fine).build(), telemetry=traced.telemetry)
    await engine.execute("s", headers={"Traceparent": f"00-{TRACE}-{CALLER}-00"})
    assert traced.spans == []


async def test_of_new_traces_a_part_can_be_kept(make_engine: MakeEngine) -> None:
    traced = Traced(sample=0.0)
    engine = await make_engine(SagaBuilder("s").step("work", fine).build(), telemetry=traced.telemetry)
    await engine.execute("s")
    assert traced.spans == []


@pytest.mark.parametrize("threaded", [False, True])
async def test_what_a_handler_calls_belongs_to_its_attempt(make_engine: MakeEngine, threaded: bool) -> None:
    traced = Traced()
    seen: list[tuple[str, str]] = []

    def look(ctx: SagaContext) -> None:
        current = trace.get_current_span().get_span_context()
        sent = HttpCall.propagate(ctx)["traceparent"]
        seen.append((f"00-{current.trace_id:032x}-{current.span_id:016x}-01", sent))

    async def in_task(ctx: SagaContext) -> None:
        look(ctx)

    def in_thread(ctx: SagaContext) -> None:
        look(ctx)

    work = in_thread if threaded else in_task
    engine = await make_engine(SagaBuilder("s").step("work", work).build(), telemetry=traced.telemetry)
    await engine.execute("s", headers={"traceparent": f"00-{TRACE}-{CALLER}-01"})
    (span,) = traced.named("s/work")
    assert seen == [(f"00-{TRACE}-{ids(span)[1]}-01",) * 2]
    assert not trace.get_current_span().get_span_context().is_valid


async def test_a_failed_execution_says_which_class(make_engine: MakeEngine) -> None:
    traced = Traced()
    saga = SagaBuilder("s").step("work", fails_first(NonRetryableError("card 4111 refused", code="declined"))).build()
    engine = await make_engine(saga, telemetry=traced.telemetry)
    handle = await engine.start("s")
    await handle.result()
    await handle.retry(reason="mended")
    await handle.result()
    failed, succeeded = traced.named("s")
    assert (failed.status.description, failed.status.is_ok) == ("declined", False)
    assert failed.attributes is not None
    assert failed.attributes["error.type"] == "NON_RETRYABLE"
    assert succeeded.attributes is not None
    assert (succeeded.attributes["tenuto.run"], succeeded.attributes["tenuto.status"]) == (2, "succeeded")
    assert ids(failed)[0] == ids(succeeded)[0]
    assert "4111" not in "".join(span.to_json() for span in traced.spans)


async def test_two_processes_make_one_trace(tmp_path: Path) -> None:
    """One starts the execution, another runs it: its spans name the parent that whoever ends it will write."""
    url = f"sqlite:///{tmp_path / 'tenuto.db'}"
    saga = SagaBuilder("s").step("work", fine).build()
    starter, worker = Traced(), Traced()
    async with Engine(url, worker=False, telemetry=starter.telemetry) as first:
        first.register(saga)
        handle = await first.start("s", headers={"traceparent": f"00-{TRACE}-{CALLER}-01"})
        async with Engine(url, telemetry=worker.telemetry) as second:
            second.register(SagaBuilder("s").step("work", fine).build())
            await second.get(handle.id).result()
        assert starter.spans == []
        (work,), (execution,) = worker.named("s/work"), worker.named("s")
        assert (ids(execution)[0], ids(work)[2]) == (TRACE, ids(execution)[1])

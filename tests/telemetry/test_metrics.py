"""What is counted, and that it is said in the form that Prometheus reads."""

import asyncio
from contextlib import closing
from typing import Any

import pytest

from tenuto import Engine, Retry, SagaBuilder, SagaContext, approval, saga
from tenuto.errors import NonRetryableError, RateLimitedError, StorageError, TransientError
from tenuto.telemetry import Telemetry, catalogue
from tests.seams import runtime_of
from tests.servers import sqlite
from tests.servers.promtool import promtool

from .conftest import MakeEngine
from .figures import Figures, figures


async def fine() -> str:
    return "fine"


def fails_first(*errors: Exception) -> Any:
    left = list(errors)

    async def act() -> str:
        if left:
            raise left.pop(0)
        return "at last"

    return act


async def refuse() -> None:
    raise NonRetryableError("no")


async def undo() -> None: ...


async def scrape(telemetry: Telemetry) -> Figures:
    telemetry.forget()
    return await figures(telemetry)


@pytest.mark.requirement("J1")
async def test_executions_retries_and_dead_letters_are_counted(make_engine: MakeEngine) -> None:
    telemetry = Telemetry()
    flaky = fails_first(TransientError(), RateLimitedError(retry_after=0.001))
    builder = SagaBuilder("trip").step("book", flaky, retry=Retry(3, initial="1ms"), compensate=undo)
    engine = await make_engine(
        builder.build(),
        SagaBuilder("bad").step("ok", fine, compensate=undo).step("no", refuse, depends_on=["ok"]).build(),
        telemetry=telemetry,
    )
    assert (await engine.execute("trip")).status == "succeeded"
    assert (await engine.execute("bad")).status == "failed"

    found = await scrape(telemetry)
    assert found["tenuto_executions_started_total"] == 2
    assert found["tenuto_executions_finished_total", "succeeded"] == 1
    assert found["tenuto_executions_finished_total", "failed"] == 1
    assert found["tenuto_step_retries_total", "TRANSIENT"] == 1
    assert found["tenuto_step_retries_total", "RATE_LIMITED"] == 1
    assert found["tenuto_step_failures_total", "NON_RETRYABLE"] == 1
    assert found["tenuto_dlq_items"] == 1
    assert found["tenuto_compensations_total", "succeeded"] == 1
    assert found["tenuto_step_attempts_total", "forward", "succeeded"] == 2
    assert found["tenuto_step_attempts_total", "forward", "failed"] == 3
    assert found["tenuto_step_duration_seconds_count", "task"] == 5
    assert found["tenuto_execution_duration_seconds_count"] == 2


@pytest.mark.requirement("J2")
async def test_sagas_steps_and_orders_have_names_of_their_own(make_engine: MakeEngine) -> None:
    telemetry = Telemetry()
    engine = await make_engine(SagaBuilder("order").step("pay", fine).build(), telemetry=telemetry)
    await engine.execute("order", target=("Order", "o-1"))
    await engine.execute("order", target=("Parcel", "p-1"))

    found = await scrape(telemetry)
    assert found["saga_step_duration_seconds_count", "order", "pay"] == 2
    assert found["saga_flow_transitions_total", "order", "pay", "succeeded"] == 2
    assert found["saga_flow_transitions_total", "order", "", "running"] == 2
    assert found["order_e2e_latency_seconds_count", "succeeded"] == 1


@pytest.mark.requirement("J5")
async def test_timeouts_are_counted(make_engine: MakeEngine) -> None:
    telemetry = Telemetry()

    async def waits(ctx: SagaContext) -> None:
        await Never()

    saga = SagaBuilder("slow").step("waits", waits, timeout="5ms", retry=0).build()
    engine = await make_engine(saga, telemetry=telemetry)
    assert (await engine.execute("slow")).status == "failed"
    found = await scrape(telemetry)
    assert found["tenuto_step_timeouts_total", "attempt"] == 1
    assert found["saga_flow_transitions_total", "slow", "waits", "timed_out"] == 1


class Never:
    def __await__(self) -> Any:
        while True:
            yield


async def test_people_are_counted_and_how_long_they_took(make_engine: MakeEngine) -> None:
    telemetry = Telemetry()

    @saga("asks")
    class Asks:
        ok = approval(deadline="1h")

    engine = await make_engine(Asks(), telemetry=telemetry)
    handle = await engine.start("asks")
    await handle.result()
    assert (await scrape(telemetry))["tenuto_reviews_open", "approval"] == 1
    await handle.approve("ok")
    await handle.result()
    found = await scrape(telemetry)
    assert found["tenuto_reviews_opened_total", "approval"] == 1
    assert found["tenuto_reviews_resolved_total", "approved"] == 1
    assert found["tenuto_step_duration_seconds_count", "human_approval"] == 1
    assert found["tenuto_dlq_items"] == 0


async def test_how_the_process_stands(make_engine: MakeEngine, url: str) -> None:
    telemetry = Telemetry()
    engine = await make_engine(SagaBuilder("s").step("work", fine).build(), telemetry=telemetry, slots=7, threads=3)
    await engine.execute("s")
    found = await scrape(telemetry)
    assert (found["tenuto_slots", "async"], found["tenuto_slots", "thread"]) == (7, 3)
    assert found["tenuto_slots_in_use", "async"] == 0
    assert found["tenuto_database_up"] == 1
    if url.startswith("sqlite"):
        assert found["tenuto_sessions_live"] == 1
        assert found["tenuto_commit_seconds_count"] >= 2
        assert found["tenuto_commit_batch_size_sum"] >= 2
        assert found["tenuto_sessions_lost_total"] == 0
    else:
        assert "tenuto_commit_seconds_count" not in found


async def test_an_execution_that_nobody_takes_up_is_due(make_engine: MakeEngine, url: str) -> None:
    if url.startswith("memory"):
        return  # there is nobody else who could
    telemetry = Telemetry()
    engine = await make_engine(SagaBuilder("s").step("work", fine).build(), telemetry=telemetry, worker=False)
    await engine.start("s")
    found = await scrape(telemetry)
    assert (found["tenuto_executions_due"], found["tenuto_executions_started_total"]) == (1, 1)


async def test_a_service_is_no_worker(make_engine: MakeEngine, url: str) -> None:
    """The figures that TenutoNobodyWorks is made of, as the service of a deployment gives them."""
    if url.startswith("memory"):
        return  # there is nobody beside it
    service, worker = Telemetry(), Telemetry()
    saga = SagaBuilder("s").step("work", fine).build()
    engine = await make_engine(saga, telemetry=service, worker=False)
    await engine.start("s")
    found = await scrape(service)
    assert (found["tenuto_executions_due"], found["tenuto_sessions_live"]) == (1, 0)
    assert (found["tenuto_slots", "async"], found["tenuto_slots", "thread"]) == (0, 0)
    await make_engine(saga, telemetry=worker)
    found = await scrape(worker)
    assert (found["tenuto_sessions_live"], found["tenuto_slots", "async"] > 0) == (1, True)


async def test_without_the_database_its_figures_are_left_out(make_engine: MakeEngine) -> None:
    telemetry = Telemetry()
    engine = await make_engine(telemetry=telemetry)

    async def away() -> Any:
        raise StorageError(code="unreachable")

    runtime_of(engine).operations.backlog = away  # type: ignore[method-assign]  # as if it were away
    found = await scrape(telemetry)
    assert found["tenuto_database_up"] == 0
    assert "tenuto_dlq_items" not in found
    assert "tenuto_executions_started_total" in found


async def test_the_database_is_not_asked_at_every_scrape(make_engine: MakeEngine) -> None:
    telemetry = Telemetry()
    engine = await make_engine(telemetry=telemetry)
    asked: list[int] = []
    backlog = runtime_of(engine).operations.backlog

    async def counted() -> Any:
        asked.append(1)
        return await backlog()

    runtime_of(engine).operations.backlog = counted  # type: ignore[method-assign]  # counts
    for _ in range(3):
        await telemetry.render()
    assert len(asked) == 1


async def test_of_many_steps_only_so_many_are_told_apart(
    make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalogue, "MAX_STEPS", 2)
    telemetry = Telemetry()
    builder = SagaBuilder("wide")
    for n in range(4):
        builder.step(f"s{n}", fine)
    engine = await make_engine(builder.build(), telemetry=telemetry)
    await engine.execute("wide")
    found = await scrape(telemetry)
    assert found["saga_step_duration_seconds_count", "other", "other tasks"] == 2
    assert found["tenuto_step_duration_seconds_count", "task"] == 4


async def test_clones_are_counted_as_their_step(make_engine: MakeEngine) -> None:
    telemetry = Telemetry()

    async def greet(name: str) -> str:
        return name

    engine = await make_engine(SagaBuilder("s").step("greet", greet, foreach="input").build(), telemetry=telemetry)
    await engine.execute("s", ["a", "b", "c"])
    assert (await scrape(telemetry))["saga_step_duration_seconds_count", "s", "greet"] == 3


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_what_is_set_aside_is_counted(make_engine: MakeEngine, url: str) -> None:
    telemetry = Telemetry()
    saga = SagaBuilder("s").step("work", fine).build()
    client = await make_engine(saga, telemetry=None, worker=False)
    await client.start("s")
    with closing(sqlite.connect(url)) as database:
        database.execute("DROP TRIGGER events_are_append_only_update")
        database.execute("UPDATE events SET body = X'5b'")
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)  # it is told, and this is not about it
    await make_engine(saga, telemetry=telemetry)
    while (await scrape(telemetry))["tenuto_executions_set_aside_total"] < 1:
        await asyncio.to_thread(lambda: None)


async def test_every_metric_is_in_the_catalogue_and_promtool_agrees(make_engine: MakeEngine) -> None:
    telemetry = Telemetry()
    engine = await make_engine(
        SagaBuilder("s").step("work", fine, compensate=undo).step("no", refuse, depends_on=["work"]).build(),
        telemetry=telemetry,
    )
    await engine.execute("s", target=("order", "1"))
    found = await scrape(telemetry)
    known = {metric.name for metric in catalogue.CATALOGUE}
    ends = ("_bucket", "_count", "_sum")
    named = {
        s.name if s.name in known else s.name.removesuffix(next((e for e in ends if s.name.endswith(e)), ""))
        for s in found.samples
    }
    assert named <= known
    checked = promtool("check", "metrics", input=found.text)
    assert (checked.returncode, checked.stderr) == (0, "")


async def test_an_engine_without_telemetry_has_no_observer(make_engine: MakeEngine) -> None:
    engine: Engine = await make_engine(telemetry=None)
    assert runtime_of(engine).observers == ()  # type: ignore[attr-defined]  # a worker's

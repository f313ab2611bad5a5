"""Where a handler raised: kept with the failed attempt, and logged once, on every runtime."""

import logging
from typing import Any

import pytest

from tenuto import Engine, Retry, SagaBuilder, Unknown
from tenuto.errors import NonRetryableError, TransientError
from tenuto.telemetry import Telemetry

from .conftest import MakeEngine
from .doubles import Stage
from .sagas import one_step


def price_of(order: dict[str, Any]) -> int:
    return int(order["city"])


async def charge(order: dict[str, Any]) -> int:
    return price_of(order)


def charge_in_a_thread(order: dict[str, Any]) -> int:
    return price_of(order)


ORDER = {"password": "canary-of-the-input"}


def failing(step: Any = charge) -> object:
    retry = Retry(2, initial="1ms")
    return SagaBuilder("s").step("charge", step, retry=retry, classify={KeyError: "TRANSIENT"}).build()


async def traces(engine: Engine, id: str) -> list[str | None]:
    return [row["error_trace"] for row in await engine.get(id).history()]


@pytest.mark.parametrize("step", [charge, charge_in_a_thread])
async def test_every_failed_attempt_keeps_where_its_handler_raised(make_engine: MakeEngine, step: Any) -> None:
    engine = await make_engine(failing(step))
    handle = await engine.start("s", ORDER)
    await handle.result()
    kept = await traces(engine, handle.id)
    assert len(kept) == 2
    for trace in kept:
        assert trace is not None
        head, innermost, outer = trace.splitlines()[:3]
        assert head == "KeyError: 'city'"
        assert innermost.startswith("  tests/contract/test_error_traces.py:")
        assert (innermost.endswith(" in price_of"), outer.endswith(f" in {step.__name__}")) == (True, True)
        assert "canary" not in trace


async def test_a_succeeded_attempt_and_a_failure_without_code_have_none(make_engine: MakeEngine) -> None:
    engine = await make_engine(SagaBuilder("s").step("a", Stage().does("a")).approval("ok", depends_on=["a"]).build())
    handle = await engine.start("s")
    await handle.result()
    await handle.reject("ok")
    await handle.result()
    assert await traces(engine, handle.id) == [None, None]


async def test_compensations_and_look_ups_keep_theirs(make_engine: MakeEngine) -> None:
    async def undo() -> None:
        raise NonRetryableError("no undo")

    async def look() -> Unknown:
        raise NonRetryableError("no look-up")

    async def unclear() -> None:
        raise TimeoutError

    stage = Stage()
    saga = SagaBuilder("s").step("a", stage.does("a"), compensate=undo)
    saga.step("b", stage.fails("b", NonRetryableError()), depends_on=["a"])
    other = SagaBuilder("t").step(
        "a", unclear, safety="not_safe_to_retry", reconcile=look, classify={TimeoutError: "INDETERMINATE"}
    )
    engine = await make_engine(saga.build(), other.build())
    for name, function in (("s", "undo"), ("t", "look")):
        handle = await engine.start(name)
        await handle.result()
        assert any(trace and f".{function}\n" in f"{trace}\n" for trace in await traces(engine, handle.id))


async def test_a_dead_letter_shows_it_to_those_who_may_read_the_execution(make_engine: MakeEngine) -> None:
    engine = await make_engine(failing())
    handle = await engine.start("s", ORDER)
    await handle.result()
    letter = await engine.listing.dead_letter(handle.id, trace=True)
    assert " in price_of" in str(letter["error_trace"])
    assert "error_trace" not in await engine.listing.dead_letter(handle.id)


async def test_a_failed_attempt_is_logged_once_with_its_ids_without_telemetry(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await make_engine(failing())
    handle = await engine.start("s", ORDER, correlation_id="root")
    await handle.result()
    lines = [line for line in caplog.records if line.name.startswith("tenuto") and "price_of" in line.getMessage()]
    assert [(line.levelno, line.attempt, line.path) for line in lines] == [  # type: ignore[attr-defined]
        (logging.WARNING, 1, "charge"),
        (logging.WARNING, 2, "charge"),
    ]
    for line in lines:
        assert handle.id in line.getMessage()
        assert (line.execution_id, line.correlation_id) == (handle.id, "root")  # type: ignore[attr-defined]
        assert "canary" not in line.getMessage()


async def test_telemetry_logs_it_in_its_own_lines_and_not_twice(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await make_engine(failing(), telemetry=Telemetry())
    handle = await engine.start("s", ORDER)
    await handle.result()
    lines = [line for line in caplog.records if getattr(line, "action", "") == "attempt_failed"]
    assert [line.levelno for line in lines] == [logging.WARNING, logging.WARNING]
    assert all(" in price_of" in line.trace for line in lines)  # type: ignore[attr-defined]


async def test_an_engine_adds_no_handler_to_a_logger(make_engine: MakeEngine) -> None:
    engine = await make_engine(one_step("s", Stage().fails("work", TransientError())).build())
    await engine.execute("s")
    assert all(not logging.getLogger(name).handlers for name in ("tenuto", "tenuto.executions"))
    assert logging.getLogger("tenuto").level == logging.NOTSET

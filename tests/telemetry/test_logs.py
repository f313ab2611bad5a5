"""Lines of the log: what they say of an execution, in which form, and what they never say."""

import json
import logging
import re
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest

from tenuto import Retry, SagaBuilder
from tenuto.errors import NonRetryableError, TransientError
from tenuto.telemetry import Telemetry, configure_logs

from .conftest import MakeEngine
from .test_metrics import fails_first, fine, undo


@pytest.fixture
def stream() -> Iterator[StringIO]:
    """The log of the process, while a test lasts."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    written = StringIO()
    configure_logs("INFO", "json", written)
    try:
        yield written
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def lines(stream: StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def of_tenuto(stream: StringIO) -> list[dict[str, Any]]:
    return [line for line in lines(stream) if line["logger"] == "tenuto.executions"]


@pytest.mark.requirement("J4")
async def test_lines_carry_what_a_reader_needs(make_engine: MakeEngine, stream: StringIO) -> None:
    flaky = fails_first(TransientError("503"), NonRetryableError("no such card 4111 1111 1111 1111"))
    saga = SagaBuilder("pay").step("hold", fine, compensate=undo)
    saga.step("charge", flaky, depends_on=["hold"], retry=Retry(3, initial="1ms"))
    engine = await make_engine(saga.build(), telemetry=Telemetry())
    handle = await engine.start("pay", {"card": "4111"}, correlation_id="root", tenant="acme")
    await handle.result()

    found = of_tenuto(stream)
    assert [line["action"] for line in found] == [
        "execution_started",
        "attempt_failed",
        "attempt_failed",
        "compensation_started",
        "review_opened",
        "execution_finished",
    ]
    assert {(line["execution_id"], line["correlation_id"], line["tenant"]) for line in found} == {
        (handle.id, "root", "acme")
    }
    first, second = found[1], found[2]
    assert (first["step_id"], first["attempt"], first["error_class"], first["verdict"]) == (
        "charge",
        1,
        "TRANSIENT",
        "retry",
    )
    assert (second["level"], second["error_class"]) == ("warning", "NON_RETRYABLE")
    keys = {row["idempotency_key"] for row in await handle.history() if row["step_id"] == "charge"}
    assert {first["idempotency_key"], second["idempotency_key"]} == keys
    assert found[-1]["status"] == "failed"
    assert "4111" not in stream.getvalue()


async def test_steps_that_succeed_are_told_at_debug(make_engine: MakeEngine, stream: StringIO) -> None:
    logging.getLogger().setLevel(logging.DEBUG)
    engine = await make_engine(SagaBuilder("s").step("work", fine).build(), telemetry=Telemetry())
    await engine.execute("s")
    actions = [line["action"] for line in of_tenuto(stream)]
    assert actions == ["execution_started", "attempt_started", "attempt_succeeded", "execution_finished"]


async def test_commands_are_told_with_who_gave_them(make_engine: MakeEngine, stream: StringIO) -> None:
    engine = await make_engine(
        SagaBuilder("s").step("no", fails_first(NonRetryableError())).build(), telemetry=Telemetry()
    )
    handle = await engine.start("s")
    await handle.result()
    await engine.scoped(tenant="default", actor="ann", roles=["admin"]).get(handle.id).retry(reason="mended")
    await handle.result()
    told = {line["action"]: line for line in of_tenuto(stream)}
    assert told["execution_retried"]["actor"] == "ann"
    assert told["execution_finished"]["status"] == "succeeded"


async def test_without_logs_nothing_is_written(make_engine: MakeEngine, stream: StringIO) -> None:
    engine = await make_engine(SagaBuilder("s").step("work", fine).build(), telemetry=Telemetry(logs=False))
    await engine.execute("s")
    assert of_tenuto(stream) == []


def test_lines_of_others_take_the_same_form_and_are_masked(stream: StringIO) -> None:
    logging.getLogger("somebody").warning("password=canary\nsecond line", extra={"given": ["token=canary", 1]})
    try:
        raise ValueError("api_key=canary")
    except ValueError:
        logging.getLogger("somebody").exception("it failed")
    first, second = lines(stream)
    assert (first["level"], first["logger"]) == ("warning", "somebody")
    assert first["message"] == "password=[secret]\nsecond line"
    assert first["given"] == ["token=[secret]", 1]
    assert "ValueError" in second["exception"]
    assert "canary" not in stream.getvalue()


def test_what_is_secret_by_its_name_is_masked(stream: StringIO) -> None:
    given = {"password": "canary", "user": {"api_token": 1234, "name": "ann"}, "author": "ben"}
    logging.getLogger("somebody").warning("hello", extra=given)
    (line,) = lines(stream)
    assert line["user"] == {"api_token": "[secret]", "name": "ann"}
    assert (line["password"], line["author"]) == ("[secret]", "ben")


def test_text_is_for_people() -> None:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    written = StringIO()
    try:
        configure_logs("INFO", "text", written)
        logging.getLogger("somebody").warning("hello", extra={"action": "greeting"})
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
    assert "hello" in written.getvalue()
    assert "greeting" in written.getvalue()


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_value_is_too_deep_for_a_line(stream: StringIO, form: str) -> None:
    """Of all that is raised in a handler, `logging` lets this through to whoever wrote the line."""
    configure_logs("INFO", form, stream)
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    logging.getLogger("mine").info("deep", extra={"given": deep, "pair": (deep, {1: deep})})
    assert "deep" in stream.getvalue()


def test_what_colours_a_terminal_is_not_in_it(stream: StringIO) -> None:
    coloured = {"color_message": "Started server process [\x1b[36m%d\x1b[0m]"}
    logging.getLogger("uvicorn.error").info("Started server process [%d]", 7, extra=coloured)
    (line,) = lines(stream)
    assert line["message"] == "Started server process [7]"
    assert "color_message" not in line


def test_a_line_for_a_terminal_has_no_control_character_of_the_data(stream: StringIO) -> None:
    configure_logs("INFO", "text", stream)
    try:
        raise ValueError("\x1b[2J")
    except ValueError:
        logging.getLogger("mine").exception("failed\x9b2J", extra={"step_id": "a\x1b]0;owned\x07", "many": ["\x1b[2J"]})
    told = re.sub("\x1b\\[[0-9;]*m", "", stream.getvalue())
    assert "step_id=a\\u001b]0;owned\\u0007" in told
    assert re.findall("[\x00-\x09\x0b-\x1f\x7f-\x9f]", told) == []

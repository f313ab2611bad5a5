"""Steps that are answered from outside: with attempt and lease, in time, once."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from tenuto import Engine, Handle, SagaContext
from tenuto.errors import DefinitionError, InvalidInput, NonRetryableError, NotFound, TransientError

from .conftest import MakeHarness
from .doubles import Stage, until, until_blocked


class Bus:
    """Where directives are sent: what a worker out there would see."""

    def __init__(self, *refusals: Exception) -> None:
        self.sent: list[SagaContext] = []
        self.refusals = list(refusals)

    async def send(self, ctx: SagaContext) -> None:
        if self.refusals:
            raise self.refusals.pop(0)
        self.sent.append(ctx)

    @property
    def last(self) -> dict[str, Any]:
        return {"attempt": self.sent[-1].attempt, "lease": self.sent[-1].lease_id}


def remote(id: str, **fields: Any) -> dict[str, Any]:
    call = {"step_id": id, "type": "external_call", "handler": "send", "completion": "callback"}
    return {**call, "idempotency_strategy": "SAFE_TO_RETRY", "result_timeout_ms": 60_000, **fields}


def document(*steps: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"name": "protocol", "mode": "sequence", "steps": list(steps), **fields}


RETRY = {"max_attempts": 3, "initial_delay_ms": 1, "jitter": 0}


async def begun(engine: Engine, bus: Bus, *steps: dict[str, Any], **fields: Any) -> Handle[Any]:
    engine.handler("send", bus.send)
    await engine.apply(document(*steps, **fields))
    handle = await engine.start("protocol")
    await until_blocked(handle, "callback")
    return handle


async def sent(handle: Handle[Any], bus: Bus, times: int) -> None:
    """Until the directive has been sent so often, and that is on record."""
    await until(handle, lambda _: len(bus.sent) >= times)
    await until_blocked(handle, "callback")


async def test_an_answer_from_outside_completes_the_step(engine: Engine) -> None:
    bus = Bus()
    handle = await begun(engine, bus, remote("ocr"))
    (ctx,) = bus.sent
    assert (ctx.attempt, ctx.step_id, len(ctx.lease_id), len(ctx.idempotency_key)) == (1, "ocr", 32, 64)

    assert await handle.acknowledge("ocr", **bus.last, workspace="w-1") == "applied"
    assert await handle.answer("ocr", **bus.last, result={"pages": 3}) == "applied"
    result = await handle.result()
    assert (result.output, result.steps["ocr"].attempts) == ({"pages": 3}, 1)


async def test_an_answer_implies_its_acknowledgement(engine: Engine) -> None:
    bus = Bus()
    handle = await begun(engine, bus, remote("ocr", ack_timeout_ms=60_000))
    assert await handle.answer("ocr", **bus.last, result=1) == "applied"
    assert await handle.acknowledge("ocr", **bus.last) in ("terminal", "duplicate")
    assert (await handle.result()).output == 1


async def test_steps_of_a_protocol_follow_one_another(engine: Engine) -> None:
    bus = Bus()
    handle = await begun(engine, bus, remote("fetch"), remote("ocr"), remote("store"))
    for number, step in enumerate(("fetch", "ocr", "store"), 1):
        await sent(handle, bus, number)
        assert await handle.answer(step, **bus.last, result=step) == "applied"
    result = await handle.result()
    assert [result.result_of(step) for step in ("fetch", "ocr", "store")] == ["fetch", "ocr", "store"]


# -- What changes nothing ----------------------------------------------------------------------------------------------


@pytest.mark.requirement("D8")
async def test_an_answer_that_is_delivered_again_is_a_duplicate_and_the_first_one_stands(engine: Engine) -> None:
    bus = Bus()
    handle = await begun(engine, bus, remote("a"), remote("b"))
    answer = bus.last
    assert await handle.acknowledge("a", **answer) == "applied"
    assert await handle.acknowledge("a", **answer) == "duplicate"
    assert await handle.answer("a", **answer, result="first") == "applied"
    assert await handle.answer("a", **answer, result="second") == "duplicate"
    assert await handle.answer("a", **answer, error="no") == "duplicate"
    await sent(handle, bus, 2)
    await handle.answer("b", **bus.last)
    result = await handle.result()
    assert (result.succeeded, result.result_of("a")) == (True, "first")


@pytest.mark.requirement("D8")
async def test_a_completed_step_is_never_called_again(engine: Engine) -> None:
    """Its stored result is taken: by what depends on it, and by every later run."""
    stage = Stage()
    engine.handler("a", stage.does("a", "kept"))
    engine.handler("b", stage.does("b", NonRetryableError(), NonRetryableError()))
    task = {"type": "task", "idempotency_strategy": "SAFE_TO_RETRY"}
    await engine.apply(document({**task, "step_id": "a", "handler": "a"}, {**task, "step_id": "b", "handler": "b"}))
    handle = await engine.start("protocol")
    for _ in range(2):
        assert (await handle.result()).status == "failed"
        await handle.retry(reason="again")
    result = await handle.result()
    assert (result.result_of("a"), stage.count("a"), stage.count("b")) == ("kept", 1, 3)


async def test_an_answer_of_an_earlier_attempt_is_stale(engine: Engine) -> None:
    bus = Bus()
    handle = await begun(engine, bus, remote("a", retry_policy=RETRY))
    first = bus.last
    assert await handle.answer("a", **first, error="busy", error_class="TRANSIENT") == "applied"
    await sent(handle, bus, 2)
    second = bus.last
    assert second["attempt"] == 2
    assert second["lease"] != first["lease"]

    assert await handle.answer("a", **first, result="late") == "stale_attempt"
    assert await handle.acknowledge("a", **first) == "stale_attempt"
    assert await handle.answer("a", attempt=2, lease=first["lease"], result="forged") == "stale_lease"
    assert await handle.acknowledge("a", attempt=2, lease="nonsense") == "stale_lease"
    assert await handle.answer("a", attempt=3, lease=second["lease"], result="ahead") == "stale_lease"
    assert await handle.answer("a", **second, result="in time") == "applied"
    assert (await handle.result()).output == "in time"


async def test_an_answer_to_what_is_over_changes_nothing(engine: Engine) -> None:
    bus = Bus()
    handle = await begun(engine, bus, remote("a"))
    await handle.cancel("terminate")
    await handle.result()
    before = await handle.status()
    assert await handle.answer("a", **bus.last, result="late") == "terminal"
    assert await handle.acknowledge("a", **bus.last) == "terminal"
    assert await handle.status() == before


async def test_an_answer_to_nothing_is_not_found(engine: Engine) -> None:
    bus = Bus()
    handle = await begun(engine, bus, remote("a"))
    with pytest.raises(NotFound):
        await handle.answer("nobody", **bus.last)
    await handle.cancel("terminate")


# -- Failures ----------------------------------------------------------------------------------------------------------

ANSWERS: list[tuple[dict[str, Any], str, int]] = [
    ({"error": "no", "error_class": "NON_RETRYABLE", "error_code": "bad_page"}, "NON_RETRYABLE", 1),
    ({"error": NonRetryableError("no", code="bad_page")}, "NON_RETRYABLE", 1),
    ({"error": "busy", "error_class": "TRANSIENT", "error_code": "bad_page"}, "TRANSIENT", 3),
]


@pytest.mark.parametrize(("answer", "error_class", "attempts"), ANSWERS, ids=lambda part: str(part)[:30])
async def test_a_failure_from_outside_is_judged_as_any_other(
    engine: Engine, answer: dict[str, Any], error_class: str, attempts: int
) -> None:
    bus = Bus()
    handle = await begun(engine, bus, remote("a", retry_policy=RETRY))
    for attempt in range(1, attempts + 1):
        await sent(handle, bus, attempt)
        assert await handle.answer("a", **bus.last, **answer) == "applied"
    step = (await handle.result()).steps["a"]
    assert (step.status, step.error_class, step.error_code, step.attempts) == (
        "failed",
        error_class,
        "bad_page",
        attempts,
    )


@pytest.mark.requirement("C19")
async def test_a_result_from_outside_is_checked_as_well(engine: Engine) -> None:
    """By the same schema, with the same consequence as that of a handler."""
    bus = Bus()
    schema = {"type": "object", "required": ["pages"]}
    handle = await begun(engine, bus, remote("a", retry_policy=RETRY, output_schema=schema))
    assert await handle.answer("a", **bus.last, result={"nothing": 1}) == "applied"
    await sent(handle, bus, 2)
    assert await handle.answer("a", **bus.last, result={"pages": 3}) == "applied"
    assert (await handle.result()).output == {"pages": 3}
    rows = await handle.history()
    assert [(row["status"], row["error_code"]) for row in rows] == [("retrying", "invalid_output"), ("succeeded", None)]


@pytest.mark.requirement("C19")
async def test_a_signal_that_does_not_fit_its_schema_is_refused(engine: Engine) -> None:
    wait = {"step_id": "paid", "type": "wait", "with": {"signal": "paid"}, "output_schema": {"type": "integer"}}
    ask = {"step_id": "ok", "type": "human_approval", "output_schema": {"type": "boolean"}}
    await engine.apply(document(wait, ask))
    handle = await engine.start("protocol")
    with pytest.raises(InvalidInput):
        await handle.signal("paid", "five")
    await handle.signal("paid", 5)
    await until_blocked(handle, "approval")
    with pytest.raises(InvalidInput):
        await handle.approve("ok", data="yes")
    await handle.approve("ok", data=True)
    assert (await handle.result()).output is True


async def test_a_directive_that_could_not_be_sent_costs_no_attempt(make_harness: MakeHarness) -> None:
    """It is sent again, as a new attempt with a lease of its own; only what was handed over counts."""
    bus = Bus(TransientError("broker down"), TransientError("broker down"))
    t = await make_harness()
    t.handler("send", bus.send)
    await t.apply(document(remote("a", retry_policy={"max_attempts": 1})))
    handle = await t.start("protocol")
    await t.advance("10s")
    assert len(bus.sent) == 1
    assert await handle.answer("a", **bus.last, result="x") == "applied"
    assert (await handle.result()).output == "x"


TIMERS: list[tuple[dict[str, Any], bool, str, int]] = [
    ({"ack_timeout_ms": 5_000, "result_timeout_ms": 60_000}, False, "ack_timeout", 5),
    ({"ack_timeout_ms": 5_000, "result_timeout_ms": 60_000}, True, "result_timeout", 60),
    ({"ack_timeout_ms": None, "result_timeout_ms": 60_000}, False, "result_timeout", 60),
]


@pytest.mark.parametrize(("fields", "acknowledged", "code", "seconds"), TIMERS, ids=lambda part: str(part)[:20])
async def test_what_is_not_answered_in_time_is_sent_again_or_fails(
    make_harness: MakeHarness, fields: dict[str, Any], acknowledged: bool, code: str, seconds: int
) -> None:
    """The acknowledgement has a time of its own; from then on runs the time of the result."""
    bus = Bus()
    t = await make_harness()
    t.handler("send", bus.send)
    await t.apply(
        document(remote("a", retry_policy={"max_attempts": 2, "initial_delay_ms": 1_000, "jitter": 0}, **fields))
    )
    handle = await t.start("protocol")
    await t.advance("0s")
    if acknowledged:
        assert await handle.acknowledge("a", **bus.last) == "applied"
    await t.advance(timedelta(seconds=seconds, milliseconds=1))
    assert (await handle.status())["steps"][0]["status"] == "retrying"
    await t.advance("2s")
    assert len(bus.sent) == 2
    await t.advance("1h")
    step = (await handle.result()).steps["a"]
    assert (step.status, step.error_class) == ("timed_out", "TRANSIENT")
    rows = await handle.history()
    assert (rows[0]["status"], rows[0]["error_code"]) == ("retrying", code)


async def test_a_late_answer_counts_until_another_attempt_is_made(make_harness: MakeHarness) -> None:
    bus = Bus()
    t = await make_harness()
    t.handler("send", bus.send)
    retry = {"max_attempts": 2, "initial_delay_ms": 3_600_000, "max_delay_ms": 3_600_000}
    await t.apply(document(remote("a", retry_policy=retry)))
    handle = await t.start("protocol")
    await t.advance("61s")
    assert (await handle.status())["steps"][0]["status"] == "retrying"
    assert await handle.answer("a", **bus.last, result="better late") == "applied"
    assert (await handle.result()).output == "better late"


async def test_a_call_back_that_is_not_safe_goes_to_a_person_when_it_is_not_answered(make_harness: MakeHarness) -> None:
    bus = Bus()
    t = await make_harness()
    t.handler("send", bus.send)
    unsafe = {"idempotency_strategy": "NOT_SAFE_TO_RETRY", "compensation_policy": "manual"}
    await t.apply(document(remote("a", **unsafe)))
    handle = await t.start("protocol")
    await t.advance("61s")
    assert (await handle.status())["status"] == "waiting_approval"
    assert [row["kind"] async for row in t.reviews()] == ["indeterminate"]
    assert len(bus.sent) == 1


async def test_a_call_without_a_handler_is_found_by_whoever_answers(engine: Engine) -> None:
    step = remote("a")
    del step["handler"]
    await engine.apply(document(step))
    handle = await engine.start("protocol")
    await until_blocked(handle, "callback")
    (row,) = await handle.history()
    assert row["status"] == "running"


async def test_a_callback_that_nobody_can_miss_needs_a_time(engine: Engine) -> None:
    with pytest.raises(DefinitionError) as refused:
        await engine.apply(document(remote("a", result_timeout_ms=None)))
    assert [problem.code for problem in refused.value.problems] == ["timeout_missing"]


@pytest.mark.requirement("F10")
async def test_a_clone_is_answered_by_the_path_that_its_directive_had(engine: Engine) -> None:
    """It is called otherwise where it has a label; whoever answers twice hears so, also when it is long closed."""
    bus = Bus()
    handle = await begun(engine, bus, remote("each", foreach="['ann', 'bob']", suffix="item"))
    await sent(handle, bus, 2)
    for ctx in sorted(bus.sent, key=lambda ctx: ctx.path):
        told: dict[str, Any] = {"attempt": ctx.attempt, "lease": ctx.lease_id}
        assert await handle.acknowledge(ctx.path, **told) == "applied"
        assert await handle.answer(ctx.path, **told, result="seen") == "applied"
        if ctx.path == "each#0":
            assert await handle.answer(ctx.path, **told, result="again") == "duplicate"
    assert [clone.result for clone in (await handle.result()).steps["each"].clones] == ["seen", "seen"]


async def test_a_directive_that_is_answered_before_it_has_been_sent_ends_with_the_engine(engine: Engine) -> None:
    sending, ended = asyncio.Event(), asyncio.Event()
    calls: list[SagaContext] = []

    async def send(ctx: SagaContext) -> None:
        calls.append(ctx)
        sending.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    engine.handler("send", send)
    await engine.apply(document(remote("ocr")))
    handle = await engine.start("protocol")
    await sending.wait()
    await handle.answer("ocr", attempt=calls[0].attempt, lease=calls[0].lease_id, result="x")
    assert (await handle.result()).succeeded
    assert not ended.is_set()
    await engine.close()
    assert ended.is_set()

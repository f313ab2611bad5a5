"""A handler returned, so its effect was made; but its value cannot be stored, or does not fit its declaration."""

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Raw

from tenuto import Done, Engine, Outcome, SagaBuilder, SagaContext
from tenuto.errors import NonRetryableError, PayloadError

from .conftest import MakeEngine
from .doubles import Stage
from .sagas import FAST
from .test_callbacks import Bus, begun, remote


class Explosive:
    """Ends the process when it is written, if it is let."""

    def model_dump(self, **_: object) -> object:
        raise SystemExit(1)


def _nested(depth: int) -> Any:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


VALUES: dict[str, Callable[[], Any]] = {
    "too large": lambda: "x" * 1_000_000,
    "NaN": lambda: {"cents": float("nan")},
    "no JSON form": object,
    "two keys that are one in JSON": lambda: {1: "a", "1": "b"},
    "a lone surrogate": lambda: "\udfff",
    "a NUL": lambda: "a\0b",
    "nested 100 deep": lambda: _nested(100),
    "nested 5,000 deep": lambda: _nested(5_000),
    "JSON nested 5,000 deep": lambda: Raw(b"[" * 5_000 + b"]" * 5_000),
    "what is no JSON": lambda: Raw(b"{"),
    "JSON with a key twice": lambda: Raw(b'{"a":1,"a":2}'),
    "what raises when it is written": Explosive,
}
each_value = pytest.mark.parametrize("make", VALUES.values(), ids=VALUES)


def paying(stage: Stage, name: str, make: Callable[[], Any]) -> Any:
    async def pay() -> Any:
        stage.log.append(name)
        return make()

    return pay


async def kinds(engine: Engine) -> list[str]:
    return [row["kind"] async for row in engine.reviews()]


@each_value
async def test_if_the_step_is_not_safe_to_repeat_a_person_is_asked(engine: Engine, make: Callable[[], Any]) -> None:
    stage = Stage()
    builder = SagaBuilder("s", output="pay")
    undo: Any = {"compensate": stage.does("refund"), "safety": "not_safe_to_retry", "retry": FAST}
    builder.step("pay", paying(stage, "pay", make), **undo)
    builder.step("ship", stage.fails("ship", NonRetryableError("sold out")), depends_on=["pay"])
    engine.register(builder.build())

    handle = await engine.start("s")
    result = await handle.result()
    assert (result.status, stage.log) == ("waiting_approval", ["pay"])
    pay = result.steps["pay"]
    assert (pay.error_class, pay.error_code) == ("INDETERMINATE", "invalid_result")
    (review,) = [row async for row in engine.reviews()]
    assert (review["kind"], review["step_id"]) == ("indeterminate", "pay")

    await engine.resolve(review["id"], "completed", result="paid", reason="found at the bank")
    result = await handle.result(return_when="terminal")
    assert (result.status, stage.log) == ("failed", ["pay", "ship", "refund"])


@each_value
async def test_its_reconcile_is_asked_first_and_a_rollback_compensates_it(
    engine: Engine, make: Callable[[], Any]
) -> None:
    stage = Stage()
    builder = SagaBuilder("s")
    safety: Any = {"safety": "not_safe_to_retry", "reconcile": stage.does("look", Done("paid"))}
    builder.step("pay", paying(stage, "pay", make), compensate=stage.does("refund"), **safety)
    builder.step("ship", stage.fails("ship", NonRetryableError("sold out")), depends_on=["pay"])
    engine.register(builder.build())
    result = await engine.execute("s")
    assert (result.status, stage.log) == ("failed", ["pay", "look", "ship", "refund"])
    assert await kinds(engine) == ["dead_letter"]  # of the failed execution; nobody is asked about the payment


@each_value
async def test_a_guard_is_asked_too(engine: Engine, make: Callable[[], Any]) -> None:
    stage = Stage()
    safety: Any = {"safety": "safe_to_retry_with_guard", "guard": stage.does("guard", Done("paid"))}
    engine.register(SagaBuilder("s").step("pay", paying(stage, "pay", make), **safety).build())
    result = await engine.execute("s")
    assert (result.output, stage.log) == ("paid", ["pay", "guard"])


@each_value
async def test_a_step_that_is_safe_to_repeat_fails_at_once_and_is_compensated(
    engine: Engine, make: Callable[[], Any]
) -> None:
    stage = Stage()
    options: Any = {"compensate": stage.does("refund"), "retry": FAST}
    engine.register(SagaBuilder("s").step("pay", paying(stage, "pay", make), **options).build())
    result = await engine.execute("s")
    pay = result.steps["pay"]
    assert (result.status, pay.error_class, pay.error_code, pay.attempts) == (
        "failed",
        "NON_RETRYABLE",
        "invalid_result",
        1,
    )
    assert stage.log == ["pay", "refund"]


async def test_a_handler_in_a_thread_is_judged_alike(engine: Engine) -> None:
    def pay() -> Any:
        return float("inf")

    options: Any = {"safety": "not_safe_to_retry", "compensation_policy": "manual"}
    engine.register(SagaBuilder("s").step("pay", pay, **options).build())
    result = await engine.execute("s")
    assert (result.status, result.steps["pay"].error_code) == ("waiting_approval", "invalid_result")
    assert await kinds(engine) == ["indeterminate"]


async def test_a_task_worker_is_judged_alike(make_engine: MakeEngine) -> None:
    stage = Stage()
    options: Any = {"safety": "not_safe_to_retry", "compensation_policy": "manual", "queue": "gpu"}
    builder = SagaBuilder("s").step("pay", paying(stage, "pay", object), **options)
    engine = await make_engine(builder.build(), queues=("gpu",))
    result = await engine.execute("s")
    assert (result.status, result.steps["pay"].error_code) == ("waiting_approval", "invalid_result")
    assert await kinds(engine) == ["indeterminate"]


# -- What does not fit its declaration ---------------------------------------------------------------------------------


async def wrong() -> int:
    return "text"  # type: ignore[return-value]  # on purpose


async def test_a_result_of_another_type_is_unknown_too(engine: Engine) -> None:
    options: Any = {"safety": "not_safe_to_retry", "compensation_policy": "manual"}
    engine.register(SagaBuilder("s").step("pay", wrong, **options).build())
    pay = (await engine.execute("s")).steps["pay"]
    assert (pay.error_class, pay.error_code) == ("INDETERMINATE", "invalid_result")
    assert await kinds(engine) == ["indeterminate"]


UNSAFE = {"idempotency_strategy": "NOT_SAFE_TO_RETRY", "compensation_policy": "manual"}
SCHEMA = {"type": "object", "required": ["id"]}


async def test_a_result_that_does_not_fit_its_schema_is_unknown_too(engine: Engine) -> None:
    engine.handler("pay", Stage().does("pay", {"number": 1}))
    step = {"step_id": "pay", "type": "task", "handler": "pay", **UNSAFE, "output_schema": SCHEMA}
    await engine.apply({"name": "s", "steps": [step]})
    pay = (await engine.execute("s")).steps["pay"]
    assert (pay.error_class, pay.error_code) == ("INDETERMINATE", "invalid_output")
    assert await kinds(engine) == ["indeterminate"]


async def test_a_callback_that_does_not_fit_its_schema_is_unknown_too(engine: Engine) -> None:
    bus = Bus()
    handle = await begun(engine, bus, remote("pay", **UNSAFE, output_schema=SCHEMA))
    assert await handle.answer("pay", **bus.last, result={"number": 1}) == "applied"
    pay = (await handle.result()).steps["pay"]
    assert (pay.error_class, pay.error_code) == ("INDETERMINATE", "invalid_output")
    assert await kinds(engine) == ["indeterminate"]


async def test_a_callback_that_cannot_be_stored_is_refused_and_the_step_still_waits(engine: Engine) -> None:
    """Its sender can send something else. If it does not, the step's time runs out, and its outcome is unknown."""
    bus = Bus()
    handle = await begun(engine, bus, remote("pay", **UNSAFE))
    with pytest.raises(PayloadError):
        await handle.answer("pay", **bus.last, result="x" * 1_000_000)
    assert await handle.answer("pay", **bus.last, result={"id": 7}) == "applied"
    assert (await handle.result()).output == {"id": 7}


async def test_what_the_sender_of_a_callback_returns_is_not_kept(engine: Engine) -> None:
    """A directive that was sent is not sent once more because of what its sender returned."""
    sent: list[SagaContext] = []

    async def send(ctx: SagaContext) -> Any:
        sent.append(ctx)
        return object()

    bus = Bus()
    bus.send = send  # type: ignore[method-assign]  # a sender that returns something
    handle = await begun(engine, bus, remote("pay"))
    assert await handle.answer("pay", attempt=1, lease=sent[0].lease_id, result=1) == "applied"
    assert ((await handle.result()).output, len(sent)) == (1, 1)


@pytest.mark.parametrize("found", [{"number": 1}, float("nan"), object()], ids=["schema", "NaN", "no JSON form"])
async def test_a_probe_whose_find_cannot_be_used_asks_a_person(engine: Engine, found: object) -> None:
    """At once: asked again, it would find the same."""

    async def look() -> Outcome[Any]:
        return Done(found)

    engine.handler("pay", Stage().does("pay", {"number": 1}))
    engine.handler("look", look)
    step = {"step_id": "pay", "type": "task", "handler": "pay", "reconcile_handler": "look", **UNSAFE}
    await engine.apply({"name": "s", "steps": [{**step, "output_schema": SCHEMA}]})
    result = await engine.execute("s")
    assert (result.status, await kinds(engine)) == ("waiting_approval", ["indeterminate"])


# -- What goes wrong inside a handler, after its effect ----------------------------------------------------------------


async def _report_nonsense(ctx: SagaContext) -> None:
    await ctx.heartbeat({"n": float("nan")})


async def _exit(ctx: SagaContext) -> None:
    sys.exit(1)


@pytest.mark.parametrize(
    ("handler", "code"), [(_report_nonsense, "payload_invalid"), (_exit, "SystemExit")], ids=["progress", "exit"]
)
async def test_what_an_unsafe_handler_did_before_it_was_ended_is_unknown(
    engine: Engine, handler: Any, code: str
) -> None:
    options: Any = {"safety": "not_safe_to_retry", "compensation_policy": "manual"}
    engine.register(SagaBuilder("s").step("pay", handler, **options).build())
    pay = (await engine.execute("s")).steps["pay"]
    assert (pay.error_class, pay.error_code) == ("INDETERMINATE", code)
    assert await kinds(engine) == ["indeterminate"]


async def test_an_unsafe_step_that_was_never_called_is_refused(engine: Engine) -> None:
    """What its template makes cannot be stored: nothing was sent, and nobody needs to look."""
    calls: list[object] = []

    async def pay(given: Any) -> None:
        calls.append(given)

    engine.handler("pay", pay)
    step = {"step_id": "pay", "type": "task", "handler": "pay", **UNSAFE, "with": {"text": "${input.missing.part}"}}
    await engine.apply({"name": "s", "steps": [step]})
    result = await engine.execute("s", {})
    assert (result.status, result.steps["pay"].error_class, calls) == ("failed", "NON_RETRYABLE", [])


@pytest.mark.parametrize("body", [b"<html>", b"\xff"], ids=["no JSON", "no text"])
async def test_a_response_that_a_handler_cannot_parse_leaves_the_outcome_unknown(engine: Engine, body: bytes) -> None:
    async def pay() -> Any:
        return json.loads(body.decode())

    builder = SagaBuilder("s").step("pay", pay, safety="not_safe_to_retry", compensate=Stage().does("undo"))
    engine.register(builder.build())
    assert (await engine.execute("s")).status == "waiting_approval"
    assert await kinds(engine) == ["indeterminate"]

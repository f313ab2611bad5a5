"""What a handler gave or raised, as the outcome that is reported. Whatever it does, the worker goes on."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from tenuto import Engine, SagaBuilder, SagaContext
from tenuto.authoring.outcome import Done, NotDone, Pending, Unknown
from tenuto.authoring.program import Handler, Needs
from tenuto.errors import (
    CompensationRequiredError,
    DependencyFailedError,
    IndeterminateError,
    NonRetryableError,
    RateLimitedError,
    RetryableError,
    StepError,
    TransientError,
)
from tenuto.kernel import facts as f
from tenuto.kernel.definition import Step
from tenuto.runtime.executor import Parked, failed, succeeded
from tenuto.testing import Harness
from tenuto.values.codec import encode
from tenuto.values.schema import Schema
from tenuto.views.results import StepResult

SAFE = Step(id="x")
UNSAFE = Step(id="x", safety="NOT_SAFE_TO_RETRY", compensation_policy="manual")


def fail(error: BaseException, step: Step = SAFE) -> f.Failed:
    outcome = failed(error, step, {})
    assert isinstance(outcome, f.Failed)
    return outcome


# -- Exceptions --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "error_class"),
    [
        (TransientError, "TRANSIENT"),
        (RetryableError, "RETRYABLE"),
        (NonRetryableError, "NON_RETRYABLE"),
        (RateLimitedError, "RATE_LIMITED"),
        (DependencyFailedError, "DEPENDENCY_FAILED"),
        (CompensationRequiredError, "COMPENSATION_REQUIRED"),
        (IndeterminateError, "INDETERMINATE"),
    ],
)
def test_our_own_errors_say_their_class_and_are_shown(error: type[StepError], error_class: str) -> None:
    outcome = fail(error("seat 12A is taken", code="seat_taken", partial_effect=True))
    assert (outcome.error_class, outcome.code, outcome.summary) == (error_class, "seat_taken", "seat 12A is taken")
    assert outcome.partial_effect


@pytest.mark.parametrize(
    ("retry_after", "ms"),
    [
        (2, 2_000),
        (0.5, 500),
        ("2s", 2_000),
        ("1m30s", 90_000),
        (timedelta(seconds=3), 3_000),
        ("soon", None),
        (-1, None),
    ],
)
def test_retry_after_is_understood_in_all_its_forms(retry_after: Any, ms: int | None) -> None:
    assert fail(RateLimitedError(retry_after=retry_after)).retry_after_ms == ms


class CardDeclined(Exception): ...


class OutOfStock(LookupError): ...


def test_foreign_exceptions_are_classified_by_the_tables() -> None:
    assert fail(ConnectionResetError("peer")).error_class == "TRANSIENT"
    assert fail(ValueError("x")).error_class == "NON_RETRYABLE"
    assert fail(OutOfStock("x")).error_class == "NON_RETRYABLE"
    assert fail(CardDeclined("x")).error_class == "RETRYABLE"
    assert fail(CardDeclined("x"), UNSAFE).error_class == "INDETERMINATE"
    assert (
        fail(CardDeclined("x"), Step(id="x", classify={"CardDeclined": "NON_RETRYABLE"})).error_class == "NON_RETRYABLE"
    )
    qualified = f"{CardDeclined.__module__}.CardDeclined"
    assert failed(CardDeclined(), SAFE, {qualified: "TRANSIENT"}) == fail(CardDeclined()).__replace__(
        error_class="TRANSIENT"
    )


def test_foreign_texts_are_redacted_and_bounded() -> None:
    outcome = fail(RuntimeError("login with password=hunter2 failed for ann@example.org"))
    assert outcome.summary == "RuntimeError: login with password=[secret] failed for [email]"
    assert outcome.code == "RuntimeError"
    assert len(fail(RuntimeError("x" * 100_000)).summary.encode()) <= 2_048
    assert len(fail(NonRetryableError("x" * 100_000, code="y" * 1_000)).summary.encode()) <= 2_048


def test_an_exception_that_cannot_be_printed_is_told_by_its_name() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert fail(Mute()).summary == "Mute"


def test_of_several_errors_the_one_that_forbids_the_most_decides() -> None:
    group = BaseExceptionGroup("several", [TransientError("a"), ExceptionGroup("inner", [NonRetryableError("b")])])
    assert (fail(group).error_class, fail(group).summary) == ("NON_RETRYABLE", "b")


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_what_would_end_a_process_is_a_failure(error: BaseException) -> None:
    assert fail(error).error_class == "NON_RETRYABLE"


# -- Values ------------------------------------------------------------------------------------------------------------


def handler(kind: Any = "step") -> Handler:
    return Handler(name="h", kind=kind, is_async=True, needs=Needs(), invoke=lambda call: None, encode=encode)


def test_probes_answer_in_their_own_words() -> None:
    probe = handler("probe")
    assert succeeded(probe, "guard", Done({"id": 1})) == f.Done(result=encode({"id": 1}))
    assert succeeded(probe, "reconcile", NotDone()) == f.NotDone()
    assert succeeded(probe, "reconcile", Pending(retry_after="5s")) == f.Pending(retry_after_ms=5_000)
    assert succeeded(probe, "reconcile", Pending()) == f.Pending()
    assert succeeded(probe, "reconcile", Unknown("no log")) == f.Unknown(reason="no log")
    wrong = succeeded(probe, "guard", True)
    assert isinstance(wrong, f.Failed)
    assert (wrong.error_class, wrong.code) == ("NON_RETRYABLE", "bad_answer")


def test_a_plan_is_a_list_of_nodes() -> None:
    planned = succeeded(handler("planner"), "plan", [{"step_id": "a", "handler": "h"}, Step(id="b", handler="h")])
    assert isinstance(planned, f.Planned)
    assert [child["step_id"] for child in planned.children if isinstance(child, dict)] == ["a", "b"]
    for bad in ("a", [{"step_id": 1}], [{"nonsense": True}], [3]):
        outcome = succeeded(handler("planner"), "plan", bad)
        assert isinstance(outcome, f.Failed)
        assert outcome.code == "bad_plan"


def test_a_result_that_does_not_fit_its_schema_may_be_tried_again() -> None:
    schema = Schema({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})
    assert isinstance(succeeded(handler(), "forward", {"n": 1}, schema), f.Succeeded)
    outcome = succeeded(handler(), "forward", {"n": "top secret"}, schema)
    assert isinstance(outcome, f.Failed)
    assert (outcome.error_class, outcome.code) == ("RETRYABLE", "invalid_output")
    assert "/n" in outcome.summary
    assert "top secret" not in outcome.summary


# -- Hostile handlers --------------------------------------------------------------------------------------------------


async def run(function: Callable[..., Any], **options: Any) -> StepResult:
    """One step with this handler, tried once, and a healthy one afterwards: the worker must have survived."""

    async def healthy() -> str:
        return "well"

    saga = SagaBuilder("hostile").step("x", function, **{"retry": 0, **options})
    async with Harness(saga, SagaBuilder("next").step("y", healthy)) as t:
        result = await t.execute("hostile")
        assert (await t.execute("next")).succeeded
        return result.steps["x"]


def raising(error: BaseException) -> Callable[[], Awaitable[None]]:
    async def step() -> None:
        raise error

    return step


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit()])
async def test_no_exception_kills_the_worker(error: BaseException) -> None:
    assert (await run(raising(error))).status == "failed"


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), StopIteration(), MemoryError()])
async def test_no_exception_in_a_thread_kills_the_worker(error: BaseException) -> None:
    def step() -> None:
        raise error

    assert (await run(step)).status == "failed"


async def test_a_handler_that_cancels_itself_has_failed() -> None:
    async def step() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.Event().wait()

    found = await run(step)
    assert (found.status, found.error_class) == ("failed", "RETRYABLE")


async def test_a_result_that_is_too_large_fails_for_good() -> None:
    async def step() -> str:
        return "x" * 2_000_000

    found = await run(step, retry=3)
    assert (found.status, found.error_class, found.attempts) == ("failed", "NON_RETRYABLE", 1)
    assert found.error_code == "invalid_result"


async def test_a_result_that_has_no_json_fails_for_good() -> None:
    async def step() -> Any:
        return object()

    assert (await run(step, retry=3)).error_code == "invalid_result"


async def test_a_result_with_two_keys_that_are_one_in_json_fails_for_good() -> None:
    async def step() -> Any:
        return {"prices": {1: "a", "1": "b"}}

    found = await run(step, retry=3)
    assert (found.status, found.error_code, found.attempts) == ("failed", "invalid_result", 1)


async def test_a_coroutine_that_nobody_awaits_is_told_apart() -> None:
    async def inner() -> None: ...

    def step() -> Any:
        coroutine = inner()
        coroutine.close()
        return coroutine

    found = await run(step)
    assert found.error is not None
    assert "async def" in found.error


async def test_handlers_have_a_task_and_a_context_of_their_own() -> None:
    tasks: list[object] = []

    async def step(ctx: SagaContext) -> None:
        tasks.append(asyncio.current_task())
        async with asyncio.timeout(30):
            await asyncio.to_thread(lambda: None)
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(lambda: None))

    assert (await run(step)).status == "succeeded"
    assert tasks[0] is not asyncio.current_task()


async def test_a_stored_value_that_does_not_decode_parks_the_execution() -> None:
    """Which in memory can only be brought about by force: here the handler's own decoder refuses."""
    from tenuto.errors import PayloadError

    assert isinstance(failed(PayloadError("x", code="incompatible"), SAFE, {}), Parked)
    assert fail(PayloadError("x")).code == "payload_invalid"


@pytest.mark.requirement("K5")
async def test_an_engine_runs_without_a_harness_too() -> None:
    async with Engine() as engine:
        engine.register(SagaBuilder("hostile").step("x", raising(SystemExit(1)), retry=0))
        result = await engine.execute("hostile")
        assert result.steps["x"].error == "SystemExit: 1"

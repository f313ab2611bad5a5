"""What a failure means: its class, whether and when it is tried again, and how long everything may take."""

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from tenuto import Engine, ExpandEach, Retry, SagaBuilder, SagaContext, StepInputs
from tenuto.errors import (
    CompensationRequiredError,
    DefinitionError,
    DependencyFailedError,
    IndeterminateError,
    InvalidInput,
    NonRetryableError,
    PayloadError,
    RateLimitedError,
    RetryableError,
    StepError,
    TransientError,
)
from tenuto.testing import Harness

from .conftest import MakeHarness
from .doubles import Stage, ThreadGate, until, until_blocked
from .sagas import FAST, one_step


async def history_of(engine: Engine, execution_id: str) -> list[Any]:
    return list(await engine.get(execution_id).history())


# -- Classes -----------------------------------------------------------------------------------------------------------

# What a step that is safe to retry, with three attempts, comes to: how often it is tried, and what becomes of it all.
MATRIX: dict[type[StepError], tuple[str, int, str]] = {
    TransientError: ("TRANSIENT", 3, "failed"),
    RetryableError: ("RETRYABLE", 3, "failed"),
    RateLimitedError: ("RATE_LIMITED", 3, "failed"),
    DependencyFailedError: ("DEPENDENCY_FAILED", 3, "failed"),
    IndeterminateError: ("INDETERMINATE", 3, "failed"),
    NonRetryableError: ("NON_RETRYABLE", 1, "failed"),
    CompensationRequiredError: ("COMPENSATION_REQUIRED", 1, "waiting_approval"),
}


@pytest.mark.requirement("C1")
@pytest.mark.parametrize("error", MATRIX, ids=lambda error: error.error_class)
async def test_every_class_of_errors_has_its_own_consequence(engine: Engine, error: type[StepError]) -> None:
    error_class, attempts, status = MATRIX[error]
    stage = Stage()
    engine.register(one_step("s", stage.fails("a", error("no")), retry=FAST).build())

    result = await engine.execute("s")

    assert (result.status, stage.count("a")) == (status, attempts)
    assert (result.steps["work"].error_class, result.steps["work"].error) == (error_class, "no")
    assert {row["error_class"] for row in await history_of(engine, result.execution_id)} == {error_class}


class Mine(Exception): ...


class Special(Mine): ...


class Unheard(Exception): ...


EXCEPTIONS: list[tuple[Exception, str]] = [
    (ConnectionResetError("reset"), "TRANSIENT"),
    (TimeoutError(), "TRANSIENT"),
    (MemoryError(), "TRANSIENT"),
    (ValueError("bad"), "NON_RETRYABLE"),
    (TypeError(), "NON_RETRYABLE"),
    (KeyError("k"), "NON_RETRYABLE"),
    (PermissionError(), "NON_RETRYABLE"),
    (NotImplementedError(), "NON_RETRYABLE"),
    (ModuleNotFoundError(), "NON_RETRYABLE"),
    (Unheard(), "RETRYABLE"),
    (ExceptionGroup("both", [TransientError(), ValueError()]), "NON_RETRYABLE"),
]


@pytest.mark.requirement("C2")
@pytest.mark.parametrize(("error", "error_class"), EXCEPTIONS, ids=lambda part: type(part).__name__)
async def test_an_ordinary_exception_is_classified_by_its_type(
    engine: Engine, error: Exception, error_class: str
) -> None:
    engine.register(one_step("s", Stage().fails("a", error), retry=0).build())
    work = (await engine.execute("s")).steps["work"]
    assert work.error_class == error_class


async def exits() -> None:
    raise SystemExit(3)


async def interrupts_itself() -> None:
    raise asyncio.CancelledError


def exits_in_a_thread() -> None:
    raise KeyboardInterrupt


@pytest.mark.requirement("C2")
@pytest.mark.parametrize("function", [exits, interrupts_itself, exits_in_a_thread])
async def test_what_would_end_a_process_ends_the_step(engine: Engine, function: Any) -> None:
    engine.register(one_step("s", function, retry=0).build(), one_step("t", Stage().does("alive")).build())
    result = await engine.execute("s")
    assert (result.status, result.steps["work"].status) == ("failed", "failed")
    assert (await engine.execute("t")).output == "alive"


TABLES: list[tuple[dict[Any, Any], dict[Any, Any], Exception, str]] = [
    ({Mine: "RATE_LIMITED"}, {}, Mine(), "RATE_LIMITED"),
    ({}, {Mine: "RATE_LIMITED"}, Mine(), "RATE_LIMITED"),
    ({Mine: "TRANSIENT"}, {Mine: "RATE_LIMITED"}, Mine(), "TRANSIENT"),  # the step's table before the saga's
    ({Mine: "NON_RETRYABLE"}, {}, Special(), "NON_RETRYABLE"),  # and by what it is a kind of
    ({Mine: "NON_RETRYABLE", Special: "TRANSIENT"}, {}, Special(), "TRANSIENT"),  # the nearest kind
    ({}, {ValueError: "TRANSIENT"}, ValueError(), "TRANSIENT"),  # before the common table
    ({TransientError: "NON_RETRYABLE"}, {}, TransientError(), "TRANSIENT"),  # who says its class is believed
]


@pytest.mark.requirement("C2")
@pytest.mark.parametrize(("of_step", "of_saga", "error", "error_class"), TABLES)
async def test_tables_of_the_step_and_of_the_saga_classify_first(
    engine: Engine, of_step: dict[Any, Any], of_saga: dict[Any, Any], error: Exception, error_class: str
) -> None:
    builder = SagaBuilder("s", classify=of_saga)
    engine.register(builder.step("work", Stage().fails("a", error), classify=of_step, retry=0).build())
    assert (await engine.execute("s")).steps["work"].error_class == error_class


@pytest.mark.requirement("C2")
async def test_a_documents_table_names_exceptions(engine: Engine) -> None:
    engine.handler("a", Stage().fails("a", Mine()))
    task = {"step_id": "a", "handler": "a", "idempotency_strategy": "SAFE_TO_RETRY"}
    await engine.apply({"name": "doc", "steps": [{**task, "classify": {"Mine": "NON_RETRYABLE"}}]})
    assert (await engine.execute("doc")).steps["a"].error_class == "NON_RETRYABLE"


# -- The policy of a step ----------------------------------------------------------------------------------------------


@pytest.mark.requirement("C3")
@pytest.mark.parametrize(
    ("retry", "attempts"), [(None, 3), (0, 1), (2, 3), (Retry(5, initial="1ms"), 5), (Retry(1), 1)], ids=str
)
async def test_a_step_says_how_often_it_is_tried(make_harness: MakeHarness, retry: Any, attempts: int) -> None:
    """A number counts retries; a `Retry` counts attempts. Without either there are three attempts."""
    stage = Stage()
    t = await make_harness(one_step("s", stage.fails("a", TransientError()), retry=retry).build())
    result = await t.execute("s")
    assert (result.status, stage.count("a"), result.steps["work"].attempts) == ("failed", attempts, attempts)


async def delays(t: Harness, execution_id: str) -> list[int]:
    """Milliseconds from the end of each attempt to the start of the next."""
    rows = await history_of(t, execution_id)
    times = [(datetime.fromisoformat(row["started_at"]), datetime.fromisoformat(row["finished_at"])) for row in rows]
    gaps = [after[0] - before[1] for before, after in pairwise(times)]
    return [round(gap / timedelta(milliseconds=1)) for gap in gaps]


SHAPES: list[tuple[Retry, list[int]]] = [
    (Retry(3, backoff="fixed", initial="1h", jitter=0), [3_600_000, 3_600_000]),  # longer than the cap by default
    (Retry(5, initial="100ms", jitter=0), [100, 200, 400, 800]),
    (Retry(5, initial="100ms", maximum="300ms", jitter=0), [100, 200, 300, 300]),
    (Retry(4, backoff="fixed", initial="250ms", jitter=0), [250, 250, 250]),
    (Retry(3, backoff="exponential", initial=timedelta(seconds=1), jitter=0), [1000, 2000]),
]


@pytest.mark.requirement("C3")
@pytest.mark.parametrize(("retry", "expected"), SHAPES, ids=["long", "exponential", "capped", "fixed", "timedelta"])
async def test_delays_follow_the_strategy(make_harness: MakeHarness, retry: Retry, expected: list[int]) -> None:
    t = await make_harness(one_step("s", Stage().fails("a", TransientError()), retry=retry).build())
    result = await t.execute("s")
    assert await delays(t, result.execution_id) == expected
    assert t.elapsed == timedelta(milliseconds=sum(expected))


@pytest.mark.requirement("C3")
async def test_each_attempt_has_a_time_of_its_own(make_harness: MakeHarness) -> None:
    """`timeout` is for one attempt. One that timed out and will be tried again is `retrying`."""
    stage = Stage()
    slow = stage.gate("a")
    t = await make_harness(
        one_step("s", slow.pass_through, timeout="5s", retry=Retry(2, initial="1s", jitter=0)).build()
    )
    handle = await t.start("s")
    await t.advance("5500ms")
    assert (await handle.status())["steps"][0]["status"] == "retrying"
    await t.advance("1h")

    result = await handle.result()
    rows = await handle.history()
    assert [(row["status"], row["error_class"], row["error_code"]) for row in rows] == [
        ("retrying", "TRANSIENT", "attempt_timeout"),
        ("timed_out", "TRANSIENT", "attempt_timeout"),
    ]
    assert (result.status, result.steps["work"].status, result.failed_steps) == ("failed", "timed_out", ["work"])


CLASSES = ["TRANSIENT", "RETRYABLE", "RATE_LIMITED", "DEPENDENCY_FAILED"]


@pytest.mark.requirement("C4")
@pytest.mark.parametrize("raised", [TransientError, RetryableError, RateLimitedError, DependencyFailedError])
@pytest.mark.parametrize("listed", CLASSES)
async def test_only_the_classes_that_are_listed_are_retried(engine: Engine, raised: Any, listed: Any) -> None:
    stage = Stage()
    engine.register(one_step("s", stage.fails("a", raised()), retry=Retry(2, initial="1ms", on=[listed])).build())
    await engine.execute("s")
    assert stage.count("a") == (2 if raised.error_class == listed else 1)


@pytest.mark.requirement("C4")
@pytest.mark.parametrize("listed", ["NON_RETRYABLE", "COMPENSATION_REQUIRED", "INDETERMINATE"])
async def test_what_is_never_retried_cannot_be_listed(engine: Engine, listed: Any) -> None:
    with pytest.raises(DefinitionError) as refused:
        engine.register(one_step("s", Stage().does("a"), retry=Retry(2, on=[listed])))
    assert [problem.code for problem in refused.value.problems] == ["forbidden_class"]


@pytest.mark.requirement("C5")
async def test_jitter_spreads_delays_and_is_the_same_when_repeated(make_harness: MakeHarness) -> None:
    """±10 % unless said otherwise; made of the execution, the step and the attempt, so that every runtime agrees."""

    async def measure(jitter: float) -> list[int]:
        retry = Retry(2, backoff="fixed", initial="1s", jitter=jitter)
        t = await make_harness(one_step("s", Stage().fails("a", TransientError()), retry=retry).build())
        results = [await t.execute("s") for _ in range(20)]
        return [gap for result in results for gap in await delays(t, result.execution_id)]

    tenth = await measure(0.1)
    assert all(900 <= gap <= 1100 for gap in tenth)
    assert len(set(tenth)) > 10
    assert await measure(0.1) == tenth
    half = await measure(0.5)
    assert all(500 <= gap <= 1500 for gap in half)
    assert max(half) > 1100
    assert set(await measure(0)) == {1000}


@pytest.mark.requirement("C6")
@pytest.mark.parametrize("retry_after", ["30s", 30, timedelta(seconds=30)], ids=str)
async def test_retry_after_is_respected(make_harness: MakeHarness, retry_after: Any) -> None:
    stage = Stage()
    work = stage.does("a", RateLimitedError(retry_after=retry_after))
    t = await make_harness(one_step("s", work, retry=Retry(2, initial="1ms")).build())
    assert (await t.execute("s")).succeeded
    assert t.elapsed == timedelta(seconds=30)


@pytest.mark.requirement("C6")
async def test_a_backoff_longer_than_retry_after_stays(make_harness: MakeHarness) -> None:
    work = Stage().does("a", RateLimitedError(retry_after="1s"))
    t = await make_harness(one_step("s", work, retry=Retry(2, initial="10s", jitter=0)).build())
    assert (await t.execute("s")).succeeded
    assert t.elapsed == timedelta(seconds=10)


STARTS: list[tuple[type[StepError], int]] = [
    (TransientError, 100),
    (RetryableError, 100),
    (RateLimitedError, 1_000),
    (DependencyFailedError, 5_000),
]


@pytest.mark.requirement("C7")
@pytest.mark.parametrize(("error", "first"), STARTS, ids=lambda part: str(part))
async def test_each_class_starts_with_a_delay_of_its_own(
    make_harness: MakeHarness, error: type[StepError], first: int
) -> None:
    """Unless the step says which. A dependency that is down is given longer."""
    work = Stage().does("a", error(), error())
    t = await make_harness(one_step("s", work, retry=Retry(3, jitter=0)).build())
    result = await t.execute("s")
    assert await delays(t, result.execution_id) == [first, 2 * first]

    said = await make_harness(
        one_step("s", Stage().does("a", error()), retry=Retry(3, initial="7ms", jitter=0)).build()
    )
    result = await said.execute("s")
    assert await delays(said, result.execution_id) == [7]


@pytest.mark.requirement("C21")
async def test_by_default_there_are_three_attempts_doubling_to_thirty_seconds(make_harness: MakeHarness) -> None:
    t = await make_harness(
        one_step("few", Stage().fails("a", TransientError())).build(),
        one_step("many", Stage().fails("a", TransientError()), retry=Retry(12)).build(),
    )
    few = await delays(t, (await t.execute("few")).execution_id)
    many = await delays(t, (await t.execute("many")).execution_id)

    expected = [100 * 2**n for n in range(9)]
    for measured, wanted in zip([*few, *many], [100, 200, *expected, 30_000, 30_000], strict=True):
        assert abs(measured - wanted) <= wanted / 10


@pytest.mark.requirement("C21")
async def test_a_scope_is_run_three_times_after_about_100_and_200_ms(make_harness: MakeHarness) -> None:
    stage = Stage()
    builder = SagaBuilder("s").step("a", stage.fails("a", TransientError()), retry=0)
    t = await make_harness(builder.group("task", "a", failure_mode="retry").build())
    result = await t.execute("s")
    assert (result.status, stage.count("a")) == ("failed", 3)
    first, second = await delays(t, result.execution_id)
    assert abs(first - 100) <= 10
    assert abs(second - 200) <= 20


@pytest.mark.requirement("C23")
async def test_the_next_attempt_is_scheduled_and_visible(engine: Engine) -> None:
    stage = Stage()
    engine.register(one_step("s", stage.fails("a", TransientError("busy")), retry=Retry(3, initial="1h")).build())
    handle = await engine.start("s")

    blocked = await until_blocked(handle, "retry")
    document = await handle.status()
    (row,) = await handle.history()

    assert row["status"] == "retrying"
    assert blocked["waiting_for"] == "work"
    assert blocked["next_check"] == row["retry_after_at"] == document["steps"][0]["retry_at"]
    due = datetime.fromisoformat(row["retry_after_at"] or "") - datetime.fromisoformat(row["finished_at"] or "")
    assert timedelta(minutes=53) < due < timedelta(minutes=67)
    await handle.cancel("terminate")


# -- Time --------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("C14")
async def test_a_deadline_bounds_all_attempts_and_delays(make_harness: MakeHarness) -> None:
    stage = Stage()
    retry = Retry(100, backoff="fixed", initial="4s", jitter=0)
    t = await make_harness(
        one_step("s", stage.fails("a", TransientError()), deadline="10s", timeout="1s", retry=retry).build()
    )
    result = await t.execute("s")
    assert (result.steps["work"].status, result.steps["work"].error_code) == ("timed_out", "deadline")
    assert (stage.count("a"), t.elapsed) == (3, timedelta(seconds=10))


@pytest.mark.requirement("C14")
async def test_a_deadline_ends_an_attempt_that_runs(make_harness: MakeHarness) -> None:
    slow = Stage().gate("a")
    t = await make_harness(one_step("s", slow.pass_through, timeout="8s", deadline="10s", retry=5).build())
    handle = await t.start("s")
    await t.advance("11s")
    result = await handle.result()
    assert (result.status, result.steps["work"].status) == ("failed", "timed_out")


@pytest.mark.requirement("C14")
async def test_an_attempt_cannot_have_longer_than_its_step(engine: Engine) -> None:
    with pytest.raises(DefinitionError) as refused:
        engine.register(one_step("s", Stage().does("a"), timeout="10s", deadline="5s"))
    assert [problem.code for problem in refused.value.problems] == ["timeout_order"]


@pytest.mark.requirement("C14")
async def test_the_whole_execution_has_a_deadline(make_harness: MakeHarness) -> None:
    """What runs when it passes is awaited, then all that is done is undone."""
    stage = Stage()
    slow = stage.gate("slow")
    builder = SagaBuilder("s", timeout="1m").step("a", stage.does("a"), compensate=stage.does("undo a"))
    builder.step("slow", slow.pass_through, depends_on=["a"], timeout="10m", compensate=stage.does("undo slow"))
    t = await make_harness(builder.step("c", stage.does("c"), depends_on=["slow"]).build())
    handle = await t.start("s")
    await t.advance("2m")
    slow.open()
    result = await handle.result()
    assert (result.status, result.error and result.error["code"]) == ("failed", "deadline")
    assert stage.log == ["a", "slow", "undo slow", "undo a"]


@pytest.mark.requirement("C20")
async def test_every_level_has_a_time_of_its_own(make_harness: MakeHarness) -> None:
    """30 s for an attempt, unless said otherwise; an hour for a task, six for an agent, a day for the run."""
    builder = SagaBuilder("s", timeout="24h").signal("answer", "answer")
    builder.group("task", "answer", deadline="1h").group("agent", "task", deadline="6h")
    t = await make_harness(builder.build())
    result = await t.execute("s")
    assert (result.status, t.elapsed) == ("failed", timedelta(hours=1))
    assert result.error is not None
    assert (result.error["code"], result.error["step_id"]) == ("scope_timeout", "task")

    tool = await make_harness(one_step("s", Stage().gate("a").pass_through, retry=0).build())
    handle = await tool.start("s")
    await tool.advance("29s")
    assert (await handle.status())["steps"][0]["status"] == "running"
    await tool.advance("2s")
    assert (await handle.result()).steps["work"].status == "timed_out"


@pytest.mark.requirement("C20")
async def test_a_level_that_is_passed_over_leaves_the_ones_above(make_harness: MakeHarness) -> None:
    builder = SagaBuilder("s").signal("answer", "answer").step("other", Stage().does("other"))
    builder.group("task", "answer", deadline="1h")
    builder.group("agent", "task", "other", mode="parallel", failure_mode="continue", deadline="6h")
    t = await make_harness(builder.build())
    result = await t.execute("s")
    assert (result.status, t.elapsed) == ("succeeded", timedelta(hours=1))
    assert [(step.id, step.status) for step in result.steps.values()] == [
        ("answer", "canceled"),
        ("other", "succeeded"),
    ]


async def test_an_async_handler_is_stopped_when_its_time_is_over(engine: Engine) -> None:
    stopped = asyncio.Event()

    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    engine.register(one_step("s", slow, timeout="5ms", retry=0).build())
    result = await engine.execute("s")
    await stopped.wait()
    assert result.steps["work"].status == "timed_out"


async def test_a_plain_handler_is_not_tried_again_while_its_thread_runs(engine: Engine) -> None:
    """A thread cannot be stopped: its successor waits for its end, so that two never work at once."""
    gate = ThreadGate()
    running = most = 0

    def slow() -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            return gate.pass_through()
        finally:
            running -= 1

    engine.register(one_step("s", slow, timeout="300ms", retry=Retry(30, initial="1ms")).build())
    handle = await engine.start("s")
    await gate.reached.wait()
    await until_attempts(handle, 2)  # the first has timed out, and another one is wanted
    assert gate.calls == 1
    gate.open()
    assert (await handle.result()).succeeded
    assert most == 1


async def until_attempts(handle: Any, number: int) -> None:
    await until(handle, lambda found: found["steps"][0]["attempts"] >= number)


async def test_plain_handlers_never_block_the_loop(engine: Engine) -> None:
    gate = ThreadGate()

    async def quick() -> str:
        return "quick"

    engine.register(one_step("slow", gate.pass_through).build(), one_step("quick", quick).build())
    slow = await engine.start("slow")
    await gate.reached.wait()
    assert (await engine.execute("quick")).output == "quick"
    gate.open()
    assert (await slow.result()).output == "through"


# -- Output ------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("C19")
async def test_a_result_that_does_not_fit_its_schema_is_a_failure_that_is_tried_again(engine: Engine) -> None:
    stage = Stage()
    engine.handler("a", stage.does("a", {"n": "three"}, {"n": 3}))
    task = {"step_id": "a", "handler": "a", "idempotency_strategy": "SAFE_TO_RETRY"}
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    task["retry_policy"] = {"max_attempts": 3, "initial_delay_ms": 1}  # type: ignore[assignment]
    await engine.apply({"name": "doc", "steps": [{**task, "output_schema": schema}]})

    result = await engine.execute("doc")

    assert result.output == {"n": 3}
    first, second = await history_of(engine, result.execution_id)
    assert (first["error_class"], first["error_code"], second["status"]) == ("RETRYABLE", "invalid_output", "succeeded")
    assert "/n" in first["error_summary"]
    assert "three" not in first["error_summary"], "values are not shown"


async def wrong() -> int:
    return "text"  # type: ignore[return-value]  # on purpose


async def nothing() -> list[int]:
    return None  # type: ignore[return-value]  # on purpose


@dataclass
class Parcel:
    weights: list[int]


async def nested() -> Parcel:
    return Parcel(weights=[1, "2"])  # type: ignore[list-item]  # on purpose


@pytest.mark.requirement("C19")
@pytest.mark.parametrize(
    ("function", "told"),
    [
        (wrong, "result of step 'work': Expected `int`, got `str`"),
        (nothing, "result of step 'work': Expected `array`, got `null`"),
        (nested, "result of step 'work'.weights[1]: Expected `int`, got `str` (reading `Parcel`)"),
    ],
)
async def test_a_result_of_another_type_fails_its_step_at_once(engine: Engine, function: Any, told: str) -> None:
    engine.register(one_step("s", function, retry=FAST).build())
    work = (await engine.execute("s")).steps["work"]
    assert (work.status, work.error_class, work.error_code, work.attempts) == (
        "failed",
        "NON_RETRYABLE",
        "invalid_result",
        1,
    )
    assert work.error == told


@pytest.mark.requirement("C19")
async def test_a_step_may_say_that_a_result_of_another_type_is_tried_again(engine: Engine) -> None:
    engine.register(one_step("s", wrong, retry=FAST, classify={PayloadError: "RETRYABLE"}).build())
    work = (await engine.execute("s")).steps["work"]
    assert (work.error_class, work.error_code, work.attempts) == ("RETRYABLE", "invalid_result", 3)


async def test_a_limit_bounds_all_steps_that_name_it(engine: Engine) -> None:
    """Across executions. Waiting for it spends neither an attempt nor its timeout."""
    now = peak = 0
    enough = asyncio.Event()

    async def send(item: int, ctx: SagaContext) -> int:
        nonlocal now, peak
        now += 1
        peak = max(peak, now)
        if now == 2:
            enough.set()
        await enough.wait()
        now -= 1
        return ctx.attempt

    await engine.limit("ses", concurrency=2)
    builder = SagaBuilder("s").step("send", send, limits=["ses"], timeout="10s")
    engine.register(builder.build())
    handles = [await engine.start("s", StepInputs({"send": ExpandEach(range(5))})) for _ in range(2)]
    for handle in handles:
        assert (await handle.result()).results_of("send") == [1] * 5
    assert peak == 2


async def test_a_limit_can_be_lifted_and_must_make_sense(engine: Engine) -> None:
    gate = Stage().gate("a")
    engine.register(one_step("s", gate.pass_through, limits=["bank"]).build())
    await engine.limit("bank", concurrency=1)
    handles = [await engine.start("s") for _ in range(2)]
    await gate.reached.wait()
    await until_blocked(handles[1], "limit")
    await engine.limit("bank")
    await until(handles[1], lambda found: found["blocked"] is None)
    gate.open()
    for handle in handles:
        assert (await handle.result()).succeeded
    for wrong in ({"concurrency": 0}, {"rate": "often"}, {"rate": "0/s"}):
        options: Any = wrong
        with pytest.raises(InvalidInput):
            await engine.limit("bank", **options)


async def test_a_rate_bounds_how_many_start_in_a_time(make_harness: MakeHarness) -> None:
    async def send(item: int) -> None: ...

    t = await make_harness(SagaBuilder("s").step("send", send, limits=["ses"]).build())
    await t.limit("ses", rate="10/s")
    assert (await t.execute("s", StepInputs({"send": ExpandEach(range(35))}))).succeeded
    assert t.elapsed == timedelta(seconds=3)

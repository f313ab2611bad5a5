"""What an execution goes through: its statuses, pausing and canceling, running again, and what is kept of it all."""

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from tenuto import Engine, ExpandEach, Handle, NotDone, Outcome, Retry, SagaBuilder, SagaContext, StepInputs
from tenuto.errors import (
    CompensationRequiredError,
    IndeterminateError,
    InvalidInput,
    InvalidTransition,
    NonRetryableError,
    NotFound,
    PayloadError,
    TransientError,
)

from .conftest import MakeEngine, MakeHarness
from .doubles import Stage, until, until_blocked
from .sagas import FAST, BookTrip, Trip, chain, one_step

# -- Statuses ----------------------------------------------------------------------------------------------------------

ENDINGS: dict[str, Callable[[Stage], SagaBuilder]] = {
    "succeeded": lambda stage: chain("s", stage, "a"),
    "failed": lambda stage: chain("s", stage, "a", fails=NonRetryableError()),
    "canceled": lambda stage: SagaBuilder("s").signal("never", "never"),
}
COMMANDS: dict[str, Callable[[Handle[Any]], Awaitable[None]]] = {
    "pause": lambda handle: handle.pause(),
    "resume": lambda handle: handle.resume(),
    "cancel": lambda handle: handle.cancel(),
    "retry": lambda handle: handle.retry(reason="again"),
    "approve": lambda handle: handle.approve("a"),
    "signal": lambda handle: handle.signal("never"),
}
ALLOWED_AT_THE_END = {("failed", "retry"), ("canceled", "cancel")}  # the second changes nothing: it is so already


@pytest.mark.requirement("B1")
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("command", COMMANDS)
async def test_what_is_over_stays_as_it_is(engine: Engine, ending: str, command: str) -> None:
    """A command that is not allowed raises, and changes nothing. Only what failed can be run again."""
    engine.register(ENDINGS[ending](Stage()).build())
    handle = await engine.start("s")
    if ending == "canceled":
        await handle.cancel()
    assert (await handle.result()).status == ending
    before = (await handle.status(), await handle.history())

    if (ending, command) in ALLOWED_AT_THE_END:
        await COMMANDS[command](handle)
    else:
        with pytest.raises((InvalidTransition, NotFound)):
            await COMMANDS[command](handle)
    if command != "retry" or ending != "failed":
        assert (await handle.status(), await handle.history()) == before


@pytest.mark.requirement("B1")
async def test_an_execution_shows_only_declared_statuses(engine: Engine) -> None:
    stage = Stage()
    gate = stage.gate("a")
    builder = SagaBuilder("s").step("a", gate.pass_through).approval("ok", depends_on=["a"])
    engine.register(builder.build())
    seen: list[str] = []

    async def look() -> None:
        seen.append((await handle.status())["status"])

    handle = await engine.start("s")
    await gate.reached.wait()
    await look()
    await handle.pause()
    await look()
    await handle.resume()
    await look()
    gate.open()
    await until_blocked(handle, "approval")
    await look()
    await handle.pause()
    await look()
    await handle.approve("ok")
    await look()  # accepted while paused, and acted upon when it is resumed
    await handle.resume()
    assert (await handle.result()).succeeded
    await look()

    assert seen == ["running", "paused", "running", "waiting_approval", "paused", "paused", "succeeded"]


STEP_STATUSES: dict[str, tuple[Callable[[Stage], SagaBuilder], str]] = {
    "succeeded": (lambda stage: one_step("s", stage.does("a")), "work"),
    "failed": (lambda stage: one_step("s", stage.fails("a", NonRetryableError())), "work"),
    "skipped": (lambda stage: one_step("s", stage.does("a"), when="false"), "work"),
    "awaiting_approval": (lambda stage: SagaBuilder("s").approval("ok"), "ok"),
    "timed_out": (lambda stage: one_step("s", stage.gate("a").pass_through, timeout="1ms", retry=0), "work"),
}


@pytest.mark.requirement("B1")
@pytest.mark.parametrize("status", STEP_STATUSES)
async def test_a_step_shows_what_it_came_to(engine: Engine, status: str) -> None:
    make, step = STEP_STATUSES[status]
    engine.register(make(Stage()).build())
    result = await engine.execute("s")
    assert result.steps[step].status == status
    (row,) = await engine.get(result.execution_id).history()
    assert row["status"] == status


@pytest.mark.requirement("B1")
async def test_a_step_that_has_not_begun_is_pending_and_one_that_runs_is_running(engine: Engine) -> None:
    gate = Stage().gate("a")
    builder = SagaBuilder("s").step("a", gate.pass_through).step("b", Stage().does("b"), depends_on=["a"])
    engine.register(builder.build())
    handle = await engine.start("s")
    await gate.reached.wait()
    assert [(each["step_id"], each["status"]) for each in (await handle.status())["steps"]] == [
        ("a", "running"),
        ("b", "pending"),
    ]
    gate.open()
    await handle.result()


async def test_a_word_that_nobody_knows_is_refused(engine: Engine) -> None:
    """Type checkers see it; what comes from elsewhere is checked all the same, and changes nothing."""
    unknown: Any = "whatever"
    engine.register(SagaBuilder("s").approval("ok").build())
    handle = await engine.start("s")
    blocked = await until_blocked(handle, "approval")
    before = await handle.status()
    attempts: list[Callable[[], Awaitable[Any]]] = [
        lambda: handle.cancel(unknown),
        lambda: engine.resolve(blocked["review_id"], unknown),
        lambda: engine.start("s", priority=unknown),
        lambda: handle.answer("ok", attempt=1, lease="x", error="no", error_class=unknown),
        lambda: handle.result(return_when=unknown),
    ]
    for attempt in attempts:
        with pytest.raises(InvalidInput, match="whatever"):
            await attempt()
    assert await handle.status() == before
    assert sum((await engine.count()).values()) == 1


# -- Pausing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["a\0b", "\udcff"])
async def test_text_that_no_database_takes_is_refused_and_the_execution_goes_on(engine: Engine, text: str) -> None:
    """Such as comes of names of files. Decided upon and not kept, it would be in the way of all that follows."""
    engine.register(SagaBuilder("s").approval("ok"))
    handle = await engine.start("s")
    await handle.result()
    told = [
        handle.pause(reason=text),
        handle.cancel(reason=text),
        handle.approve("ok", comment=text),
        handle.signal("s", id=text),
        handle.signal(text),
    ]
    for each in told:
        with pytest.raises(InvalidInput):
            await each
    await handle.approve("ok", comment="é\U0001f680\n")
    assert (await handle.result()).succeeded


@pytest.mark.requirement("B10")
async def test_a_pause_lets_what_runs_finish_and_starts_nothing(engine: Engine) -> None:
    stage = Stage()
    gate, next_gate = stage.gate("a"), stage.gate("b")
    builder = SagaBuilder("s").step("a", gate.pass_through).step("b", next_gate.pass_through, depends_on=["a"])
    engine.register(builder.build())
    handle = await engine.start("s")
    await gate.reached.wait()

    await handle.pause(reason="stocktaking")
    await handle.pause(reason="again")  # it is so already
    gate.open()
    document = await until(handle, lambda found: found["steps"][0]["status"] == "succeeded")

    assert (document["status"], document["pause_reason"]) == ("paused", "stocktaking")
    assert (document["blocked"]["reason"], document["blocked"]["waiting_for"]) == ("paused", "stocktaking")
    assert document["blocked"]["commands"] == ["resume", "cancel"]
    assert stage.log == ["a"]

    await handle.resume()
    await handle.resume()
    next_gate.open()
    assert (await handle.result()).succeeded
    assert stage.log == ["a", "b"]


@pytest.mark.requirement("B10")
async def test_a_delay_that_ends_during_a_pause_acts_on_resume(make_harness: MakeHarness) -> None:
    stage = Stage()
    t = await make_harness(one_step("s", stage.does("a", TransientError()), retry=Retry(2, initial="1s")).build())
    handle = await t.start("s")
    await t.advance("10ms")
    await handle.pause()
    await t.advance("1h")
    assert stage.log == ["a"]
    await handle.resume()
    assert (await handle.result()).succeeded
    assert (stage.log, t.elapsed) == (["a", "a"], timedelta(hours=1, milliseconds=10))


@pytest.mark.requirement("B10")
async def test_deadlines_shift_by_the_length_of_a_pause(make_harness: MakeHarness) -> None:
    """Of approvals, steps, scopes and the execution."""
    builder = SagaBuilder("s", timeout="10h").approval("ok", deadline="2h")
    t = await make_harness(builder.build())
    handle = await t.start("s")
    await t.advance("1h")
    await handle.pause()
    await t.advance("24h")
    assert (await handle.status())["status"] == "paused"
    await handle.resume()
    await t.advance("59m")
    assert (await handle.status())["status"] == "waiting_approval"
    await t.advance("2m")
    assert (await handle.status())["status"] == "failed"


@pytest.mark.requirement("B10")
async def test_a_decision_during_a_pause_acts_on_resume(engine: Engine) -> None:
    stage = Stage()
    builder = SagaBuilder("s").approval("ok").step("then", stage.does("then"), depends_on=["ok"])
    engine.register(builder.build())
    handle = await engine.start("s")
    await until_blocked(handle, "approval")
    await handle.pause()
    await handle.approve("ok")
    assert ((await handle.status())["status"], stage.log) == ("paused", [])
    await handle.resume()
    assert (await handle.result()).succeeded


@pytest.mark.requirement("B10")
async def test_a_paused_undo_goes_on_when_it_is_resumed(engine: Engine) -> None:
    stage = Stage()
    gate = stage.gate("undo b")
    builder = SagaBuilder("s").step("a", stage.does("a"), compensate=stage.does("undo a"))
    builder.step("b", stage.does("b"), depends_on=["a"], compensate=gate.pass_through)
    builder.step("c", stage.fails("c", NonRetryableError()), depends_on=["b"])
    engine.register(builder.build())
    handle = await engine.start("s")
    await gate.reached.wait()
    await handle.pause()
    gate.open()
    await until(handle, lambda found: found["steps"][1]["compensation"] == "done")
    assert stage.log == ["a", "b", "c", "undo b"]
    await handle.resume()
    assert (await handle.result()).status == "failed"
    assert stage.log[-1] == "undo a"


@pytest.mark.requirement("B12")
async def test_a_pause_beyond_its_limit_cancels_the_execution(make_harness: MakeHarness) -> None:
    """After seven days, unless the definition says otherwise; a saga is undone."""
    stage = Stage()
    builder = SagaBuilder("s").step("a", stage.does("a"), compensate=stage.does("undo a"))
    t = await make_harness(builder.signal("never", "never", depends_on=["a"]).build())
    handle = await t.start("s")
    await t.advance("1s")
    await handle.pause()
    limit = (await handle.status())["blocked"]
    await t.advance("6d")
    assert (await handle.status())["status"] == "paused"
    await t.advance("1d")

    result = await handle.result()
    assert (result.status, stage.log) == ("canceled", ["a", "undo a"])
    assert limit is not None
    assert limit["since"] is not None
    assert limit["next_check"] is not None
    assert datetime.fromisoformat(limit["next_check"]) - datetime.fromisoformat(limit["since"]) == timedelta(days=7)


@pytest.mark.requirement("B12")
async def test_a_definition_sets_its_own_pause_limit(make_harness: MakeHarness) -> None:
    t = await make_harness()
    step = {"step_id": "never", "type": "wait", "with": {"signal": "never"}}
    await t.apply({"name": "doc", "steps": [step], "policies": {"pause_limit_ms": 60_000}})
    handle = await t.start("doc")
    await handle.pause()
    await t.advance("61s")
    assert (await handle.status())["status"] == "canceled"


# -- How long each state may last --------------------------------------------------------------------------------------


@pytest.mark.requirement("B13")
async def test_each_state_has_a_time_limit_of_its_own(make_harness: MakeHarness) -> None:
    """How long it may run is set by the definition; time in a pause does not count."""
    t = await make_harness(SagaBuilder("s", timeout="24h").signal("never", "never").build())
    handle = await t.start("s")
    await t.advance("23h")
    await handle.pause()
    await t.advance("48h")
    await handle.resume()
    await t.advance("59m")
    assert (await handle.status())["status"] == "running"
    await t.advance("2m")
    document = await handle.status()
    assert (document["status"], document["error"] and document["error"]["code"]) == ("failed", "deadline")


@pytest.mark.requirement("B13")
async def test_what_nobody_takes_in_time_fails(make_harness: MakeHarness) -> None:
    """The time to wait for a worker, which a `worker=False` engine never is."""
    t = await make_harness(worker=False)
    task = {"step_id": "a", "type": "task", "handler": "a", "idempotency_strategy": "SAFE_TO_RETRY"}
    await t.apply({"name": "doc", "steps": [task], "policies": {"pending_timeout_ms": 86_400_000}})
    handle = await t.start("doc")
    await t.advance("23h")
    assert (await handle.status())["status"] == "running"
    await t.advance("2h")
    document = await handle.status()
    assert (document["status"], document["error"] and document["error"]["code"]) == ("failed", "pending_timeout")


# -- Canceling ---------------------------------------------------------------------------------------------------------


def two_steps(stage: Stage, gate: Any) -> object:
    builder = SagaBuilder("s").step("a", stage.does("a"), compensate=stage.does("undo a"))
    builder.step("b", gate.pass_through, depends_on=["a"], compensate=stage.does("undo b"))
    return builder.step("c", stage.does("c"), depends_on=["b"]).build()


CANCELS: dict[Any, list[str]] = {
    "drain": ["a", "b"],
    "compensate": ["a", "b", "undo b", "undo a"],
    None: ["a", "b", "undo b", "undo a"],  # a saga is undone unless the caller says otherwise
}


@pytest.mark.requirement("B14")
@pytest.mark.parametrize("mode", CANCELS)
async def test_a_cancel_starts_nothing_new_and_lets_the_current_step_finish(engine: Engine, mode: Any) -> None:
    stage = Stage()
    gate = stage.gate("b")
    engine.register(two_steps(stage, gate))
    handle = await engine.start("s")
    await gate.reached.wait()

    await handle.cancel(mode, reason="changed our minds")
    document = await handle.status()
    assert (document["status"], document["cancel_requested"]) == ("running", True)
    await handle.cancel(mode)  # it is so already
    gate.open()

    result = await handle.result()
    assert (result.status, stage.log) == ("canceled", CANCELS[mode])
    assert result.steps["c"].status in ("skipped", "canceled")
    assert (await handle.status())["cancel_requested"] is False


@pytest.mark.requirement("B14")
async def test_terminate_awaits_nothing_and_late_results_are_ignored(engine: Engine) -> None:
    stage = Stage()
    gate = stage.gate("b")
    engine.register(two_steps(stage, gate))
    handle = await engine.start("s")
    await gate.reached.wait()
    await handle.cancel("terminate")

    result = await handle.result()
    assert (result.status, stage.log) == ("canceled", ["a"])
    before = await handle.status()
    gate.open()
    assert (await engine.execute("s")).succeeded  # by now a late answer would have come
    assert await handle.status() == before
    assert before["steps"][1]["status"] == "canceled"


@pytest.mark.requirement("B14")
async def test_a_cancel_that_drains_can_be_turned_into_a_termination(engine: Engine) -> None:
    gate = Stage().gate("b")
    engine.register(two_steps(Stage(), gate))
    handle = await engine.start("s")
    await gate.reached.wait()
    await handle.cancel("drain")
    await handle.cancel("terminate")
    assert (await handle.result()).status == "canceled"


@pytest.mark.requirement("B14")
async def test_what_only_waits_is_not_awaited(engine: Engine) -> None:
    """Signals, timers, approvals and delays end with the cancel."""
    stage = Stage()
    builder = SagaBuilder("s").signal("paid", "paid").wait("day", "24h").approval("ok")
    builder.step("retries", stage.fails("x", TransientError()), retry=Retry(5, initial="1h"))
    engine.register(builder.build())
    handle = await engine.start("s")
    await until(handle, lambda found: found["steps"][-1]["status"] == "retrying")
    await handle.cancel("drain")

    result = await handle.result()
    assert result.status == "canceled"
    assert {step.status for step in result.steps.values()} == {"canceled"}
    assert [row async for row in engine.reviews()] == []


@pytest.mark.requirement("B14")
async def test_a_paused_execution_can_be_canceled(engine: Engine) -> None:
    stage = Stage()
    builder = SagaBuilder("s").step("a", stage.does("a"), compensate=stage.does("undo a"))
    engine.register(builder.signal("never", "never", depends_on=["a"]).build())
    handle = await engine.start("s")
    await until_blocked(handle, "signal")
    await handle.pause()
    await handle.cancel()
    assert (await handle.result()).status == "canceled"
    assert stage.log == ["a", "undo a"]


@pytest.mark.requirement("B14")
async def test_a_definition_says_how_it_is_canceled(engine: Engine) -> None:
    """A document drains unless it says otherwise."""
    stage = Stage()
    engine.handler("a", stage.does("a"))
    engine.handler("undo", stage.does("undo"))
    for version, policies in enumerate(({}, {"cancel": "compensate"}), 1):
        a = {"step_id": "a", "handler": "a", "idempotency_strategy": "SAFE_TO_RETRY", "compensation_handler": "undo"}
        never = {"step_id": "never", "type": "wait", "with": {"signal": "never"}}
        document = {"name": "doc", "version": version, "mode": "sequence", "steps": [a, never], "policies": policies}
        await engine.apply(document)
        handle = await engine.start("doc")
        await until_blocked(handle, "signal")
        await handle.cancel()
        assert (await handle.result()).status == "canceled"
    assert stage.log == ["a", "a", "undo"]


@pytest.mark.requirement("B14")
async def test_a_cancel_during_an_undo_changes_nothing_about_it(engine: Engine) -> None:
    stage = Stage()
    gate = stage.gate("undo a")
    builder = SagaBuilder("s").step("a", stage.does("a"), compensate=gate.pass_through)
    engine.register(builder.step("b", stage.fails("b", NonRetryableError("no")), depends_on=["a"]).build())
    handle = await engine.start("s")
    await gate.reached.wait()
    await handle.cancel()
    gate.open()
    result = await handle.result()
    assert (result.status, result.steps["a"].compensated) == ("failed", True)


# -- Running again -----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("B15")
async def test_a_retry_keeps_what_is_done_and_begins_at_what_failed(engine: Engine) -> None:
    stage = Stage()
    builder = SagaBuilder("s", output="b").step("a", stage.does("a", "result of a"))
    builder.step("b", stage.does("b", NonRetryableError("not yet"), "result of b"), depends_on=["a"])
    engine.register(builder.build())
    failed = await engine.execute("s")
    handle = engine.get(failed.execution_id)

    await handle.retry(reason="fixed the account")
    result = await handle.result()

    assert (result.output, result.result_of("a")) == ("result of b", "result of a")
    assert stage.log == ["a", "b", "b"]
    rows = await handle.history()
    assert [(row["step_id"], row["attempt_number"], row["run"], row["status"]) for row in rows] == [
        ("a", 1, 1, "succeeded"),
        ("b", 1, 1, "failed"),
        ("b", 2, 2, "succeeded"),
    ]


@pytest.mark.requirement("B15")
async def test_what_was_undone_is_made_again_under_a_new_key(engine: Engine) -> None:
    keys: list[str] = []
    fail = True

    async def a(ctx: SagaContext) -> str:
        keys.append(ctx.idempotency_key)
        return "a"

    async def b(ctx: SagaContext) -> None:
        keys.append(ctx.idempotency_key)
        if fail:
            raise NonRetryableError

    builder = SagaBuilder("s").step("a", a, compensate=Stage().does("undo a")).step("b", b, depends_on=["a"])
    engine.register(builder.build())
    handle = engine.get((await engine.execute("s")).execution_id)
    fail = False
    await handle.retry(reason="again")
    assert (await handle.result()).succeeded

    first_a, first_b, second_a, second_b = keys
    assert first_a != second_a, "its effect was undone, so it is another effect"
    assert first_b == second_b, "it was never made"
    assert [(row["step_id"], row["kind"], row["generation"]) for row in await handle.history()] == [
        ("a", "forward", 1),
        ("b", "forward", 1),
        ("a", "compensation", 1),
        ("a", "forward", 2),
        ("b", "forward", 1),
    ]


@pytest.mark.requirement("B15")
async def test_a_retry_can_begin_at_an_earlier_step(engine: Engine) -> None:
    stage = Stage()
    keys: list[str] = []

    async def b(ctx: SagaContext) -> None:
        stage.log.append("b")
        keys.append(ctx.idempotency_key)

    builder = SagaBuilder("s").step("a", stage.does("a")).step("b", b, depends_on=["a"])
    builder.step("c", stage.does("c", NonRetryableError(), NonRetryableError()), depends_on=["b"])
    engine.register(builder.build())
    handle = engine.get((await engine.execute("s")).execution_id)

    await handle.retry(from_step="b", reason="b was wrong")
    await handle.result()
    await handle.retry(from_step=b, again=True, reason="b has to be made once more")
    assert (await handle.result()).succeeded
    assert stage.log == ["a", "b", "c", "b", "c", "b", "c"]
    assert (keys[0] == keys[1], keys[1] == keys[2]) == (True, False)


@pytest.mark.requirement("B15")
async def test_again_gives_a_step_that_failed_a_new_key(engine: Engine) -> None:
    """A receiver may remember by its key that it refused: under the same one it would refuse for ever."""
    refused: set[str | None] = set()

    async def pay(ctx: SagaContext) -> str:
        first = not refused
        if first or ctx.idempotency_key in refused:
            refused.add(ctx.idempotency_key)
            raise NonRetryableError("this key was refused")
        return "paid"

    engine.register(SagaBuilder("s", output="pay").step("pay", pay).build())
    handle = engine.get((await engine.execute("s")).execution_id)
    await handle.retry(from_step="pay", reason="the account is open again")
    assert (await handle.result()).status == "failed"
    await handle.retry(from_step="pay", again=True, reason="the bank remembers the key")
    assert (await handle.result()).output == "paid"


@pytest.mark.requirement("B15")
async def test_a_completed_step_that_is_not_safe_is_only_repeated_when_told_so(engine: Engine) -> None:
    stage = Stage()
    builder = SagaBuilder("s")
    builder.step("pay", stage.does("pay"), safety="not_safe_to_retry", compensation_policy="manual")
    builder.step("ship", stage.does("ship", NonRetryableError()), depends_on=["pay"])
    engine.register(builder.build())
    handle = engine.get((await engine.execute("s")).execution_id)

    with pytest.raises(InvalidTransition) as refused:
        await handle.retry(from_step="pay", reason="once more")
    assert refused.value.code == "not_safe"
    await handle.retry(from_step="pay", again=True, reason="the money came back")
    assert (await handle.result()).succeeded
    assert stage.log == ["pay", "ship", "pay", "ship"]


@pytest.mark.requirement("B15")
async def test_only_what_failed_can_be_run_again(engine: Engine) -> None:
    engine.register(BookTrip(), SagaBuilder("s").approval("ok").build())
    done = await engine.execute(BookTrip, Trip("Oslo"))
    with pytest.raises(InvalidTransition):
        await engine.get(done.execution_id).retry(reason="again")
    waiting = await engine.start("s")
    with pytest.raises(InvalidTransition):
        await waiting.retry(reason="again")
    failed = await engine.execute(BookTrip, Trip("nowhere"))
    with pytest.raises(NotFound):
        await engine.get(failed.execution_id).retry(from_step="train", reason="again")


@pytest.mark.requirement("B19")
async def test_an_execution_counts_its_runs(engine: Engine) -> None:
    stage = Stage()
    engine.register(one_step("s", stage.does("a", NonRetryableError(), NonRetryableError())).build())
    handle = await engine.start("s")
    for run in (1, 2):
        assert (await handle.result()).status == "failed"
        assert (await handle.status())["attempt_count"] == run
        await handle.retry(reason="again")
    assert (await handle.result()).succeeded
    assert (await handle.status())["attempt_count"] == 3


@pytest.mark.requirement("B15")
async def test_attempts_are_counted_anew_in_each_run(engine: Engine) -> None:
    stage = Stage()
    engine.register(one_step("s", stage.fails("a", TransientError()), retry=FAST).build())
    handle = await engine.start("s")
    await handle.result()
    await handle.retry(reason="again")
    result = await handle.result()
    assert (result.steps["work"].attempts, stage.count("a")) == (6, 6)
    assert [row["attempt_number"] for row in await handle.history()] == [1, 2, 3, 4, 5, 6]


@pytest.mark.requirement("B15")
async def test_a_retry_keeps_the_clones_that_are_done(engine: Engine) -> None:
    seen: list[int] = []
    broken = {1}

    async def work(item: int) -> int:
        seen.append(item)
        if item in broken:
            raise NonRetryableError
        return item

    engine.register(SagaBuilder("s").step("work", work, max_concurrency=1).build())
    handle = await engine.start("s", StepInputs({"work": ExpandEach([0, 1, 2])}))
    assert (await handle.result()).status == "failed"
    broken.clear()
    await handle.retry(reason="mended")
    result = await handle.result()
    assert (result.results_of("work"), seen) == ([0, 1, 2], [0, 1, 1, 2])


# -- What is kept ------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("B7")
async def test_every_attempt_is_a_row_that_never_changes(engine: Engine) -> None:
    stage = Stage()
    builder = SagaBuilder("s").step("a", stage.does("a"), compensate=stage.does("undo a"))
    builder.step("b", stage.fails("b", TransientError("no answer", code="gone")), depends_on=["a"], retry=FAST)
    engine.register(builder.build())
    handle = await engine.start("s")
    await handle.result()

    rows = await handle.history()

    told = [(row["step_id"], row["kind"], row["attempt_number"], row["status"]) for row in rows]
    assert told == [
        ("a", "forward", 1, "succeeded"),
        ("b", "forward", 1, "retrying"),
        ("b", "forward", 2, "retrying"),
        ("b", "forward", 3, "failed"),
        ("a", "compensation", 1, "succeeded"),
    ]
    assert len({row["step_execution_id"] for row in rows}) == len(rows)
    assert {row["execution_id"] for row in rows} == {handle.id}
    assert [row["error_class"] for row in rows] == [None, "TRANSIENT", "TRANSIENT", "TRANSIENT", None]
    assert {row["error_code"] for row in rows[1:4]} == {"gone"}
    assert {row["error_summary"] for row in rows[1:4]} == {"no answer"}
    assert [row["retry_after_at"] is not None for row in rows] == [False, True, True, False, False]
    assert rows[0]["result"] == "a"
    for row in rows:
        assert row["started_at"] is not None
        assert row["finished_at"] is not None
        assert row["started_at"] <= row["finished_at"]
        assert row["worker"]

    await handle.retry(reason="again")
    await handle.result()
    assert (await handle.history())[: len(rows)] == rows


@pytest.mark.requirement("B7")
async def test_history_tells_of_probes_people_and_what_was_skipped(engine: Engine) -> None:
    stage = Stage()

    async def look() -> Outcome[str]:
        return NotDone()

    builder = SagaBuilder("s").step("skipped", stage.does("x"), when="false").approval("ok").signal("paid", "paid")
    options: Any = {"safety": "not_safe_to_retry", "reconcile": look, "depends_on": ["ok", "paid"]}
    builder.step("pay", stage.does("pay", IndeterminateError()), **options)
    engine.register(builder.build())
    handle = await engine.start("s")
    await handle.signal("paid", 5)
    await handle.approve("ok", data={"by": "Ann"})
    assert (await handle.result()).succeeded

    told = [(row["step_id"], row["kind"], row["status"], row["result"]) for row in await handle.history()]
    assert told == [
        ("skipped", "forward", "skipped", None),
        ("paid", "forward", "succeeded", 5),
        ("ok", "forward", "succeeded", {"by": "Ann"}),
        ("pay", "forward", "retrying", None),
        ("pay", "reconcile", "succeeded", None),
        ("pay", "forward", "succeeded", "pay"),
    ]


@pytest.mark.requirement("B7")
async def test_what_runs_is_in_the_history_too(engine: Engine) -> None:
    gate = Stage().gate("a")
    engine.register(one_step("s", gate.pass_through).build())
    handle = await engine.start("s")
    await gate.reached.wait()
    (row,) = await handle.history()
    assert (row["status"], row["finished_at"]) == ("running", None)
    gate.open()
    await handle.result()


SECRETS = ["password=hunter2secret", "Bearer abcdef123456789", "ann@example.org", "4111 1111 1111 1111"]


@pytest.mark.requirement("B8")
async def test_an_error_is_kept_redacted_and_bounded(engine: Engine) -> None:
    async def leak() -> None:
        raise RuntimeError(f"refused: {'; '.join(SECRETS)} {'x' * 10_000}")

    engine.register(one_step("s", leak, retry=0).build())
    result = await engine.execute("s")

    summary = str(result.steps["work"].error)
    assert summary.startswith("RuntimeError: refused")
    assert not any(secret in summary for secret in SECRETS)
    assert len(summary.encode()) <= 2048
    (row,) = await engine.get(result.execution_id).history()
    assert (row["error_summary"], row["logs_ref"]) == (summary, None)


@pytest.mark.requirement("B8")
async def test_a_result_is_bounded(engine: Engine) -> None:
    async def large() -> str:
        return "x" * 1_000_000

    engine.register(one_step("s", large).build())
    result = await engine.execute("s")
    assert (result.steps["work"].error_class, result.steps["work"].error_code) == ("NON_RETRYABLE", "invalid_result")
    with pytest.raises(PayloadError):
        await engine.start("s", "x" * 1_000_000)


@pytest.mark.requirement("B21")
async def test_what_is_over_says_when_and_why(engine: Engine) -> None:
    engine.register(BookTrip(), SagaBuilder("s").signal("never", "never").build())
    done = await (await engine.start(BookTrip, Trip("Oslo"))).result()
    failed = await engine.execute(BookTrip, Trip("nowhere"))
    canceled = await engine.start("s")
    under_way = await canceled.status()
    assert (under_way["completed_at"], under_way["cancelled_at"], under_way["duration_ms"]) == (None, None, None)
    await canceled.cancel()
    await canceled.result()

    for id, status in ((done.execution_id, "succeeded"), (failed.execution_id, "failed"), (canceled.id, "canceled")):
        document = await engine.get(id).status()
        assert (document["status"], document["phase"]) == (status, "finished")
        assert document["completed_at"] is not None
        assert document["started_at"] <= document["completed_at"]
        assert document["cancelled_at"] == (document["completed_at"] if status == "canceled" else None)
        took = datetime.fromisoformat(document["completed_at"]) - datetime.fromisoformat(document["started_at"])
        assert document["duration_ms"] == took / timedelta(milliseconds=1)
    assert failed.error == {
        "error_class": "NON_RETRYABLE",
        "code": "no_such_place",
        "summary": "there is no such place",
        "step_id": "charge",
    }
    assert (await engine.get(failed.execution_id).status())["error"] == failed.error


# -- A lost worker -----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("B9")
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_lost_worker_is_taken_over_from(make_harness: MakeHarness, when: Any) -> None:
    """What was done stays done; what may have been under way and is safe is tried again, under the same key."""
    keys: list[str] = []

    async def b(ctx: SagaContext) -> str:
        keys.append(ctx.idempotency_key)
        return "b"

    stage = Stage()
    builder = SagaBuilder("s", output="c").step("a", stage.does("a")).step("b", b, depends_on=["a"])
    t = await make_harness(builder.step("c", stage.does("c"), depends_on=["b"]).build())
    t.crash("b", when=when)
    result = await t.execute("s")

    assert (result.output, stage.log) == ("c", ["a", "c"])
    assert len(keys) == (1 if when == "before" else 2)
    assert len(set(keys)) == 1
    lost = [row for row in await t.get(result.execution_id).history() if row["error_code"] == "worker_lost"]
    assert [row["step_id"] for row in lost] == ["b"]


@pytest.mark.requirement("B9")
async def test_an_undo_goes_on_after_a_lost_worker(make_harness: MakeHarness) -> None:
    stage = Stage()
    undo_b = stage.does("undo b")
    builder = SagaBuilder("s").step("a", stage.does("a"), compensate=stage.does("undo a"))
    builder.step("b", stage.does("b"), depends_on=["a"], compensate=undo_b)
    t = await make_harness(builder.step("c", stage.fails("c", NonRetryableError()), depends_on=["b"]).build())
    t.crash(undo_b, when="before")
    result = await t.execute("s")
    assert (result.status, result.compensated_steps) == ("failed", ["b", "a"])


@pytest.mark.requirement("B9")
async def test_a_step_that_kills_its_workers_fails(make_harness: MakeHarness) -> None:
    """Losses are bounded: input that kills workers ends in the dead letters, not in a loop."""
    stage = Stage()
    t = await make_harness(one_step("s", stage.does("a")).build())
    for _ in range(10):
        t.crash("work", when="before")
    result = await t.execute("s")
    assert (result.status, result.error and result.error["code"]) == ("failed", "worker_lost")
    assert len([row async for row in t.dlq()]) == 1


async def test_closing_waits_for_what_runs(make_engine: MakeEngine) -> None:
    stage = Stage()
    gate = stage.gate("a")
    engine = await make_engine(one_step("s", gate.pass_through).build(), shutdown_grace="10s")
    await engine.start("s")
    await gate.reached.wait()
    gate.open()
    await engine.close()
    assert stage.log == ["a"]


async def test_compensation_required_halts(engine: Engine) -> None:
    """Nothing is undone, and nothing goes on, until somebody says what to do."""
    stage = Stage()
    engine.register(chain("s", stage, "a", fails=CompensationRequiredError("half a transfer")).build())
    result = await engine.execute("s")
    assert (result.status, stage.log) == ("waiting_approval", ["a", "broken"])

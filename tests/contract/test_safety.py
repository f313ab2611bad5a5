"""Steps declare whether they may be repeated, and the engine keeps to it: guards, reconciles, and people."""

import threading
from datetime import timedelta
from typing import Any

import pytest

from tenuto import Done, Engine, NotDone, Outcome, Pending, Retry, SagaBuilder, SagaContext, Unknown
from tenuto.errors import (
    DefinitionError,
    DependencyFailedError,
    IndeterminateError,
    NonRetryableError,
    RateLimitedError,
    RetryableError,
    StepError,
    TransientError,
)

from .conftest import MakeHarness
from .doubles import Stage, until_blocked
from .sagas import FAST, one_step

RETRYABLE = [TransientError, RetryableError, RateLimitedError, DependencyFailedError]


def probe(stage: Stage, *answers: Outcome[Any] | Exception) -> Any:
    """A guard or reconcile that gives these answers in turn."""
    return stage.does("probe", *answers)


def unsafe(stage: Stage, work: Any, **options: Any) -> SagaBuilder:
    """One step that is not safe to retry, and one that comes after it."""
    builder = SagaBuilder("s", output="work").step("work", work, safety="not_safe_to_retry", **options)
    return builder.step("then", stage.does("then"), depends_on=["work"])


# -- Declarations ------------------------------------------------------------------------------------------------------

DECLARATIONS: list[tuple[dict[str, Any], str | None]] = [
    ({"safety": "safe_to_retry"}, None),
    ({"safety": "dangerous"}, "unknown_word"),
    ({"safety": "not_safe_to_retry"}, "unsafe"),
    ({"safety": "not_safe_to_retry", "compensate": Stage().does("undo")}, None),
    ({"safety": "not_safe_to_retry", "reconcile": Stage().does("probe")}, None),
    ({"safety": "not_safe_to_retry", "compensation_policy": "manual"}, None),
    ({"safety": "safe_to_retry_with_guard"}, "missing"),
    ({"safety": "safe_to_retry_with_guard", "guard": Stage().does("probe")}, None),
    ({"guard": Stage().does("probe")}, "not_allowed"),
]


@pytest.mark.requirement("C8")
@pytest.mark.parametrize(("options", "code"), DECLARATIONS, ids=range(len(DECLARATIONS)))
async def test_a_declaration_is_checked_when_it_is_registered(
    engine: Engine, options: dict[str, Any], code: str | None
) -> None:
    builder = one_step("s", Stage().does("a"), **options)
    if code is None:
        engine.register(builder)
        return
    with pytest.raises(DefinitionError) as refused:
        engine.register(builder)
    assert code in [problem.code for problem in refused.value.problems]


@pytest.mark.requirement("C8")
async def test_a_document_must_declare_it(engine: Engine) -> None:
    with pytest.raises(DefinitionError) as refused:
        await engine.apply({"name": "doc", "steps": [{"step_id": "a", "type": "task", "handler": "a"}]})
    assert [(problem.path, problem.code) for problem in refused.value.problems] == [
        ("/steps/0/idempotency_strategy", "missing")
    ]


# -- Guards ------------------------------------------------------------------------------------------------------------

FAILURES: list[Exception] = [TransientError(), RetryableError(), RateLimitedError(), IndeterminateError()]


@pytest.mark.requirement("C9")
@pytest.mark.parametrize("failure", FAILURES, ids=lambda error: type(error).__name__)
async def test_a_guard_is_asked_before_every_further_attempt(engine: Engine, failure: Exception) -> None:
    stage = Stage()
    work = stage.does("work", failure, failure, "made at last")
    guard = probe(stage, NotDone(), NotDone())
    engine.register(one_step("s", work, safety="safe_to_retry_with_guard", guard=guard, retry=FAST).build())

    result = await engine.execute("s")

    assert (result.output, result.steps["work"].attempts) == ("made at last", 3)
    assert stage.log == ["work", "probe", "work", "probe", "work"]


@pytest.mark.requirement("C9")
async def test_what_a_guard_found_done_is_not_made_again(engine: Engine) -> None:
    stage = Stage()
    work = stage.does("work", TransientError())
    options: Any = {"safety": "safe_to_retry_with_guard", "retry": FAST}
    engine.register(one_step("s", work, guard=probe(stage, Done("found")), **options).build())
    result = await engine.execute("s")
    assert (result.output, result.steps["work"].status) == ("found", "succeeded")
    assert stage.log == ["work", "probe"]


@pytest.mark.requirement("C9")
async def test_a_pending_guard_is_asked_again(engine: Engine) -> None:
    stage = Stage()
    options: Any = {"safety": "safe_to_retry_with_guard", "retry": FAST}
    answers = probe(stage, Pending(retry_after="1ms"), Pending(retry_after="1ms"), Done("found"))
    engine.register(one_step("s", stage.does("work", TransientError()), guard=answers, **options).build())
    assert (await engine.execute("s")).output == "found"
    assert stage.log == ["work", "probe", "probe", "probe"]


@pytest.mark.requirement("C9")
async def test_a_guard_that_does_not_know_asks_a_person(engine: Engine) -> None:
    stage = Stage()
    options: Any = {"safety": "safe_to_retry_with_guard", "retry": FAST}
    engine.register(
        one_step("s", stage.does("work", TransientError()), guard=probe(stage, Unknown("no log")), **options).build()
    )
    result = await engine.execute("s")
    assert result.status == "waiting_approval"
    assert result.blocked is not None
    assert (result.blocked["reason"], result.blocked["waiting_for"]) == ("review", "work")
    (review,) = [row async for row in engine.reviews()]
    assert (review["kind"], review["step_id"]) == ("indeterminate", "work")


@pytest.mark.requirement("C9")
async def test_a_refusal_needs_no_guard(engine: Engine) -> None:
    stage = Stage()
    options: Any = {"safety": "safe_to_retry_with_guard", "guard": probe(stage)}
    engine.register(one_step("s", stage.fails("work", NonRetryableError()), **options).build())
    assert (await engine.execute("s")).status == "failed"
    assert stage.log == ["work"]


@pytest.mark.requirement("C9")
async def test_when_attempts_are_spent_a_guard_is_not_asked_in_vain(engine: Engine) -> None:
    stage = Stage()
    options: Any = {"safety": "safe_to_retry_with_guard", "retry": Retry(2, initial="1ms")}
    engine.register(
        one_step("s", stage.fails("work", TransientError()), guard=probe(stage, NotDone()), **options).build()
    )
    assert (await engine.execute("s")).status == "failed"
    assert stage.log == ["work", "probe", "work"]


@pytest.mark.requirement("C9")
async def test_a_guard_is_asked_after_a_timeout_and_a_lost_worker(make_harness: MakeHarness) -> None:
    stage = Stage()
    slow = stage.gate("work")
    options: Any = {"safety": "safe_to_retry_with_guard", "timeout": "1s", "retry": FAST}
    t = await make_harness(one_step("s", slow.pass_through, guard=probe(stage, Done("found")), **options).build())
    handle = await t.start("s")
    await t.advance("2s")
    assert (await handle.result()).output == "found"

    lost = await make_harness(one_step("s", stage.does("work"), guard=probe(stage, Done("found")), **options).build())
    lost.crash("work", when="after")
    assert (await lost.execute("s")).output == "found"
    assert lost.calls("work") == 1


# -- What is never repeated --------------------------------------------------------------------------------------------


@pytest.mark.requirement("C10")
@pytest.mark.parametrize("error", RETRYABLE, ids=lambda error: error.error_class)
async def test_a_step_that_is_not_safe_is_never_retried_after_a_failure(engine: Engine, error: Any) -> None:
    """Not even when its policy has attempts left: a person decides, for it has no undo."""
    stage = Stage()
    work = stage.fails("work", error())
    engine.register(unsafe(stage, work, compensation_policy="manual", retry=Retry(5, initial="1ms")).build())
    result = await engine.execute("s")

    assert (result.status, stage.log) == ("waiting_approval", ["work"])
    (review,) = [row async for row in engine.reviews()]
    assert (review["kind"], review["step_id"]) == ("compensation", "work")
    assert result.blocked is not None
    assert result.blocked["reason"] == "review"


@pytest.mark.requirement("C10")
@pytest.mark.parametrize("error", RETRYABLE, ids=lambda error: error.error_class)
async def test_with_an_undo_it_is_undone_and_fails(engine: Engine, error: Any) -> None:
    stage = Stage()
    engine.register(unsafe(stage, stage.fails("work", error()), compensate=stage.does("undo")).build())
    result = await engine.execute("s")
    assert (result.status, stage.log) == ("failed", ["work", "undo"])
    assert len([row async for row in engine.dlq()]) == 1


@pytest.mark.requirement("C10")
async def test_a_refusal_is_a_refusal_and_is_not_undone(engine: Engine) -> None:
    stage = Stage()
    engine.register(unsafe(stage, stage.fails("work", NonRetryableError()), compensate=stage.does("undo")).build())
    result = await engine.execute("s")
    assert (result.status, stage.log) == ("failed", ["work"])


UNKNOWN: list[Exception] = [IndeterminateError(), RuntimeError("an exception that is in no table")]


@pytest.mark.requirement("C10")
@pytest.mark.parametrize("error", UNKNOWN, ids=lambda error: type(error).__name__)
async def test_an_unknown_outcome_goes_to_a_person(engine: Engine, error: Exception) -> None:
    stage = Stage()
    work = stage.fails("work", error)
    engine.register(unsafe(stage, work, compensate=stage.does("undo"), retry=Retry(5, initial="1ms")).build())
    result = await engine.execute("s")
    assert (result.status, stage.log) == ("waiting_approval", ["work"])
    assert result.steps["work"].error_class == "INDETERMINATE"
    assert [row["kind"] async for row in engine.reviews()] == ["indeterminate"]


@pytest.mark.requirement("C10")
async def test_neither_after_a_timeout(make_harness: MakeHarness) -> None:
    stage = Stage()
    slow = stage.gate("work")
    t = await make_harness(
        unsafe(stage, slow.pass_through, timeout="5s", compensate=stage.does("undo"), retry=3).build()
    )
    handle = await t.start("s")
    await t.advance("1h")
    result = await handle.result()
    assert (result.status, t.calls("work"), stage.log) == ("waiting_approval", 1, [])
    assert [row["kind"] async for row in t.reviews()] == ["indeterminate"]


@pytest.mark.requirement("C10")
async def test_nor_after_a_lost_worker(make_harness: MakeHarness) -> None:
    stage = Stage()
    t = await make_harness(unsafe(stage, stage.does("work"), compensate=stage.does("undo"), retry=3).build())
    t.crash("work", when="after")
    result = await t.execute("s")
    assert (result.status, stage.log) == ("waiting_approval", ["work"])
    assert [row["kind"] async for row in t.reviews()] == ["indeterminate"]


@pytest.mark.requirement("C10")
async def test_a_late_answer_still_counts_until_something_else_is_known(make_harness: MakeHarness) -> None:
    """A thread that ends after its time: its own answer is the best there is, and the review is closed by it."""
    opened, ended = threading.Event(), threading.Event()

    def slow() -> str:
        assert opened.wait(60)
        ended.set()
        return "made after all"

    t = await make_harness(unsafe(Stage(), slow, timeout="5s", compensation_policy="manual").build())
    handle = await t.start("s")
    await t.advance("6s")
    assert (await handle.result()).status == "waiting_approval"
    opened.set()
    result = await handle.result(return_when="terminal")
    assert result.output == "made after all"
    assert [row async for row in t.reviews()] == []


@pytest.mark.requirement("C10")
async def test_a_new_round_does_not_repeat_it(make_harness: MakeHarness) -> None:
    """A scope that is retried takes the stored result of what is completed and not safe."""
    stage = Stage()
    builder = SagaBuilder("s")
    builder.step("pay", stage.does("pay"), safety="not_safe_to_retry", compensation_policy="manual")
    builder.step("ship", stage.does("ship", TransientError()), retry=0)
    t = await make_harness(builder.group("task", "pay", "ship", failure_mode="retry").build())
    assert (await t.execute("s")).succeeded
    assert stage.log == ["pay", "ship", "ship"]


# -- Reconciles --------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("C11")
async def test_an_unknown_outcome_is_reconciled_before_anything_is_decided(engine: Engine) -> None:
    stage = Stage()
    keys: list[tuple[str, str]] = []

    async def work(ctx: SagaContext) -> str:
        stage.log.append("work")
        keys.append((ctx.idempotency_key, ctx.forward_key))
        raise IndeterminateError("no answer")

    async def look(ctx: SagaContext) -> Outcome[str]:
        stage.log.append("look")
        keys.append((ctx.idempotency_key, ctx.forward_key))
        return Done("found")

    engine.register(unsafe(stage, work, reconcile=look).build())
    result = await engine.execute("s")

    assert (result.output, stage.log) == ("found", ["work", "look", "then"])
    (sent, same), (asked, forward) = keys
    assert sent == same == forward, "effects are looked up by the key that the step sent"
    assert asked != sent, "which is not the key of the question"


@pytest.mark.requirement("C11")
async def test_not_done_permits_another_attempt_within_its_bound(engine: Engine) -> None:
    stage = Stage()
    work = stage.does("work", IndeterminateError(), IndeterminateError(), "made")
    engine.register(unsafe(stage, work, reconcile=probe(stage, NotDone(), NotDone()), retry=FAST).build())
    result = await engine.execute("s")
    assert (result.output, stage.log) == ("made", ["work", "probe", "work", "probe", "work", "then"])


@pytest.mark.requirement("C11")
@pytest.mark.parametrize("error", RETRYABLE)
async def test_a_failure_that_leaves_the_outcome_open_is_reconciled_before_a_person_is_asked(
    make_harness: MakeHarness, error: type[StepError]
) -> None:
    stage = Stage()
    work = stage.does("work", error("vendor is down"), error("vendor is down"), "made")
    t = await make_harness(unsafe(stage, work, reconcile=probe(stage, NotDone(), NotDone())).build())
    result = await t.execute("s")
    assert (result.output, stage.log) == ("made", ["work", "probe", "work", "probe", "work", "then"])


@pytest.mark.requirement("C11")
@pytest.mark.parametrize("error", RETRYABLE)
async def test_the_result_of_an_effect_that_was_made_despite_the_failure_is_taken(
    make_harness: MakeHarness, error: type[StepError]
) -> None:
    stage = Stage()
    work = stage.fails("work", error("no answer"))
    t = await make_harness(unsafe(stage, work, reconcile=probe(stage, Pending(), Done("found"))).build())
    assert (await t.execute("s")).output == "found"
    assert stage.log == ["work", "probe", "probe", "then"]


@pytest.mark.requirement("C11")
async def test_not_done_when_attempts_are_spent_fails(engine: Engine) -> None:
    stage = Stage()
    work = stage.fails("work", IndeterminateError())
    engine.register(unsafe(stage, work, reconcile=probe(stage, NotDone(), NotDone()), retry=1).build())
    result = await engine.execute("s")
    assert (result.status, stage.log) == ("failed", ["work", "probe", "work", "probe"])
    assert [row["step_id"] async for row in engine.dlq()] == ["work"]


@pytest.mark.requirement("C11")
async def test_unknown_goes_to_review_with_its_reason(engine: Engine) -> None:
    stage = Stage()
    engine.register(
        unsafe(
            stage, stage.fails("work", IndeterminateError()), reconcile=probe(stage, Unknown("bank is down"))
        ).build()
    )
    result = await engine.execute("s")
    assert result.status == "waiting_approval"
    assert result.steps["work"].error == "bank is down"


@pytest.mark.requirement("C11")
async def test_a_reconcile_that_fails_is_asked_again(make_harness: MakeHarness) -> None:
    stage = Stage()
    answers = probe(stage, ConnectionError("bank"), Done("found"))
    t = await make_harness(unsafe(stage, stage.fails("work", IndeterminateError()), reconcile=answers).build())
    assert (await t.execute("s")).output == "found"
    assert stage.count("probe") == 2


@pytest.mark.requirement("C11")
async def test_a_lost_attempt_is_reconciled_when_it_can_no_longer_be_under_way(make_harness: MakeHarness) -> None:
    """Not before its timeout and one lease have passed: a frozen worker may still be about to make the effect."""
    stage = Stage()
    t = await make_harness(
        unsafe(stage, stage.does("work"), timeout="30s", reconcile=probe(stage, Done("found"))).build()
    )
    t.crash("work", when="after")
    result = await t.execute("s")
    assert (result.output, stage.log) == ("found", ["work", "probe", "then"])
    assert t.elapsed >= timedelta(seconds=30)


@pytest.mark.requirement("C11")
async def test_what_never_began_simply_runs(make_harness: MakeHarness) -> None:
    """Granted, but not yet begun when the worker was lost: that it was not made is proven."""
    stage = Stage()
    builder = SagaBuilder("s").step("other", stage.does("other"))
    options: Any = {"safety": "not_safe_to_retry", "reconcile": probe(stage), "limits": ["bank"]}
    t = await make_harness(builder.step("work", stage.does("work"), **options).build())
    await t.limit("bank", rate="1/h")
    await t.execute("s")
    stage.log.clear()

    t.crash("other", when="after")  # meanwhile `work` is granted, and waits for the limit
    assert (await t.execute("s")).succeeded
    assert sorted(stage.log) == ["other", "other", "work"]


@pytest.mark.requirement("C12")
async def test_a_business_refusal_is_undone_and_not_retried(engine: Engine) -> None:
    stage = Stage()

    class OutOfStock(Exception): ...

    builder = SagaBuilder("s", classify={OutOfStock: "NON_RETRYABLE"})
    builder.step("reserve", stage.does("reserve"), compensate=stage.does("release"))
    builder.step("pay", stage.fails("pay", OutOfStock()), depends_on=["reserve"], retry=Retry(5, initial="1ms"))
    engine.register(builder.build())
    result = await engine.execute("s")
    assert (result.status, stage.log) == ("failed", ["reserve", "pay", "release"])


@pytest.mark.requirement("C13")
async def test_a_pending_answer_is_asked_again_until_it_is_definite(make_harness: MakeHarness) -> None:
    """202: not paid yet. `retry_after` says when to ask again."""
    stage = Stage()
    answers = probe(stage, Pending(retry_after="10s"), Pending(retry_after="20s"), Done("paid"))
    t = await make_harness(unsafe(stage, stage.fails("work", IndeterminateError()), reconcile=answers).build())
    handle = await t.start("s")
    await t.advance("1s")
    blocked = (await handle.status())["blocked"]
    assert blocked is not None
    assert (blocked["reason"], blocked["waiting_for"]) == ("reconcile", "work")

    assert (await handle.result()).output == "paid"
    assert (stage.count("probe"), stage.count("work"), t.elapsed) == (3, 1, timedelta(seconds=30))


@pytest.mark.requirement("C13")
async def test_pending_without_a_time_is_asked_again_with_backoff(make_harness: MakeHarness) -> None:
    stage = Stage()
    answers = probe(stage, *[Pending()] * 4, Done("paid"))
    t = await make_harness(unsafe(stage, stage.fails("work", IndeterminateError()), reconcile=answers).build())
    assert (await t.execute("s")).output == "paid"
    assert timedelta(seconds=13) < t.elapsed < timedelta(seconds=17), "1 s, 2 s, 4 s, 8 s, ±10 %"


@pytest.mark.requirement("C13")
@pytest.mark.parametrize(("deadline", "given_up_after"), [(None, "15m"), ("1m", "1m")])
async def test_what_stays_pending_goes_to_review(
    make_harness: MakeHarness, deadline: str | None, given_up_after: str
) -> None:
    """At the step's deadline, or after a quarter of an hour."""
    stage = Stage()

    async def look() -> Outcome[str]:
        return Pending(retry_after="10s")

    work = stage.fails("work", IndeterminateError())
    t = await make_harness(unsafe(stage, work, reconcile=look, deadline=deadline, timeout="5s").build())
    result = await t.execute("s")
    assert result.status == "waiting_approval"
    assert [row["kind"] async for row in t.reviews()] == ["indeterminate"]
    assert t.elapsed == {"15m": timedelta(minutes=15), "1m": timedelta(minutes=1)}[given_up_after]


@pytest.mark.requirement("C11")
async def test_a_cancel_waits_for_what_a_reconcile_finds(engine: Engine) -> None:
    """Seed 3: cancel while the payment is unknown. Done makes it a completed step, to be undone."""
    for answer, log in ((Done("paid"), ["work", "undo"]), (NotDone(), ["work"])):
        stage = Stage()
        gate = stage.gate("look", answer)
        name = f"s-{type(answer).__name__}"
        builder = SagaBuilder(name)
        options: Any = {"safety": "not_safe_to_retry", "reconcile": gate.pass_through, "compensate": stage.does("undo")}
        builder.step("work", stage.fails("work", IndeterminateError()), **options)
        engine.register(builder.build())
        handle = await engine.start(name)
        await gate.reached.wait()
        await handle.cancel()
        assert (await handle.status())["cancel_requested"]
        gate.open()
        result = await handle.result()
        assert (result.status, [each for each in stage.log if each != "look"]) == ("canceled", log)


@pytest.mark.requirement("C11")
async def test_terminating_an_unknown_effect_leaves_a_question(engine: Engine) -> None:
    """The execution is over; what became of the effect is still to be found out, and can only be recorded."""
    stage = Stage()
    slow = stage.gate("work")
    engine.register(unsafe(stage, slow.pass_through, compensate=stage.does("undo")).build())
    handle = await engine.start("s")
    await slow.reached.wait()
    await handle.cancel("terminate")
    assert (await handle.result()).status == "canceled"

    (review,) = [row async for row in engine.reviews()]
    assert (review["kind"], review["execution_id"]) == ("indeterminate", handle.id)
    await engine.resolve(review["id"], "completed", result="x", reason="found it in the ledger")
    assert [row async for row in engine.reviews()] == []
    assert ((await handle.status())["status"], stage.log) == ("canceled", [])


async def test_an_unknown_outcome_shows_as_blocked_until_somebody_decides(engine: Engine) -> None:
    stage = Stage()
    engine.register(unsafe(stage, stage.fails("work", IndeterminateError()), compensation_policy="manual").build())
    handle = await engine.start("s")
    blocked = await until_blocked(handle, "review")
    assert blocked["commands"] == ["resolve:completed", "resolve:not_completed", "resolve:dismiss", "cancel"]

"""Whatever waits for a person: approvals, reviews, dead letters; and signals and timers, which wait for the world."""

from datetime import datetime, timedelta
from typing import Annotated, Any

import pytest

from tenuto import Engine, FromStep, Retry, SagaBuilder
from tenuto.errors import (
    CompensationRequiredError,
    IndeterminateError,
    InvalidInput,
    InvalidTransition,
    NonRetryableError,
    NotFound,
    TransientError,
)

from .conftest import MakeHarness
from .doubles import Stage, until, until_blocked
from .sagas import FAST, chain, one_step

# -- Approvals ---------------------------------------------------------------------------------------------------------


def approved(stage: Stage, **options: Any) -> object:
    async def then(decision: Annotated[Any, FromStep("ok")]) -> Any:
        stage.log.append("then")
        return decision

    builder = SagaBuilder("s", output="then").step("a", stage.does("a"), compensate=stage.does("undo a"))
    return builder.approval("ok", depends_on=["a"], **options).step("then", then).build()


@pytest.mark.requirement("I1")
async def test_an_approval_waits_for_a_person(engine: Engine) -> None:
    stage = Stage()
    engine.register(approved(stage, permission="invoices:approve"))
    result = await engine.execute("s")

    assert (result.status, stage.log, result.steps["ok"].status) == ("waiting_approval", ["a"], "awaiting_approval")
    (review,) = [row async for row in engine.reviews()]
    assert result.blocked is not None
    assert result.blocked["review_id"] == review["id"]
    assert review == {
        "id": review["id"],
        "kind": "approval",
        "execution_id": result.execution_id,
        "step_id": "ok",
        "path": "ok",
        "reason": "approval",
        "permission": "invoices:approve",
        "opened_at": review["opened_at"],
        "due_at": None,
        "state": "open",
        "requests": [],
    }


@pytest.mark.requirement("I1")
@pytest.mark.parametrize("step", ["nope", "ok#ada", "nope#x@y", "a"])
async def test_what_does_not_wait_cannot_be_approved(engine: Engine, step: str) -> None:
    engine.register(approved(Stage()))
    handle = await engine.start("s")
    await until_blocked(handle, "approval")
    with pytest.raises(InvalidTransition):
        await handle.approve(step)


@pytest.mark.requirement("I1")
async def test_approving_goes_on_with_the_data_that_came_along(engine: Engine) -> None:
    engine.register(approved(Stage()))
    handle = await engine.start("s")
    await until_blocked(handle, "approval")
    await handle.approve("ok", comment="fine", data={"limit": 5})
    assert (await handle.result()).output == {"limit": 5}
    assert [row async for row in engine.reviews()] == []


@pytest.mark.requirement("I1")
async def test_without_data_the_result_says_who_approved(engine: Engine) -> None:
    engine.register(approved(Stage()))
    handle = await engine.start("s", tenant="acme")
    await until_blocked(handle, "approval")
    ann = engine.scoped(tenant="acme", actor="user:ann", roles=["approver"])
    await ann.get(handle.id).approve("ok", comment="fine")
    assert (await handle.result()).output == {"approved": True, "by": "user:ann", "comment": "fine"}


@pytest.mark.requirement("I1")
@pytest.mark.parametrize("way", ["approve", "reject", "resolve"])
async def test_who_decides_is_recorded_and_audited(engine: Engine, way: str) -> None:
    assert [row async for row in engine.audit.rows()] == []
    engine.register(approved(Stage()))
    handle = await engine.start("s")
    blocked = await until_blocked(handle, "approval")
    if way == "resolve":
        await engine.resolve(blocked["review_id"], "approved", actor="ann")
    else:
        await getattr(handle, way)("ok", actor="ann")
    result = await handle.result()
    if way != "reject":
        assert result.output == {"approved": True, "by": "ann", "comment": ""}
    action = "review.rejected" if way == "reject" else "review.approved"
    rows = [row async for row in engine.audit.rows(action=action)]
    assert [(row["actor"], row["object_id"]) for row in rows] == [("ann", blocked["review_id"])]
    page = await engine.listing.events(handle.id, limit=100)
    assert {event["actor"] for event in page.items} == {None, "ann"}


@pytest.mark.requirement("I1")
async def test_a_scoped_engine_decides_for_its_own_actor_alone(engine: Engine) -> None:
    engine.register(approved(Stage()))
    ann = engine.scoped(tenant="default", actor="ann", roles=["admin"])
    handle = await ann.start("s")
    blocked = await until_blocked(handle, "approval")
    for decision in (
        handle.approve("ok", actor="bob"),
        handle.reject("ok", actor="bob"),
        ann.resolve(blocked["review_id"], "approved", actor="bob"),
    ):
        with pytest.raises(InvalidInput) as refused:
            await decision
        assert refused.value.problems[0].code == "other_actor"
    await handle.approve("ok", actor="ann")
    assert (await handle.result()).output["by"] == "ann"


@pytest.mark.requirement("I1")
async def test_rejecting_fails_and_undoes(engine: Engine) -> None:
    stage = Stage()
    engine.register(approved(stage))
    handle = await engine.start("s")
    await until_blocked(handle, "approval")
    await handle.reject("ok", comment="too dear")
    result = await handle.result()
    assert (result.status, stage.log) == ("failed", ["a", "undo a"])
    assert (result.steps["ok"].status, result.steps["ok"].error) == ("failed", "too dear")


@pytest.mark.requirement("I1")
@pytest.mark.parametrize("first", ["approve", "reject"])
@pytest.mark.parametrize("second", ["approve", "reject"])
async def test_a_decision_is_made_once(engine: Engine, first: str, second: str) -> None:
    builder = SagaBuilder("s").approval("ok").signal("never", "never")
    engine.register(builder.build())
    handle = await engine.start("s")
    await until(handle, lambda found: found["steps"][0]["status"] == "awaiting_approval")
    await getattr(handle, first)("ok")
    before = (await handle.status())["steps"][0]

    with pytest.raises(InvalidTransition):
        await getattr(handle, second)("ok")
    assert (await handle.status())["steps"][0] == before


@pytest.mark.requirement("I1")
async def test_a_review_can_be_resolved_by_its_id(engine: Engine) -> None:
    engine.register(approved(Stage()))
    for word, status in (("approved", "succeeded"), ("completed", "succeeded"), ("rejected", "failed")):
        handle = await engine.start("s")
        blocked = await until_blocked(handle, "approval")
        resolution: Any = word
        await engine.resolve(blocked["review_id"], resolution, reason="by id")
        assert (await handle.result()).status == status


@pytest.mark.requirement("I1")
async def test_an_approval_that_nobody_gives_before_a_cancel_is_canceled(engine: Engine) -> None:
    engine.register(approved(Stage()))
    handle = await engine.start("s")
    await until_blocked(handle, "approval")
    await handle.cancel()
    assert (await handle.result()).status == "canceled"
    (row,) = [row for row in await handle.history() if row["step_id"] == "ok"]
    assert (row["status"], row["error_code"]) == ("canceled", None)
    assert row["finished_at"] is not None


@pytest.mark.requirement("I1")
async def test_an_approval_that_nobody_gives_in_time_fails(make_harness: MakeHarness) -> None:
    stage = Stage()
    t = await make_harness(approved(stage, deadline="24h"))
    handle = await t.start("s")
    await t.advance("1s")
    (review,) = [row async for row in t.reviews()]
    due = datetime.fromisoformat(review["due_at"] or "") - datetime.fromisoformat(review["opened_at"])
    assert due == timedelta(hours=24)

    await t.advance("25h")
    result = await handle.result()
    assert (result.status, result.steps["ok"].status) == ("failed", "timed_out")
    (row,) = [row for row in await handle.history() if row["step_id"] == "ok"]
    assert (row["status"], row["error_code"]) == ("timed_out", "approval_timeout")
    assert stage.log == ["a", "undo a"]
    with pytest.raises((InvalidTransition, NotFound)):
        await handle.approve("ok")


@pytest.mark.requirement("I1")
async def test_approvals_wait_beside_other_work(engine: Engine) -> None:
    """`waiting_approval` is only what can do nothing else."""
    gate = Stage().gate("other")
    engine.register(SagaBuilder("s").approval("ok").step("other", gate.pass_through).build())
    handle = await engine.start("s")
    await gate.reached.wait()
    document = await handle.status()
    assert (document["status"], document["blocked"]) == ("running", None)
    assert document["steps"][0]["status"] == "awaiting_approval"
    gate.open()
    await until_blocked(handle, "approval")
    assert (await handle.status())["status"] == "waiting_approval"
    await handle.approve("ok")
    assert (await handle.result()).succeeded


@pytest.mark.requirement("I1")
async def test_what_was_not_asked_cannot_be_answered(engine: Engine) -> None:
    engine.register(approved(Stage()))
    handle = await engine.start("s")
    await until_blocked(handle, "approval")
    for step in ("a", "then", "nobody"):
        with pytest.raises((InvalidTransition, NotFound)):
            await handle.approve(step)
    with pytest.raises((InvalidTransition, NotFound)):
        await engine.resolve(f"{handle.id}.999", "approved")


# -- Reviews -----------------------------------------------------------------------------------------------------------

# What may be said of a step whose outcome nobody knows, and what follows: status, and what was done after it.
UNKNOWN: dict[Any, tuple[str, list[str]]] = {
    "completed": ("succeeded", ["then"]),
    "not_completed": ("succeeded", ["work", "then"]),  # so it is tried again
    "retry": ("succeeded", ["work", "then"]),
    "compensate": ("failed", ["undo work", "undo a"]),
    "dismiss": ("failed", ["undo a"]),
}


@pytest.mark.parametrize("word", UNKNOWN)
async def test_a_person_says_what_became_of_an_unknown_effect(engine: Engine, word: Any) -> None:
    stage = Stage()
    builder = SagaBuilder("s", output="work").step("a", stage.does("a"), compensate=stage.does("undo a"))
    options: Any = {"safety": "not_safe_to_retry", "compensate": stage.does("undo work"), "depends_on": ["a"]}
    builder.step("work", stage.does("work", IndeterminateError()), **options)
    engine.register(builder.step("then", stage.does("then"), depends_on=["work"]).build())
    handle = await engine.start("s")
    blocked = await until_blocked(handle, "review")
    stage.log.clear()

    await engine.resolve(blocked["review_id"], word, result="as found" if word == "completed" else None, reason="asked")
    result = await handle.result()

    assert (result.status, stage.log) == UNKNOWN[word]
    if word == "completed":
        assert result.output == "as found"
    assert [row["kind"] async for row in engine.reviews() if row["kind"] != "dead_letter"] == []


async def test_a_review_is_resolved_once_and_only_by_words_that_fit(engine: Engine) -> None:
    unsafe: Any = {"safety": "not_safe_to_retry", "compensate": Stage().does("undo")}
    engine.register(one_step("s", Stage().fails("a", IndeterminateError()), **unsafe).build())
    result = await engine.execute("s")
    assert result.blocked is not None
    review = result.blocked["review_id"]
    assert review is not None
    with pytest.raises(InvalidTransition) as refused:
        await engine.resolve(review, "approved")
    assert refused.value.code == "bad_resolution"
    await engine.resolve(review, "compensate", reason="asked")
    assert (await engine.get(result.execution_id).result()).status == "failed"
    with pytest.raises((InvalidTransition, NotFound)):
        await engine.resolve(review, "compensate", reason="asked")


async def test_reviews_are_listed_together_and_filtered(engine: Engine) -> None:
    stage = Stage()
    engine.register(
        SagaBuilder("asks").approval("ok").build(),
        one_step("halts", stage.fails("x", CompensationRequiredError())).build(),
        one_step(
            "unknown", stage.fails("x", IndeterminateError()), safety="not_safe_to_retry", compensate=stage.does("u")
        ).build(),
        one_step("dead", stage.fails("x", NonRetryableError())).build(),
    )
    for name in ("asks", "halts", "unknown", "dead"):
        await engine.execute(name)

    kinds = sorted([row["kind"] async for row in engine.reviews()])
    assert kinds == ["approval", "compensation", "dead_letter", "indeterminate"]
    assert [row["step_id"] async for row in engine.reviews(kind="dead_letter")] == ["work"]
    assert [row["step_id"] async for row in engine.reviews(kind="approval")] == ["ok"]
    assert [row["kind"] async for row in engine.reviews(definition="halts")] == ["compensation"]


async def test_an_escalation_pauses_until_a_person_has_looked(make_harness: MakeHarness) -> None:
    """When errors pile up, as the definition says. There is nothing more that the engine does by itself."""
    stage = Stage()
    for word in ("retry", "resume"):
        t = await make_harness()
        t.handler("a", stage.does("a", *[TransientError("no network")] * 4))
        task = {"step_id": "a", "handler": "a", "idempotency_strategy": "SAFE_TO_RETRY"}
        policies = {"escalation": {"errors": 2}}
        await t.apply({"name": "doc", "steps": [{**task, "retry_policy": {"max_attempts": 9}}], "policies": policies})
        result = await t.execute("doc")
        handle = t.get(result.execution_id)

        assert (result.status, result.blocked and result.blocked["reason"]) == ("paused", "paused")
        assert (await handle.status())["pause_reason"] == "escalated"
        (review,) = [row async for row in t.reviews()]
        assert (review["kind"], result.blocked and result.blocked["review_id"]) == ("escalation", review["id"])
        await (handle.resume() if word == "resume" else t.resolve(review["id"], "retry", reason="the network is back"))
        assert [row async for row in t.reviews()] == []
        assert (await handle.result()).succeeded


# -- Dead letters ------------------------------------------------------------------------------------------------------

DEAD: dict[str, tuple[Exception, int]] = {
    "exhausted": (TransientError("busy"), 3),
    "refused": (NonRetryableError("no"), 1),
    "unclassified": (RuntimeError("what"), 3),
}


@pytest.mark.requirement("I3")
@pytest.mark.parametrize("why", DEAD)
async def test_what_fails_for_good_is_a_dead_letter(engine: Engine, why: str) -> None:
    error, attempts = DEAD[why]
    engine.register(one_step("s", Stage().fails("a", error), retry=FAST).build())
    result = await engine.execute("s")

    (letter,) = [row async for row in engine.dlq()]
    work = result.steps["work"]
    assert letter == {
        "id": letter["id"],
        "execution_id": result.execution_id,
        "step_id": "work",
        "path": "work",
        "error_class": work.error_class,
        "error_summary": work.error,
        "attempts": attempts,
        "created_at": letter["created_at"],
        "state": "open",
        "requests": [],
    }
    assert [row["id"] async for row in engine.reviews()] == [letter["id"]]


@pytest.mark.requirement("I3")
async def test_compensation_required_is_a_review_and_then_a_dead_letter(engine: Engine) -> None:
    stage = Stage()
    engine.register(chain("s", stage, "a", fails=CompensationRequiredError("half")).build())
    result = await engine.execute("s")
    assert [row async for row in engine.dlq()] == []
    (review,) = [row async for row in engine.reviews()]
    assert (review["kind"], review["step_id"]) == ("compensation", "broken")
    await engine.resolve(review["id"], "not_completed", reason="not in the books")
    assert (await engine.get(result.execution_id).result()).status == "failed"
    assert [row["error_class"] async for row in engine.dlq()] == ["COMPENSATION_REQUIRED"]


@pytest.mark.requirement("I3")
async def test_neither_success_nor_cancel_nor_an_edge_makes_one(engine: Engine) -> None:
    stage = Stage()
    engine.register(chain("done", stage, "a").build(), SagaBuilder("canceled").signal("never", "never").build())
    engine.handler("fail", stage.fails("x", NonRetryableError()))
    engine.handler("tell", stage.does("tell"))
    task = {"type": "task", "idempotency_strategy": "SAFE_TO_RETRY"}
    edge = {**task, "step_id": "a", "handler": "fail", "on_failure": "tell"}
    await engine.apply({"name": "edge", "steps": [edge, {**task, "step_id": "tell", "handler": "tell"}]})
    await engine.execute("done")
    canceled = await engine.start("canceled")
    await canceled.cancel()
    assert (await engine.execute("edge")).succeeded
    await canceled.result()
    assert [row async for row in engine.dlq()] == []


@pytest.mark.requirement("I3")
async def test_dead_letters_are_filtered_dismissed_and_run_again(engine: Engine) -> None:
    stage = Stage()
    engine.register(
        one_step("one", stage.does("one", NonRetryableError("no"))).build(),
        one_step("two", stage.fails("two", TransientError("busy")), retry=0).build(),
    )
    for name in ("one", "two"):
        await engine.execute(name)
    assert [row["error_summary"] async for row in engine.dlq()] == ["no", "busy"]
    assert [row["error_summary"] async for row in engine.dlq(error_class="TRANSIENT")] == ["busy"]
    (first,) = [row async for row in engine.dlq(definition="one")]

    await engine.resolve(first["id"], "retry", reason="mended")
    assert (await engine.get(first["execution_id"]).result()).succeeded
    (second,) = [row async for row in engine.dlq()]
    await engine.resolve(second["id"], "dismiss", reason="too old")
    assert [row async for row in engine.dlq()] == []
    assert (await engine.get(second["execution_id"]).status())["status"] == "failed", "which it stays"


@pytest.mark.requirement("I3")
async def test_a_retry_closes_the_dead_letter_and_another_failure_opens_one(engine: Engine) -> None:
    engine.register(one_step("s", Stage().fails("a", NonRetryableError())).build())
    handle = await engine.start("s")
    await handle.result()
    (first,) = [row async for row in engine.dlq()]
    await handle.retry(reason="again")
    await handle.result()
    (second,) = [row async for row in engine.dlq()]
    assert first["id"] != second["id"]


# -- Signals and timers ------------------------------------------------------------------------------------------------


async def test_a_signal_that_comes_late_ends_the_wait(engine: Engine) -> None:
    engine.register(SagaBuilder("s", output="paid").signal("paid", "payment").build())
    handle = await engine.start("s")
    blocked = await until_blocked(handle, "signal")
    assert (blocked["waiting_for"], blocked["commands"]) == ("payment", ["signal", "cancel"])
    await handle.signal("payment", {"cents": 5})
    assert (await handle.result()).output == {"cents": 5}


async def test_a_signal_that_comes_early_is_kept(engine: Engine) -> None:
    gate = Stage().gate("first")
    builder = SagaBuilder("s", output="paid").step("first", gate.pass_through)
    engine.register(builder.signal("paid", "payment", depends_on=["first"]).build())
    handle = await engine.start("s")
    await gate.reached.wait()
    await handle.signal("payment", 1)
    await handle.signal("payment", 2)
    gate.open()
    assert (await handle.result()).output == 1, "the first that came is the first that counts"


async def test_a_signal_sent_twice_is_one(engine: Engine) -> None:
    gate = Stage().gate("first")
    builder = SagaBuilder("s").step("first", gate.pass_through)
    builder.signal("one", "tick", depends_on=["first"]).signal("two", "tick", depends_on=["one"])
    engine.register(builder.build())
    handle = await engine.start("s")
    await gate.reached.wait()
    await handle.signal("tick", "a", id="1")
    await handle.signal("tick", "a", id="1")
    gate.open()
    await until_blocked(handle, "signal")
    await handle.signal("tick", "b", id="2")
    result = await handle.result()
    assert (result.result_of("one"), result.result_of("two")) == ("a", "b")


async def test_one_id_is_one_message_under_whatever_name(engine: Engine) -> None:
    builder = SagaBuilder("s", output="b").approval("ok").signal("a", "a", depends_on=["ok"])
    engine.register(builder.signal("b", "b", depends_on=["a"]))
    handle = await engine.start("s")
    await until_blocked(handle, "approval")
    await handle.signal("a", 1, id="1")
    await handle.signal("b", 2, id="1")
    await handle.approve("ok")
    await until_blocked(handle, "signal")
    await handle.signal("b", 3, id="2")
    assert (await handle.result()).output == 3


async def test_a_signal_that_does_not_come_in_time_fails_its_step(make_harness: MakeHarness) -> None:
    t = await make_harness(SagaBuilder("s").signal("paid", "payment", deadline="7d").build())
    result = await t.execute("s")
    assert (result.status, result.steps["paid"].status) == ("failed", "timed_out")
    assert t.elapsed == timedelta(days=7)


async def test_signals_that_come_early_are_kept_within_a_bound(engine: Engine) -> None:
    """Under whatever names they come."""
    engine.register(SagaBuilder("s").signal("never", "never").build())
    handle = await engine.start("s")
    large = ["x" * 100 * 1024] * 2
    for n in range(5):
        await handle.signal(f"other-{n}", large)
    with pytest.raises(InvalidTransition) as refused:
        await handle.signal("another", large)
    assert refused.value.code == "too_many_signals"
    await handle.signal("never", large)
    assert (await handle.result()).succeeded


async def test_a_wait_lasts_as_long_as_it_says(make_harness: MakeHarness) -> None:
    async def later() -> str:
        return "2026-01-03T00:00:00Z"

    builder = SagaBuilder("s").wait("nap", "10m").step("later", later, depends_on=["nap"])
    t = await make_harness(builder.wait("until", until="steps.later.result").build())
    handle = await t.start("s")
    await t.advance("9m")
    blocked = (await handle.status())["blocked"]
    assert blocked is not None
    assert (blocked["reason"], blocked["waiting_for"], blocked["next_check"]) == (
        "timer",
        "nap",
        "2026-01-01T00:10:00.000Z",
    )
    assert (await handle.result()).succeeded
    assert t.elapsed == timedelta(days=2)


async def test_a_wait_for_a_time_that_is_past_ends_at_once(engine: Engine) -> None:
    engine.register(SagaBuilder("s").wait("until", until="input").build())
    assert (await engine.execute("s", "2020-01-01T00:00:00Z")).succeeded
    refused = await engine.execute("s", "tomorrow")
    assert (refused.steps["until"].status, refused.steps["until"].error_class) == ("failed", "NON_RETRYABLE")


async def test_a_short_wait_in_real_time(engine: Engine) -> None:
    stage = Stage()
    builder = SagaBuilder("s").wait("nap", "3ms").step("then", stage.does("then"), depends_on=["nap"], retry=Retry(1))
    engine.register(builder.build())
    assert (await engine.execute("s")).succeeded

"""Undoing what was done: five policies, their overrides, and what becomes of an undo that fails."""

import asyncio
from datetime import timedelta
from typing import Any, Literal

import pytest

from tenuto import Engine, Retry, SagaBuilder, SagaContext, SagaResult
from tenuto.errors import (
    CompensationRequiredError,
    DefinitionError,
    IndeterminateError,
    NonRetryableError,
    StepError,
    TransientError,
)

from .conftest import MakeEngine, MakeHarness
from .doubles import Stage, ThreadGate, until, until_blocked
from .sagas import BookTrip, CardDeclined, Order, OrderSaga, Shop, Trip, chain

Policy = Literal[
    "strict_sequential", "grouped_parallel", "retry_with_backoff", "circuit_breaker", "best_effort_parallel"
]
POLICIES: list[Policy] = [
    "strict_sequential",
    "grouped_parallel",
    "retry_with_backoff",
    "circuit_breaker",
    "best_effort_parallel",
]
REFUSED = NonRetryableError("refused")


# -- Which steps, and in what order ------------------------------------------------------------------------------------


@pytest.mark.requirement("E1")
@pytest.mark.parametrize("policy", POLICIES)
async def test_every_completed_step_is_undone_by_its_own_handler(engine: Engine, policy: Policy) -> None:
    stage = Stage()
    engine.register(chain("s", stage, "a", "b", fails=REFUSED, compensation=policy).build())
    result = await engine.execute("s")

    assert result.status == "failed"
    assert stage.log[:3] == ["a", "b", "broken"]
    assert sorted(stage.log[3:]) == ["undo a", "undo b"]
    assert sorted(result.compensated_steps) == ["a", "b"]
    assert (result.steps["a"].compensated, result.steps["broken"].compensated) == (True, False)


@pytest.mark.requirement("E1")
async def test_nothing_is_undone_that_succeeded_or_never_was(engine: Engine) -> None:
    stage = Stage()
    builder = SagaBuilder("s").step("never", stage.does("never"), when="false", compensate=stage.does("undo never"))
    builder.step("no_undo", stage.does("no_undo"))
    builder.step("broken", stage.does("broken", REFUSED), depends_on=["no_undo"], compensate=stage.does("undo broken"))
    builder.step("after", stage.does("after"), depends_on=["broken"], compensate=stage.does("undo after"))
    engine.register(builder.build())

    assert (await engine.execute("s")).status == "failed"
    assert stage.log == ["no_undo", "broken"]
    assert (await engine.execute("s")).succeeded
    assert stage.log == ["no_undo", "broken", "no_undo", "broken", "after"]


@pytest.mark.requirement("E1")
@pytest.mark.parametrize("error", [NonRetryableError, TransientError])
@pytest.mark.parametrize("who_says_so", ["step", "error"])
async def test_a_step_that_may_be_half_done_is_undone_too(
    engine: Engine, error: type[StepError], who_says_so: str
) -> None:
    stage = Stage()
    work = stage.fails("work", error("half", partial_effect=who_says_so == "error"))
    options: Any = {"retry": 0, "compensate": stage.does("undo"), "partial_effect": who_says_so == "step"}
    engine.register(SagaBuilder("s").step("work", work, **options).build())
    assert (await engine.execute("s")).status == "failed"
    assert stage.log == ["work", "undo"]


@pytest.mark.requirement("E1")
async def test_siblings_that_run_when_a_step_fails_are_awaited_and_undone(engine: Engine) -> None:
    stage = Stage()
    slow = stage.gate("slow")
    failed = asyncio.Event()

    async def broken() -> None:
        await slow.reached.wait()
        failed.set()
        raise REFUSED

    builder = SagaBuilder("s").step("slow", slow.pass_through, compensate=stage.does("undo slow"))
    engine.register(builder.step("broken", broken).build())
    handle = await engine.start("s")
    await failed.wait()
    slow.open()
    assert (await handle.result()).status == "failed"
    assert stage.log == ["slow", "undo slow"]


@pytest.mark.requirement("E2")
async def test_strict_sequential_undoes_in_reverse_order_of_completion(engine: Engine) -> None:
    """Of completion, not of definition: of two that ran side by side, the one that ended last is undone first."""
    stage = Stage()
    slow = stage.gate("slow")
    builder = SagaBuilder("s").step("slow", slow.pass_through, compensate=stage.does("undo slow"))

    async def quick() -> None:
        await slow.reached.wait()
        stage.log.append("quick")

    async def broken() -> None:
        raise REFUSED

    builder.step("quick", quick, compensate=stage.does("undo quick"))
    engine.register(builder.step("broken", broken, depends_on=["slow", "quick"]).build())
    handle = await engine.start("s")

    await until(handle, lambda found: found["steps"][1]["status"] == "succeeded")
    slow.open()
    result = await handle.result()
    assert stage.log == ["quick", "slow", "undo slow", "undo quick"]
    assert result.compensated_steps == ["slow", "quick"]


@pytest.mark.requirement("E2")
async def test_each_undo_waits_for_the_one_before(engine: Engine) -> None:
    stage = Stage()
    gate = stage.gate("undo b")
    builder = SagaBuilder("s").step("a", stage.does("a"), compensate=stage.does("undo a"))
    builder.step("b", stage.does("b"), depends_on=["a"], compensate=gate.pass_through)
    engine.register(builder.step("broken", stage.fails("x", REFUSED), depends_on=["b"]).build())
    handle = await engine.start("s")
    await gate.reached.wait()
    document = await handle.status()
    assert (document["status"], document["phase"]) == ("running", "compensation")
    assert stage.log == ["a", "b", "x"]
    gate.open()
    await handle.result()
    assert stage.log[3:] == ["undo b", "undo a"]


@pytest.mark.requirement("E3")
async def test_grouped_parallel_undoes_by_layers(engine: Engine) -> None:
    """init; then two side by side; then a failure. The two are undone side by side, and init after both."""
    stage = Stage()
    gates = {name: stage.gate(f"undo {name}") for name in ("funds", "stock", "init")}
    builder = SagaBuilder("s", compensation="grouped_parallel")
    builder.step("init", stage.does("init"), compensate=gates["init"].pass_through)
    for name in ("funds", "stock"):
        builder.step(name, stage.does(name), depends_on=["init"], compensate=gates[name].pass_through)
    engine.register(builder.step("order", stage.fails("order", REFUSED), depends_on=["funds", "stock"]).build())

    handle = await engine.start("s")
    await gates["funds"].reached.wait()
    await gates["stock"].reached.wait()  # both at once
    assert not gates["init"].reached.is_set()
    gates["funds"].open()
    gates["stock"].open()
    await gates["init"].reached.wait()
    gates["init"].open()
    assert (await handle.result()).status == "failed"
    assert stage.log[-1] == "undo init"


@pytest.mark.requirement("E4")
async def test_retry_with_backoff_tries_every_undo_five_times(make_harness: MakeHarness) -> None:
    stage = Stage()
    builder = SagaBuilder("s", compensation="retry_with_backoff")
    undo = stage.does("undo a", *[TransientError("busy")] * 4, "undone")
    builder.step("a", stage.does("a"), compensate=undo)
    t = await make_harness(builder.step("broken", stage.fails("x", REFUSED), depends_on=["a"]).build())
    result = await t.execute("s")

    assert (result.status, result.steps["a"].compensated) == ("failed", True)
    assert stage.count("undo a") == 5
    assert timedelta(seconds=1.3) < t.elapsed < timedelta(seconds=1.7), "100, 200, 400, 800 ms, ±10 %"


@pytest.mark.requirement("E5")
async def test_circuit_breaker_opens_on_a_failed_critical_undo(engine: Engine) -> None:
    """The rest is skipped, and a person is asked."""
    stage = Stage()
    result, handle = await roll_back(engine, stage, "circuit_breaker", broken="b", b={"compensation_critical": True})

    assert stage.log[4:] == ["undo c", "undo b"]
    assert result.status == "waiting_approval"
    assert [result.steps[id].compensated for id in "abc"] == [False, False, True]
    assert result.steps["b"].compensation_error == "cannot be undone"
    (review,) = [row async for row in engine.reviews()]
    assert (review["kind"], review["step_id"]) == ("compensation_failed", "b")

    await engine.resolve(review["id"], "dismiss", reason="written off")
    ended = await handle.result()
    assert (ended.status, ended.steps["a"].compensated) == ("failed", False)


@pytest.mark.requirement("E5")
async def test_an_undo_that_is_not_critical_does_not_open_it(engine: Engine) -> None:
    stage = Stage()
    result, _ = await roll_back(engine, stage, "circuit_breaker", broken="b")
    assert stage.log[4:] == ["undo c", "undo b", "undo a"]
    assert result.status == "waiting_approval", "it is surfaced all the same"


@pytest.mark.requirement("E6")
async def test_best_effort_undoes_all_at_once_and_records_errors(engine: Engine) -> None:
    stage = Stage()
    gates = {name: stage.gate(f"undo {name}") for name in "ac"}
    builder = SagaBuilder("s", compensation="best_effort_parallel")
    builder.step("a", stage.does("a"), compensate=gates["a"].pass_through)
    builder.step(
        "b", stage.does("b"), depends_on=["a"], compensate=stage.fails("undo b", NonRetryableError("no way back"))
    )
    builder.step("c", stage.does("c"), depends_on=["b"], compensate=gates["c"].pass_through)
    engine.register(builder.step("broken", stage.fails("x", REFUSED), depends_on=["c"]).build())

    handle = await engine.start("s")
    for gate in gates.values():
        await gate.reached.wait()  # all at once, whatever layer they are of
        gate.open()
    result = await handle.result()

    assert sorted(result.compensated_steps) == ["a", "c"]
    assert result.steps["b"].compensation_error == "no way back"
    assert result.status == "waiting_approval"
    assert [row["step_id"] async for row in engine.reviews()] == ["b"]


async def roll_back(
    engine: Engine, stage: Stage, policy: Policy, *, broken: str, **options: dict[str, Any]
) -> tuple[SagaResult[Any], Any]:
    """a, b and c are done, then it fails; the undo of `broken` fails, too."""
    builder = SagaBuilder("s", compensation=policy)
    before: list[str] = []
    for id in "abc":
        undo = (
            stage.fails(f"undo {id}", NonRetryableError("cannot be undone"))
            if id == broken
            else stage.does(f"undo {id}")
        )
        builder.step(id, stage.does(id), depends_on=before, compensate=undo, **options.get(id, {}))
        before = [id]
    engine.register(builder.step("broken", stage.fails("broken", REFUSED), depends_on=before).build())
    result = await engine.execute("s")
    return result, engine.get(result.execution_id)


# -- When an undo fails ------------------------------------------------------------------------------------------------

# What is tried when the undo of b fails, of c, b, a; strict policies stop there, and ask.
AFTER_FAILURE: dict[Policy, list[str]] = {
    "strict_sequential": ["undo c", "undo b"],
    "grouped_parallel": ["undo c", "undo b"],
    "retry_with_backoff": ["undo c", "undo b"],
    "circuit_breaker": ["undo c", "undo b", "undo a"],
    "best_effort_parallel": ["undo a", "undo b", "undo c"],
}


@pytest.mark.requirement("E10")
@pytest.mark.parametrize("policy", POLICIES)
async def test_an_undo_that_fails_is_surfaced(engine: Engine, policy: Policy) -> None:
    stage = Stage()
    result, handle = await roll_back(engine, stage, policy, broken="b")

    tried = stage.log[4:]
    assert (sorted(tried) if policy == "best_effort_parallel" else tried) == AFTER_FAILURE[policy]
    assert (result.status, result.blocked and result.blocked["reason"]) == ("waiting_approval", "review")
    (review,) = [row async for row in engine.reviews()]
    assert (review["kind"], review["step_id"], review["state"]) == ("compensation_failed", "b", "open")
    rows = [row for row in await handle.history() if row["kind"] == "compensation" and row["step_id"] == "b"]
    assert [row["error_summary"] for row in rows] == ["cannot be undone"]


RESOLUTIONS: dict[Any, tuple[list[str], bool]] = {
    "retry": (["undo b", "undo a"], True),  # once more; this time it can be undone
    "completed": (["undo a"], True),  # somebody did it by hand
    "dismiss": (["undo a"], False),  # it is left as it is
}


@pytest.mark.requirement("E10")
@pytest.mark.parametrize("resolution", RESOLUTIONS)
async def test_a_person_says_how_it_goes_on(engine: Engine, resolution: Any) -> None:
    stage = Stage()
    builder = SagaBuilder("s").step("a", stage.does("a"), compensate=stage.does("undo a"))
    builder.step("b", stage.does("b"), depends_on=["a"], compensate=stage.does("undo b", NonRetryableError("not now")))
    engine.register(builder.step("broken", stage.fails("x", REFUSED), depends_on=["b"]).build())
    handle = await engine.start("s")
    blocked = await until_blocked(handle, "review")
    stage.log.clear()

    await engine.resolve(blocked["review_id"], resolution, reason="looked into it")
    result = await handle.result()

    log, compensated = RESOLUTIONS[resolution]
    assert (result.status, stage.log) == ("failed", log)
    assert result.steps["b"].compensated is compensated
    assert result.steps["a"].compensated
    assert [row["kind"] async for row in engine.reviews()] == ["dead_letter"]
    assert len([row async for row in engine.dlq()]) == 1


@pytest.mark.requirement("E10")
async def test_undos_that_are_tried_again_are_awaited_before_earlier_ones_begin(engine: Engine) -> None:
    stage, released = Stage(), asyncio.Event()

    def undo(name: str) -> Any:
        tries = 0

        async def run() -> None:
            nonlocal tries
            tries += 1
            if tries == 1:
                raise NonRetryableError("not now")
            if name == "c":
                await released.wait()
            stage.log.append(f"undo {name}")

        return run

    builder = SagaBuilder("s", compensation="grouped_parallel")
    builder.step("a", stage.does("a"), compensate=stage.does("undo a"))
    for name in "bc":
        builder.step(name, stage.does(name), depends_on=["a"], compensate=undo(name))
    engine.register(builder.step("broken", stage.fails("x", REFUSED), depends_on=["b", "c"]).build())
    handle = await engine.start("s")
    await handle.result()
    stage.log.clear()
    for review in [row async for row in engine.reviews()]:
        await engine.resolve(review["id"], "retry", reason="mended")
    await until(handle, lambda found: {row["step_id"]: row["compensation"] for row in found["steps"]}["b"] == "done")
    released.set()
    assert (await handle.result()).status == "failed"
    assert stage.log == ["undo b", "undo c", "undo a"]


@pytest.mark.requirement("E10")
async def test_the_operator_can_give_it_up_altogether(engine: Engine) -> None:
    stage = Stage()
    _, handle = await roll_back(engine, stage, "strict_sequential", broken="b")
    await handle.cancel("terminate")
    result = await handle.result()
    assert (result.status, result.steps["a"].compensated) == ("canceled", False)
    assert [row async for row in engine.reviews()] == []


# -- What a step says about its undo -----------------------------------------------------------------------------------


@pytest.mark.requirement("E7")
@pytest.mark.parametrize("policy", POLICIES)
async def test_a_step_says_how_often_its_undo_is_tried_whatever_the_policy(
    make_harness: MakeHarness, policy: Policy
) -> None:
    stage = Stage()
    builder = SagaBuilder("s", compensation=policy)
    undo = stage.does("undo", TransientError(), TransientError())
    builder.step("a", stage.does("a"), compensate=undo, compensation_retry=2, compensation_backoff="10s")
    t = await make_harness(builder.step("broken", stage.fails("x", REFUSED), depends_on=["a"]).build())
    result = await t.execute("s")
    assert (result.status, result.steps["a"].compensated, stage.count("undo")) == ("failed", True, 3)
    assert timedelta(seconds=27) <= t.elapsed <= timedelta(seconds=33), "10 s, then 20 s, ±10 %"


@pytest.mark.requirement("E7")
@pytest.mark.parametrize(("policy", "tries"), [(p, 5 if p == "retry_with_backoff" else 1) for p in POLICIES])
async def test_without_a_word_an_undo_is_tried_as_often_as_its_policy_says(
    make_harness: MakeHarness, policy: Policy, tries: int
) -> None:
    stage = Stage()
    builder = SagaBuilder("s", compensation=policy)
    builder.step("a", stage.does("a"), compensate=stage.fails("undo", TransientError()))
    t = await make_harness(builder.step("broken", stage.fails("x", REFUSED), depends_on=["a"]).build())
    assert (await t.execute("s")).status == "waiting_approval"
    assert stage.count("undo") == tries


@pytest.mark.requirement("E7")
async def test_an_undo_has_a_time_of_its_own(make_harness: MakeHarness) -> None:
    stage = Stage()
    slow = stage.gate("undo")
    builder = SagaBuilder("s").step("a", stage.does("a"), compensate=slow.pass_through, compensation_timeout="5s")
    t = await make_harness(builder.step("broken", stage.fails("x", REFUSED), depends_on=["a"]).build())
    handle = await t.start("s")
    await t.advance("6s")
    result = await handle.result()
    assert (result.status, result.steps["a"].compensation_error) == (
        "waiting_approval",
        "no answer from the handler in time",
    )


@pytest.mark.requirement("E7")
async def test_settings_of_an_undo_need_an_undo(engine: Engine) -> None:
    with pytest.raises(DefinitionError) as refused:
        engine.register(SagaBuilder("s").step("a", Stage().does("a"), compensation_retry=2))
    assert [problem.code for problem in refused.value.problems] == ["not_allowed"]


@pytest.mark.requirement("E8")
async def test_a_manual_undo_waits_for_consent(engine: Engine) -> None:
    stage = Stage()
    builder = SagaBuilder("s").step("a", stage.does("a"), compensate=stage.does("undo a"))
    manual: Any = {"compensate": stage.does("undo b"), "compensation_policy": "manual"}
    builder.step("b", stage.does("b"), depends_on=["a"], **manual)
    engine.register(builder.step("broken", stage.fails("x", REFUSED), depends_on=["b"]).build())

    for word, log in (("approve", ["undo b", "undo a"]), ("reject", ["undo a"])):
        stage.log.clear()
        handle = await engine.start("s")
        blocked = await until_blocked(handle, "review")
        (review,) = [row async for row in engine.reviews(kind="compensation")]
        assert (review["id"], review["step_id"]) == (blocked["review_id"], "b")
        assert stage.log == ["a", "b", "x"]
        await (handle.approve("b", comment="yes") if word == "approve" else handle.reject("b", comment="no"))
        result = await handle.result()
        assert (result.status, stage.log[3:]) == ("failed", log)
        assert result.steps["b"].compensated is (word == "approve")


@pytest.mark.requirement("E9")
async def test_undos_go_before_everything_else_that_waits(make_engine: MakeEngine) -> None:
    """One slot for async handlers, and it is taken. A step in a thread fails meanwhile: its saga's undo is next."""
    stage = Stage()
    slot, thread = stage.gate("slot"), ThreadGate()

    def broken() -> None:
        thread.pass_through()
        raise REFUSED

    async def other(name: str) -> None:
        stage.log.append(name)

    failing = SagaBuilder("failing").step("a", stage.does("a"), compensate=stage.does("undo a"))
    failing.step("broken", broken, depends_on=["a"])
    holding = SagaBuilder("holding").step("hold", slot.pass_through)
    engine = await make_engine(
        failing.build(), holding.build(), SagaBuilder("other").step("work", other).build(), slots=1
    )
    first = await engine.start("failing")
    await thread.reached.wait()
    second = await engine.start("holding")
    await slot.reached.wait()
    rest = [await engine.start("other", "high", priority="high"), await engine.start("other", "normal")]
    thread.open()
    await until(first, lambda found: found["phase"] == "compensation")
    slot.open()
    for handle in (first, second, *rest):
        await handle.result()
    assert stage.log == ["a", "slot", "undo a", "high", "normal"]


@pytest.mark.requirement("E9")
async def test_an_undo_carries_a_key_of_its_own(engine: Engine) -> None:
    """So that it is never swallowed as a repeat of its step; `forward_key` is the step's."""
    keys: list[tuple[str, str]] = []

    async def make(ctx: SagaContext) -> None:
        keys.append((ctx.idempotency_key, ctx.forward_key))

    async def undo(ctx: SagaContext) -> None:
        keys.append((ctx.idempotency_key, ctx.forward_key))
        if len(keys) == 2:
            raise TransientError

    builder = SagaBuilder("s").step("a", make, compensate=undo, compensation_retry=Retry(2, initial="1ms"))
    engine.register(builder.step("broken", Stage().fails("x", REFUSED), depends_on=["a"]).build())
    await engine.execute("s")
    (made, same), (undone, forward), (again, _) = keys
    assert made == same == forward
    assert undone == again != made


async def test_compensation_required_is_decided_by_a_person(engine: Engine) -> None:
    """Seed 0 §12.6: it halts, and surfaces what is to be done. Each word that may be said, and what follows."""
    words: dict[Any, tuple[str, list[str]]] = {
        "compensate": ("failed", ["undo work", "undo a"]),
        "completed": ("succeeded", ["then"]),
        "not_completed": ("failed", ["undo a"]),
        "retry": ("succeeded", ["work", "then"]),
        "dismiss": ("failed", ["undo a"]),
    }
    for number, (word, (status, log)) in enumerate(words.items()):
        stage = Stage()
        builder = SagaBuilder(f"s{number}").step("a", stage.does("a"), compensate=stage.does("undo a"))
        work = stage.does("work", CompensationRequiredError("half a transfer"))
        builder.step("work", work, depends_on=["a"], compensate=stage.does("undo work"))
        engine.register(builder.step("then", stage.does("then"), depends_on=["work"]).build())
        handle = await engine.start(f"s{number}")
        blocked = await until_blocked(handle, "compensation_required")
        assert (await handle.status())["status"] == "waiting_approval"
        assert stage.log == ["a", "work"]
        stage.log.clear()

        await engine.resolve(blocked["review_id"], word, reason="looked at both accounts")
        assert (word, (await handle.result()).status, stage.log) == (word, status, log)


# -- A trip and an order -----------------------------------------------------------------------------------------------


async def test_a_trip_that_cannot_be_charged_is_undone(make_engine: MakeEngine) -> None:
    trip = BookTrip()
    engine = await make_engine(trip)
    result = await engine.execute(BookTrip, Trip("nowhere"))
    assert sorted(result.compensated_steps) == ["flight", "hotel"]
    assert result.steps["flight"].compensation_result == "canceled F-nowhere"
    assert sorted(trip.log[3:]) == ["cancel F-nowhere", "cancel H-nowhere"]


ORDERS: list[tuple[str, Order, Any, list[str], int]] = [
    ("confirmed", Order("1"), None, ["pending", "reserved", "paid", "confirmed"], 0),
    ("out of stock", Order("none"), None, [], 0),
    ("declined", Order("1"), "declined", ["pending", "reserved", "canceled"], 0),
    ("unknown but paid", Order("1"), IndeterminateError(), ["pending", "reserved", "paid", "confirmed"], 0),
    ("not confirmed", Order("1", cents=0), None, ["pending", "reserved", "paid", "refunded"], 1),
]


@pytest.mark.requirement("E15")
@pytest.mark.parametrize(("name", "order", "answer", "states", "refunds"), ORDERS, ids=lambda part: str(part)[:20])
async def test_an_order_goes_through_its_states(
    make_engine: MakeEngine, name: str, order: Order, answer: Any, states: list[str], refunds: int
) -> None:
    shop = Shop()
    shop.out_of_stock.add("none")
    if answer is not None:
        shop.answers.append(CardDeclined() if answer == "declined" else answer)
    engine = await make_engine(OrderSaga(shop))
    result = await engine.execute(OrderSaga, order)

    assert shop.orders.get(order.id, []) == states
    assert (result.succeeded, len(shop.refunds)) == (states[-1:] == ["confirmed"], refunds)
    assert len(shop.payments) <= 1, "never paid twice"


@pytest.mark.requirement("E15")
async def test_an_order_canceled_while_its_payment_is_unknown_is_reconciled_then_refunded(
    make_engine: MakeEngine,
) -> None:
    """Seed 3: the payment is processing when the customer cancels. First it is found out, then it is undone."""
    shop = Shop()
    shop.answers.append(IndeterminateError("no answer from the bank"))
    shop.processing = True
    engine = await make_engine(OrderSaga(shop))
    handle = await engine.start(OrderSaga, Order("1"))
    await shop.asked.wait()
    await handle.cancel("compensate", reason="the customer changed their mind")
    assert (await handle.status())["cancel_requested"]
    shop.processing = False
    result = await handle.result()

    assert (result.status, shop.orders["1"]) == ("canceled", ["pending", "reserved", "refunded"])
    assert shop.refunds == list(shop.payments), "what was paid under that key is refunded"
    assert [row["kind"] for row in await handle.history()][-2:] == ["compensation", "compensation"]

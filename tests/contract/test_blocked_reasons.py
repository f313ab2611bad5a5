"""Why is it blocked? Every reason, as data: since when, what it waits for, when it is looked at again, what helps."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from tenuto import Done, Engine, FromStep, Handle, Retry, SagaBuilder
from tenuto.errors import CompensationRequiredError, IndeterminateError, NonRetryableError, PayloadError, TransientError

from .conftest import MakeEngine, MakeHarness
from .doubles import Stage, until, until_blocked
from .sagas import Flight, chain, one_step

FIELDS = ["reason", "review_id", "since", "waiting_for", "next_check", "commands"]


@dataclass
class Case:
    """A saga that is blocked as soon as it is started, what it says then, and what makes it go on."""

    saga: Callable[[Stage], SagaBuilder]
    waiting_for: str | None
    commands: list[str]
    release: Callable[[Engine, Handle[Any], Any], Awaitable[None]]
    status: str = "running"
    ends: str = "succeeded"
    has_review: bool = False
    has_next_check: bool = False


async def approve(engine: Engine, handle: Handle[Any], blocked: Any) -> None:
    await handle.approve("ok")


async def send(engine: Engine, handle: Handle[Any], blocked: Any) -> None:
    await handle.signal("payment")


async def dismiss(engine: Engine, handle: Handle[Any], blocked: Any) -> None:
    await engine.resolve(blocked["review_id"], "dismiss", reason="seen")


async def cancel(engine: Engine, handle: Handle[Any], blocked: Any) -> None:
    await handle.cancel("drain")


def unknown(stage: Stage, **options: Any) -> SagaBuilder:
    usual = {"safety": "not_safe_to_retry", "compensation_policy": "manual", "compensate": stage.does("undo")}
    return one_step("s", stage.fails("x", IndeterminateError()), **{**usual, **options})


def undo_fails(stage: Stage) -> SagaBuilder:
    builder = SagaBuilder("s").step("a", stage.does("a"), compensate=stage.fails("u", NonRetryableError()))
    return builder.step("b", stage.fails("b", NonRetryableError()), depends_on=["a"])


CASES: dict[str, Case] = {
    "approval": Case(
        lambda stage: SagaBuilder("s").approval("ok", deadline="24h"),
        "ok",
        ["approve", "reject", "cancel"],
        approve,
        status="waiting_approval",
        has_review=True,
        has_next_check=True,
    ),
    "review": Case(
        unknown,
        "work",
        ["resolve:completed", "resolve:not_completed", "resolve:compensate", "cancel"],
        dismiss,
        status="waiting_approval",
        ends="failed",
        has_review=True,
    ),
    "review where nothing has an undo": Case(
        lambda stage: unknown(stage, compensate=None),
        "work",
        ["resolve:completed", "resolve:not_completed", "resolve:dismiss", "cancel"],
        dismiss,
        status="waiting_approval",
        ends="failed",
        has_review=True,
    ),
    "review of an undo": Case(
        undo_fails,
        "a",
        ["resolve:retry", "resolve:completed", "resolve:dismiss", "cancel"],
        dismiss,
        status="waiting_approval",
        ends="failed",
        has_review=True,
    ),
    "compensation_required": Case(
        lambda stage: chain("s", stage, "a", fails=CompensationRequiredError()),
        "broken",
        ["resolve:compensate", "resolve:completed", "resolve:not_completed", "resolve:retry", "cancel"],
        dismiss,
        status="waiting_approval",
        ends="failed",
        has_review=True,
    ),
    "compensation_required where nothing has an undo": Case(
        lambda stage: one_step("s", stage.fails("work", CompensationRequiredError()), retry=0),
        "work",
        ["resolve:completed", "resolve:not_completed", "resolve:retry", "cancel"],
        dismiss,
        status="waiting_approval",
        ends="failed",
        has_review=True,
    ),
    "signal": Case(
        lambda stage: SagaBuilder("s").signal("paid", "payment", deadline="1h"),
        "payment",
        ["signal", "cancel"],
        send,
        has_next_check=True,
    ),
    "timer": Case(
        lambda stage: SagaBuilder("s").wait("nap", "1h"),
        "nap",
        ["pause", "cancel"],
        cancel,
        ends="canceled",
        has_next_check=True,
    ),
    "retry": Case(
        lambda stage: one_step("s", stage.fails("a", TransientError()), retry=Retry(3, initial="1h")),
        "work",
        ["pause", "cancel"],
        cancel,
        ends="canceled",
        has_next_check=True,
    ),
}


@pytest.mark.requirement("I8")
@pytest.mark.parametrize("name", CASES)
async def test_an_execution_says_why_it_is_blocked(engine: Engine, name: str) -> None:
    case, reason = CASES[name], name.partition(" ")[0]
    engine.register(case.saga(Stage()).build())
    handle = await engine.start("s")
    blocked = await until_blocked(handle, reason)

    assert list(blocked) == FIELDS
    assert (blocked["waiting_for"], blocked["commands"]) == (case.waiting_for, case.commands)
    assert (await handle.status())["status"] == case.status
    assert (blocked["review_id"] is not None) == case.has_review
    assert (blocked["next_check"] is not None) == case.has_next_check
    assert blocked["since"] is not None
    if case.has_next_check:
        assert blocked["since"] < blocked["next_check"]

    await case.release(engine, handle, blocked)
    assert (await handle.result()).status == case.ends
    assert (await handle.status())["blocked"] is None


@pytest.mark.requirement("I8")
async def test_nothing_is_said_of_what_goes_on_or_is_over(engine: Engine) -> None:
    gate = Stage().gate("a")
    engine.register(one_step("s", gate.pass_through).build())
    handle = await engine.start("s")
    await gate.reached.wait()
    assert (await handle.status())["blocked"] is None
    gate.open()
    result = await handle.result()
    assert (result.blocked, (await handle.status())["blocked"]) == (None, None)


@pytest.mark.requirement("I8")
async def test_paused(engine: Engine) -> None:
    engine.register(SagaBuilder("s").signal("paid", "payment").build())
    handle = await engine.start("s")
    await handle.pause(reason="stocktaking")
    blocked = await until_blocked(handle, "paused")
    assert (blocked["waiting_for"], blocked["commands"]) == ("stocktaking", ["resume", "cancel"])
    assert blocked["next_check"] is not None, "when the pause is too long"
    await handle.resume()
    await until_blocked(handle, "signal")


@pytest.mark.requirement("I8")
async def test_what_waits_for_a_person_may_be_answered_while_it_is_paused(engine: Engine) -> None:
    engine.register(SagaBuilder("s").approval("ok").build())
    handle = await engine.start("s")
    await until_blocked(handle, "approval")
    await handle.pause(reason="stocktaking")
    blocked = await until_blocked(handle, "paused")
    assert blocked["commands"] == ["resume", "approve", "reject", "cancel"]
    await handle.approve("ok")
    assert (await until_blocked(handle, "paused"))["commands"] == ["resume", "cancel"]
    await handle.resume()
    assert (await handle.result()).status == "succeeded"


@pytest.mark.requirement("I8")
async def test_no_worker_has_the_handler(engine: Engine) -> None:
    """It burns no attempt and undoes nothing: as soon as there is one, it goes on."""
    task = {"step_id": "a", "handler": "mail.send", "idempotency_strategy": "SAFE_TO_RETRY"}
    await engine.apply({"name": "doc", "steps": [task]})
    handle = await engine.start("doc")
    blocked = await until_blocked(handle, "no_worker")
    assert (blocked["waiting_for"], blocked["commands"]) == ("mail.send", ["pause", "cancel"])
    assert (await handle.status())["status"] == "running"

    engine.handler("mail.send", Stage().does("sent"))
    result = await handle.result()
    assert (result.output, result.steps["a"].attempts) == ("sent", 1)


SAFE = {"idempotency_strategy": "SAFE_TO_RETRY"}
CALLBACK = {"completion": "callback", "result_timeout_ms": 600_000}
UNABLE: dict[str, dict[str, Any]] = {
    "a step": {"type": "task", "handler": "ghost", **SAFE},
    "a directive": {"type": "external_call", "handler": "ghost", **CALLBACK, **SAFE},
    "a planner": {"type": "scope", "mode": "parallel", "planner": "ghost", "children": []},
    "a step in a queue": {"type": "task", "handler": "ghost", "queue": "nobodys", **SAFE},
    "a directive in a queue": {"type": "external_call", "handler": "ghost", "queue": "nobodys", **CALLBACK, **SAFE},
    "a planner in a queue": {
        "type": "scope", "mode": "parallel", "planner": "ghost", "queue": "nobodys", "children": [],
    },
    "what may not be done twice, in a queue": {
        "type": "task", "handler": "ghost", "queue": "nobodys", "idempotency_strategy": "NOT_SAFE_TO_RETRY",
        "compensation_policy": "manual",
    },
}  # fmt: skip


@pytest.mark.requirement("B14")
@pytest.mark.parametrize("mode", ["drain", "compensate"])
@pytest.mark.parametrize("what", UNABLE)
async def test_a_cancel_does_not_wait_for_what_nobody_can_begin(engine: Engine, what: str, mode: Any) -> None:
    await engine.apply({"name": "doc", "steps": [{"step_id": "a", **UNABLE[what]}]})
    handle = await engine.start("doc")
    await until_blocked(handle, "no_worker")
    await handle.cancel(mode)
    assert (await handle.result(timeout="30s")).status == "canceled"


@pytest.mark.requirement("I8")
async def test_an_engine_that_is_no_worker_runs_nothing(make_engine: MakeEngine) -> None:
    stage = Stage()
    engine = await make_engine(chain("s", stage, "a").build(), worker=False)
    handle = await engine.start("s")
    await until_blocked(handle, "no_worker")
    await handle.cancel("terminate")
    assert ((await handle.result()).status, stage.log) == ("canceled", [])


@pytest.mark.requirement("I8")
async def test_incompatible_until_the_code_fits_again(engine: Engine) -> None:
    """A stored value that no longer decodes parks the execution: nothing is called, nothing is lost."""

    async def old(name: str) -> str:
        return name

    async def reads_flight(found: Annotated[Flight, FromStep("find")]) -> str:
        return found.pnr

    async def reads_text(found: Annotated[str, FromStep("find")]) -> str:
        return found.upper()

    async def new(name: str) -> Flight:
        return Flight(name)

    def saga(find: Any, use: Any) -> object:
        builder = SagaBuilder("s", output="use").step("find", find).signal("go", "go", depends_on=["find"])
        return builder.step("use", use, depends_on=["go"]).build()

    engine.register(saga(old, reads_text))
    handle = await engine.start("s", "oslo")
    await until_blocked(handle, "signal")
    engine.register(saga(new, reads_flight))
    await handle.signal("go")
    blocked = await until_blocked(handle, "incompatible")
    assert "'use', parameter 'found'" in blocked["waiting_for"]

    engine.register(saga(old, reads_text))
    result = await handle.result()
    assert (result.output, result.steps["use"].attempts) == ("OSLO", 1)


UNSAFE: dict[str, Any] = {"safety": "not_safe_to_retry", "compensation_policy": "manual"}


@pytest.mark.requirement("C10")
@pytest.mark.parametrize("in_thread", [False, True])
@pytest.mark.parametrize("options", [{}, UNSAFE], ids=["safe", "unsafe"])
async def test_what_was_called_and_cannot_read_more_may_have_acted(
    engine: Engine, options: dict[str, Any], in_thread: bool
) -> None:
    """As when it waits for another execution, whose output has changed. It is called again where that does no harm;
    elsewhere a person is asked what became of it."""
    charged: list[str] = []

    def charges() -> str:
        charged.append("once")
        raise PayloadError("output: Expected `int`, got `str`", code="incompatible")

    async def charges_in_a_task() -> str:
        return charges()

    async def mended() -> str:
        charged.append("again")
        return "done"

    engine.register(one_step("s", charges if in_thread else charges_in_a_task, **options).build())
    handle = await engine.start("s")
    await until_blocked(handle, "review" if options else "incompatible")
    engine.register(one_step("s", mended, **options).build())
    if options:
        assert ((await handle.status())["status"], charged) == ("waiting_approval", ["once"])
    else:
        assert ((await handle.result()).output, charged) == ("done", ["once", "again"])


@pytest.mark.requirement("I8")
async def test_slot(make_engine: MakeEngine) -> None:
    gate = Stage().gate("a")
    engine = await make_engine(one_step("s", gate.pass_through).build(), slots=1)
    first = await engine.start("s")
    await gate.reached.wait()
    second = await engine.start("s")
    blocked = await until_blocked(second, "slot")
    assert blocked["waiting_for"] == "work"
    gate.open()
    assert (await first.result()).succeeded
    assert (await second.result()).succeeded


@pytest.mark.requirement("I8")
async def test_limit(engine: Engine) -> None:
    gate = Stage().gate("a")
    engine.register(one_step("s", gate.pass_through, limits=["bank"]).build())
    await engine.limit("bank", concurrency=1)
    first = await engine.start("s")
    await gate.reached.wait()
    second = await engine.start("s")
    blocked = await until_blocked(second, "limit")
    assert blocked["waiting_for"] == "bank"
    gate.open()
    assert (await first.result()).succeeded
    assert (await second.result()).succeeded


@pytest.mark.requirement("I8")
async def test_concurrency_key(engine: Engine) -> None:
    gate = Stage().gate("a")
    engine.register(one_step("s", gate.pass_through).build())
    first = await engine.start("s", concurrency_key="order-1")
    second = await engine.start("s", concurrency_key="order-1")
    blocked = await until_blocked(second, "concurrency_key")
    assert (blocked["waiting_for"], blocked["commands"]) == ("order-1", ["cancel"])
    assert (await second.status())["status"] == "running"
    gate.open()
    assert (await first.result()).succeeded
    assert (await second.result()).succeeded


@pytest.mark.requirement("I8")
async def test_callback(engine: Engine) -> None:
    step = {"step_id": "a", "type": "external_call", "completion": "callback", "result_timeout_ms": 60_000}
    await engine.apply({"name": "doc", "steps": [{**step, "idempotency_strategy": "SAFE_TO_RETRY"}]})
    handle = await engine.start("doc")
    blocked = await until_blocked(handle, "callback")
    assert (blocked["waiting_for"].partition("@")[0], blocked["commands"]) == ("a", ["cancel"])
    assert blocked["since"] < blocked["next_check"]
    await handle.cancel("terminate")


@pytest.mark.requirement("I8")
async def test_a_lost_attempt_of_an_unsafe_step_is_looked_up(make_harness: MakeHarness) -> None:
    stage = Stage()
    options: Any = {"safety": "not_safe_to_retry", "reconcile": stage.does("probe", Done("found")), "timeout": "1m"}
    t = await make_harness(one_step("s", stage.does("a"), **options).build())
    t.crash("work", when="after")
    handle = await t.start("s")
    await t.advance("1s")
    blocked = (await handle.status())["blocked"]
    assert blocked is not None
    assert (blocked["reason"], blocked["waiting_for"]) == ("reconcile", "work")
    assert blocked["next_check"] is not None
    (lost,) = await handle.history()
    assert (lost["error_code"], lost["look_up_at"]) == ("worker_lost", blocked["next_check"])
    assert (await handle.result()).output == "found"
    _, asked = await handle.history()
    assert (asked["kind"], asked["answer"], asked["result"]) == ("reconcile", "done", "found")


@pytest.mark.requirement("I8")
async def test_worker_lost(make_harness: MakeHarness) -> None:
    """The second loss of a step is retried after a delay."""
    stage = Stage()
    t = await make_harness(one_step("s", stage.does("a")).build())
    for _ in range(2):
        t.crash("work", when="after")
    handle = await t.start("s")
    await t.advance("1ms")
    blocked = (await handle.status())["blocked"]
    assert blocked is not None
    assert (blocked["reason"], blocked["waiting_for"]) == ("worker_lost", "work")
    assert (await handle.history())[-1]["look_up_at"] is None
    assert (await handle.result()).succeeded


@pytest.mark.requirement("I8")
async def test_a_question_the_engine_could_not_answer_comes_before_one_that_was_foreseen(engine: Engine) -> None:
    builder = SagaBuilder("s").approval("ok")
    builder.step("halts", Stage().fails("x", CompensationRequiredError()))
    engine.register(builder.build())
    handle = await engine.start("s")
    blocked = await until_blocked(handle, "compensation_required")
    assert blocked["waiting_for"] == "halts"
    document = await until(handle, lambda found: found["status"] == "waiting_approval")
    assert [each["status"] for each in document["steps"]] == ["awaiting_approval", "awaiting_approval"]

"""One story of each seed, told from the outside."""

from typing import Annotated, Any, Literal

import pytest

from tenuto import Engine, ExpandEach, FromStep, Result, SagaBuilder, SagaContext, StepInputs
from tenuto.errors import NonRetryableError, TransientError

from .doubles import Stage, until, until_blocked

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


def task(id: str, **fields: Any) -> dict[str, Any]:
    return {"step_id": id, "type": "task", "handler": id, "idempotency_strategy": "SAFE_TO_RETRY", **fields}


async def test_seed_0_a_definition_with_decision_loop_approval_call_dead_letter_and_retry(engine: Engine) -> None:
    """An invoice is drafted until it is approved, sent out, and booked; booking fails, and is run again by a person."""
    stage = Stage()
    engine.handler("draft", stage.does("draft", {"total": 5}, {"total": 4}))
    engine.handler("book", stage.does("book", NonRetryableError("period closed")))
    calls: list[SagaContext] = []

    async def send(given: Any, ctx: SagaContext) -> None:
        calls.append(ctx)

    engine.handler("send", send)
    decision = {"type": "decision", "branches": [{"when": "input.large", "next": "ask"}], "default": "post"}
    call = {"type": "external_call", "handler": "send", "completion": "callback", "result_timeout_ms": 60_000}
    await engine.apply(
        {
            "name": "invoice",
            "steps": [
                task("draft", on_success="which"),
                {"step_id": "which", **decision},
                {"step_id": "ask", "type": "human_approval", "on_success": "post", "on_failure": "draft"},
                {"step_id": "post", **call, "idempotency_strategy": "SAFE_TO_RETRY", "on_success": "book"},
                task("book"),
            ],
            "output": {"total": "${steps.draft.result.total}", "post": "${steps.post.result}"},
        }
    )
    handle = await engine.start("invoice", {"large": True}, target=("Invoice", "i-1"))
    await until_blocked(handle, "approval")
    await handle.reject("ask", comment="too much")
    await until(handle, lambda _: stage.count("draft") == 2)
    assert (await until_blocked(handle, "approval"))["waiting_for"] == "ask"
    (review,) = [row async for row in engine.reviews()]
    assert (review["step_id"], review["path"]) == ("ask", "ask@2")
    await handle.approve("ask")
    await until_blocked(handle, "callback")
    assert await handle.answer("post", attempt=calls[0].attempt, lease=calls[0].lease_id, result="sent") == "applied"
    assert (await handle.result()).status == "failed"

    (letter,) = [row async for row in engine.dlq()]
    assert (letter["step_id"], letter["path"], letter["error_summary"]) == ("book", "book@1", "period closed")
    await engine.resolve(letter["id"], "retry", reason="the period is open again")
    result = await handle.result()
    assert result.output == {"total": 4, "post": "sent"}
    assert stage.log == ["draft", "draft", "book", "book"]
    assert {row["step_id"] for row in await handle.history()} == {"draft", "ask", "which", "post", "book"}
    told = [(row["path"], row["status"]) for row in await handle.history() if row["path"] not in ("which@1", "which@2")]
    assert told == [
        ("draft@1", "succeeded"),
        ("ask@1", "failed"),
        ("draft@2", "succeeded"),
        ("ask@2", "succeeded"),
        ("post@1", "succeeded"),
        ("book@1", "failed"),
        ("book@1", "succeeded"),
    ]


async def test_seed_1_a_protocol_answered_by_callbacks_one_stale_and_one_late(engine: Engine) -> None:
    directives: list[SagaContext] = []

    async def publish(ctx: SagaContext) -> None:
        directives.append(ctx)

    engine.handler("publish", publish)
    step = {"type": "external_call", "handler": "publish", "completion": "callback", "ack_timeout_ms": 60_000}
    step |= {"idempotency_strategy": "SAFE_TO_RETRY", "retry_policy": {"initial_delay_ms": 1, "jitter": 0}}
    ids = ("fetch", "ocr", "store")
    await engine.apply({"name": "ingest", "mode": "sequence", "steps": [{"step_id": id, **step} for id in ids]})
    handle = await engine.start("ingest", {"doc": "d-1"}, correlation_id="trace-1")

    async def directive(number: int) -> dict[str, Any]:
        await until(handle, lambda _: len(directives) >= number)
        await until_blocked(handle, "callback")
        return {"attempt": directives[-1].attempt, "lease": directives[-1].lease_id}

    first = await directive(1)
    assert await handle.acknowledge("fetch", **first, workspace="w-1") == "applied"
    assert await handle.answer("fetch", **first, result={"pages": 2}) == "applied"

    failed = await directive(2)
    assert await handle.answer("ocr", **failed, error="out of memory", error_class="TRANSIENT") == "applied"
    again = await directive(3)
    assert await handle.answer("ocr", **failed, result="stale") == "stale_attempt"
    assert await handle.answer("ocr", **again, result="text") == "applied"

    last = await directive(4)
    assert await handle.answer("store", **last, result="stored") == "applied"
    assert await handle.answer("store", **last, result="late") in ("terminal", "duplicate")
    result = await handle.result()
    assert [result.result_of(id) for id in ids] == [{"pages": 2}, "text", "stored"]
    assert len({ctx.idempotency_key for ctx in directives}) == 3, "one key per step, whatever the attempt"
    assert {ctx.correlation_id for ctx in directives} == {"trace-1"}


@pytest.mark.parametrize("mode", ["fail_fast", "continue", "retry"])
async def test_seed_2_a_run_of_agents_tasks_and_steps_under_each_failure_mode(engine: Engine, mode: str) -> None:
    stage = Stage()
    engine.handler("search", stage.does("search", TransientError("no network")))
    engine.handler("write", stage.does("write"))
    once = {"retry_policy": {"max_attempts": 1}}
    research = {"step_id": "research", "type": "scope", "children": [task("search", **once)], "failure_mode": mode}
    agents = [
        {"step_id": "reader", "type": "scope", "children": [research]},
        {"step_id": "writer", "type": "scope", "children": [task("write")]},
    ]
    await engine.apply({"name": "run", "mode": "sequence", "steps": agents})
    result = await engine.execute("run")
    expected = {
        "fail_fast": ("failed", ["search"]),
        "continue": ("succeeded", ["search", "write"]),
        "retry": ("succeeded", ["search", "search", "write"]),
    }
    assert (result.status, stage.log) == expected[mode]


async def test_seed_2_a_planner_decomposes_and_plans_again_when_too_much_failed(engine: Engine) -> None:
    stage = Stage()
    engine.handler("bad", stage.fails("bad", NonRetryableError("wrong approach")))
    engine.handler("good", stage.does("good"))
    plans: list[list[dict[str, Any]]] = [
        [task("first", handler="bad"), task("second", handler="bad"), task("third", handler="good")],
        [task("better", handler="good")],
    ]

    async def plan(ctx: SagaContext) -> Any:
        return plans[ctx.attempt - 1]

    engine.handler("plan", plan)
    policies = {"planner": "plan", "failure_mode": "continue"}
    await engine.apply({"name": "run", "mode": "parallel", "steps": [], "policies": policies})
    result = await engine.execute("run", {"goal": "a report"})

    assert result.status == "succeeded"
    assert sorted(stage.log) == ["bad", "bad", "good", "good"]
    assert result.steps["better"].status == "succeeded"
    rows = await engine.get(result.execution_id).history()
    assert [row["kind"] for row in rows].count("plan") == 2


@pytest.mark.parametrize("policy", POLICIES)
async def test_seed_4_a_fan_out_saga_under_each_compensation_policy(engine: Engine, policy: Policy) -> None:
    """Order, then a notification each, then shipping, which fails: every clone is undone, and what is upstream."""
    undone: list[str] = []

    async def create(item: Annotated[str, FromStep("choose")]) -> str:
        return f"order of {item}"

    async def notify(person: str) -> str:
        return f"told {person}"

    async def recall(receipt: Annotated[str, Result]) -> str:
        undone.append(receipt)
        return "recalled"

    async def delete(order: Annotated[str, Result]) -> None:
        undone.append(order)

    stage = Stage()
    builder = SagaBuilder("order", compensation=policy).step("choose", stage.does("choose", "a book"))
    builder.step("create", create, compensate=delete)
    builder.step("notify", notify, depends_on=["create"], compensate=recall)
    builder.step("ship", stage.fails("ship", NonRetryableError("no address")), depends_on=["notify"])
    engine.register(builder.build())

    people = ExpandEach(["ann", "bob", "cid"], suffix=lambda name: name)
    result = await engine.execute("order", StepInputs({"notify": people}))

    assert (result.status, result.failed_steps) == ("failed", ["ship"])
    assert sorted(undone) == ["order of a book", "told ann", "told bob", "told cid"]
    if policy != "best_effort_parallel":
        assert undone[-1] == "order of a book", "upstream is undone last"
    assert [clone.compensation_result for clone in result.steps["notify"].clones] == ["recalled"] * 3
    assert sorted(result.compensated_steps) == ["create", "notify#ann", "notify#bob", "notify#cid"]

"""What is shown of an execution: status, steps, why it is blocked, and every attempt."""

import asyncio
from typing import Any

import pytest

from tenuto import Engine, ExpandEach, Retry, SagaBuilder, SagaContext, StepInputs
from tenuto.errors import CompensationRequiredError, NonRetryableError, TransientError
from tenuto.testing import Harness
from tenuto.views import AttemptRow, Blocked


async def work(ctx: SagaContext) -> str:
    return ctx.step_id


async def undo() -> str:
    return "undone"


async def blocked(t: Harness, id: str) -> Blocked:
    found = (await t.get(id).status())["blocked"]
    assert found is not None
    return found


def columns(rows: list[AttemptRow], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(dict(row)[name] for name in names) for row in rows]


# -- Status ------------------------------------------------------------------------------------------------------------


async def test_the_status_has_the_fields_that_were_promised() -> None:
    async with Harness(SagaBuilder("s", output="a").step("a", work)) as t:
        handle = await t.start(
            "s", {"n": 1}, idempotency_key="k", target=("Invoice", "i1"), correlation_id="c", tenant="acme"
        )
        await handle.result()
        status = await handle.status()
        assert {
            "execution_id": handle.id,
            "definition_id": "s",
            "definition_version": 1,
            "status": "succeeded",
            "phase": "finished",
            "tenant_id": "acme",
            "target_object_type": "Invoice",
            "target_object_id": "i1",
            "input": {"n": 1},
            "output": "a",
            "correlation_id": "c",
            "idempotency_key": "k",
            "attempt_count": 1,
            "cancel_requested": False,
            "started_at": "2026-01-01T00:00:00.000Z",
            "completed_at": "2026-01-01T00:00:00.000Z",
            "blocked": None,
            "error": None,
        }.items() <= dict(status).items()


async def test_steps_that_never_started_are_skipped_once_it_is_over() -> None:
    saga = SagaBuilder("s").step("a", work).step("b", work, depends_on=["a"]).step("c", work, depends_on=["b"])
    async with Harness(saga) as t:
        t.script("b", NonRetryableError("no", code="refused"))
        result = await t.execute("s")
        status = await t.get(result.execution_id).status()
        assert [(step["step_id"], step["status"]) for step in status["steps"]] == [
            ("a", "succeeded"),
            ("b", "failed"),
            ("c", "skipped"),
        ]
        error = {"error_class": "NON_RETRYABLE", "code": "refused", "summary": "no", "step_id": "b"}
        assert status["error"] == status["steps"][1]["error"] == error


async def test_a_fan_out_is_one_entry_with_counts() -> None:
    async with Harness(SagaBuilder("s").step("a", work, failure_mode="continue")) as t:
        t.script("a", NonRetryableError("no"))
        result = await t.execute("s", StepInputs({"a": ExpandEach("xyz", suffix=str)}))
        (step,) = (await t.get(result.execution_id).status())["steps"]
        assert step["clones"] == {"total": 3, "pending": 0, "running": 0, "succeeded": 2, "failed": 0, "skipped": 1}
        rows = await t.get(result.execution_id).history()
        assert columns(rows, "step_id", "path", "status") == [
            ("a#x", "a#0", "failed"),
            ("a#y", "a#1", "succeeded"),
            ("a#z", "a#2", "succeeded"),
        ]


# -- Blocked -----------------------------------------------------------------------------------------------------------


async def test_what_goes_on_is_not_blocked() -> None:
    async with Harness(SagaBuilder("s").step("a", work)) as t:
        found: list[object] = []

        async def look(ctx: SagaContext) -> None:
            found.append((await t.get(ctx.execution_id).status())["blocked"])

        t.script("a", look)
        await t.execute("s")
        assert found == [None]


async def test_an_approval_says_who_is_asked_and_how_to_answer() -> None:
    saga = SagaBuilder("s").approval("ok", deadline="1h", permission="finance")
    async with Harness(saga) as t:
        result = await t.execute("s")
        found = await blocked(t, result.execution_id)
        assert result.blocked == found
        assert found["reason"] == "approval"
        assert found["waiting_for"] == "ok"
        assert found["since"] == "2026-01-01T00:00:00.000Z"
        assert found["next_check"] == "2026-01-01T01:00:00.000Z"
        assert found["commands"][:2] == ["approve", "reject"]
        (review,) = [row async for row in t.reviews()]
        assert review["id"] == found["review_id"]
        assert (review["kind"], review["step_id"], review["permission"]) == ("approval", "ok", "finance")


async def test_a_retry_says_when() -> None:
    async with Harness(SagaBuilder("s").step("a", work, retry=Retry(initial="10m", maximum="1h", jitter=0))) as t:
        t.script("a", TransientError("x"))
        handle = await t.start("s")
        await t.advance("1m")
        found = await blocked(t, handle.id)
        assert (found["reason"], found["waiting_for"]) == ("retry", "a")
        assert found["next_check"] == "2026-01-01T00:10:00.000Z"


async def test_a_pause_comes_first() -> None:
    saga = SagaBuilder("s").approval("ok")
    async with Harness(saga) as t:
        result = await t.execute("s")
        await t.get(result.execution_id).pause(reason="audit")
        found = await blocked(t, result.execution_id)
        assert (found["reason"], found["waiting_for"]) == ("paused", "audit")
        assert found["commands"] == ["resume", "approve", "reject", "cancel"]
        status = await t.get(result.execution_id).status()
        assert (status["status"], status["pause_reason"]) == ("paused", "audit")


async def test_compensation_required_is_told_from_other_reviews() -> None:
    async with Harness(SagaBuilder("s").step("a", work, compensate=undo, partial_effect=True)) as t:
        t.script("a", CompensationRequiredError("half done"))
        result = await t.execute("s")
        assert result.blocked is not None
        assert result.blocked["reason"] == "compensation_required"
        assert "resolve:compensate" in result.blocked["commands"]


async def test_a_lost_attempt_of_an_unsafe_step_waits_to_be_looked_up() -> None:
    async def find() -> Any: ...

    saga = SagaBuilder("s").step("a", work, safety="not_safe_to_retry", reconcile=find, compensation_policy="manual")
    async with Harness(saga) as t:
        t.crash("a", when="after")
        handle = await t.start("s")
        await t.advance("1s")
        assert (await blocked(t, handle.id))["reason"] == "reconcile"
        (lost,) = await handle.history()
        assert lost["error_code"] == "worker_lost"
        assert lost["worker"], "who had it was recorded before it began"


# -- Attempts ----------------------------------------------------------------------------------------------------------


async def test_who_runs_what_is_not_safe_to_retry_is_told_while_it_runs() -> None:
    begun, told = asyncio.Event(), asyncio.Event()

    async def charge() -> str:
        begun.set()
        await told.wait()
        return "charged"

    saga = SagaBuilder("s").step("a", charge, safety="not_safe_to_retry", compensation_policy="manual")
    async with Engine("memory://") as engine:
        engine.register(saga)
        handle = await engine.start("s")
        await begun.wait()
        (running,) = await handle.history()
        told.set()
        await handle.result()
        (ended,) = await handle.history()
    assert (running["status"], running["worker"]) == ("running", ended["worker"])
    assert ended["worker"]


async def test_every_attempt_has_its_row() -> None:
    saga = (
        SagaBuilder("s")
        .step("a", work, compensate=undo, retry=Retry(max_attempts=2, initial="1s", jitter=0))
        .step("b", work, depends_on=["a"], retry=0)
    )
    async with Harness(saga) as t:
        t.script("a", TransientError("first"))
        t.script("b", NonRetryableError("no"))
        result = await t.execute("s")
        rows = await t.get(result.execution_id).history()
        assert columns(rows, "step_id", "kind", "attempt_number", "status", "error_summary", "result") == [
            ("a", "forward", 1, "retrying", "first", None),
            ("a", "forward", 2, "succeeded", None, "a"),
            ("b", "forward", 1, "failed", "no", None),
            ("a", "compensation", 1, "succeeded", None, "undone"),
        ]
        assert rows[0]["retry_after_at"] == rows[1]["started_at"] == "2026-01-01T00:00:01.000Z"
        assert rows[0]["idempotency_key"] == rows[1]["idempotency_key"] != rows[3]["idempotency_key"]
        assert len({row["step_execution_id"] for row in rows}) == 4


async def test_a_new_run_makes_again_what_was_undone_under_a_new_key() -> None:
    saga = SagaBuilder("s").step("a", work, compensate=undo).step("b", work, depends_on=["a"], retry=0)
    async with Harness(saga) as t:
        t.script("b", NonRetryableError("no"))
        handle = await t.start("s")
        assert (await handle.result()).status == "failed"
        (letter,) = [row async for row in t.dlq()]
        assert (letter["step_id"], letter["error_class"], letter["error_summary"]) == ("b", "NON_RETRYABLE", "no")
        await handle.retry(reason="the stock came")
        assert (await handle.result()).succeeded
        assert [row async for row in t.dlq()] == []
        rows = await handle.history()
        forward = [row for row in rows if row["path"] == "a" and row["kind"] == "forward"]
        assert columns(forward, "attempt_number", "generation", "run") == [(1, 1, 1), (2, 2, 2)]
        assert forward[0]["idempotency_key"] != forward[1]["idempotency_key"]
        assert (await handle.status())["attempt_count"] == 2


async def test_steps_that_nobody_performs_have_rows_too() -> None:
    document = {
        "name": "flow",
        "steps": [
            {
                "step_id": "check",
                "type": "decision",
                "branches": [{"when": "input.n > 1", "next": "ok"}],
                "default": "$fail",
            },
            {"step_id": "ok", "type": "human_approval", "on_success": "wait"},
            {"step_id": "wait", "type": "wait", "with": {"duration_ms": 1000}},
        ],
    }
    async with Harness() as t:
        await t.apply(document)
        handle = await t.start("flow", {"n": 2})
        await handle.result()
        rows = await handle.history()
        assert columns(rows, "path", "status", "finished_at")[-1] == ("ok@1", "awaiting_approval", None)
        await handle.approve("ok", data={"note": "fine"})
        await handle.result()
        rows = await handle.history()
        assert columns(rows, "path", "status", "result") == [
            ("check@1", "succeeded", None),
            ("ok@1", "succeeded", {"note": "fine"}),
            ("wait@1", "succeeded", None),
        ]


@pytest.mark.parametrize("group_by", ["status", "definition"])
async def test_counting(group_by: Any) -> None:
    async with Harness(SagaBuilder("s").step("a", work), SagaBuilder("w").approval("ok")) as t:
        await t.execute("s")
        await t.execute("s", tenant="acme")
        await t.execute("w")
        expected = {"status": {"succeeded": 2, "waiting_approval": 1}, "definition": {"s": 2, "w": 1}}
        assert await t.count(group_by=group_by) == expected[group_by]
        scoped = t.scoped(tenant="acme", actor="user:1")
        assert await scoped.count() == {"succeeded": 1}
        assert len([handle async for handle in scoped.executions()]) == 1
        assert len([handle async for handle in t.executions(status="waiting_approval")]) == 1

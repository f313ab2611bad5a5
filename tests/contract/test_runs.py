"""Runs: created, started, planned, paid, paused, cancelled, retried."""

from typing import Any

import pytest

from tenuto import Engine, step
from tenuto.errors import (
    AttemptsSpent,
    ExecutionFailed,
    IdempotencyConflict,
    InsufficientCredits,
    InvalidInput,
    InvalidTransition,
    NotFound,
    NotPermitted,
)
from tenuto.runs import Agent, Escalation, PlanContext, Run, RunHandle, Subtask, agent, planner, run

from .conftest import MakeEngine
from .surveys import Doing, eventually, fail, flicker, survey

SHOPS = ["north.example", "south.example"]


async def paid(engine: Engine, amount: str = "500") -> Engine:
    await engine.credits.topup(amount, org_id="acme", idempotency_key="invoice-1", reason="invoice 1")
    return engine


async def created(engine: Engine, shops: list[str], **options: Any) -> RunHandle[Any]:
    return await engine.runs.create("survey", shops, org_id="acme", **options)


async def started(make_engine: MakeEngine, doing: Doing, shops: list[str], **options: Any) -> RunHandle[Any]:
    engine = await paid(await make_engine(survey(doing, **options)))
    made = await created(engine, shops)
    await made.start()
    return made


async def types(made: RunHandle[Any]) -> list[str]:
    """The ledger of a run that ended, once all its entries have numbers."""
    entries = await eventually(made.usage, lambda found: bool(found) and found[-1].type == "refund")
    return [f"{entry.type} {entry.amount}" for entry in entries]


async def until(made: RunHandle[Any], status: str) -> None:
    await eventually(made.status, lambda found: found.status == status)


async def test_a_run_is_planned_paid_and_concluded(make_engine: MakeEngine) -> None:
    doing = Doing()
    doing.by_shop["closed.example"] = fail
    made = await started(make_engine, doing, ["north.example", "closed.example"], failure_mode="continue")
    assert await made.output() == [1499]
    shown = await made.status()
    assert (shown.status, shown.outcome, shown.agent_count, shown.step_count) == ("completed", "partial", 2, 4)
    assert [str(shown.credits_reserved), str(shown.credits_charged), str(shown.credits_refunded)] == ["100", "20", "80"]
    found = await types(made)
    assert (found[0], sorted(found[1:3]), found[3:]) == ("reserve 100", ["charge 12.5", "charge 7.5"], ["refund 80"])
    agents = await made.agents()
    assert [(each["id"], each["status"]) for each in agents] == [("shop-1", "completed"), ("shop-2", "skipped")]


async def test_a_run_costs_nothing_until_it_starts(make_engine: MakeEngine) -> None:
    engine = await paid(await make_engine(survey(Doing())))
    made = await created(engine, SHOPS, name="Kettles")
    shown = await made.status()
    assert (shown.status, shown.name, str(shown.credits_reserved), shown.agent_count) == ("created", "Kettles", "0", 0)
    assert (await engine.credits.balance(org_id="acme")).held == 0
    cancelled = await made.cancel()
    assert (cancelled.status, (await made.cancel()).status) == ("cancelled", "cancelled")
    with pytest.raises(InvalidTransition):
        await made.start()
    assert await made.usage() == []


async def test_a_deleted_run_is_not_found_and_not_listed(make_engine: MakeEngine) -> None:
    engine = await paid(await make_engine(survey(Doing())))
    kept, gone = await created(engine, SHOPS), await created(engine, SHOPS)
    await gone.delete()
    await gone.delete()
    with pytest.raises(NotFound):
        await gone.status()
    assert [each.id for each in await engine.runs.list()] == [kept.id]
    await kept.start()
    with pytest.raises(InvalidTransition):
        await kept.delete()
    await kept.output()


async def test_a_run_that_cannot_be_paid_is_refused_at_create_and_at_start(make_engine: MakeEngine) -> None:
    doing = Doing()
    gate = doing.gate(SHOPS[0])
    engine = await paid(await make_engine(survey(doing)), "150")
    first, second = await created(engine, []), await created(engine, SHOPS)
    await second.start()
    with pytest.raises(InsufficientCredits) as refused:
        await first.start()
    assert (refused.value.needed, refused.value.available) == ("100", "50")
    assert (await first.status()).status == "created"
    with pytest.raises(InsufficientCredits):
        await created(engine, SHOPS)
    gate.set()
    await second.output()
    assert len(await engine.runs.list()) == 2


async def test_starting_twice_starts_once(make_engine: MakeEngine) -> None:
    doing = Doing()
    gate = doing.gate("north.example")
    made = await started(make_engine, doing, SHOPS[:1])
    await doing.reached["north.example"].wait()
    assert (await made.start()).status == "running"
    gate.set()
    await made.output()
    assert await types(made) == ["reserve 100", "charge 12.5", "refund 87.5"]
    with pytest.raises(InvalidTransition):
        await made.start()


async def test_a_key_creates_one_run(make_engine: MakeEngine) -> None:
    engine = await paid(await make_engine(survey(Doing())))
    first = await created(engine, SHOPS, idempotency_key="k")
    again = await created(engine, SHOPS, idempotency_key="k")
    assert (again.id, first.created, again.created) == (first.id, True, False)
    with pytest.raises(IdempotencyConflict):
        await created(engine, SHOPS[:1], idempotency_key="k")


async def test_a_cancel_refunds_what_was_not_charged(make_engine: MakeEngine) -> None:
    doing = Doing()
    doing.gate("south.example")
    made = await started(make_engine, doing, SHOPS)
    await doing.reached["south.example"].wait()
    await eventually(made.status, lambda found: str(found.credits_charged) == "12.5")
    shown = await made.cancel(reason="no longer needed")
    assert (shown.status, str(shown.credits_charged), str(shown.credits_refunded)) == ("cancelled", "12.5", "87.5")
    assert (await made.cancel()).status == "cancelled"
    assert {each["status"] for each in await made.agents()} <= {"cancelled", "completed"}


async def test_a_paused_run_resumes(make_engine: MakeEngine) -> None:
    doing = Doing()
    gate = doing.gate("north.example")
    made = await started(make_engine, doing, SHOPS[:1])
    await doing.reached["north.example"].wait()
    assert (await made.pause(reason="maintenance")).status == "paused"
    gate.set()
    assert [each["status"] for each in await made.agents()] == ["paused"]
    await made.resume()
    assert await made.output() == [1499]


async def test_a_failed_run_is_retried_with_a_reserve_of_its_own(make_engine: MakeEngine) -> None:
    doing = Doing()
    doing.by_shop["south.example"] = fail
    made = await started(make_engine, doing, SHOPS, max_replans=0, max_attempts=2)
    with pytest.raises(ExecutionFailed):
        await made.output()
    failed = await made.status()
    assert failed.last_error is not None
    assert (failed.status, failed.last_error["source"]) == ("failed", "agent")
    del doing.by_shop["south.example"]
    await made.retry(reason="the shop is open again")
    assert await made.output() == [1499, 1499]
    shown = await made.status()
    assert (shown.attempt_number, doing.fetched.count("north.example")) == (2, 1)
    attempts = await made.attempts()
    assert [each["status"] for each in attempts] == ["failed", "completed"]


async def test_attempts_can_be_spent(make_engine: MakeEngine) -> None:
    doing = Doing()
    doing.by_shop["north.example"] = fail
    made = await started(make_engine, doing, SHOPS[:1], max_replans=0, max_attempts=1)
    with pytest.raises(ExecutionFailed):
        await made.output()
    with pytest.raises(AttemptsSpent):
        await made.retry(reason="once more")


async def test_an_automatic_retry_reserves_again(make_engine: MakeEngine) -> None:
    doing = Doing()
    doing.by_shop["north.example"] = flicker
    made = await started(make_engine, doing, SHOPS[:1], failure_mode="retry", max_replans=0, max_attempts=2)
    await eventually(made.status, lambda found: found.attempt_number == 2 and found.status == "failed")
    attempts = await made.attempts()
    assert [(each["status"], each["credits_charged"]) for each in attempts] == [("failed", "2"), ("failed", "2")]


async def test_most_agents_failing_makes_a_new_plan(make_engine: MakeEngine) -> None:
    seen: list[PlanContext] = []

    @agent("shop")
    class Shop(Agent[str, str]):
        @step
        async def fetch(self, shop: str) -> str:
            if shop.startswith("closed"):
                raise ValueError("closed")
            return shop

    @planner
    def split(shops: list[str], plan: PlanContext) -> list[Subtask]:
        seen.append(plan)
        return [Subtask(Shop, shop if plan.replan == 0 else "open.example") for shop in shops]

    @run("replanned", planner=split, agents=[Shop])
    class Replanned(Run[list[str], list[str]]): ...

    engine = await paid(await make_engine(Replanned()))
    made = await engine.runs.create(Replanned, ["closed.example"], org_id="acme")
    await made.start()
    assert await made.output() == ["open.example"]
    assert [plan.replan for plan in seen] == [0, 1]
    assert [failed.code for failed in seen[1].failed] == ["ValueError"]
    assert [(each["id"], each["status"]) for each in await made.agents()] == [
        ("shop-1", "superseded"),
        ("shop-2", "completed"),
    ]
    assert (await made.status()).context["replan_count"] == 1


async def test_a_run_without_a_planner_has_one_agent_of_each_class(make_engine: MakeEngine) -> None:
    @agent("left")
    class Left(Agent[int, int]):
        @step
        async def add(self, number: int) -> int:
            return number + 1

    @agent("right")
    class Right(Agent[int, int]):
        @step
        async def add(self, number: int) -> int:
            return number + 2

    @run("both", agents=[Left, Right])
    class Both(Run[int, list[int]]): ...

    engine = await paid(await make_engine(Both()))
    made = await engine.runs.create(Both, 1, org_id="acme")
    await made.start()
    assert await made.output() == [2, 3]


async def test_an_escalated_run_waits_for_a_person(make_engine: MakeEngine) -> None:
    doing = Doing()
    doing.by_shop["north.example"] = flicker
    made = await started(make_engine, doing, SHOPS[:1], escalation=Escalation(), max_replans=0)
    await until(made, "paused")
    shown = await made.status()
    assert (shown.pause_reason, shown.escalation_ticket_id is not None) == ("escalated", True)
    del doing.by_shop["north.example"]
    await made.resume()
    assert await made.output() == [1499]


async def test_a_healthy_run_is_not_unstuck_unless_forced(make_engine: MakeEngine) -> None:
    doing = Doing()
    doing.gate("north.example")
    made = await started(make_engine, doing, SHOPS[:1])
    await doing.reached["north.example"].wait()
    with pytest.raises(InvalidTransition) as refused:
        await made.unstick(reason="it hangs")
    assert refused.value.code == "not_stuck"
    shown = await made.unstick(reason="it hangs", force=True)
    assert shown.last_error is not None
    assert (shown.status, shown.last_error["code"], str(shown.credits_refunded)) == ("failed", "unstuck", "100")


async def test_a_run_is_no_plain_execution(make_engine: MakeEngine) -> None:
    engine = await paid(await make_engine(survey(Doing())))
    with pytest.raises(InvalidInput) as refused:
        await engine.start("survey", SHOPS)
    assert refused.value.problems[0].code == "is_a_run"


async def test_other_organisations_are_not_seen(make_engine: MakeEngine) -> None:
    engine = await paid(await make_engine(survey(Doing())))
    made = await created(engine, SHOPS)
    other = engine.scoped(tenant="globex", actor="ann", roles=["admin"])
    with pytest.raises(NotFound):
        await other.runs.get(made.id).status()
    assert await other.runs.list() == []
    with pytest.raises(NotPermitted) as refused:
        await other.credits.balance(org_id="acme")
    assert refused.value.code == "tenant_mismatch"
    viewer = engine.scoped(tenant="acme", actor="ann", roles=["viewer"])
    assert (await viewer.runs.get(made.id).status()).id == made.id
    with pytest.raises(NotPermitted):
        await viewer.runs.get(made.id).start()


async def test_without_credits_usage_is_recorded_and_nothing_held(make_engine: MakeEngine) -> None:
    engine = await make_engine(survey(Doing()), credits="off")
    made = await created(engine, SHOPS[:1])
    await made.start()
    await made.output()
    shown = await made.status()
    assert (str(shown.credits_reserved), str(shown.credits_charged), shown.status) == ("0", "0", "completed")
    assert await made.usage() == []


@pytest.mark.parametrize("field", ["max_tokens", "max_attempts"])
async def test_limits_are_at_least_one(make_engine: MakeEngine, field: str) -> None:
    engine = await paid(await make_engine(survey(Doing())))
    with pytest.raises(InvalidInput):
        await created(engine, SHOPS, **{field: 0})


async def test_a_step_that_costs_more_than_is_reserved_is_refused(make_engine: MakeEngine) -> None:
    @agent("dear")
    class Dear(Agent[int, int]):
        @step(estimate="101")
        async def spend(self, number: int) -> int:
            return number

    @run("dear-run", agents=[Dear])
    class DearRun(Run[int, list[int]]): ...

    engine = await paid(await make_engine(DearRun()))
    with pytest.raises(InvalidInput) as refused:
        await engine.runs.create(DearRun, 1, org_id="acme")
    assert refused.value.problems[0].code == "estimate_too_high"
    await engine.runs.create(DearRun, 1, org_id="acme", max_tokens=200_000)

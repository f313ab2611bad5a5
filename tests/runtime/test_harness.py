"""`Harness`: time that is skipped, handlers that are scripted, workers that are lost."""

import asyncio
from datetime import timedelta
from typing import Annotated

import pytest

from tenuto import Done, FromStep, NotDone, Outcome, Pending, Retry, Saga, SagaBuilder, SagaContext, Unknown, saga, step
from tenuto.authoring.decorators import approval, signal, wait
from tenuto.errors import NonRetryableError, NotFound, TransientError
from tenuto.testing import Harness

CHARGES: dict[str, str] = {}


@pytest.fixture(autouse=True)
def _no_charges() -> None:
    CHARGES.clear()


@saga("shop", output="charge")
class Shop(Saga[int, str]):
    async def undo_reserve(self, cents: int) -> str:
        return f"released {cents}"

    async def find(self, ctx: SagaContext) -> Outcome[str]:
        found = CHARGES.get(ctx.forward_key)
        return Done(found) if found else NotDone()

    async def refund(self, charge: str | None) -> None: ...

    @step(compensate=undo_reserve, retry=Retry(max_attempts=3, initial="1s", jitter=0))
    async def reserve(self, cents: int) -> str:
        return f"reserved {cents}"

    @step(safety="not_safe_to_retry", reconcile=find, compensate=refund, timeout="10s")
    async def charge(self, reserved: Annotated[str, FromStep(reserve)], ctx: SagaContext) -> str:
        return CHARGES.setdefault(ctx.idempotency_key, f"charged for {reserved}")


async def test_time_passes_only_for_timers() -> None:
    async with Harness(Shop()) as t:
        t.script(Shop.reserve, TransientError("1"), TransientError("2"))
        result = await t.execute(Shop, 5)
        assert result.output == "charged for reserved 5"
        assert t.elapsed == timedelta(seconds=3)  # one second, then two
        assert t.calls(Shop.reserve) == 3
        assert result.steps["reserve"].attempts == 3


async def test_a_run_is_the_same_every_time() -> None:
    async def run() -> tuple[timedelta, str, list[str | None]]:
        async with Harness(Shop()) as t:
            t.script("reserve", *(TransientError("x") for _ in range(2)))
            result = await t.execute(Shop, 5)
            rows = await t.get(result.execution_id).history()
            return t.elapsed, result.execution_id, [row["started_at"] for row in rows]

    assert await run() == await run()


async def test_scripts_are_values_exceptions_and_callables_and_then_the_handler() -> None:
    async def with_context(ctx: SagaContext) -> str:
        return f"callable {ctx.attempt}"

    async with Harness(SagaBuilder("s").step("x", _real)) as t:
        t.script("x", "value", with_context, lambda: "plain", NonRetryableError)
        found = [await t.execute("s") for _ in range(5)]
        assert [result.result_of("x") for result in found] == ["value", "callable 1", "plain", None, "real"]
        assert t.calls("x") == 5


def _real() -> str:
    return "real"


async def test_what_is_not_there_cannot_be_scripted() -> None:
    async with Harness(Shop()) as t:
        with pytest.raises(NotFound):
            t.script("nothing", 1)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_lost_safe_step_runs_again(when: str) -> None:
    async with Harness(Shop()) as t:
        t.crash(Shop.reserve, when="before" if when == "before" else "after")
        result = await t.execute(Shop, 5)
        assert result.succeeded
        assert t.calls(Shop.reserve) == (1 if when == "before" else 2)
        rows = await t.get(result.execution_id).history()
        assert [(row["status"], row["error_code"]) for row in rows if row["path"] == "reserve"] == [
            ("retrying", "worker_lost"),
            ("succeeded", None),
        ]


async def test_a_lost_answer_is_found_again_and_not_made_twice() -> None:
    async with Harness(Shop()) as t:
        t.crash(Shop.charge, when="after")
        result = await t.execute(Shop, 5)
        assert result.output == "charged for reserved 5"
        assert t.calls(Shop.charge) == 1
        assert t.calls(Shop.find) == 1
        # Not before its timeout and a lease are over: the lost worker may have been frozen, not dead.
        assert t.elapsed == timedelta(seconds=25)


async def test_a_charge_that_was_never_made_is_made_again() -> None:
    async with Harness(Shop()) as t:
        t.crash(Shop.charge, when="before")
        result = await t.execute(Shop, 5)
        assert result.output == "charged for reserved 5"
        assert t.calls(Shop.charge) == 1
        assert t.calls("find") == 1


async def test_probes_and_compensations_can_be_scripted() -> None:
    async with Harness(Shop()) as t:
        t.crash(Shop.charge, when="after")
        t.script(Shop.find, Pending(retry_after="5m"), Unknown("the log is gone"))
        result = await t.execute(Shop, 5)
        assert result.status == "waiting_approval"
        assert result.blocked is not None
        assert result.blocked["reason"] == "review"
        review = result.blocked["review_id"]
        assert review is not None
        t.script(Shop.undo_reserve, "scripted")
        t.script(Shop.refund, None)
        await t.resolve(review, "compensate", reason="looked at the bank's site")
        result = await t.get(result.execution_id).result(return_when="terminal")
        assert result.status == "failed"
        assert list(result.compensated_steps) == ["charge", "reserve"]
        assert result.steps["reserve"].compensation_result == "scripted"


@saga("waits", output="paid")
class Waits(Saga[int, int]):
    ok = approval(deadline="1h")
    cool = wait("10m", depends_on=[ok])
    paid = signal("paid", int, deadline="24h", depends_on=[cool])


async def test_people_are_waited_for_by_nobody_but_the_caller() -> None:
    async with Harness(Waits()) as t:
        result = await t.execute(Waits, 1)
        assert (result.status, result.done) == ("waiting_approval", False)
        assert t.elapsed == timedelta(0)  # the approval's deadline is not skipped to
        handle = t.get(result.execution_id)
        await handle.approve("ok", comment="fine")
        waiting = asyncio.ensure_future(handle.result())
        await t.advance("9m")
        blocked = (await handle.status())["blocked"]
        assert blocked is not None
        assert (blocked["reason"], blocked["waiting_for"]) == ("timer", "cool")
        await t.advance("2m")
        blocked = (await handle.status())["blocked"]
        assert blocked is not None
        assert (blocked["reason"], blocked["waiting_for"]) == ("signal", "paid")
        await handle.signal("paid", 42)
        assert (await waiting).output == 42


async def test_a_deadline_passes_when_somebody_waits_for_the_end() -> None:
    async with Harness(Waits()) as t:
        handle = await t.start(Waits, 1)
        result = await handle.result(return_when="terminal")
        assert (result.status, result.steps["ok"].status) == ("failed", "timed_out")
        assert t.elapsed == timedelta(hours=1)


async def test_without_skipping_time_stands_still() -> None:
    async with Harness(Shop(), skip=False) as t:
        t.script(Shop.reserve, TransientError("x"))
        handle = await t.start(Shop, 5)
        waiting = asyncio.ensure_future(handle.result())
        await t.advance("999ms")
        assert not waiting.done()
        assert t.elapsed == timedelta(milliseconds=999)
        await t.advance("1ms")
        assert (await waiting).succeeded


async def test_a_timeout_of_the_caller_is_in_virtual_time_too() -> None:
    async with Harness(Waits()) as t:
        handle = await t.start(Waits, 1)
        await handle.approve(Waits.ok)
        with pytest.raises(Exception, match="had not settled"):
            await handle.result(timeout="5m")
        assert t.elapsed == timedelta(minutes=5)

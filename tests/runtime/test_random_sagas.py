"""Random sagas, faults and operators, under a seed: all settles, nothing leaks, and histories fold to the state."""

import asyncio
import random
from typing import Any, Literal

import pytest

from tenuto import (
    Done,
    ExpandEach,
    Handle,
    NotDone,
    Outcome,
    Pending,
    SagaBuilder,
    SagaContext,
    StepInputs,
    Unknown,
)
from tenuto.errors import (
    CompensationRequiredError,
    IndeterminateError,
    InvalidTransition,
    NonRetryableError,
    RateLimitedError,
    TransientError,
)
from tenuto.kernel.evolve import fold
from tenuto.kernel.state import TERMINAL, Execution
from tenuto.runtime.memory import MemoryRuntime
from tenuto.testing import Harness
from tests.seams import executions_in_memory, limit_in_memory, memory_of, worker_in_memory

ERRORS = (
    TransientError,
    NonRetryableError,
    IndeterminateError,
    CompensationRequiredError,
    RateLimitedError,
    ValueError,
)
RESOLUTIONS: tuple[Any, ...] = ("completed", "not_completed", "retry", "compensate", "dismiss")


class Storm:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def saga(self) -> SagaBuilder:
        chance = self.chance
        orders: Any = chance.choice(
            ["strict_sequential", "grouped_parallel", "circuit_breaker", "best_effort_parallel"]
        )
        scheduling: Any = chance.choice(["layered", "eager"])
        saga = SagaBuilder("s", compensation=orders, scheduling=scheduling, layer_concurrency=chance.choice([0, 1, 2]))
        self.ids = [f"s{n}" for n in range(chance.randint(1, 6))]
        for position, id in enumerate(self.ids):
            earlier = [other for other in self.ids[:position] if chance.random() < 0.4]
            saga.step(id, self.work if chance.random() < 0.8 else self.plain, depends_on=earlier, **self.options())
        return saga

    def options(self) -> Any:
        chance = self.chance
        safety = chance.choice(["safe_to_retry", "not_safe_to_retry", "safe_to_retry_with_guard"])
        options: dict[str, Any] = {"safety": safety, "retry": chance.randint(0, 2), "timeout": "5s"}
        if safety == "safe_to_retry_with_guard":
            options["guard"] = self.probe
        if safety == "not_safe_to_retry":
            options |= {"reconcile": self.probe, "compensation_policy": "manual"}
        if chance.random() < 0.6:
            options |= {"compensate": self.undo, "compensation_critical": chance.random() < 0.3}
        if chance.random() < 0.3:
            options["limits"] = ["l"]
        if chance.random() < 0.3:
            options["failure_mode"] = "continue"
        return options

    async def work(self, ctx: SagaContext) -> str:
        return ctx.path

    def plain(self, ctx: SagaContext) -> str:
        return ctx.path

    async def undo(self) -> None: ...

    async def probe(self) -> Outcome[str]:
        outcomes: list[Outcome[str]] = [Done("found"), NotDone(), Pending(retry_after="1s"), Unknown("?")]
        return self.chance.choice(outcomes)

    async def hang(self) -> None:
        await asyncio.Event().wait()

    def faults(self, t: Harness) -> None:
        for id in self.ids:
            for _ in range(self.chance.randint(0, 3)):
                kind = self.chance.random()
                if kind < 0.25:
                    t.script(id, self.chance.choice(ERRORS)("x"))
                elif kind < 0.35:
                    when: Literal["before", "after"] = self.chance.choice(["before", "after"])
                    t.crash(id, when=when)
                elif kind < 0.4:
                    t.script(id, self.hang)

    def input(self) -> object:
        fans = {id: ExpandEach(range(self.chance.randint(0, 4))) for id in self.ids if self.chance.random() < 0.3}
        return StepInputs(fans) if fans else 1

    async def meddle(self, t: Harness, handle: Handle[Any]) -> None:
        chance = self.chance
        what = chance.random()
        try:
            if what < 0.1:
                await handle.pause()
            elif what < 0.3:
                await handle.resume()
            elif what < 0.33:
                mode: Any = chance.choice(["drain", "terminate", "compensate"])
                await handle.cancel(mode)
            elif what < 0.38:
                start = chance.choice([None, *self.ids])
                again = start is not None and chance.random() < 0.5
                await handle.retry(reason="x", from_step=start, again=again)
            elif what < 0.5:
                for row in [row async for row in t.reviews() if row["kind"] != "dead_letter"][:1]:
                    await t.resolve(row["id"], chance.choice(RESOLUTIONS), result="fixed", reason="asked")
            else:
                await t.advance(chance.choice(["1ms", "1s", "10s", "1m"]))
        except InvalidTransition:
            pass
        await handle.status()
        await handle.history()

    async def calm(self, t: Harness, handles: list[Handle[Any]]) -> None:
        """No more faults, and people who answer: now everything has to come to its end."""
        for _ in range(100):
            going = [handle for handle in handles if (await handle.status())["status"] not in TERMINAL]
            if not going:
                return
            for handle in going:
                await handle.resume()
            for row in [row async for row in t.reviews() if row["kind"] != "dead_letter"]:
                await t.resolve(row["id"], self.chance.choice(["completed", "dismiss"]), result="fixed", reason="asked")
            await t.advance("10m")
        raise AssertionError([await handle.status() for handle in handles])


@pytest.mark.parametrize("seed", range(25))
async def test_everything_settles_and_nothing_leaks(seed: int) -> None:
    storm = Storm(seed)
    async with Harness(storm.saga(), slots=storm.chance.choice([1, 2, 200]), threads=2) as t:
        await t.limit("l", rate="2/s", concurrency=1)
        storm.faults(t)
        handles = [await t.start("s", storm.input()) for _ in range(3)]
        for _ in range(40):
            await storm.meddle(t, storm.chance.choice(handles))
        await storm.calm(t, handles)
        for handle in handles:
            assert str((await handle.result()).report())
        _check_nothing_leaked(memory_of(t))


def _check_nothing_leaked(runtime: MemoryRuntime) -> None:
    worker = worker_in_memory(runtime)
    assert worker.running == worker.async_lane.waiting == worker.thread_lane.waiting == 0
    assert limit_in_memory(runtime, "l").running == 0
    for record in executions_in_memory(runtime):
        left = [record.jobs, record.tickets, record.held, record.zombies, record.parked]
        assert left == [{}] * 5
        folded = fold(Execution(record.state.plan), record.history)
        assert (folded.agenda, folded.status) == (record.state.agenda, record.state.status)

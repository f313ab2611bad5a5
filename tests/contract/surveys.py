"""Runs for tests: a survey of shops, whose handlers do what a test tells them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

from tenuto import FromStep, Retry, step
from tenuto.errors import NonRetryableError, TransientError
from tenuto.runs import Agent, AgentResults, PlanContext, Run, RunContext, Subtask, agent, planner, run, task

ONCE = Retry(max_attempts=1)


T = TypeVar("T")


async def eventually(ask: Callable[[], Awaitable[T]], fits: Callable[[T], bool]) -> T:
    """Asks until the answer fits: what another task or process does is seen soon."""
    async with asyncio.timeout(20):
        found = await ask()
        while not fits(found):
            looked = asyncio.Event()
            asyncio.get_running_loop().call_later(0.02, looked.set)
            await looked.wait()
            found = await ask()
        return found


class Doing:
    """What shops do, by name. A shop without an entry answers at once."""

    def __init__(self) -> None:
        self.by_shop: dict[str, Callable[[RunContext], Any]] = {}
        self.fetched: list[str] = []
        self.reached: dict[str, asyncio.Event] = {}
        self.gates: dict[str, asyncio.Event] = {}

    def gate(self, shop: str) -> asyncio.Event:
        """Makes a shop wait until the returned event is set."""
        self.reached[shop], self.gates[shop] = asyncio.Event(), asyncio.Event()
        return self.gates[shop]

    async def fetch(self, shop: str, ctx: RunContext) -> str:
        self.fetched.append(shop)
        if shop in self.gates:
            self.reached[shop].set()
            await self.gates[shop].wait()
        if shop in self.by_shop:
            self.by_shop[shop](ctx)
        ctx.charge("12.5")
        return "1499"


def fail(ctx: RunContext) -> None:
    ctx.charge("7.5")
    raise NonRetryableError("unknown shop", code="unknown_shop")


def flicker(ctx: RunContext) -> None:
    ctx.charge("2")
    raise TransientError("out of reach", code="out_of_reach")


def survey(doing: Doing, **options: Any) -> object:
    """A run with one agent for each shop of its input."""

    @agent("shop")
    class Shop(Agent[str, int]):
        @step(estimate="15", retry=ONCE)
        async def fetch(self, shop: str, ctx: RunContext) -> str:
            return await doing.fetch(shop, ctx)

        @step
        async def read(self, page: Annotated[str, FromStep(fetch)]) -> int:
            return int(page)

        visit = task(fetch, read)

    @planner
    def split(shops: list[str], plan: PlanContext) -> list[Subtask]:
        wanted = [Subtask(Shop, shop) for shop in shops]
        return [subtask for subtask in wanted if subtask not in plan.completed]

    @run("survey", planner=split, agents=[Shop], **options)
    class Survey(Run[list[str], list[int]]):
        async def conclude(self, results: AgentResults) -> list[int]:
            return [price for price in results.of(Shop) if price is not None]

    return Survey()

"""Surveys prices in several shops, and pays for the work with credits.

Run it: `python examples/survey/survey.py`.
"""

import asyncio
from typing import Annotated

from tenuto import Engine, FromStep, step
from tenuto.errors import NonRetryableError
from tenuto.runs import Agent, AgentResults, PlanContext, Run, RunContext, Subtask, agent, planner, run, task


@agent("shop")
class Shop(Agent[str, int]):
    @step(estimate="15")  # at most 15 credits, set aside before the attempt starts
    async def fetch(self, shop: str, ctx: RunContext) -> str:
        if shop == "closed.example":
            ctx.charge("7.5")  # failed attempts are charged, too
            raise NonRetryableError("unknown shop", code="unknown_shop")
        ctx.charge("12.5")
        return "1499"

    @step
    async def read(self, page: Annotated[str, FromStep(fetch)]) -> int:
        return int(page)

    visit = task(fetch, read)


@agent("rates")
class Rates(Agent[str, float]):
    @step(estimate="20")
    async def load(self, currency: str, ctx: RunContext) -> float:
        ctx.report_tokens(17_500)  # 17.5 credits at the default rate
        return 1.08


@planner
def split(shops: list[str], plan: PlanContext) -> list[Subtask]:
    wanted = [*(Subtask(Shop, shop) for shop in shops), Subtask(Rates, "EUR")]
    return [subtask for subtask in wanted if subtask not in plan.completed]


@run("price-survey", planner=split, agents=[Shop, Rates], failure_mode="continue")
class PriceSurvey(Run[list[str], list[int]]):
    async def conclude(self, results: AgentResults) -> list[int]:
        return [price for price in results.of(Shop) if price is not None]


async def main() -> None:
    async with Engine("sqlite:///runs.db") as engine:
        engine.register(PriceSurvey())
        await engine.credits.topup("500", org_id="acme", idempotency_key="invoice-1", reason="invoice 1")
        shops = ["north.example", "closed.example"]
        survey = await engine.runs.create(PriceSurvey, shops, org_id="acme", name="Kettles")
        await survey.start()  # reserves 100 credits
        print(await survey.output(), (await survey.status()).credits_charged)  # [1499] 37.5


if __name__ == "__main__":
    asyncio.run(main())

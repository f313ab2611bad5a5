"""A letter to everybody in a segment, at the rate the mail provider allows. `python examples/campaign.py`"""

import asyncio
from dataclasses import dataclass
from typing import Annotated

from tenuto import Engine, FromStep, Saga, SagaContext, saga, step


@dataclass
class Reader:
    name: str
    email: str


@saga("campaign", output="summary")
class Campaign(Saga[int, str]):
    @step
    async def audience(self, size: int) -> list[Reader]:
        return [Reader(f"Reader {n}", f"reader{n}@example.org") for n in range(size)]

    @step(foreach="steps.audience.result", suffix="item.email", limits=["mail"], failure_mode="continue", retry=2)
    async def send(self, reader: Reader, ctx: SagaContext) -> str:
        return f"Dear {reader.name} ({ctx.idempotency_key[:8]})"

    @step
    async def summary(self, sent: Annotated[list[str | None], FromStep(send)]) -> str:
        return f"{sum(letter is not None for letter in sent)} of {len(sent)} letters sent"


async def main() -> None:
    async with Engine("memory://") as engine:
        engine.register(Campaign())
        await engine.limit("mail", rate="100/s", concurrency=20)
        result = await engine.execute(Campaign, 150)
        print(result.output)
        print(result.steps["send"].clones[7].id, "->", result.results_of(Campaign.send)[7])


if __name__ == "__main__":
    asyncio.run(main())

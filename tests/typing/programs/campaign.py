"""Letters to many people, under the provider's rate."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, assert_type

from tenuto import Engine, ExpandEach, FromStep, Saga, SagaContext, StepInputs, saga, step


@dataclass
class Person:
    email: str


@saga("campaign", output="summarise")
class Campaign(Saga[str, int]):
    @step
    async def audience(self, segment: str) -> list[Person]:
        return [Person(f"{n}@{segment}") for n in range(100)]

    @step(
        foreach="steps.audience.result",
        suffix="item.email",
        depends_on=[audience],
        limits=["ses"],
        failure_mode="continue",
        retry=5,
    )
    async def send(self, person: Person, ctx: SagaContext) -> str:
        return f"{person.email}:{ctx.idempotency_key}"

    @step
    async def summarise(self, sent: Annotated[list[str | None], FromStep(send)]) -> int:
        return sum(message is not None for message in sent)


async def main() -> None:
    async with Engine("memory://") as engine:
        engine.register(Campaign())
        await engine.limit("ses", rate="14/s", concurrency=20)
        result = await engine.execute(Campaign, "beta")
        assert_type(result.output, int)
        assert_type(result.results_of(Campaign.send), Sequence[str | None])
        people = ExpandEach([Person("a@b")], suffix=lambda person: person.email)
        inputs = StepInputs({"audience": "beta", Campaign.send: people})
        assert_type((await engine.execute(Campaign, inputs)).output, int)

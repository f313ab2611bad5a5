"""One round of an agent: it chooses tools, runs them side by side, and answers. `python examples/agent.py`"""

import asyncio
from dataclasses import dataclass
from typing import Annotated

from tenuto import Engine, FromStep, Saga, SagaContext, saga, step
from tenuto.errors import TransientError


@dataclass
class Call:
    tool: str
    query: str


@saga("research", scheduling="eager", output="answer")
class Research(Saga[str, str]):
    @step(timeout="60s", limits=["model"])
    async def plan(self, question: str) -> list[Call]:
        return [Call("search", question), Call("archive", question), Call("oracle", question)]

    @step(foreach="steps.plan.result", max_concurrency=2, failure_mode="continue", timeout="30s", retry=1)
    async def run_tool(self, call: Call, ctx: SagaContext) -> str:
        await ctx.heartbeat({"tool": call.tool})
        if call.tool == "oracle":
            raise TransientError("the oracle is asleep")
        return f"{call.tool} found something on {call.query!r}"

    @step(limits=["model"])
    async def answer(self, question: str, found: Annotated[list[str | None], FromStep(run_tool)]) -> str:
        return "; ".join(text for text in found if text is not None)


async def main() -> None:
    async with Engine("memory://") as engine:
        engine.register(Research())
        await engine.limit("model", concurrency=4)
        result = await engine.execute(Research, "the length of a note")
        print(result.output)
        print(result.report())


if __name__ == "__main__":
    asyncio.run(main())

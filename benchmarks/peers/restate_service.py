# Runs in an environment of its own, which type checks do without.
# mypy: disable-error-code="import-not-found,untyped-decorator"
"""The service that Restate calls: `app`, served by granian or hypercorn."""

from typing import Any

import restate

from benchmarks.runner import STEPS, slow_step

chain = restate.Workflow("Chain")
fan_out = restate.Workflow("FanOut")
slow = restate.Workflow("Slow")


async def no_op(number: int) -> int:
    return number


@chain.main(name="run")
async def run_chain(ctx: restate.WorkflowContext, steps: int) -> int:
    for number in range(steps):
        await ctx.run_typed(f"step{number}", no_op, number=number)
    return steps


@fan_out.main(name="run")
async def run_fan_out(ctx: restate.WorkflowContext, width: int) -> int:
    each = [ctx.run_typed(f"work{number}", no_op, number=number) for number in range(width)]
    await restate.gather(*each)
    return len(each)


@slow.main(name="run")
async def run_slow(ctx: restate.WorkflowContext, given: dict[str, Any]) -> None:
    for number in range(STEPS):
        await ctx.run_typed(f"step{number}", slow_step, log=given["log"], key=given["key"], step=number)


app = restate.app([chain, fan_out, slow])

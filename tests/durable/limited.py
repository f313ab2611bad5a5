"""A worker process for tests of limits: `python -m tests.durable.limited URL LOG COUNT [hang]`.

Starts COUNT executions whose step is limited, notes when each step is entered and left, and goes on until it is ended.
"""

import asyncio
import os
import sys

from tenuto import Engine, SagaBuilder
from tests.durable.child import LEASE, note


def limited(log: str, *, hangs: bool = False, name: str = "limited") -> object:
    async def work(number: int) -> int:
        note(log, "in", os.getpid(), number)
        if hangs:
            await asyncio.Event().wait()
        for _ in range(20):
            await asyncio.to_thread(os.sched_yield)
        note(log, "out", os.getpid(), number)
        return number

    return SagaBuilder(name, output="work").step("work", work, limits=["l"], timeout="60s").build()


async def main(url: str, log: str, count: int, *, hangs: bool) -> None:
    async with Engine(url, lease=LEASE) as engine:
        engine.register(limited(log, hangs=hangs))
        for number in range(count):
            await engine.start("limited", number, idempotency_key=f"{os.getpid()}-{number}")
        sys.stdout.write("started\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), hangs="hang" in sys.argv))

"""A worker process for tests that kill one: `python -m tests.durable.worker_process URL LOG [start N]`.

Every effect is a line appended to LOG with one write, so that what happened can be told when the process is gone.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Annotated

from tenuto import Done, Engine, FromStep, NotDone, Outcome, Saga, SagaContext, saga, step

LEASE = "5s"


def note(path: str, *words: object) -> None:
    line = " ".join(str(word) for word in words) + "\n"
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, line.encode())
    os.close(handle)


def noted(path: str) -> list[list[str]]:
    log = Path(path)
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


@saga("slow", output="last")
class Slow(Saga[int, str]):
    """Three steps; the middle one may not be repeated blindly, and may hang."""

    def __init__(self, log: str, *, hangs: bool = False) -> None:
        self.log = log
        self.hangs = hangs

    async def find(self, ctx: SagaContext) -> Outcome[str]:
        made = any(line[:2] == ["paid", ctx.forward_key] for line in noted(self.log))
        return Done("found") if made else NotDone()

    @step
    async def first(self, number: int, ctx: SagaContext) -> int:
        note(self.log, "first", ctx.execution_id, ctx.attempt)
        return number

    @step(depends_on=[first], safety="not_safe_to_retry", reconcile=find, timeout="8s")
    async def pay(self, number: int, ctx: SagaContext) -> str:
        note(self.log, "begun", ctx.execution_id, ctx.attempt)
        if self.hangs:
            await asyncio.Event().wait()
        note(self.log, "paid", ctx.idempotency_key, ctx.attempt)
        return "paid"

    @step
    async def last(self, paid: Annotated[str, FromStep(pay)], ctx: SagaContext) -> str:
        note(self.log, "last", ctx.execution_id, ctx.attempt)
        return paid


async def main(url: str, log: str, starts: int) -> None:
    async with Engine(url, lease=LEASE) as engine:
        engine.register(Slow(log, hangs=starts > 0))
        for number in range(starts):
            await engine.start(Slow, number, idempotency_key=f"key-{number}")
        sys.stdout.write("started\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored, if whoever runs the tests does so in background
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 0))

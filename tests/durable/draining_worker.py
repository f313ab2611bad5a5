"""A worker process that is asked to leave: `python -m tests.durable.draining_worker URL LOG EXECUTIONS`.

Its handlers note that they have begun, and end when a line comes from its standard input. With no executions to start
it only works, and `serve_forever` does the rest.
"""

import asyncio
import sys

from tenuto import Engine, Saga, SagaContext, saga, step
from tenuto.api.stop_signals import stopping
from tests.durable.worker_process import note

SLOTS = 3


@saga("held", output="last")
class Held(Saga[int, int]):
    def __init__(self, log: str, go: asyncio.Event) -> None:
        self.log = log
        self.go = go

    @step
    async def first(self, number: int, ctx: SagaContext) -> int:
        note(self.log, "first", ctx.execution_id, ctx.attempt)
        await self.go.wait()
        return number

    @step(depends_on=[first], safety="not_safe_to_retry", compensation_policy="manual")
    async def last(self, number: int, ctx: SagaContext) -> int:
        note(self.log, "last", ctx.execution_id, ctx.attempt)
        return number


async def main(url: str, log: str, executions: int) -> None:
    go = asyncio.Event()
    async with Engine(url, slots=SLOTS, shutdown_grace="30s") as engine:
        engine.register(Held(log, go))
        for number in range(executions):
            await engine.start(Held, number, idempotency_key=f"key-{number}")
        reading = asyncio.ensure_future(_obey(go))
        if not executions:
            asyncio.get_running_loop().call_soon(say, "ready")  # when it listens
            await engine.serve_forever()
            return
        with stopping() as stop:
            say("ready")
            await stop.wait()
        say("stopping")
        await engine.close()
        reading.cancel()


async def _obey(go: asyncio.Event) -> None:
    """Until the first line; a thread that is not waited for when the process ends."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    await reader.readline()
    go.set()


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))

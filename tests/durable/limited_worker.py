"""A worker process for tests of limits and keys.

    python -m tests.durable.limited_worker URL LOG COUNT [hang] [key] [many]

Starts COUNT executions whose step is limited, notes when each step is entered and left, and goes on until it is ended.
With `hang` no step comes to its end; with `key` all executions have one concurrency key;
with `many` they are one batch.
"""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from tenuto import Engine, SagaBuilder
from tests.durable.worker_process import LEASE, note


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


def start_child(url: str, log: Path, count: int, *more: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.durable.limited_worker", url, str(log), str(count), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def until_started(child: "subprocess.Popen[str]") -> None:
    assert child.stdout is not None
    assert child.stdout.readline() == "started\n"


def kill(child: "subprocess.Popen[str]") -> None:
    if child.poll() is None:
        child.send_signal(signal.SIGKILL)
        child.communicate()


async def main(url: str, log: str, count: int, *, hangs: bool, key: str | None, many: bool) -> None:
    async with Engine(url, lease=LEASE) as engine:
        engine.register(limited(log, hangs=hangs))
        if many:
            await engine.start_many("limited", range(count), key=str)
        for number in range(count):
            id = f"{os.getpid()}-{number}"
            await engine.start("limited", number, idempotency_key=id, concurrency_key=key)
        sys.stdout.write("started\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    words = sys.argv[4:]
    key = "k" if "key" in words else None
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), hangs="hang" in words, key=key, many="many" in words))

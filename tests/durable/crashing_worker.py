"""A worker whose handler takes it down, as its input says: `python -m tests.durable.crashing_worker URL LOG`."""

import asyncio
import ctypes
import os
import resource
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tenuto import Engine, SagaBuilder, SagaContext

from .worker_process import note

LEASE = "5s"
MEMORY = 300_000_000  # beyond what the process has: other tests need some, too


def _exit() -> None:
    os._exit(3)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _crash() -> None:
    ctypes.string_at(0)


def _eat() -> None:
    """More than there is. Where the system kills for it, `kill` is what it comes to."""
    pages, *_ = Path("/proc/self/statm").read_text().split()
    most = int(pages) * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    held = []
    while True:
        held.append(bytearray(50_000_000))


def _stand_still() -> None:
    threading.Event().wait()


POISONS = {"exit": _exit, "kill": _kill, "crash": _crash, "eat": _eat, "stand still": _stand_still}


def sagas(log: str, poisons: Mapping[str, Callable[[], None]] = POISONS) -> tuple[Any, Any]:
    async def drink(what: str, ctx: SagaContext) -> str:
        note(log, "drunk", ctx.execution_id, ctx.attempt)
        poison = poisons.get(what)
        if poison is not None:
            poison()
        return what

    async def healthy() -> str:
        return "well"

    poisoned = SagaBuilder("poisoned", output="drink").step("drink", drink, retry=0).build()
    return poisoned, SagaBuilder("healthy", output="y").step("y", healthy).build()


async def main(url: str, log: str) -> None:
    async with Engine(url, lease=LEASE) as engine:
        engine.register(*sagas(log))
        await engine.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))

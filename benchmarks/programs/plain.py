"""The floor: what any saga engine must do at least, written with plain asyncio and nothing else.

Every step has a timeout, a loop of attempts, and leaves its result, its attempts and its latency in maps.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from benchmarks.runner import STEPS, Runner, Unable, serve

TIMEOUT_S = 10.0
MAX_ATTEMPTS = 3


class Books:
    def __init__(self) -> None:
        self.results: dict[str, object] = {}
        self.attempts: dict[str, int] = {}
        self.latencies: dict[str, float] = {}

    async def step(self, name: str, handler: Callable[[], Awaitable[object]]) -> None:
        for attempt in range(1, MAX_ATTEMPTS + 1):
            began = time.perf_counter()
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    self.results[name] = await handler()
            except Exception:
                if attempt == MAX_ATTEMPTS:
                    raise
                continue
            finally:
                self.attempts[name] = attempt
                self.latencies[name] = time.perf_counter() - began
            return


async def no_op() -> None:
    pass


class Plain(Unable):
    async def chain(self, key: str) -> None:
        books = Books()
        for number in range(STEPS):
            await books.step(f"step{number}", no_op)
        assert len(books.results) == STEPS

    async def fan_out(self, key: str, width: int) -> None:
        books = Books()
        await asyncio.gather(*(books.step(f"work#{number}", no_op) for number in range(width)))
        assert len(books.results) == width


@asynccontextmanager
async def opening() -> AsyncIterator[Runner]:
    yield Plain()


if __name__ == "__main__":
    serve(opening())

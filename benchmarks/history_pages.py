"""The first and the last page of attempts, events and clones of one execution with 100,000 clones, in milliseconds.

`python -m benchmarks.history_pages [URL] [--clones N]`. The process that reads is not the one that ran the execution.
"""

import asyncio
import sys
import tempfile
from collections.abc import Awaitable, Callable
from statistics import quantiles
from time import perf_counter
from typing import Any

from tenuto import Engine, ExpandEach, SagaBuilder, StepInputs
from tenuto.views.pages import Page

REPETITIONS = 60
LIMIT = 100

Fetch = Callable[[str | None], Awaitable[Page[Any]]]


async def double(number: int) -> int:
    return 2 * number


async def run(url: str, clones: int) -> str:
    async with Engine(url) as engine:
        engine.register(SagaBuilder("many").step("all", double))
        result = await engine.execute("many", StepInputs({"all": ExpandEach(range(clones))}))
        assert result.succeeded
        return result.execution_id


async def last_cursor(fetch: Fetch) -> str | None:
    cursor, following = None, (await fetch(None)).next_cursor
    while following is not None:
        cursor, following = following, (await fetch(following)).next_cursor
    return cursor


async def p95(fetch: Fetch, cursor: str | None) -> float:
    times = []
    for _ in range(REPETITIONS):
        began = perf_counter()
        await fetch(cursor)
        times.append((perf_counter() - began) * 1_000)
    return quantiles(times, n=20)[-1]


async def measure(url: str, clones: int) -> None:
    id = await run(url, clones)
    async with Engine(url, worker=False) as engine:
        listing = engine.scoped(tenant="default", actor="benchmark").listing
        lists: dict[str, Fetch] = {
            "attempts": lambda cursor: listing.attempts(id, cursor=cursor, limit=LIMIT),
            "events": lambda cursor: listing.events(id, cursor=cursor, limit=LIMIT),
            "clones": lambda cursor: listing.clones(id, "all", cursor=cursor, limit=LIMIT),
        }
        began = perf_counter()
        await lists["attempts"](None)
        told = [f"the first request, which folds the history: {(perf_counter() - began) * 1_000:.0f} ms"]
        for name, fetch in lists.items():
            first, last = await p95(fetch, None), await p95(fetch, await last_cursor(fetch))
            told.append(f"{name}: first page {first:.1f} ms, last page {last:.1f} ms (p95), {last / first:.2f} x")
    sys.stdout.write("\n".join(told) + "\n")


def main() -> None:
    arguments = sys.argv[1:]
    clones = int(arguments[arguments.index("--clones") + 1]) if "--clones" in arguments else 100_000
    with tempfile.TemporaryDirectory() as folder:
        url = arguments[0] if arguments and "://" in arguments[0] else f"sqlite:///{folder}/tenuto.db"
        asyncio.run(measure(url, clones))


if __name__ == "__main__":
    main()

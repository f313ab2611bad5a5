"""Retention: what ended longer ago than it is kept for is removed, a little at a time."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from time import monotonic
from typing import Final, NamedTuple

from tenuto.errors import StorageError
from tenuto.storage.pruning import AT_ONCE, Cursor, Pruning
from tenuto.values.jitter import spread

logger = logging.getLogger("tenuto.retention")

WINDOW_MS: Final = 7 * 86_400_000  # how long messages that left, and those that were met, are remembered at least
EVERY_SECONDS: Final = 3_600.0
SHORTEST_SECONDS: Final = 10.0


class Pruned(NamedTuple):
    """How many rows were removed. `notes` are inbox records: ids of messages that consumers processed."""

    executions: int = 0
    messages: int = 0
    notes: int = 0


async def prune(pruning: Pruning, now: int, keep_ms: int) -> Pruned:
    """One sweep. Between two transactions it rests for as long as the last one took: others come first."""
    await pruning.leftovers()
    executions = 0
    cursor: Cursor | None = Cursor()
    while cursor is not None:
        began = monotonic()
        removed, cursor = await pruning.executions(now - keep_ms, cursor)
        executions += removed
        await asyncio.sleep(monotonic() - began)
    window = max(keep_ms, WINDOW_MS)
    return Pruned(
        executions=executions,
        messages=await _all(pruning.messages, now - window),
        notes=await _all(pruning.notes, now - window),
    )


async def _all(some: Callable[[int], Awaitable[int]], before: int) -> int:
    total = 0
    while True:
        began = monotonic()
        removed = await some(before)
        total += removed
        if removed < AT_ONCE:
            return total
        await asyncio.sleep(monotonic() - began)


async def keep_pruning(pruning: Pruning, now: Callable[[], int], keep_ms: int) -> None:
    """For ever, about once an hour, or more often if things are kept for less than that.

    Processes that were started together do not do it together.
    """
    async for _ in _sweeps(min(EVERY_SECONDS, max(keep_ms / 1_000, SHORTEST_SECONDS))):
        try:
            pruned = await prune(pruning, now(), keep_ms)
        except StorageError as error:
            logger.warning("Pruning stopped: %s", error.message, extra={"action": "prune_failed", "code": error.code})
        except Exception:
            logger.exception("Pruning stopped.", extra={"action": "prune_failed"})
        else:
            if any(pruned):
                logger.info("Pruned what was over.", extra={"action": "pruned", **pruned._asdict()})


async def _sweeps(every_seconds: float) -> AsyncIterator[None]:
    wait = spread(every_seconds, 0, 0.1)
    while True:
        await asyncio.sleep(wait)
        yield
        wait = spread(every_seconds)

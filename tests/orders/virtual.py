"""Runs a coroutine in time that is skipped: whenever nothing can happen, it is the time at which something can."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from tenuto.values.wall_clock import WallClock
from tests.hostile.loop import VirtualLoop

T = TypeVar("T")

LEASE = "10000h"  # a thread of its own renews leases, in real time: it never has to
TURNS = 100_000_000


def run_virtually(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """`work` is called when the clocks are set, and makes the engine: one made before reads the machine's clock, too,
    and on a busy machine its timers are late."""
    loop = VirtualLoop(TURNS)
    with _clocks(loop), asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(work())


@contextmanager
def _clocks(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Every clock that the engine reads shows the time of the loop."""
    began = time.time_ns()

    def now_ns() -> int:
        return began + round(loop.time() * 1e9)

    clocks = {"time_ns": now_ns, "monotonic_ns": now_ns, "monotonic": lambda: now_ns() / 1e9}
    real = {name: getattr(time, name) for name in clocks}
    defaults = WallClock.__init__.__defaults__
    try:
        vars(time).update(clocks)
        WallClock.__init__.__defaults__ = (now_ns, now_ns)
        yield
    finally:
        vars(time).update(real)
        WallClock.__init__.__defaults__ = defaults

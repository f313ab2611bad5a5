"""Time, ids and names: what a runtime cannot know by itself. Tests replace the clock."""

import asyncio
import os
import secrets
import socket
from collections.abc import Callable
from itertools import count
from typing import Protocol

from tenuto.values.credits import ON, CreditPolicy
from tenuto.values.wall_clock import WallClock


class Timer(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    """The one clock of a runtime. Milliseconds since 1970, and callbacks in its own time; tests bend both."""

    def now_ms(self) -> int: ...

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer: ...


LOOK_MS = 1_000  # how long a timer waits at most before it looks at the clock again


class SystemClock:
    """The machine's clock, which may be set forward at any time."""

    def __init__(self, clock: Callable[[], int] | None = None) -> None:
        self.now_ms = clock or WallClock()

    def call_later(self, delay_ms: int, callback: Callable[[], None]) -> Timer:
        if delay_ms <= LOOK_MS:
            return asyncio.get_running_loop().call_later(delay_ms / 1_000, callback)
        return _LongTimer(self.now_ms, self.now_ms() + delay_ms, callback)


class _LongTimer:
    """Looks at the clock again and again: if it was set forward, what is due is not waited for any longer."""

    def __init__(self, now_ms: Callable[[], int], due_at: int, callback: Callable[[], None]) -> None:
        self._now_ms = now_ms
        self._due_at = due_at
        self._callback = callback
        self._loop = asyncio.get_running_loop()
        self._look()

    def _look(self) -> None:
        left = self._due_at - self._now_ms()
        callback = self._callback if left <= 0 else self._look
        self._timer = self._loop.call_later(min(max(left, 0), LOOK_MS) / 1_000, callback)

    def cancel(self) -> None:
        self._timer.cancel()


class Environment:
    """Time, ids and names: whatever a runtime cannot know by itself."""

    __slots__ = ("_numbers", "_suffix", "build", "clock", "credits", "now_ms", "worker")

    def __init__(
        self, clock: Clock | None = None, *, worker: str = "", build: str = "", credits: CreditPolicy = ON
    ) -> None:
        self.clock: Clock = clock or SystemClock()
        self.now_ms = self.clock.now_ms
        self.worker = worker or f"{socket.gethostname()}:{os.getpid()}"
        self.build = build
        self.credits = credits
        self._suffix = secrets.token_hex(3)
        self._numbers = count(secrets.randbelow(1 << 19))

    def new_id(self) -> str:
        """22 characters: the time, a number that counts on, and the process. Sorts by time, and is cheap to make."""
        return f"{self.now_ms():011x}{next(self._numbers) & 0xFFFFF:05x}{self._suffix}"

"""The method: wait for a quiet machine, measure a window with the processor time used in it, repeat, take medians.

A repetition during which other processes used less than `CLEAN_CORES` of the machine is *clean*. Medians are of clean
repetitions; where none was clean they are of all, and marked. Time is reported and never asserted.
"""

import os
import platform
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks import processes

CLEAN_CORES = 0.25
LOOK_S = 0.4
PATIENCE_S = 8.0


@dataclass
class Window:
    """A stretch of time. What was used in it is known when it has ended; processor time by role, in seconds."""

    seconds: float = 0.0
    foreign_cores: float = 0.0
    cpu: dict[str, float] = field(default_factory=dict)


@contextmanager
def window(roles: Mapping[str, int] | None = None) -> Iterator[Window]:
    """Measures what the trees of these processes use; everything that this process started counts as our own."""
    roles = roles or {}
    measured = Window()
    own, machine = processes.cpu_seconds(os.getpid()), processes.machine_busy_seconds()
    cpu = {role: processes.cpu_seconds(pid) for role, pid in roles.items()}
    began = time.perf_counter()
    yield measured
    measured.seconds = time.perf_counter() - began
    measured.cpu = {role: processes.cpu_seconds(pid) - cpu[role] for role, pid in roles.items()}
    own, machine = processes.cpu_seconds(os.getpid()) - own, processes.machine_busy_seconds() - machine
    measured.foreign_cores = max(0.0, machine - own) / measured.seconds


def wait_until_quiet(patience_s: float = PATIENCE_S) -> None:
    """Returns when others leave the machine alone, or when that has taken too long: then the window will tell."""
    give_up_at = time.monotonic() + patience_s
    while time.monotonic() < give_up_at:
        with window() as look:
            time.sleep(LOOK_S)
        if look.foreign_cores < CLEAN_CORES:
            return


def calibration_s() -> float:
    """How fast this machine is with Python today: a million rounds of a fixed sum, best of five."""

    def once() -> float:
        began = time.perf_counter()
        total = 0
        for number in range(1_000_000):
            total += number * number % 7
        return time.perf_counter() - began

    return min(once() for _ in range(5))


def percentile(values: Sequence[float], percent: int) -> float:
    """The smallest of the values that so many percent do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]


@dataclass
class Series:
    """One figure, taken once in each repetition."""

    values: list[float] = field(default_factory=list)
    foreign_cores: list[float] = field(default_factory=list)

    def add(self, value: float, foreign_cores: float) -> None:
        self.values.append(value)
        self.foreign_cores.append(foreign_cores)

    @property
    def clean(self) -> list[float]:
        pairs = zip(self.values, self.foreign_cores, strict=True)
        return [value for value, foreign in pairs if foreign < CLEAN_CORES]

    @property
    def used(self) -> list[float]:
        return self.clean or self.values

    @property
    def median(self) -> float:
        return statistics.median(self.used)


def machine() -> str:
    """Where the figures are from."""
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{python}, {platform.system()} {platform.machine()}, {os.cpu_count()} CPUs"

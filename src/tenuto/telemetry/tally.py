"""Plain integer counters, changed only on the event loop and read on demand.

The locked counters of a metrics library take longer than the decisions they count, so the hot path does not use them.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

Counts: TypeAlias = defaultdict[tuple[str, ...], int]


class Histogram:
    """Counts of values per bucket, and their sum. The last count is for values above all bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total: float = 0

    def note(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add(self, other: "Histogram") -> None:
        self.counts = [mine + yours for mine, yours in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


class StepTally:
    """Counts for one step of one saga, over all executions."""

    __slots__ = ("durations", "kind", "outcomes", "saga", "step", "succeeded")

    def __init__(self, saga: str, step: str, kind: str, bounds: Sequence[float]) -> None:
        self.saga = saga
        self.step = step
        self.kind = kind
        self.succeeded = 0
        self.outcomes: defaultdict[str, int] = defaultdict(int)
        self.durations = Histogram(bounds)

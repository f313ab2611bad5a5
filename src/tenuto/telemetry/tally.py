"""Numbers as they are counted: plain integers, changed on the event loop alone, and read when somebody asks.

A locked counter of a metrics library takes longer than the decision it counts, so none is touched on the way.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

Counts: TypeAlias = defaultdict[tuple[str, ...], int]


class Histogram:
    """How many values fell between the bounds, and their sum. The last count is that of values above all bounds."""

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
    """One step of one saga, in all of its executions."""

    __slots__ = ("durations", "kind", "outcomes", "saga", "step", "succeeded")

    def __init__(self, saga: str, step: str, kind: str, bounds: Sequence[float]) -> None:
        self.saga = saga
        self.step = step
        self.kind = kind
        self.succeeded = 0
        self.outcomes: defaultdict[str, int] = defaultdict(int)
        self.durations = Histogram(bounds)

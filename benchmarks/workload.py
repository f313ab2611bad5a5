"""A workload: what is done with a stage, and the figures that come of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from benchmarks.results import Metric
from benchmarks.system import Stage, System


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is done."""

    repetitions: int
    seconds: float  # of one measured window, where the workload has no size of its own
    warm_up_s: float
    takeovers: int  # executions in flight when the worker is killed
    finished: int  # executions in the database when growth is measured
    patience_s: float


FULL = Effort(repetitions=3, seconds=10.0, warm_up_s=1.0, takeovers=500, finished=1_000_000, patience_s=8.0)
QUICK = Effort(repetitions=1, seconds=2.0, warm_up_s=0.3, takeovers=100, finished=20_000, patience_s=2.0)


class Measured(NamedTuple):
    """One repetition."""

    figures: Mapping[Metric, float]
    foreign_cores: float


Measure: TypeAlias = Callable[[Stage, System, Effort], Measured]


@dataclass(frozen=True, kw_only=True)
class Workload:
    name: str
    title: str
    measure: Measure
    at_most: int = 1_000  # repetitions

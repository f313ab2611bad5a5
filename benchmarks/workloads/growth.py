"""Does the rate hold when the database is full of finished executions?

A machine is not as fast in one quarter of an hour as in the next, and to fill a database takes one. So it is filled
first, and then measured in turn with another that is empty.
"""

import time
from statistics import median

from benchmarks.measure import wait_until_quiet, window
from benchmarks.program import Unavailable
from benchmarks.results import Metric
from benchmarks.system import Stage, System
from benchmarks.workload import Effort, Measured, Workload

from .throughput import Ran

BLOCK_S = 20.0
FILL_WITHIN_S = 3_600.0


def growth(stage: Stage, system: System, effort: Effort) -> Measured:
    finished = _fill(stage, system, effort.finished)
    empty, filled = list[Ran](), list[Ran]()
    foreign = 0.0
    with system.stages["growth"]() as other:
        Ran(other, system, effort.warm_up_s)
        for _ in range(effort.repetitions):
            for ran, where in ((empty, other), (filled, stage)):
                wait_until_quiet(effort.patience_s)
                with window() as used:
                    ran.append(Ran(where, system, effort.seconds))
                foreign = max(foreign, used.foreign_cores)
    before, after = (median(each.steps_per_s for each in ran) for ran in (empty, filled))
    figures = {
        Metric("kept", "%"): after / before * 100,
        Metric("steps, empty", "1/s"): before,
        Metric("steps, filled", "1/s"): after,
        Metric("finished", "executions"): finished,
    }
    return Measured(figures, foreign)


def _fill(stage: Stage, system: System, wanted: int) -> int:
    finished = 0
    give_up_at = time.monotonic() + FILL_WITHIN_S
    while finished < wanted:
        if time.monotonic() > give_up_at:
            raise Unavailable(f"only {finished:,} of {wanted:,} executions within {FILL_WITHIN_S:.0f} s")
        finished += Ran(stage, system, BLOCK_S).executions
    return finished


TITLE = "Growth: steps per second in a database full of finished executions, against an empty one"
WORKLOADS = [Workload(name="growth", title=TITLE, measure=growth, at_most=1)]

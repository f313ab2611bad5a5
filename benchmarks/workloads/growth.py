"""Does the rate hold when the database is full of finished executions? The rate empty, then filled, in one database."""

import time

from benchmarks.measure import wait_until_quiet, window
from benchmarks.program import Unavailable
from benchmarks.results import Metric
from benchmarks.system import Stage, System
from benchmarks.workload import Effort, Measured, Workload

from .throughput import Ran

BLOCK_S = 20.0
FILL_WITHIN_S = 3_600.0


def growth(stage: Stage, system: System, effort: Effort) -> Measured:
    finished = Ran(stage, system, effort.warm_up_s).executions
    wait_until_quiet(effort.patience_s)
    with window() as at_first:
        empty = Ran(stage, system, effort.seconds)
    finished += empty.executions
    give_up_at = time.monotonic() + FILL_WITHIN_S
    while finished < effort.finished:
        if time.monotonic() > give_up_at:
            raise Unavailable(f"only {finished:,} of {effort.finished:,} executions within {FILL_WITHIN_S:.0f} s")
        finished += Ran(stage, system, BLOCK_S).executions
    wait_until_quiet(effort.patience_s)
    with window() as at_last:
        full = Ran(stage, system, effort.seconds)
    figures = {
        Metric("kept", "%"): full.steps_per_s / empty.steps_per_s * 100,
        Metric("steps, empty", "1/s"): empty.steps_per_s,
        Metric("steps, filled", "1/s"): full.steps_per_s,
        Metric("finished", "executions"): finished,
    }
    return Measured(figures, max(at_first.foreign_cores, at_last.foreign_cores))


TITLE = "Growth: steps per second in a database full of finished executions, against an empty one"
WORKLOADS = [Workload(name="growth", title=TITLE, measure=growth, at_most=1)]

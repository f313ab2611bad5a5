"""W3: one execution of 1,000 parallel no-op steps and their join."""

import statistics

from benchmarks.measure import wait_until_quiet, window
from benchmarks.results import Metric
from benchmarks.system import Stage, System
from benchmarks.workload import Effort, Measured, Workload

WIDTH = 1_000
AT_MOST = 3
WITHIN_S = 180.0


def fan_out(stage: Stage, system: System, effort: Effort) -> Measured:
    stage.client.ask("fan_out", width=10, seconds=effort.warm_up_s, at_most=AT_MOST, within=WITHIN_S)
    wait_until_quiet(effort.patience_s)
    with window(stage.roles) as used:
        answer = stage.client.ask("fan_out", width=WIDTH, seconds=effort.seconds, at_most=AT_MOST, within=WITHIN_S)
    figures = {
        Metric("time", "ms"): statistics.median(answer["each"]) * 1e3,
        Metric("cpu", "ms/execution"): sum(used.cpu.values()) / len(answer["each"]) * 1e3,
    }
    return Measured(figures, used.foreign_cores)


WORKLOADS = [Workload(name="W3", title="W3: one execution of 1,000 parallel no-op steps, then a join", measure=fan_out)]

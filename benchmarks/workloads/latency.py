"""W2: one execution of 5 sequential no-op steps at a time, from its submission to its result."""

from benchmarks.measure import percentile, wait_until_quiet, window
from benchmarks.results import Metric
from benchmarks.system import Stage, System
from benchmarks.workload import Effort, Measured, Workload

EXECUTIONS = 500
WARM_UP = 20
SLACK_S = 60.0


def latency(stage: Stage, system: System, effort: Effort) -> Measured:
    stage.client.ask("latency", seconds=effort.seconds, at_most=WARM_UP, within=effort.seconds + SLACK_S)
    wait_until_quiet(effort.patience_s)
    with window(stage.roles) as used:
        answer = stage.client.ask(
            "latency", seconds=2 * effort.seconds, at_most=EXECUTIONS, within=2 * effort.seconds + SLACK_S
        )
    each_ms = [seconds * 1e3 for seconds in answer["each"]]
    figures = {Metric(f"p{percent}", "ms"): percentile(each_ms, percent) for percent in (50, 95, 99)}
    figures[Metric("cpu", "ms/execution")] = sum(used.cpu.values()) / len(each_ms) * 1e3
    return Measured(figures, used.foreign_cores)


WORKLOADS = [Workload(name="W2", title="W2: latency, one execution of 5 steps at a time", measure=latency)]

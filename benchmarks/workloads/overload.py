"""What is left of the best rate when three times as much is asked for. More than so many in flight are refused."""

from benchmarks.measure import percentile, wait_until_quiet, window
from benchmarks.processes import resident_bytes
from benchmarks.results import Metric
from benchmarks.runner import Answer
from benchmarks.system import Stage, System
from benchmarks.workload import Effort, Measured, Workload

from .throughput import MB, SLACK_S, Ran

TIMES = 3


def overload(stage: Stage, system: System, effort: Effort) -> Measured:
    Ran(stage, system, effort.warm_up_s)
    wait_until_quiet(effort.patience_s)
    with window() as at_first:
        peak = Ran(stage, system, effort.seconds)
    rate = TIMES * peak.executions / peak.seconds
    fill_s = max(effort.warm_up_s, 2 * system.in_flight / rate)
    _offer(stage, rate, fill_s, effort.warm_up_s)  # what is set aside once for so many is not growth
    before = _memory(stage)
    with window() as under_load:
        answer = _offer(stage, rate, fill_s, effort.seconds)
    done = answer["executions"] / answer["seconds"]
    refusals_ms = [seconds * 1e3 for seconds in answer["refusals"]] or [0.0]
    figures = {
        Metric("kept", "%"): done / (rate / TIMES) * 100,
        Metric("done", "1/s"): done,
        Metric("at best", "1/s"): rate / TIMES,
        Metric("offered", "1/s"): answer["offered"] / answer["seconds"],
        Metric("refusal p50", "ms"): percentile(refusals_ms, 50),
        Metric("refusal p99", "ms"): percentile(refusals_ms, 99),
        Metric("neither done nor refused", "executions"): answer["lost"],
        Metric("memory growth", "MB"): (_memory(stage) - before) / MB,
        Metric("drained after", "s"): answer["drained"],
    }
    return Measured(figures, max(at_first.foreign_cores, under_load.foreign_cores))


def _offer(stage: Stage, rate: float, lead: float, seconds: float) -> Answer:
    return stage.client.ask("overload", lead=lead, seconds=seconds, rate=rate, within=lead + seconds + SLACK_S)


def _memory(stage: Stage) -> int:
    return resident_bytes(stage.client.pid)


TITLE = "Overload: executions offered at three times the best rate; more than 2,000 in flight are refused"
WORKLOADS = [Workload(name="overload", title=TITLE, measure=overload)]

"""What is left of the best rate when three times as much is asked for. More than so many in flight are refused.

In the library form those who come run in the process that works, and coming costs it something, whoever refuses them.
So the best rate is measured beside as many others, whom the benchmark turns away itself; the rate without anybody is
told as well. On a busy machine the two phases get different shares of it: `kept by processor time` does not mind.
"""

from benchmarks.measure import Window, percentile, wait_until_quiet, window
from benchmarks.processes import resident_bytes
from benchmarks.results import Metric
from benchmarks.runner import Answer
from benchmarks.system import Stage, System
from benchmarks.workload import Effort, Measured, Workload

from .throughput import MB, SLACK_S, Ran

TIMES = 3
NORMAL = 2  # times the median of one chain at a time
RECOVERY_S = 60.0


def overload(stage: Stage, system: System, effort: Effort) -> Measured:
    Ran(stage, system, effort.warm_up_s)
    calm = stage.client.ask("latency", seconds=effort.warm_up_s, at_most=1_000, within=SLACK_S)
    normal_s = NORMAL * percentile(calm["each"], 50)
    wait_until_quiet(effort.patience_s)
    with window() as at_first:
        alone = Ran(stage, system, effort.seconds)
    best = alone.executions / alone.seconds
    with window(stage.roles) as at_best:
        peak = Ran(stage, system, effort.seconds, turned_away=(TIMES - 1) * best)
    rate = TIMES * best
    fill_s = max(effort.warm_up_s, 2 * system.in_flight / rate)
    _offer(stage, rate, fill_s, effort.warm_up_s, normal_s)  # what is set aside once for so many is not growth
    before = _memory(stage)
    with window(stage.roles) as under_load:
        answer = _offer(stage, rate, fill_s, effort.seconds, normal_s)
    each = peak.executions / _cpu_s(at_best)  # in a second of processor time
    done = answer["executions"] / answer["seconds"]
    refusals_ms = [seconds * 1e3 for seconds in answer["refusals"]] or [0.0]
    accepted_ms = [seconds * 1e3 for seconds in answer["accepted"]] or [0.0]
    figures = {
        Metric("kept", "%"): done / (peak.executions / peak.seconds) * 100,
        Metric("kept by processor time", "%"): answer["in_all"] / _cpu_s(under_load) / each * 100,
        Metric("kept of the best alone", "%"): done / best * 100,
        Metric("done", "1/s"): done,
        Metric("at best", "1/s"): peak.executions / peak.seconds,
        Metric("at best, alone", "1/s"): best,
        Metric("offered", "1/s"): answer["offered"] / answer["seconds"],
        Metric("refusal p50", "ms"): percentile(refusals_ms, 50),
        Metric("refusal p99", "ms"): percentile(refusals_ms, 99),
        Metric("accepted p50", "ms"): percentile(accepted_ms, 50),
        Metric("accepted p99", "ms"): percentile(accepted_ms, 99),
        Metric("neither done nor refused", "executions"): answer["lost"],
        Metric("memory before", "MB"): before / MB,
        Metric("memory growth", "MB"): (_memory(stage) - before) / MB,
        Metric("drained after", "s"): answer["drained"],
        Metric("back to normal after", "s"): answer["recovered"],
    }
    return Measured(figures, max(used.foreign_cores for used in (at_first, at_best, under_load)))


def _cpu_s(used: Window) -> float:
    return sum(used.cpu.values())


def _offer(stage: Stage, rate: float, lead: float, seconds: float, normal: float) -> Answer:
    within = lead + seconds + SLACK_S + RECOVERY_S
    return stage.client.ask("overload", lead=lead, seconds=seconds, rate=rate, normal=normal, within=within)


def _memory(stage: Stage) -> int:
    return resident_bytes(stage.client.pid)


TITLE = "Overload: executions offered at three times the best rate; more than 2,000 in flight are refused"
WORKLOADS = [
    Workload(name="overload", title=TITLE, measure=overload),
    Workload(name="overload-other-process", title=f"{TITLE}. Another process does the work", measure=overload),
]

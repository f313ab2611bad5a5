"""From half of what can be done to three times as much: how much of the best is left. Too many in flight are refused.

Executions come at a rate, whatever becomes of the earlier ones. What can be done is measured first, with as many lanes
as executions may be in flight. The best is that of the curve: lanes march in step, which is a little faster than any
load that comes by itself.
"""

from functools import partial

from benchmarks.measure import percentile, wait_until_quiet, window
from benchmarks.processes import resident_bytes
from benchmarks.results import Metric
from benchmarks.runner import Answer
from benchmarks.system import Stage, System
from benchmarks.workload import Effort, Measured, Workload

from .curve import MOST, RATES, Curve
from .throughput import MB, SLACK_S, Ran

ROUNDS = 4
NORMAL = 2  # times the median of one chain at a time
RECOVERY_S = 60.0


def overload(stage: Stage, system: System, effort: Effort) -> Measured:
    Ran(stage, system, effort.warm_up_s)
    calm = stage.client.ask("latency", seconds=effort.warm_up_s, at_most=1_000, within=SLACK_S)
    wait_until_quiet(effort.patience_s)
    with window() as used:
        lanes = Ran(stage, system, effort.seconds)
        can_do = lanes.executions / lanes.seconds
        curve = Curve(partial(_offer, stage, effort, can_do, NORMAL * percentile(calm["each"], 50)), ROUNDS)
        curve.offer(MOST)  # what is set aside once for so many is not growth
        before = resident_bytes(stage.client.pid)
        curve.measure()
        growth = resident_bytes(stage.client.pid) - before
    figures = {
        Metric("kept", "%"): curve.kept * 100,
        **{Metric(f"done at {times:g} ×", "1/s"): curve.done(times) for times in RATES},
        Metric("best at", "×"): curve.best_at,
        Metric("lanes in step", "1/s"): can_do,
        Metric("refusal p50", "ms"): curve.percentile_ms(MOST, "refusals", 50),
        Metric("refusal p99", "ms"): curve.percentile_ms(MOST, "refusals", 99),
        Metric("accepted p50", "ms"): curve.percentile_ms(MOST, "accepted", 50),
        Metric("accepted p99", "ms"): curve.percentile_ms(MOST, "accepted", 99),
        Metric("neither done nor refused", "executions"): curve.most(MOST, "lost"),
        Metric("memory before", "MB"): before / MB,
        Metric("memory growth", "MB"): growth / MB,
        Metric("drained after", "s"): curve.most(MOST, "drained"),
        Metric("back to normal after", "s"): curve.most(MOST, "recovered"),
    }
    return Measured(figures, used.foreign_cores)


def _offer(stage: Stage, effort: Effort, can_do: float, normal_s: float, times: float) -> Answer:
    lead_s, seconds = effort.warm_up_s, effort.seconds / ROUNDS
    options = {"lead": lead_s, "seconds": seconds, "normal": normal_s}
    within = lead_s + seconds + SLACK_S + RECOVERY_S
    return stage.client.ask("overload", rate=times * can_do, within=within, **options)


TITLE = "Overload: executions offered at up to three times what can be done; more than 2,000 in flight are refused"
WORKLOADS = [
    Workload(name="overload", title=TITLE, measure=overload),
    Workload(name="overload-other-process", title=f"{TITLE}. Another process does the work", measure=overload),
]

"""From half of what can be done to three times as much: how much of the best is left. Too many in flight are refused.

Executions come at a rate, whatever becomes of the earlier ones. What can be done is measured first, with as many lanes
as executions may be in flight; then the rates, one after another and all of them again, so that a machine that is
slower for some seconds is that for each of them. The best is that of the curve: lanes march in step, which is a little
faster than any load that comes by itself.
"""

import statistics

from benchmarks.measure import percentile, wait_until_quiet, window
from benchmarks.processes import resident_bytes
from benchmarks.results import Metric
from benchmarks.runner import Answer
from benchmarks.system import Stage, System
from benchmarks.workload import Effort, Measured, Workload

from .throughput import MB, SLACK_S, Ran

RATES = (0.5, 0.8, 1.0, 1.2, 2.0, 3.0)  # of what can be done
MOST = RATES[-1]
ROUNDS = 4
NORMAL = 2  # times the median of one chain at a time
RECOVERY_S = 60.0


class Curve:
    """What came of each rate, round by round."""

    def __init__(self, stage: Stage, can_do: float, effort: Effort, normal_s: float) -> None:
        self._stage = stage
        self._can_do = can_do
        self._lead_s = effort.warm_up_s
        self._seconds = effort.seconds / ROUNDS
        self._normal_s = normal_s
        self.answers: dict[float, list[Answer]] = {rate: [] for rate in RATES}

    def offer(self, times: float) -> Answer:
        within = self._lead_s + self._seconds + SLACK_S + RECOVERY_S
        options = {"lead": self._lead_s, "seconds": self._seconds, "normal": self._normal_s}
        return self._stage.client.ask("overload", rate=times * self._can_do, within=within, **options)

    def measure(self) -> None:
        for _ in range(ROUNDS):
            for times, answers in self.answers.items():
                answers.append(self.offer(times))

    def done(self, times: float) -> float:
        """A second."""
        rates: list[float] = [answer["executions"] / answer["seconds"] for answer in self.answers[times]]
        return statistics.median(rates)

    def most(self, times: float, what: str) -> float:
        found: list[float] = [answer[what] for answer in self.answers[times]]
        return max(found)

    def percentile_ms(self, times: float, what: str, percent: int) -> float:
        each = [seconds * 1e3 for answer in self.answers[times] for seconds in answer[what]]
        return percentile(each or [0.0], percent)


def overload(stage: Stage, system: System, effort: Effort) -> Measured:
    Ran(stage, system, effort.warm_up_s)
    calm = stage.client.ask("latency", seconds=effort.warm_up_s, at_most=1_000, within=SLACK_S)
    wait_until_quiet(effort.patience_s)
    with window() as used:
        lanes = Ran(stage, system, effort.seconds)
        curve = Curve(stage, lanes.executions / lanes.seconds, effort, NORMAL * percentile(calm["each"], 50))
        curve.offer(MOST)  # what is set aside once for so many is not growth
        before = resident_bytes(stage.client.pid)
        curve.measure()
        growth = resident_bytes(stage.client.pid) - before
    best = max(RATES, key=curve.done)
    figures = {
        Metric("kept", "%"): curve.done(MOST) / curve.done(best) * 100,
        **{Metric(f"done at {times:g} ×", "1/s"): curve.done(times) for times in RATES},
        Metric("best at", "×"): best,
        Metric("lanes in step", "1/s"): lanes.executions / lanes.seconds,
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


TITLE = "Overload: executions offered at up to three times what can be done; more than 2,000 in flight are refused"
WORKLOADS = [
    Workload(name="overload", title=TITLE, measure=overload),
    Workload(name="overload-other-process", title=f"{TITLE}. Another process does the work", measure=overload),
]

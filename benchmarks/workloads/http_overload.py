"""Over HTTP, up to three times as many creations as the worker can do. What is too much gets 429 and a time.

What can be done is measured first, with a few lanes of callers who come again a little later when they are refused.
The service runs in one process, a worker in another, the client in a third: what the worker can do is the bound, and
the service has to say no to the rest. Every request has an idempotency key of its own.

Executions in flight take their steps in turn, and those that began together end together. With 500 of them that is some
times a second; with more, whole seconds would pass in which none ends and nobody is let in.
A window is seconds, therefore.
"""

from functools import partial
from typing import Any

from benchmarks.measure import percentile, wait_until_quiet, window
from benchmarks.processes import resident_bytes
from benchmarks.program import Unavailable
from benchmarks.programs.http_client import DEFINITION
from benchmarks.results import Metric
from benchmarks.runner import Answer
from benchmarks.system import Stage, System
from benchmarks.systems.http import HttpStage
from benchmarks.workload import Effort, Measured, Workload

from .curve import MOST, RATES, Curve
from .throughput import MB, SLACK_S

CALM = 0.8
LANES = 50
LINES = 1_000  # connections of those who come without asking: a refusal waits for no other answer
STEPS = 20
LEAD_S = 3.0  # until as many are in flight as may be, and that is known
ROUNDS = 2
RECOVERY_S = 60.0
DOCUMENT: dict[str, Any] = {
    "name": DEFINITION,
    "version": 1,
    "steps": [
        {
            "step_id": f"tell{number}",
            "type": "notify",
            "handler": "log",
            "with": {"message": "told", "level": "debug"},
            "idempotency_strategy": "SAFE_TO_RETRY",
            "on_success": f"tell{number + 1}" if number + 1 < STEPS else "$succeed",
        }
        for number in range(STEPS)
    ],
}


def http_overload(stage: Stage, system: System, effort: Effort) -> Measured:
    assert isinstance(stage, HttpStage)
    stage.client.ask("define", document=DOCUMENT, within=SLACK_S)
    stage.client.ask("limit", tenant="default", at_most=system.in_flight, within=SLACK_S)
    wait_until_quiet(effort.patience_s)
    with window() as used:
        lanes = _ask(stage, "best", LEAD_S, effort.seconds)
        stage.client.ask("drain", within=SLACK_S)
        can_do = len(lanes["accepted"]) / lanes["seconds"]
        if not can_do:
            raise Unavailable("nothing was accepted in time to tell what can be done: the machine is too busy")
        curve = Curve(partial(_offer, stage, effort, can_do), ROUNDS)
        curve.offer(MOST)  # what is set aside once for so many is not growth
        before = _memory(stage)
        curve.measure()
        growth = _memory(stage) - before
        calm_ms = curve.percentile_ms(CALM, "accepted", 99)
        _ask(stage, "offer", LEAD_S, effort.seconds / ROUNDS, rate=MOST * can_do)
        recovered = _recover(stage, CALM * can_do, 2 * calm_ms)
    figures = {
        Metric("kept", "%"): curve.kept * 100,
        **{Metric(f"accepted at {times:g} ×", "1/s"): curve.done(times) for times in RATES},
        Metric("best at", "×"): curve.best_at,
        Metric("lanes", "1/s"): can_do,
        Metric("accepted p99 at 0.8 ×", "ms"): calm_ms,
        Metric("accepted p50", "ms"): curve.percentile_ms(MOST, "accepted", 50),
        Metric("accepted p99", "ms"): curve.percentile_ms(MOST, "accepted", 99),
        Metric("accepted p99 ÷ that at 0.8 ×", ""): curve.percentile_ms(MOST, "accepted", 99) / calm_ms,
        Metric("429 p50", "ms"): curve.percentile_ms(MOST, "refused", 50),
        Metric("429 p99", "ms"): curve.percentile_ms(MOST, "refused", 99),
        Metric("429 without Retry-After", "answers"): curve.most(MOST, "without_when"),
        Metric("sent late by the client, p99", "ms"): curve.percentile_ms(MOST, "slips", 99),
        Metric("memory before", "MB"): before / MB,
        Metric("memory growth", "MB"): growth / MB,
        Metric("back to normal after", "s"): recovered,
    }
    return Measured(figures, used.foreign_cores)


def _offer(stage: Stage, effort: Effort, can_do: float, times: float) -> Answer:
    """To a worker that has nothing to do at first: what was accepted at another rate is none of this one's."""
    answer = _ask(stage, "offer", LEAD_S, effort.seconds / ROUNDS, rate=times * can_do)
    stage.client.ask("drain", within=SLACK_S)
    return {**answer, "executions": len(answer["accepted"])}


def _ask(stage: Stage, command: str, lead: float, seconds: float, **options: float) -> Any:
    within = lead + seconds + SLACK_S
    lanes = LINES if command == "offer" else LANES
    return stage.client.ask(command, lead=lead, seconds=seconds, lanes=lanes, within=within, **options)


def _recover(stage: Stage, rate: float, normal_ms: float) -> float:
    """Seconds, by the second, until nobody is refused and the slowest are as fast as before."""
    for second in range(int(RECOVERY_S)):
        answer = _ask(stage, "offer", 0.0, 1.0, rate=rate)
        if not answer["refused"] and _p99_ms(answer["accepted"]) <= normal_ms:
            return float(second)
    return RECOVERY_S


def _p99_ms(each: list[float]) -> float:
    return percentile([seconds * 1e3 for seconds in each] or [0.0], 99)


def _memory(stage: Stage) -> int:
    return sum(resident_bytes(pid) for role, pid in stage.roles.items() if role.startswith("worker"))


TITLE = "HTTP, overload: creations at up to three times what the worker can do; more than 500 in flight are refused"
WORKLOADS = [Workload(name="http-overload", title=TITLE, measure=http_overload)]

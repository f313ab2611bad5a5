"""Over HTTP, three times as many creations as the workers can do. What is too much is answered with 429 and a time.

The service runs in one process, a worker in another, the client in a third: what the worker can do is the bound, and
the service has to say no to the rest. Every request has an idempotency key of its own.

Executions in flight take their steps in turn, and those that began together end together. With 500 of them that is some
times a second; with more, whole seconds would pass in which none ends and nobody is let in.
"""

from typing import Any

from benchmarks.measure import percentile, wait_until_quiet, window
from benchmarks.processes import resident_bytes
from benchmarks.program import Unavailable
from benchmarks.programs.http_client import DEFINITION
from benchmarks.results import Metric
from benchmarks.system import Stage, System
from benchmarks.systems.http import HttpStage
from benchmarks.workload import Effort, Measured, Workload

from .throughput import MB, SLACK_S

TIMES = 3
CALM = 0.8
LANES = 200
LINES = 1_000  # connections of those who come without asking: a refusal waits for no other answer
STEPS = 20
LEAD_S = 4.0
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
        best = _ask(stage, "best", LEAD_S, effort.seconds)
        rate = len(best["accepted"]) / best["seconds"]
        stage.client.ask("drain", within=SLACK_S)
        if not rate:
            raise Unavailable("nothing was accepted in time to tell the best rate: the machine is too busy")
        calm = _ask(stage, "offer", 1.0, effort.seconds, rate=CALM * rate)
        _ask(stage, "offer", LEAD_S, 1.0, rate=TIMES * rate)  # what is set aside once for so many is not growth
        before = _memory(stage)
        over = _ask(stage, "offer", LEAD_S, effort.seconds, rate=TIMES * rate)
        growth = _memory(stage) - before
        recovered = _recover(stage, CALM * rate, 2 * _p99_ms(calm["accepted"]))
    done = len(over["accepted"]) / over["seconds"]
    figures = {
        Metric("kept", "%"): done / rate * 100,
        Metric("accepted", "1/s"): done,
        Metric("at best", "1/s"): rate,
        Metric("came", "1/s"): (len(over["accepted"]) + len(over["refused"])) / over["seconds"],
        Metric("accepted p99 at 0.8 of the best", "ms"): _p99_ms(calm["accepted"]),
        Metric("accepted p99", "ms"): _p99_ms(over["accepted"]),
        Metric("accepted p99 ÷ that at 0.8", ""): _p99_ms(over["accepted"]) / _p99_ms(calm["accepted"]),
        Metric("429 p50", "ms"): percentile([seconds * 1e3 for seconds in over["refused"]] or [0.0], 50),
        Metric("429 p99", "ms"): _p99_ms(over["refused"]),
        Metric("429 without Retry-After", "answers"): over["without_when"],
        Metric("sent late by the client, p99", "ms"): _p99_ms(over["slips"]),
        Metric("memory before", "MB"): before / MB,
        Metric("memory growth", "MB"): growth / MB,
        Metric("back to normal after", "s"): recovered,
    }
    return Measured(figures, used.foreign_cores)


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


TITLE = "HTTP, overload: creations at three times what the worker can do; more than 500 in flight are refused"
WORKLOADS = [Workload(name="http-overload", title=TITLE, measure=http_overload)]

"""Over HTTP: creating executions and reading them under load, and pages of lists with a million executions.

The client is a process of its own on the loopback, and shares the machine with the service: both need a core.
"""

from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from benchmarks.filling import COMMON, RARE
from benchmarks.measure import percentile, wait_until_quiet, window
from benchmarks.program import Unavailable
from benchmarks.programs.http_client import DEFINITION
from benchmarks.results import Metric
from benchmarks.system import Stage, System
from benchmarks.systems.http import HttpStage
from benchmarks.workload import Effort, Measured, Workload

LANES = 64
FEW = 4  # lanes of a service that is not busy
SLACK_S = 60.0
PAGES = 40
DEEP = 200  # pages before the deep one
DOCUMENT = {
    "name": DEFINITION,
    "version": 1,
    "input_schema": {"type": "object", "required": ["amount"], "properties": {"amount": {"type": "number"}}},
    "steps": [{"step_id": "tell", "type": "notify", "handler": "log", "idempotency_strategy": "SAFE_TO_RETRY"}],
}


def create(stage: Stage, system: System, effort: Effort) -> Measured:
    """Nobody works on what is created: it is recorded, and waits. Fewer lanes tell what an unhurried caller sees."""
    assert isinstance(stage, HttpStage)
    if stage.key:
        stage.client.ask("define", document=DOCUMENT, within=SLACK_S)
    return _under_load(stage, "create", effort)


def read(stage: Stage, system: System, effort: Effort) -> Measured:
    stage.client.ask("define", document=DOCUMENT, within=SLACK_S)
    stage.client.ask("create", seconds=effort.warm_up_s, lanes=LANES, within=effort.warm_up_s + SLACK_S)
    return _under_load(stage, "read", effort)


def _under_load(stage: Stage, command: str, effort: Effort) -> Measured:
    def load(seconds: float, lanes: int) -> dict[str, Any]:
        return stage.client.ask(command, seconds=seconds, lanes=lanes, within=seconds + SLACK_S)

    load(effort.warm_up_s, LANES)
    wait_until_quiet(effort.patience_s)
    with window(stage.roles) as used:
        busy = load(effort.seconds, LANES)
    with window(stage.roles) as used_calmly:
        calm = load(effort.seconds / 2, FEW)
    done = len(busy["each"])
    figures = {Metric("requests", "1/s"): done / busy["seconds"]}
    for answer, when in ((busy, f"{LANES} at once"), (calm, f"{FEW} at once")):
        each_ms = [seconds * 1e3 for seconds in answer["each"]]
        figures |= {Metric(f"p{percent}, {when}", "ms"): percentile(each_ms, percent) for percent in (50, 99)}
    figures[Metric("cpu of the service", "ms/request")] = used.cpu["worker"] / done * 1e3
    return Measured(figures, max(used.foreign_cores, used_calmly.foreign_cores))


def lists(stage: Stage, system: System, effort: Effort) -> Measured:
    assert isinstance(stage, HttpStage)
    stage.fill(effort.finished)
    deep = stage.client.ask("walk", path="/v1/executions?limit=100", pages=DEEP, within=SLACK_S)["cursor"]
    figures: dict[Metric, float] = {}
    wait_until_quiet(effort.patience_s)
    with window() as used:
        for name, path in _paths(deep, effort.finished).items():
            answer = stage.client.ask("pages", path=path, seconds=2.0, at_most=PAGES, within=SLACK_S)
            if not answer["items"] and name not in EMPTY:
                raise Unavailable(f"{name}: nothing was found")
            figures[Metric(name, "ms")] = percentile(answer["each"], 50) * 1e3
    return Measured(figures, used.foreign_cores)


EMPTY = {"failed and rare"}


def _paths(deep: str, executions: int) -> dict[str, str]:
    now = datetime.now(UTC)

    def since(seconds: float) -> str:
        return quote((now - timedelta(seconds=seconds)).isoformat())

    wanted = {
        "first page": "",
        f"page {DEEP + 1}": f"cursor={deep}",
        "status=succeeded": "status=succeeded",
        "status=failed": "status=failed",
        "status=paused": "status=paused",
        "definition, common": f"definition={COMMON}",
        "definition, rare": f"definition={RARE}",
        "failed and common": f"status=failed&definition={COMMON}",
        "failed and rare": f"status=failed&definition={RARE}",
        "target_id": f"target_id=inv-{executions // 6}",
        "correlation_id, one": f"correlation_id=c-{executions // 2 + 6}",
        "correlation_id, of many": "correlation_id=batch-0",
        "since an hour ago": f"since={since(3_600)}",
        "failed, since the beginning": f"status=failed&since={since(executions)}",
    }
    found = {name: f"/v1/executions?limit=50&{query}" for name, query in wanted.items()}
    return {
        **found,
        "dead letters": "/v1/dlq?limit=50",
        "dead letters, rare": f"/v1/dlq?limit=50&error_class=NON_RETRYABLE&before={since(60)}",
        "reviews": "/v1/reviews?limit=50",
        "reviews, resolved": "/v1/reviews?limit=50&state=resolved",
    }


WORKLOADS = [
    Workload(name="http-create", title="HTTP: creating executions, against an insert alone", measure=create),
    Workload(name="http-read", title="HTTP: reading an execution", measure=read),
    Workload(name="http-list", title="HTTP: pages of lists, with a million executions", measure=lists, at_most=1),
]

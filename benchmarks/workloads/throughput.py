"""W1: as many executions of 5 sequential no-op steps as can be, and what one costs in time, memory and bytes."""

from benchmarks.measure import wait_until_quiet, window
from benchmarks.processes import peak_resident_bytes
from benchmarks.results import Metric
from benchmarks.runner import STEPS
from benchmarks.system import Stage, System
from benchmarks.workload import Effort, Measured, Workload

SLACK_S = 120.0  # beyond the time given: what is in flight when it ends must finish
MB = 1_000_000


class Ran:
    """Chains that all clients of a stage ran side by side."""

    def __init__(self, stage: Stage, system: System, seconds: float) -> None:
        for client in stage.clients:
            client.tell("throughput", seconds=seconds, in_flight=system.in_flight // len(stage.clients))
        answers = [client.hear(seconds + SLACK_S) for client in stage.clients]
        self.executions: int = sum(answer["executions"] for answer in answers)
        self.seconds: float = max(answer["seconds"] for answer in answers)

    @property
    def steps_per_s(self) -> float:
        return self.executions * STEPS / self.seconds


def throughput(stage: Stage, system: System, effort: Effort) -> Measured:
    empty = stage.disk_bytes() if stage.disk_bytes else 0
    warm_up = Ran(stage, system, effort.warm_up_s)
    wait_until_quiet(effort.patience_s)
    with window(stage.roles) as used:
        ran = Ran(stage, system, effort.seconds)
    memory = sum(peak_resident_bytes(pid) for pid in stage.roles.values())
    each_ms = {role: seconds / ran.executions * 1e3 for role, seconds in used.cpu.items()}
    figures = {
        Metric("steps", "1/s"): ran.steps_per_s,
        Metric("executions", "1/s"): ran.steps_per_s / STEPS,
        Metric("cpu", "ms/execution"): sum(each_ms.values()),
        **{Metric(f"cpu of the {role}", "ms/execution"): cost for role, cost in each_ms.items()},
        Metric("peak memory", "MB"): memory / MB,
    }
    if stage.disk_bytes is not None:
        stage.end_programs()
        steps = (warm_up.executions + ran.executions) * STEPS
        figures[Metric("disk", "B/step")] = (stage.disk_bytes() - empty) / steps
    return Measured(figures, used.foreign_cores)


WORKLOADS = [
    Workload(name="W1", title="W1: throughput of executions of 5 sequential no-op steps", measure=throughput),
    Workload(name="W1-other-process", title="W1, submitted by another process", measure=throughput),
    Workload(name="W1-two-workers", title="W1, two processes that submit and work on one database", measure=throughput),
]

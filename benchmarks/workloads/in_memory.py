"""Sagas in one process, with nothing kept: the engine's own cost, beside the floor and a library."""

from benchmarks.measure import wait_until_quiet, window
from benchmarks.processes import peak_resident_bytes, resident_bytes
from benchmarks.results import Metric
from benchmarks.system import Stage, System
from benchmarks.workload import Effort, Measured, Workload

WITHIN_S = 300.0
SAGAS = 2_000
FAN_OUTS = 30
WIDTH = 1_000
BIG_WIDTH = 100_000
MB = 1_000_000


def saga(stage: Stage, system: System, effort: Effort) -> Measured:
    stage.client.ask("latency", seconds=effort.warm_up_s, at_most=SAGAS // 10, within=WITHIN_S)
    wait_until_quiet(effort.patience_s)
    with window() as used:
        answer = stage.client.ask("latency", seconds=effort.seconds, at_most=SAGAS, within=WITHIN_S)
    runs = len(answer["each"])
    figures = {
        Metric("time", "µs"): answer["seconds"] / runs * 1e6,
        Metric("cpu", "µs"): answer["cpu"] / runs * 1e6,
    }
    return Measured(figures, used.foreign_cores)


def fan_out(stage: Stage, system: System, effort: Effort) -> Measured:
    stage.client.ask("fan_out", width=WIDTH, seconds=effort.warm_up_s, at_most=2, within=WITHIN_S)
    wait_until_quiet(effort.patience_s)
    with window() as used:
        answer = stage.client.ask("fan_out", width=WIDTH, seconds=effort.seconds, at_most=FAN_OUTS, within=WITHIN_S)
    runs = len(answer["each"])
    figures = {
        Metric("time", "ms"): answer["seconds"] / runs * 1e3,
        Metric("cpu", "ms"): answer["cpu"] / runs * 1e3,
    }
    return Measured(figures, used.foreign_cores)


def big_fan_out(stage: Stage, system: System, effort: Effort) -> Measured:
    """Once, in a process that has done a small one before; memory is the peak over what it had then."""
    stage.client.ask("fan_out", width=10, seconds=0, at_most=1, within=WITHIN_S)
    wait_until_quiet(effort.patience_s)
    before = resident_bytes(stage.client.pid)
    with window() as used:
        answer = stage.client.ask("fan_out", width=BIG_WIDTH, seconds=0, at_most=1, within=WITHIN_S)
    figures = {
        Metric("time", "s"): answer["seconds"],
        Metric("memory growth", "MB"): (peak_resident_bytes(stage.client.pid) - before) / MB,
    }
    return Measured(figures, used.foreign_cores)


WORKLOADS = [
    Workload(name="saga-5", title="In memory: a saga of 5 sequential no-op steps", measure=saga),
    Workload(name="fan-out-1000", title="In memory: a fan-out of 1,000 no-op steps", measure=fan_out),
    Workload(name="fan-out-100000", title="In memory: a fan-out of 100,000 no-op steps", measure=big_fan_out),
]

"""W4: many executions of 5 steps of 1 s each; at half of the steps the worker is killed, and another takes over.

Steps leave a line in a file when they end. What is missing in the end was lost; what is there twice ran again, because
it had ended but was not yet recorded when the worker died. All march in step, so the kill may fall into a burst of
endings: read duplicates as a window, not as a rate.
"""

import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import wait_until_quiet, window
from benchmarks.program import Unavailable
from benchmarks.results import Metric
from benchmarks.runner import SLOW_STEP_S, STEPS
from benchmarks.system import Stage, System
from benchmarks.workload import Effort, Measured, Workload

WITHIN_S = 120.0


def takeover(stage: Stage, system: System, effort: Effort) -> Measured:
    executions = effort.takeovers
    wait_until_quiet(effort.patience_s)
    with TemporaryDirectory(prefix="tenuto-bench-") as directory:
        log = Path(directory) / "steps"
        log.touch()
        with window() as used:
            stage.client.ask("submit_slow", executions=executions, log=str(log), within=WITHIN_S)
            _wait_for_lines(log, executions * STEPS // 2)
            stage.kill_worker()
            killed_at = time.time()
            stage.replace_worker()
            stage.client.ask("finish_slow", executions=executions, log=str(log), within=WITHIN_S)
            recovery_s = time.time() - killed_at
        lines = [line.rsplit(" ", 1) for line in log.read_text().splitlines()]
    ran = {step for step, _ in lines}
    taken_over_s = min(float(at) for _, at in lines if float(at) > killed_at) - killed_at - SLOW_STEP_S
    figures = {
        Metric("recovery", "s"): recovery_s,
        Metric("taken over after", "s"): taken_over_s,
        Metric("lost", "steps"): executions * STEPS - len(ran),
        Metric("run twice", "steps"): len(lines) - len(ran),
        Metric("in flight", "executions"): executions,
    }
    return Measured(figures, used.foreign_cores)


def _wait_for_lines(log: Path, wanted: int) -> None:
    give_up_at = time.monotonic() + WITHIN_S
    while log.read_bytes().count(b"\n") < wanted:
        if time.monotonic() > give_up_at:
            raise Unavailable(f"fewer than {wanted} steps ran within {WITHIN_S:.0f} s")
        time.sleep(0.02)


TITLE = (
    f"W4: executions in flight with {STEPS} steps of {SLOW_STEP_S:.0f} s, the worker killed at half, another takes over"
)
WORKLOADS = [Workload(name="W4", title=TITLE, measure=takeover)]

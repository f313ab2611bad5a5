"""Statuses, derived from the folded state after every change. The tables are written down once more."""

from tenuto.kernel import events as e
from tenuto.kernel.evolve import find_step
from tenuto.kernel.state import Execution

from .invariants import require
from .lifecycle import G1

EXECUTION: dict[str, tuple[str, ...]] = {
    "running": ("waiting_approval", "paused", "succeeded", "failed", "canceled"),
    "waiting_approval": ("running", "paused", "canceled"),
    "paused": ("running", "waiting_approval", "canceled"),
    "succeeded": (),
    "failed": ("running",),
    "canceled": (),
}
# Of a closed step only a new round or run makes a pending one, and those begin a new page here.
STEP: dict[str, tuple[str, ...]] = {
    "pending": ("running", "awaiting_approval", "succeeded", "failed", "skipped"),
    "running": ("retrying", "awaiting_approval", "succeeded", "failed", "timed_out", "skipped", "canceled"),
    "retrying": ("running", "awaiting_approval", "succeeded", "failed", "timed_out", "skipped", "canceled"),
    "awaiting_approval": ("retrying", "succeeded", "failed", "timed_out", "skipped", "canceled"),
}


class Statuses:
    def __init__(self) -> None:
        self.execution = "running"
        self.steps: dict[str, str] = {}

    def changed(self, state: Execution, event: e.Event, paths: list[str]) -> None:
        """After a change that touched these steps."""
        if isinstance(event, e.RunOpened):
            self.steps, paths = {}, []
        elif isinstance(event, e.ScopeRestarted):
            prefix = f"{event.path}/" if event.path else ""
            self.steps = {path: status for path, status in self.steps.items() if not path.startswith(prefix)}
        was, now = self.execution, state.status
        self.execution = now
        for path in paths:
            self._step(state, path)
        if was != now:
            require(now in EXECUTION[was], G1, f"the execution went from {was} to {now}")

    def _step(self, state: Execution, path: str) -> None:
        step = find_step(state, path)
        if step is None:  # a closed clone keeps no status of its own
            self.steps.pop(path, None)
            return
        was, now = self.steps.get(path, "pending"), step.status
        self.steps[path] = now
        require(was == now or now in STEP.get(was, ()), G1, f"{path} went from {was} to {now}")

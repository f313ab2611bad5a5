"""Checks status changes of executions and steps against an independent copy of the documented tables.

The kernel refuses to fold a change that its own tables do not allow, so changes of an execution are checked before
folding.
"""

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
# A closed step becomes pending only in a new round or run, for which the recorded statuses are dropped.
STEP: dict[str, tuple[str, ...]] = {
    "pending": ("running", "awaiting_approval", "succeeded", "failed", "skipped"),
    "running": ("retrying", "awaiting_approval", "succeeded", "failed", "timed_out", "skipped", "canceled"),
    "retrying": ("running", "awaiting_approval", "succeeded", "failed", "timed_out", "skipped", "canceled"),
    "awaiting_approval": ("retrying", "succeeded", "failed", "timed_out", "skipped", "canceled"),
}


class Statuses:
    def __init__(self) -> None:
        self.steps: dict[str, str] = {}

    def changes(self, state: Execution, event: e.Event) -> None:
        """Checks the change of an execution before the event is folded."""
        match event:
            case e.ExecutionFinished():
                wanted: str = event.status
            case e.Paused():
                wanted = "paused"
            case e.Resumed() | e.RunOpened():
                wanted = "running"
            case _:
                return
        require(wanted in EXECUTION[state.status], G1, f"the execution went from {state.status} to {wanted}")

    def changed(self, state: Execution, event: e.Event, paths: list[str]) -> None:
        """Checks the changes of these steps after the event was folded."""
        if isinstance(event, e.RunOpened):
            self.steps, paths = {}, []
        elif isinstance(event, e.ScopeRestarted):
            prefix = f"{event.path}/" if event.path else ""
            self.steps = {path: status for path, status in self.steps.items() if not path.startswith(prefix)}
        for path in paths:
            self._step(state, path)

    def _step(self, state: Execution, path: str) -> None:
        step = find_step(state, path)
        if step is None:  # a closed clone has no status of its own
            self.steps.pop(path, None)
            return
        was, now = self.steps.get(path, "pending"), step.status
        self.steps[path] = now
        require(was == now or now in STEP.get(was, ()), G1, f"{path} went from {was} to {now}")

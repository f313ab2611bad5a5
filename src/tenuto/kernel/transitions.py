"""The legal status changes of executions, steps, compensations, scopes and fan-outs.

Law 1: `evolve` looks every change of a status up in these tables. A change that is not listed is a bug in the engine,
       not bad input: it raises `IllegalTransition`, and the status stays as it was.
Law 2: the diagrams in `docs/reference/states.md` are generated from these tables.
"""

from collections.abc import Mapping

from .state import (
    CompensationStatus,
    Execution,
    ExecutionStatus,
    FanOutStatus,
    FanState,
    ScopeState,
    ScopeStatus,
    StepState,
    StepStatus,
)

# The status of an execution is derived from its state. It changes between `running` and `waiting_approval` by itself,
# as steps start and end; the other changes are made by events, and looked up.
EXECUTION_TRANSITIONS: Mapping[ExecutionStatus, tuple[ExecutionStatus, ...]] = {
    "running": ("waiting_approval", "paused", "succeeded", "failed", "canceled"),
    "waiting_approval": ("running", "paused", "canceled"),
    "paused": ("running", "waiting_approval", "canceled"),
    "succeeded": (),
    "failed": ("running",),  # by an audited retry, which opens the next run
    "canceled": (),
}

# A closed step becomes pending again only in a new round of its scope or a new run of its execution.
STEP_TRANSITIONS: Mapping[StepStatus, tuple[StepStatus, ...]] = {
    "pending": ("running", "awaiting_approval", "succeeded", "failed", "skipped"),
    "running": ("retrying", "awaiting_approval", "succeeded", "failed", "timed_out", "skipped", "canceled"),
    "retrying": ("running", "awaiting_approval", "succeeded", "failed", "timed_out", "skipped", "canceled"),
    "awaiting_approval": ("retrying", "succeeded", "failed", "timed_out", "skipped", "canceled"),
    "succeeded": ("pending",),
    "failed": ("pending",),
    "timed_out": ("pending",),
    "skipped": ("pending",),
    "canceled": ("pending",),
}

COMPENSATION_TRANSITIONS: Mapping[CompensationStatus, tuple[CompensationStatus, ...]] = {
    "none": ("pending",),
    "pending": ("running", "awaiting_approval"),
    "running": ("retrying", "done", "failed", "skipped"),
    "retrying": ("running", "skipped"),
    "awaiting_approval": ("retrying", "done", "skipped"),
    "failed": ("retrying", "done", "skipped"),
    "done": ("none",),
    "skipped": ("none",),
}

# A scope opens again for its next round, and in a new run. The root scope of an execution stays `closing` at its end.
SCOPE_TRANSITIONS: Mapping[ScopeStatus, tuple[ScopeStatus, ...]] = {
    "open": ("closing", "closed"),
    "closing": ("open", "closed"),
    "closed": ("open",),
}

# The clones of a fan-out have the statuses of steps. The fan-out itself only runs and ends.
FAN_OUT_TRANSITIONS: Mapping[FanOutStatus, tuple[FanOutStatus, ...]] = {
    "pending": ("running", "succeeded", "failed", "skipped"),
    "running": ("succeeded", "failed", "skipped", "canceled"),
    "succeeded": ("pending",),
    "failed": ("pending",),
    "skipped": ("pending",),
    "canceled": ("pending",),
}


class IllegalTransition(AssertionError):
    """A status change that no table allows."""

    def __init__(self, kind: str, path: str, old: str, new: str) -> None:
        super().__init__(f"{kind} {path!r} cannot change from {old!r} to {new!r}")


def check_execution(state: Execution, status: ExecutionStatus) -> None:
    """Raises unless the execution may take this status now. Its status is derived, so there is nothing to set."""
    old = state.status
    if status not in EXECUTION_TRANSITIONS[old]:
        raise IllegalTransition("execution", state.id, old, status)


def set_status(step: StepState, status: StepStatus) -> None:
    old = step.status
    if status != old:
        if status not in STEP_TRANSITIONS[old]:
            raise IllegalTransition("step", step.path, old, status)
        step.status = status


def set_compensation(step: StepState, status: CompensationStatus) -> None:
    """A rollback reaches a step and starts its compensation in one event, so `none` is left by way of `pending`."""
    old = step.undo
    if status != old:
        if status not in COMPENSATION_TRANSITIONS["pending" if old == "none" else old]:
            raise IllegalTransition("compensation", step.path, old, status)
        step.undo = status


def set_scope_status(scope: ScopeState, status: ScopeStatus) -> None:
    old = scope.status
    if status != old:
        if status not in SCOPE_TRANSITIONS[old]:
            raise IllegalTransition("scope", scope.path, old, status)
        scope.status = status


def set_fan_out_status(fan: FanState, status: StepStatus) -> None:
    old = fan.status
    if status != old:
        if status not in FAN_OUT_TRANSITIONS[old]:
            raise IllegalTransition("fan-out", fan.path, old, status)
        fan.status = status

"""The nine states of a run, derived from its execution, and the transitions between them.

Law 1: a run's state is a label of what its execution is (K-8 in the decision log). Only CREATED has a row of its own.
Law 2: the state diagram in `docs/guides/runs.md` is generated from `TRANSITIONS`.
"""

from typing import Literal, NamedTuple, get_args

from .state import Execution

RunState = Literal[
    "created", "pending", "running", "paused", "resuming", "completed", "failed", "cancelled", "retrying"
]
RUN_STATES: tuple[RunState, ...] = get_args(RunState)
FINAL: tuple[RunState, ...] = ("completed", "failed", "cancelled")

Command = Literal["start", "pause", "resume", "cancel", "retry", "unstick", "delete"]


class Transition(NamedTuple):
    """One legal change of a run's state, and what triggers it."""

    old: RunState
    new: RunState
    trigger: str


TRANSITIONS: tuple[Transition, ...] = (
    Transition("created", "pending", "start"),
    Transition("created", "cancelled", "cancel"),
    Transition("pending", "running", "first claim"),
    Transition("pending", "failed", "pending_timeout, unstick"),
    Transition("pending", "cancelled", "cancel"),
    Transition("running", "completed", "the last agent or conclude ends"),
    Transition("running", "failed", "failure, deadline, heartbeat_timeout, unstick"),
    Transition("running", "paused", "pause, escalation"),
    Transition("running", "cancelled", "cancel"),
    Transition("paused", "resuming", "resume, a resolved review"),
    Transition("paused", "cancelled", "cancel, pause_limit"),
    Transition("resuming", "running", "claim, or at once"),
    Transition("resuming", "failed", "resume_timeout, unstick"),
    Transition("resuming", "cancelled", "cancel"),
    Transition("failed", "retrying", "retry, failure mode retry"),
    Transition("retrying", "pending", "delay over, admitted"),
    Transition("retrying", "failed", "retry_timeout, unstick"),
    Transition("retrying", "cancelled", "cancel"),
)

# The commands that each state allows. Those that it already obeyed are repeated without an effect.
COMMANDS: dict[RunState, tuple[Command, ...]] = {
    "created": ("start", "cancel", "delete"),
    "pending": ("cancel", "unstick"),
    "running": ("pause", "cancel", "unstick"),
    "paused": ("resume", "cancel"),
    "resuming": ("cancel", "unstick"),
    "completed": (),
    "failed": ("retry",),
    "cancelled": (),
    "retrying": ("cancel", "unstick"),
}
REPEATED: dict[RunState, tuple[Command, ...]] = {
    "created": (),
    "pending": ("start",),
    "running": ("start", "resume"),
    "paused": ("pause",),
    "resuming": ("resume",),
    "completed": (),
    "failed": (),
    "cancelled": ("cancel",),
    "retrying": ("retry",),
}


_FINISHED: dict[str, RunState] = {"succeeded": "completed", "failed": "failed", "canceled": "cancelled"}


def may_follow(old: RunState, new: RunState) -> bool:
    return any(transition.old == old and transition.new == new for transition in TRANSITIONS)


def run_status(state: Execution) -> RunState:
    """Returns the state of a started run."""
    if state.finished is not None:
        return _FINISHED[state.finished]
    if state.pause is not None:
        return "paused"
    if state.opens_at or (state.run > 1 and not state.admitted):
        return "retrying"
    if state.unclaimed == "start" or not state.admitted:
        return "pending"
    return "resuming" if state.unclaimed == "resume" else "running"


def allowed_text(status: RunState) -> str:
    commands = COMMANDS[status]
    return f"allowed now: {', '.join(commands)}" if commands else "this state is final: create a new run"

"""Starts, admits, pauses and resumes an execution."""

from tenuto.kernel.events import ExecutionAdmitted, ExecutionStarted, Paused, Resumed, ReviewResolved, StepsReady
from tenuto.kernel.evolve import find_step
from tenuto.kernel.facts import APPLIED, Admitted, Answer, Ignored, Pause, Refused, Resume, Start
from tenuto.kernel.run_states import allowed_text, run_status
from tenuto.kernel.state import Execution, StepState

from .length import refused_when_long
from .scopes import advance, advance_all
from .turn import Turn

RULES = 1
"""Recorded in every execution. A later release that decides differently raises it, and honours the old number."""


def start(turn: Turn, fact: Start) -> Answer:
    state = turn.state
    if state.seq:
        return Ignored("duplicate")
    definition = state.plan.definition
    policies = definition.policies
    pending = policies.pending_timeout_ms
    counts_from_claim = state.plan.run is not None and not fact.owned
    turn.emit(
        ExecutionStarted(
            fact.execution,
            fact.tenant,
            definition.name,
            definition.version,
            state.plan.hash,
            RULES,
            fact.input,
            fact.by_step,
            fact.each,
            fact.headers,
            fact.variables,
            fact.correlation_id,
            fact.target,
            fact.priority,
            None if policies.timeout_ms is None or counts_from_claim else turn.now + policies.timeout_ms,
            None if pending is None or fact.owned else turn.now + pending,
            fact.concurrency_key,
            fact.admitted,
            fact.hold,
            fact.max_attempts,
        )
    )
    advance(turn, state.root)
    return APPLIED


def admitted(turn: Turn, fact: Admitted) -> Answer:
    state = turn.state
    if state.admitted or state.finished is not None:
        return Ignored("duplicate")
    if fact.run not in (0, state.run):
        return Ignored("stale_lease")  # that run has left the queue, and another execution has the key
    turn.emit(ExecutionAdmitted(fact.key))
    advance_all(turn)
    return APPLIED


def pause(turn: Turn, fact: Pause) -> Answer:
    state = turn.state
    if state.finished is not None:
        return over(state)
    if state.pause is not None:
        return APPLIED
    if state.plan.run is not None and (status := run_status(state)) != "running":
        return Refused("invalid_transition", f"a run that is {status} cannot be paused", allowed_text(status))
    if (refused := refused_when_long(state)) is not None:
        return refused
    limit = state.plan.definition.policies.pause_limit_ms
    turn.emit(Paused(fact.reason, None if limit is None else turn.now + limit))
    return APPLIED


def resume(turn: Turn, fact: Resume) -> Answer:
    state = turn.state
    if state.finished is not None:
        return over(state)
    if state.pause is None:
        return APPLIED
    again: list[StepState] = []
    for review in [r for r in state.reviews.values() if r.kind == "escalation"]:
        step = find_step(state, review.path)
        if step is not None and step.review == review.id:
            again.append(step)
        turn.emit(ReviewResolved(review.id, "completed", "retry" if step in again else "close", reason="resumed"))
    lift_pause(turn, owned=fact.owned)
    for step in again:
        turn.emit(StepsReady((step.path,)))
    advance_all(turn)
    return APPLIED


def lift_pause(turn: Turn, *, owned: bool) -> None:
    """Ends the pause. A run that this process cannot continue has to be claimed within its limit."""
    state = turn.state
    assert state.pause is not None
    run = state.plan.run
    until = None if run is None or owned else turn.now + run.resume_timeout_ms
    turn.emit(Resumed(turn.now - state.pause.since, until))


def over(state: Execution) -> Refused:
    return Refused("invalid_transition", f"the execution is {state.finished}, which is final for this run", "")

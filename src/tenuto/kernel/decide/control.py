"""Starts, admits, pauses and resumes an execution."""

from tenuto.kernel.events import ExecutionAdmitted, ExecutionStarted, Paused, Resumed, ReviewResolved
from tenuto.kernel.facts import APPLIED, Admitted, Answer, Ignored, Pause, Refused, Resume, Start
from tenuto.kernel.state import Execution

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
            None if policies.timeout_ms is None else turn.now + policies.timeout_ms,
            None if pending is None or fact.owned else turn.now + pending,
            fact.concurrency_key,
            fact.admitted,
            fact.hold,
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
    for review in [r for r in state.reviews.values() if r.kind == "escalation"]:
        turn.emit(ReviewResolved(review.id, "completed", "close", reason="resumed"))
    turn.emit(Resumed(turn.now - state.pause.since))
    advance_all(turn)
    return APPLIED


def over(state: Execution) -> Refused:
    return Refused("invalid_transition", f"the execution is {state.finished}, which is final for this run", "")

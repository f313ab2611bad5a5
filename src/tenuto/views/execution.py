"""The view of one execution."""

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Raw

from tenuto.kernel import events as e
from tenuto.kernel.definition import plain_name
from tenuto.kernel.evolve import last_completed
from tenuto.kernel.state import Execution

from .blocking import blocked
from .finding import result_of, result_seqs
from .shapes import NOTHING_UNDER_WAY, Activity, ExecutionDocument, decoded, error_document, rfc3339, time_text
from .steps import step_documents


def execution_document(
    state: Execution,
    history: Sequence[e.Entry],
    activity: Activity = NOTHING_UNDER_WAY,
    *,
    idempotency_key: str | None = None,
) -> ExecutionDocument:
    """Returns the document of `GET /v1/executions/{id}`."""
    started = history[0].event
    assert isinstance(started, e.ExecutionStarted)
    finished = _finished(state, history)
    ended_at = finished.at if finished is not None else None
    target = started.target or (None, None)
    return {
        "execution_id": state.id,
        "definition_id": plain_name(started.definition),
        "definition_version": started.version,
        "status": state.status,
        "phase": phase(state),
        "tenant_id": state.tenant,
        "target_object_type": target[0],
        "target_object_id": target[1],
        "input": decoded(started.input),
        "output": decoded(stored_output(state, history)),
        "outcome": state.outcome,
        "error": error_document(state, state.failure),
        "started_at": rfc3339(history[0].at),
        "completed_at": time_text(ended_at),
        "cancelled_at": time_text(ended_at) if state.status == "canceled" else None,
        "duration_ms": None if ended_at is None else ended_at - history[0].at,
        "correlation_id": state.correlation_id,
        "idempotency_key": idempotency_key,
        "attempt_count": state.run,
        "cancel_requested": state.cancel is not None and state.finished is None,
        "pause_reason": state.pause.reason if state.pause is not None else None,
        "blocked": blocked(state, activity),
        "steps": list(step_documents(state, activity)),
    }


class _Finished(NamedTuple):
    at: int
    event: e.ExecutionFinished


def _finished(state: Execution, history: Sequence[e.Entry]) -> _Finished | None:
    """Returns the event that finished the last run.

    Reviews may still be resolved later, so it need not be the last event.
    """
    if state.finished is None:
        return None
    for entry in reversed(history):
        if isinstance(entry.event, e.ExecutionFinished):
            return _Finished(entry.at, entry.event)
    raise AssertionError("a finished execution has a last event")


def finished_at(state: Execution, history: Sequence[e.Entry]) -> int | None:
    finished = _finished(state, history)
    return None if finished is None else finished.at


def stored_output(state: Execution, history: Sequence[e.Entry]) -> Raw | None:
    """Returns the recorded output. Without an output template, that is the result of the last step."""
    finished = _finished(state, history)
    if finished is None or not finished.event.output_seq:
        return None if finished is None else finished.event.output
    last = last_completed(state)
    return None if last is None else _results(history, result_seqs(state, last.path))


def _results(history: Sequence[e.Entry], seqs: int | list[int]) -> Raw | None:
    if isinstance(seqs, int):
        return result_of(history[seqs - 1].event) if seqs else None
    return Raw(msgspec.json.encode([_results(history, seq) for seq in seqs]))


def phase(state: Execution) -> Literal["forward", "compensation", "finished"]:
    if state.finished is not None:
        return "finished"
    return "forward" if state.undo is None else "compensation"


Until: TypeAlias = Literal["settled", "terminal"]


def has_reached(state: Execution, until: Until) -> bool:
    return state.finished is not None or (until == "settled" and is_settled(state))


def is_settled(state: Execution) -> bool:
    """Returns whether the execution is terminal or waits for a person."""
    if state.finished is not None or state.status == "waiting_approval":
        return True
    return state.pause is not None and any(review.kind == "escalation" for review in state.reviews.values())

"""What waits for a person, as rows."""

from collections.abc import Sequence

from tenuto.kernel import events as e
from tenuto.kernel.naming import shown_step
from tenuto.kernel.state import Execution

from .shapes import DeadLetterRow, ReviewRow, rfc3339, time_text


def review_rows(state: Execution) -> list[ReviewRow]:
    """What waits for a person, dead letters apart."""
    return [
        {
            "id": review.id,
            "kind": review.kind,
            "execution_id": state.id,
            "step_id": shown_step(state, review.path),
            "path": review.path,
            "reason": review.reason,
            "permission": review.permission,
            "opened_at": rfc3339(review.opened_at),
            "due_at": time_text(review.due_at),
            "state": "open",
        }
        for review in state.reviews.values()
        if review.kind != "dead_letter"
    ]


def dead_letter_rows(state: Execution, history: Sequence[e.Entry]) -> list[DeadLetterRow]:
    rows: list[DeadLetterRow] = []
    for review in state.reviews.values():
        if review.kind == "dead_letter":
            opened = history[int(review.id.rpartition(".")[2]) - 1].event
            assert isinstance(opened, e.ReviewOpened)
            rows.append(
                {
                    "id": review.id,
                    "execution_id": state.id,
                    "step_id": shown_step(state, review.path),
                    "path": review.path,
                    "error_class": opened.failure.error_class if opened.failure is not None else "",
                    "error_summary": opened.failure.summary if opened.failure is not None else "",
                    "attempts": opened.attempts,
                    "created_at": rfc3339(review.opened_at),
                    "state": "open",
                }
            )
    return rows

"""The overview of a tenant: how many executions there are, and what needs attention."""

from typing import TypedDict

from tenuto.kernel.events import ReviewKind
from tenuto.kernel.state import ExecutionStatus

from .shapes import ReviewRow


class ReviewFigures(TypedDict):
    """Open reviews by kind, without dead letters, and those that are due soonest."""

    open: dict[ReviewKind, int]
    due: list[ReviewRow]


class DeadLetterFigures(TypedDict):
    """Open dead letters."""

    open: int


class QueueFigures(TypedDict):
    """The tasks of a queue that no worker has taken, since when the oldest waits, and the queue's workers."""

    name: str
    due: int
    oldest_due: str | None
    workers: int


class OverviewDocument(TypedDict):
    """Figures of a tenant. Counts of executions, reviews and dead letters stop at `counted_to`.

    `oldest_due` is since when an execution has waited for a worker. `workers` is null for callers that see one tenant
    only.
    """

    at: str
    counted_to: int
    counts: dict[ExecutionStatus, int]
    reviews: ReviewFigures
    dlq: DeadLetterFigures
    oldest_due: str | None
    workers: int | None
    queues: list[QueueFigures]

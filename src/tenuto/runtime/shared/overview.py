"""The overview: figures that are read once for all who ask at the same time."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol, get_args

from tenuto.kernel.events import ReviewKind
from tenuto.kernel.state import ExecutionStatus
from tenuto.storage.operations import COUNTED, BacklogRow
from tenuto.storage.reviews import ShownReview, StoredReview
from tenuto.views import rfc3339, time_text
from tenuto.views.overview import OverviewDocument, QueueFigures

from .reviews import review_document
from .single_flight import SingleFlight

MOST_TENANTS = 1_000
SOONEST = 5  # reviews


class Figures(NamedTuple):
    """What an overview is made from. `serving` are the queues of each worker."""

    rows: Sequence[BacklogRow]
    soonest: Sequence[StoredReview]
    serving: Sequence[Sequence[str]]


class ReadFigures(Protocol):
    async def __call__(self, tenant: str | None, soonest: int) -> Figures: ...


class Overviews:
    """Computes the overview of a tenant once for all who ask while it is computed."""

    def __init__(self, read: ReadFigures, with_requests: Callable[..., Awaitable[list[ShownReview]]]) -> None:
        self._read = read
        self._with_requests = with_requests
        self._calls: dict[str | None, SingleFlight[OverviewDocument]] = {}

    async def overview(self, tenant: str | None) -> OverviewDocument:
        call = self._calls.get(tenant)
        if call is None:
            if len(self._calls) >= MOST_TENANTS:
                self._calls.clear()
            call = self._calls[tenant] = SingleFlight(partial(self._compute, tenant))
        return await call.call()

    async def _compute(self, tenant: str | None) -> OverviewDocument:
        figures = await self._read(tenant, SOONEST)
        shown = await self._with_requests(tenant, figures.soonest)
        by_label = {(row.what, row.label): row for row in figures.rows}
        open_reviews = {kind: _count(by_label, "reviews", kind) for kind in get_args(ReviewKind)}
        dead_letters = open_reviews.pop("dead_letter")
        due = by_label.get(("due", ""))
        now = by_label["now", ""].oldest
        assert now is not None
        return {
            "at": rfc3339(now),
            "counted_to": COUNTED,
            "counts": {status: _count(by_label, "executions", status) for status in get_args(ExecutionStatus)},
            "reviews": {"open": open_reviews, "due": [review_document(row) for row in shown]},
            "dlq": {"open": dead_letters},
            "oldest_due": None if due is None else time_text(due.oldest),
            "workers": len(figures.serving),
            "queues": _queues(figures),
        }


def _count(by_label: dict[tuple[str, str], BacklogRow], what: str, label: str) -> int:
    row = by_label.get((what, label))
    return 0 if row is None else row.count


def _queues(figures: Figures) -> list[QueueFigures]:
    """Queues in which tasks wait, by name."""
    return [
        {
            "name": row.label,
            "due": row.count,
            "oldest_due": time_text(row.oldest),
            "workers": sum(row.label in queues for queues in figures.serving),
        }
        for row in sorted(figures.rows, key=lambda row: row.label)
        if row.what == "tasks"
    ]

"""Reviews and dead letters, made from stored rows."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec import structs

from tenuto.errors import NotFound
from tenuto.storage.registry import REQUESTED, VALID_MS, Registry
from tenuto.storage.reviews import ReviewsWanted, ShownReview, StoredReview
from tenuto.views import DeadLetterRow, RequestRow, ReviewRow, rfc3339, time_text
from tenuto.views.pages import Page
from tenuto.views.projections import AuditRow


class ReviewRows(Protocol):
    """Reads the rows of reviews, ordered by id."""

    async def review_rows(self, wanted: ReviewsWanted, cursor: str | None, limit: int) -> list[StoredReview]: ...

    async def review_row(self, tenant: str | None, id: str) -> StoredReview | None: ...


class StoredReviews:
    """Implements `Reviews`: adds to each row the pending requests of a first person for a second one's consent."""

    def __init__(self, rows: ReviewRows, registry: Callable[[], Registry], now_ms: Callable[[], int]) -> None:
        self._rows = rows
        self._registry = registry
        self._now = now_ms

    async def page(self, wanted: ReviewsWanted, cursor: str | None, limit: int) -> Page[ShownReview]:
        rows = await self._rows.review_rows(wanted, cursor, limit + 1)
        shown = await self.with_requests(wanted.tenant, rows[:limit])
        return Page(shown, rows[limit - 1].id if len(rows) > limit else None)

    async def find(self, tenant: str | None, id: str) -> ShownReview:
        row = await self._rows.review_row(tenant, id)
        if row is None or tenant not in (None, row.tenant):
            raise NotFound(f"There is no review {id!r}.")
        (shown,) = await self.with_requests(tenant, [row])
        return shown

    async def with_requests(self, tenant: str | None, rows: Sequence[StoredReview]) -> list[ShownReview]:
        """Adds the pending requests to rows."""
        about = [row.id for row in rows if row.resolution is None]
        found = await self._registry().requests(tenant, about, self._now() - VALID_MS) if about else []
        return [
            ShownReview(
                **structs.asdict(row),
                requests=tuple(_request(note) for note in found if note.object_id == row.id),
            )
            for row in rows
        ]


def review_document(row: ShownReview) -> ReviewRow:
    kind: Any = row.kind
    return {
        "id": row.id,
        "kind": kind,
        "execution_id": row.execution,
        "step_id": _step_of(row),
        "path": row.path,
        "reason": row.reason,
        "permission": row.permission,
        "opened_at": rfc3339(row.opened_at),
        "due_at": time_text(row.due_at),
        "state": "open" if row.resolution is None else "resolved",
        "requests": list(row.requests),
    }


def dead_letter_document(row: ShownReview) -> DeadLetterRow:
    return {
        "id": row.id,
        "execution_id": row.execution,
        "step_id": _step_of(row),
        "path": row.path,
        "error_class": row.error_class,
        "error_summary": row.error_summary,
        "attempts": row.attempts,
        "created_at": rfc3339(row.opened_at),
        "state": "open" if row.resolution is None else "resolved",
        "requests": list(row.requests),
    }


def _step_of(row: ShownReview) -> str:
    """The id of the step. Rows of earlier schemas have only its path."""
    return row.step or row.path.rpartition("/")[2].partition("@")[0]


def _request(note: AuditRow) -> RequestRow:
    kind: Any = note.action.removesuffix(REQUESTED)
    return {"kind": kind, "actor": note.actor, "at": rfc3339(note.at), "reason": note.reason}

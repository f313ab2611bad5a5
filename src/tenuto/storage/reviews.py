"""What waits for a person, and what was decided, as it is kept: for lists, and for looking one up."""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from tenuto.kernel.definition import names_in_filter
from tenuto.views import RequestRow
from tenuto.views.projections import ReviewRow

from .statements import Statements


class StoredReview(ReviewRow, frozen=True, kw_only=True):
    resolution: str | None = None
    resolved_by: str | None = None
    resolved_at: int | None = None


class ShownReview(StoredReview, frozen=True, kw_only=True):
    """With the pending requests of a first person, which need a second one."""

    requests: tuple[RequestRow, ...] = ()


class ReviewsWanted(Struct, frozen=True, kw_only=True):
    """A filter. What is None does not matter; `kinds` are those that are wanted."""

    tenant: str | None = None
    kinds: tuple[str, ...]
    resolved: bool = False
    definition: str | None = None
    execution: str | None = None
    error_class: str | None = None
    before: int | None = None


NEVER = 2**63 - 1  # due, of what has no deadline
_COLUMNS = ", ".join(StoredReview.__struct_fields__)


class SqlReviews:
    def __init__(self, statements: Statements) -> None:
        self._sql = statements

    async def find(self, id: str) -> StoredReview | None:
        rows = await self._sql.fetch(f"SELECT {_COLUMNS} FROM reviews WHERE id = $1", (id,))
        return _row(rows[0]) if rows else None

    async def soonest(self, tenant: str | None, limit: int) -> list[StoredReview]:
        """What waits for a decision, the soonest due first."""
        of, values = ("", ()) if tenant is None else ("tenant = $1 AND", (tenant,))
        query = (
            f"SELECT {_COLUMNS} FROM reviews WHERE {of} resolution IS NULL AND kind <> 'dead_letter' "
            f"ORDER BY coalesce(due_at, {NEVER}), id LIMIT {int(limit)}"
        )
        return [_row(row) for row in await self._sql.fetch(query, values)]

    async def page(self, wanted: ReviewsWanted, after: str | None, limit: int) -> list[StoredReview]:
        return [_row(row) for row in await self._sql.fetch(*page_query(wanted, after, limit))]


def page_query(wanted: ReviewsWanted, after: str | None, limit: int) -> tuple[str, list[object]]:
    """Oldest first. Each kind is read from an index in its order, so that few are found among many others."""
    conditions, values = _conditions(wanted, after)
    places = [[f"kind = '{kind}'"] for kind in wanted.kinds]
    if wanted.definition is not None:
        names = names_in_filter(wanted.definition, wanted.tenant)
        values.extend(names)
        marks = [f"definition = ${len(values) - place}" for place in range(len(names))]
        places = [[mark, *place] for mark in marks for place in places]
    values.append(limit)
    parts = [
        f"SELECT * FROM (SELECT {_COLUMNS} FROM reviews WHERE {' AND '.join([*conditions, *place])} "
        f"ORDER BY id LIMIT ${len(values)}) AS part_{number}"
        for number, place in enumerate(places)
    ]
    return f"{' UNION ALL '.join(parts)} ORDER BY id LIMIT ${len(values)}", values


def _conditions(wanted: ReviewsWanted, after: str | None) -> tuple[list[str], list[object]]:
    conditions = [f"resolution IS {'NOT ' if wanted.resolved else ''}NULL"]
    values: list[object] = []

    def add(condition: str, *given: object) -> None:
        first = len(values) + 1
        values.extend(given)
        conditions.append(condition.format(*(f"${number}" for number in range(first, len(values) + 1))))

    if wanted.tenant is not None:
        add("tenant = {}", wanted.tenant)
    if wanted.execution is not None:
        add("execution = {}", wanted.execution)
    if wanted.error_class is not None:
        add("error_class <> '' AND error_class = {}", wanted.error_class)
    if wanted.before is not None:
        add("opened_at < {}", wanted.before)
    if after is not None:
        add("id > {}", after)
    return conditions, values


def _row(row: Sequence[Any]) -> StoredReview:
    return StoredReview(**dict(zip(StoredReview.__struct_fields__, row, strict=True)))


def fits(row: StoredReview, wanted: ReviewsWanted) -> bool:
    """The same filter, for rows that are not in a database."""
    return (
        row.kind in wanted.kinds
        and (row.resolution is not None) == wanted.resolved
        and wanted.tenant in (None, row.tenant)
        and (wanted.definition is None or row.definition in names_in_filter(wanted.definition, wanted.tenant))
        and wanted.execution in (None, row.execution)
        and wanted.error_class in (None, row.error_class)
        and (wanted.before is None or row.opened_at < wanted.before)
    )

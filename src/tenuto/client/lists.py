"""Lists of the service, decoded to the types of the runtime port."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tenuto.runtime.shared.documents import Summary
from tenuto.runtime.shared.filters import Filter
from tenuto.storage.reviews import ReviewsWanted, ShownReview
from tenuto.views import ExecutionSummary, rfc3339
from tenuto.views.bulk_results import BulkResult, RefusedItem
from tenuto.views.pages import Page

from .transport import PAGE, Transport, quoted


async def summaries(transport: Transport, wanted: Filter, cursor: str | None, limit: int) -> Page[ExecutionSummary]:
    params = {
        "status": wanted.status,
        "definition": wanted.definition,
        "target_id": wanted.target_id,
        "correlation_id": wanted.correlation_id,
        "since": _timestamp(wanted.since_ms),
        "before": _timestamp(wanted.before_ms),
        "blocked": "true" if wanted.blocked else None,
        "version": wanted.version,
        "error_class": wanted.error_class,
        "q": wanted.q,
        "order": "newest" if wanted.newest_first else "oldest",
    }
    return await _page(transport, "/v1/executions", params, cursor, limit)


def filter_body(wanted: Filter, *, with_status: bool) -> dict[str, Any]:
    """Returns the filter fields of a bulk command that are set."""
    given = {
        "status": wanted.status if with_status else None,
        "definition": wanted.definition,
        "target_id": wanted.target_id,
        "correlation_id": wanted.correlation_id,
        "since": _timestamp(wanted.since_ms),
        "before": _timestamp(wanted.before_ms),
    }
    return {name: value for name, value in given.items() if value is not None}


def dead_letter_filter(wanted: ReviewsWanted) -> dict[str, Any]:
    given = {
        "definition": wanted.definition,
        "error_class": wanted.error_class,
        "before": _timestamp(wanted.before),
    }
    return {name: value for name, value in given.items() if value is not None}


def reprocessed(document: Mapping[str, Any]) -> BulkResult:
    return BulkResult(
        done=document["reprocessed"],
        pending=document["pending"],
        refused=[RefusedItem(**each) for each in document["refused"]],
        next_cursor=document["next_cursor"],
    )


def acted(document: Mapping[str, Any]) -> BulkResult:
    return BulkResult(
        done=document.get("canceled", []) + document.get("retried", []),
        pending=document["pending"],
        refused=[RefusedItem(**each) for each in document["refused"]],
        chosen=document["chosen"],
        remaining=document["remaining"],
        next_cursor=document["next_cursor"],
    )


async def review_page(transport: Transport, wanted: ReviewsWanted, cursor: str | None, limit: int) -> Page[ShownReview]:
    """Returns a page of reviews of one kind or of all kinds."""
    params: dict[str, Any] = {"definition": wanted.definition, "state": "resolved" if wanted.resolved else None}
    if wanted.kinds == ("dead_letter",):
        params |= {"error_class": wanted.error_class, "before": _timestamp(wanted.before)}
        found = await _page(transport, "/v1/dlq", params, cursor, limit)
        return Page([dead_letter(row) for row in found.items], found.next_cursor)
    params["execution_id"] = wanted.execution
    params["kind"] = wanted.kinds[0] if len(wanted.kinds) == 1 else None
    found = await _page(transport, "/v1/reviews", params, cursor, limit)
    return Page([review(row) for row in found.items], found.next_cursor)


async def one_review(transport: Transport, id: str) -> ShownReview:
    found = await transport.get(f"/v1/reviews/{quoted(id)}", has="kind")
    if found["kind"] != "dead_letter":
        return review(found)
    return dead_letter(await transport.get(f"/v1/dlq/{quoted(id)}", has="error_class"))


async def _page(
    transport: Transport, path: str, params: Mapping[str, Any], cursor: str | None, limit: int
) -> Page[Any]:
    found = await transport.get(path, {**params, "cursor": cursor, "limit": min(limit, PAGE)}, has="next_cursor")
    return Page(found["items"], found["next_cursor"])


def summary(row: Mapping[str, Any]) -> Summary:
    target = (row["target_object_type"], row["target_object_id"])
    return Summary(
        execution_id=row["execution_id"],
        tenant=row["tenant_id"],
        definition=row["definition_id"],
        version=row["definition_version"],
        status=row["status"],
        correlation_id=row["correlation_id"],
        target=None if target[0] is None else target,
        started_at=_ms(row["started_at"]) or 0,
        ended_at=_ms(row["completed_at"]),
        error_class=row["error_class"] or "",
    )


def review(row: Mapping[str, Any]) -> ShownReview:
    return ShownReview(
        id=row["id"],
        execution=row["execution_id"],
        tenant="",
        definition="",
        kind=row["kind"],
        path=row["path"],
        step=row["step_id"],
        reason=row["reason"],
        permission=row["permission"],
        error_class="",
        error_summary="",
        attempts=0,
        opened_at=_ms(row["opened_at"]) or 0,
        due_at=_ms(row["due_at"]),
        resolution=None if row["state"] == "open" else "resolved",
        requests=tuple(row.get("requests", ())),
    )


def dead_letter(row: Mapping[str, Any]) -> ShownReview:
    return ShownReview(
        id=row["id"],
        execution=row["execution_id"],
        tenant="",
        definition="",
        kind="dead_letter",
        path=row["path"],
        step=row["step_id"],
        reason="",
        permission="",
        error_class=row["error_class"],
        error_summary=row["error_summary"],
        attempts=row["attempts"],
        opened_at=_ms(row["created_at"]) or 0,
        due_at=None,
        resolution=None if row["state"] == "open" else "resolved",
        requests=tuple(row.get("requests", ())),
    )


def _timestamp(ms: int | None) -> str | None:
    return None if ms is None else rfc3339(ms)


def _ms(text: str | None) -> int | None:
    return None if text is None else round(datetime.fromisoformat(text).astimezone(UTC).timestamp() * 1_000)

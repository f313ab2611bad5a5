"""The reviews and dead letters of the service."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tenuto.storage.reviews import ReviewsWanted, ShownReview
from tenuto.views.pages import Page

from .lists import fetch_page, timestamp
from .refusals import check_tenant
from .transport import Transport, quoted


class RemoteReviews:
    """Implements `Reviews` over HTTP."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def page(self, wanted: ReviewsWanted, cursor: str | None, limit: int) -> Page[ShownReview]:
        """Fetches a page of reviews of one kind or of all kinds."""
        check_tenant(wanted.tenant)
        params: dict[str, Any] = {"definition": wanted.definition, "state": "resolved" if wanted.resolved else None}
        if wanted.kinds == ("dead_letter",):
            params |= {"error_class": wanted.error_class, "before": timestamp(wanted.before)}
            found = await fetch_page(self._transport, "/v1/dlq", params, cursor, limit)
            return Page([_dead_letter(row) for row in found.items], found.next_cursor)
        params["execution_id"] = wanted.execution
        params["kind"] = wanted.kinds[0] if len(wanted.kinds) == 1 else None
        found = await fetch_page(self._transport, "/v1/reviews", params, cursor, limit)
        return Page([_review(row) for row in found.items], found.next_cursor)

    async def find(self, tenant: str | None, id: str) -> ShownReview:
        check_tenant(tenant)
        found = await self._transport.get(f"/v1/reviews/{quoted(id)}", has="kind")
        if found["kind"] != "dead_letter":
            return _review(found)
        return _dead_letter(await self._transport.get(f"/v1/dlq/{quoted(id)}", has="error_class"))


def _review(row: Mapping[str, Any]) -> ShownReview:
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


def _dead_letter(row: Mapping[str, Any]) -> ShownReview:
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


def _ms(text: str | None) -> int | None:
    return None if text is None else round(datetime.fromisoformat(text).astimezone(UTC).timestamp() * 1_000)

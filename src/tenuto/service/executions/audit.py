"""Who did what."""

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from tenuto.service.http.answers import Cursor, Limit, numbered, page
from tenuto.service.http.caller import Called, Face
from tenuto.service.http.openapi import documented

face = Face(tags=["audit"])

Word = Annotated[str | None, Query(max_length=256)]


@face.operation(
    "GET",
    "/v1/audit",
    "audit:read",
    summary="Who did what, newest first",
    responses=documented({200: "[AuditDocument]"}, 422),
)
async def list_audit(
    caller: Called,
    action: Word = None,
    actor: Word = None,
    object_id: Word = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Response:
    found = await caller.engine.audit.page(
        action=action, actor=actor, object_id=object_id, cursor=numbered(cursor), limit=limit
    )
    return page(found.items, found.next_cursor)

"""Endpoints of the audit log."""

from typing import Annotated

from fastapi import Query
from starlette.responses import Response

from tenuto.errors import InvalidInput
from tenuto.runtime.shared.pages import Paging
from tenuto.service.http.caller import Called
from tenuto.service.http.endpoints import EndpointRouter
from tenuto.service.http.openapi import documented
from tenuto.service.http.responses import Cursor, Limit, json_response, page_response
from tenuto.storage.audit import Kept

router = EndpointRouter(tags=["audit"])

Word = Annotated[str | None, Query(max_length=256)]


@router.operation(
    "GET",
    "/v1/audit",
    "audit:read",
    summary="List audit rows, newest first",
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
    found = await caller.engine.audit.page(action=action, actor=actor, object_id=object_id, cursor=cursor, limit=limit)
    return page_response(found)


@router.operation(
    "GET",
    "/v1/audit:verify",
    "audit:read",
    summary="Verify the hash chain",
    responses=documented({200: "Verified"}),
)
async def verify_audit(
    caller: Called,
    n: Annotated[int | None, Query(ge=1, le=2**53, description="with `hash`: a head that you stored earlier")] = None,
    hash: Annotated[
        str | None, Query(pattern="^[0-9a-f]{64}$", description="the hash of row `n`, which must still be in the chain")
    ] = None,
) -> Response:
    """`broken_at` is the first row that does not match, or null. Store `rows` and `head` elsewhere and pass them
    later as `n` and `hash`: otherwise a truncated or rewritten chain goes unnoticed."""
    return json_response((await caller.engine.audit.verify(_kept(n, hash)))._asdict())


def _kept(n: int | None, hash: str | None) -> Kept | None:
    if (n is None) != (hash is None):
        missing = "n" if n is None else "hash"
        raise InvalidInput.at(f"/{missing}", "missing", "give both `n` and `hash`")
    return None if n is None or hash is None else Kept(n, hash)


@router.operation(
    "GET",
    "/v1/audit:export",
    "audit:read",
    summary="Export the hash chain, oldest first",
    responses=documented({200: "[AuditRecord]"}, 422),
)
async def export_audit(
    caller: Called,
    after: Annotated[int, Query(ge=0, le=2**53, description="export only rows after this number")] = 0,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Page with `next_cursor`. Pass `after` to fetch only the rows since your last export."""
    paging = Paging("audit:export", {"tenant": caller.principal.tenant, "after": after}, cursor)
    rows = await caller.engine.audit.chain(max(after, paging.first), limit)
    return page_response(paging.page(rows, rows[-1]["n"] if len(rows) == limit else None))

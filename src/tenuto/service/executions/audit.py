"""Who did what, and whether that record is whole."""

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
    found = await caller.engine.audit.page(action=action, actor=actor, object_id=object_id, cursor=cursor, limit=limit)
    return page_response(found)


@router.operation(
    "GET",
    "/v1/audit:verify",
    "audit:read",
    summary="Whether the chain of hashes holds",
    responses=documented({200: "Verified"}),
)
async def verify_audit(
    caller: Called,
    n: Annotated[int | None, Query(ge=1, le=2**53, description="with `hash`: a head that was kept elsewhere")] = None,
    hash: Annotated[str | None, Query(pattern="^[0-9a-f]{64}$", description="it must be in the chain still")] = None,
) -> Response:
    """`broken_at` is the first row that does not fit, null if all do. Keep `rows` and `head` elsewhere, and give them
    here as `n` and `hash` later: a chain that was cut short or written anew holds too."""
    return json_response((await caller.engine.audit.verify(_kept(n, hash)))._asdict())


def _kept(n: int | None, hash: str | None) -> Kept | None:
    if (n is None) != (hash is None):
        missing = "n" if n is None else "hash"
        raise InvalidInput.at(f"/{missing}", "missing", "a head that was kept is its `n` and its `hash`")
    return None if n is None or hash is None else Kept(n, hash)


@router.operation(
    "GET",
    "/v1/audit:export",
    "audit:read",
    summary="The whole chain, oldest first, for those who check it themselves",
    responses=documented({200: "[AuditRecord]"}, 422),
)
async def export_audit(
    caller: Called,
    after: Annotated[int, Query(ge=0, le=2**53, description="the number of the last row that you have")] = 0,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Page by page with `next_cursor`; or with `after`, to fetch what came since the last row that was kept."""
    paging = Paging("audit:export", {"tenant": caller.principal.tenant, "after": after}, cursor)
    rows = await caller.engine.audit.chain(max(after, paging.first), limit)
    return page_response(paging.page(rows, rows[-1]["n"] if len(rows) == limit else None))

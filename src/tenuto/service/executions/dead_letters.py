"""Endpoints of the dead-letter queue."""

from typing import Annotated, Literal

from fastapi import Query
from starlette.requests import Request
from starlette.responses import Response

from tenuto.kernel.definition import ErrorClass
from tenuto.service.http.caller import Called, Caller
from tenuto.service.http.endpoints import EndpointRouter
from tenuto.service.http.idempotency import IdempotencyKey, run_once
from tenuto.service.http.openapi import documented
from tenuto.service.http.request_models import DiscardBody, ReprocessBody, ReprocessManyBody, Timestamp
from tenuto.service.http.responses import Cursor, Limit, json_response, page_response

router = EndpointRouter(tags=["dlq"])


@router.operation(
    "GET",
    "/v1/dlq",
    "dlq:read",
    summary="List dead letters, oldest first",
    responses=documented({200: "[DeadLetterRow]"}, 422),
)
async def list_dead_letters(
    caller: Called,
    definition: Annotated[str | None, Query(max_length=256)] = None,
    error_class: ErrorClass | None = None,
    before: Timestamp | None = None,
    state: Literal["open", "resolved"] = "open",
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Response:
    found = await caller.engine.listing.dlq(
        definition=definition,
        error_class=error_class,
        before=before,
        resolved=state == "resolved",
        cursor=cursor,
        limit=limit,
    )
    return page_response(found)


@router.operation(
    "GET",
    "/v1/dlq/{id:plain}",
    "dlq:read",
    summary="Get a dead letter, open or resolved",
    responses=documented({200: "DeadLetterRow"}, 404),
)
async def get_dead_letter(id: str, caller: Called) -> Response:
    """`error_trace` tells where the handler raised. It needs the permission `executions:read`, as payloads do."""
    return json_response(await caller.engine.listing.dead_letter(id, trace=True))


_DECIDED = documented({200: "DeadLetterRow", 202: "DeadLetterRow"}, 404, 409, 422)


@router.operation(
    "POST",
    "/v1/dlq/{id:plain}:reprocess",
    "dlq:write",
    summary="Retry the execution of a dead letter",
    responses=_DECIDED,
)
async def reprocess_dead_letter(id: str, caller: Called, body: ReprocessBody) -> Response:
    return await _decided(caller, id, "retry", body.reason)


@router.operation(
    "POST",
    "/v1/dlq/{id:plain}:discard",
    "dlq:write",
    summary="Discard a dead letter: the execution stays failed",
    responses=_DECIDED,
)
async def discard_dead_letter(id: str, caller: Called, body: DiscardBody) -> Response:
    return await _decided(caller, id, "dismiss", body.reason)


async def _decided(caller: Caller, id: str, resolution: Literal["retry", "dismiss"], reason: str) -> Response:
    """Resolves the dead letter by its own id, because the id of its execution may stand for a later one."""
    letter = (await caller.engine.listing.dead_letter(id))["id"]
    heard = await caller.has_verdict(caller.engine.resolve(letter, resolution, reason=reason))
    return json_response(await caller.engine.listing.dead_letter(letter), 200 if heard else 202)


@router.operation(
    "POST",
    "/v1/dlq:reprocess",
    "dlq:write",
    summary="Retry the executions of all matching dead letters, oldest first",
    responses=documented({200: "Reprocessed"}, 422),
)
async def reprocess_dead_letters(
    body: ReprocessManyBody, request: Request, caller: Called, key: IdempotencyKey = None
) -> Response:
    """Refused items are reported with a reason and left unchanged. The verdict of `pending` items is not known yet. If
    there is a `next_cursor`, call again with it as `cursor`."""

    async def work() -> Response:
        acted = await caller.engine.letters.reprocess_many(
            definition=body.definition,
            error_class=body.error_class,
            before=body.before,
            limit=body.limit,
            cursor=body.cursor,
            reason=body.reason,
        )
        refused = [each._asdict() for each in acted.refused]
        told = {"reprocessed": acted.done, "pending": acted.pending, "refused": refused}
        return json_response({**told, "next_cursor": acted.next_cursor})

    return await run_once(caller, "POST /v1/dlq:reprocess", key, await request.body(), work)

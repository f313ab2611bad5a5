"""Endpoints of decisions: approvals, signals and reviews."""

import hashlib
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import Path, Query
from starlette.requests import Request
from starlette.responses import Response

from tenuto.kernel.events import ReviewKind
from tenuto.service.http.caller import Called
from tenuto.service.http.endpoints import EndpointRouter
from tenuto.service.http.idempotency import IdempotencyKey, run_once, unquoted_key
from tenuto.service.http.openapi import documented
from tenuto.service.http.request_models import DecisionBody, ResolveBody, RetryStepBody, SignalBody
from tenuto.service.http.responses import Cursor, Limit, json_response, page_response
from tenuto.values.names import MAX_NAME

from .executions import commanded

router = EndpointRouter(tags=["people"])

StepId = Annotated[str, Path(max_length=1_024, description="the id of the step; a clone has a suffix: `notify#3`")]
_COMMANDED = documented({200: "ExecutionDocument", 202: "ExecutionDocument"}, 404, 409, 422)


@router.operation(
    "POST",
    "/v1/executions/{id:plain}/steps/{step_id:whole}:approve",
    "approvals:write",
    summary="Approve a step that is waiting for approval",
    responses=_COMMANDED,
)
async def approve_step(id: str, step_id: StepId, caller: Called, body: DecisionBody | None = None) -> Response:
    """`data` becomes the result of the step."""
    given = body or DecisionBody()
    command = caller.engine.get(id).approve(step_id, comment=given.comment, data=given.data)
    return await commanded(caller, id, command)


@router.operation(
    "POST",
    "/v1/executions/{id:plain}/steps/{step_id:whole}:reject",
    "approvals:write",
    summary="Reject a step that is waiting for approval",
    responses=_COMMANDED,
)
async def reject_step(id: str, step_id: StepId, caller: Called, body: DecisionBody | None = None) -> Response:
    given = body or DecisionBody()
    command = caller.engine.get(id).reject(step_id, comment=given.comment, data=given.data)
    return await commanded(caller, id, command)


@router.operation(
    "POST",
    "/v1/executions/{id:plain}/steps/{step_id:whole}:retry",
    "executions:write",
    summary="Retry a failed execution from a step",
    responses=_COMMANDED,
)
async def retry_step(id: str, step_id: StepId, caller: Called, body: RetryStepBody) -> Response:
    command = caller.engine.get(id).retry(from_step=step_id, again=body.again, reason=body.reason)
    return await commanded(caller, id, command)


@router.operation(
    "POST",
    "/v1/executions/{id:plain}/signals/{name:whole}",
    "executions:write",
    summary="Send a signal; a step may wait for it now or later",
    responses=_COMMANDED,
)
async def send_signal(
    id: str,
    name: Annotated[str, Path(max_length=256)],
    request: Request,
    caller: Called,
    body: SignalBody | None = None,
    key: IdempotencyKey = None,
) -> Response:
    """Signals with the same `id` or `Idempotency-Key` are one signal."""
    given = body or SignalBody()

    async def work() -> Response:
        signal = caller.engine.get(id).signal(name, given.payload, id=given.id or _id_of(name, unquoted_key(key)))
        return await commanded(caller, id, signal)

    place = quote(request.scope["path"])  # `request.url` drops some characters that names may contain
    return await run_once(caller, f"POST {place}", key, await request.body(), work)


def _id_of(name: str, key: str | None) -> str | None:
    """An id from the key and the name: a key is unique for each path, an id of a signal for the whole execution."""
    if key is None:
        return None
    id = f"{quote(name, safe='')}:{key}"
    return id if len(id) <= MAX_NAME else hashlib.sha256(id.encode()).hexdigest()


# -- Reviews -----------------------------------------------------------------------------------------------------------


@router.operation(
    "GET",
    "/v1/reviews",
    "reviews:read",
    summary="List reviews, oldest first",
    responses=documented({200: "[ReviewRow]"}, 422),
)
async def list_reviews(
    caller: Called,
    kind: ReviewKind | None = None,
    definition: Annotated[str | None, Query(max_length=256)] = None,
    execution_id: Annotated[str | None, Query(max_length=256)] = None,
    state: Literal["open", "resolved"] = "open",
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Response:
    found = await caller.engine.listing.reviews(
        kind=kind,
        definition=definition,
        execution_id=execution_id,
        resolved=state == "resolved",
        cursor=cursor,
        limit=limit,
    )
    return page_response(found)


@router.operation(
    "GET",
    "/v1/reviews/{id:plain}",
    "reviews:read",
    summary="Get a review, open or resolved",
    responses=documented({200: "ReviewRow"}, 404),
)
async def get_review(id: str, caller: Called) -> Response:
    return json_response(await caller.engine.listing.review(id))


@router.operation(
    "POST",
    "/v1/reviews/{id:plain}:resolve",
    "approvals:write",
    "dlq:write",
    summary="Resolve a review",
    responses=documented({200: "ReviewRow", 202: "ReviewRow"}, 404, 409, 422),
)
async def resolve_review(id: str, body: ResolveBody, caller: Called) -> Response:
    """A dead letter needs `dlq:write`; every other review needs `approvals:write` and the permission that it names.
    The kind of the review decides which resolutions are valid; the error for another one lists them."""
    await caller.engine.listing.review(id)
    heard = await caller.has_verdict(
        caller.engine.resolve(id, body.resolution, reason=body.reason, result=body.result, again=body.again)
    )
    return json_response(await caller.engine.listing.review(id), 200 if heard else 202)

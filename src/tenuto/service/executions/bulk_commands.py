"""One command for many executions, chosen by a filter."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tenuto.runtime.port import BulkResult
from tenuto.service.http.caller import Called
from tenuto.service.http.endpoints import EndpointRouter
from tenuto.service.http.idempotency import IdempotencyKey, run_once
from tenuto.service.http.openapi import documented
from tenuto.service.http.request_models import CancelManyBody, ManyBody, RetryManyBody
from tenuto.service.http.responses import json_response

router = EndpointRouter(tags=["executions"])


@router.operation(
    "POST",
    "/v1/executions:cancel",
    "executions:write",
    summary="Cancel all that fit and are not over, oldest first",
    responses=documented({200: "Canceled"}, 409, 422),
)
async def cancel_executions(
    body: CancelManyBody, request: Request, caller: Called, key: IdempotencyKey = None
) -> Response:
    """At least one filter is needed. Says of each whether it was taken; `remaining` fit and were not told in this call:
    call again with `next_cursor` as `cursor`. `pending` were told, and their verdict is not known yet."""
    act = partial(caller.engine.cancel_many, status=body.status, mode=body.mode)
    return await run_once(caller, "POST /v1/executions:cancel", key, await request.body(), _told(act, body, "canceled"))


@router.operation(
    "POST",
    "/v1/executions:retry",
    "executions:write",
    summary="Open the next run of all that fit and failed, oldest first",
    responses=documented({200: "Retried"}, 409, 422),
)
async def retry_executions(
    body: RetryManyBody, request: Request, caller: Called, key: IdempotencyKey = None
) -> Response:
    """At least one filter is needed. What may not be retried is refused with the reason, and the others go on. Whatever
    failed is tried again, also where its dead letter was let go: `/v1/dlq:reprocess` takes those that are open."""
    told = _told(caller.engine.retry_many, body, "retried")
    return await run_once(caller, "POST /v1/executions:retry", key, await request.body(), told)


def _told(act: Callable[..., Awaitable[BulkResult]], body: ManyBody, word: str) -> Callable[[], Awaitable[Response]]:
    async def work() -> Response:
        acted = await act(
            **body.filter(),
            reason=body.reason,
            limit=body.limit,
            cursor=body.cursor,
            dry_run=body.dry_run,
        )
        return json_response(_document(word, acted))

    return work


def _document(word: str, acted: BulkResult) -> dict[str, Any]:
    return {
        word: acted.done,
        "pending": acted.pending,
        "refused": [each._asdict() for each in acted.refused],
        "chosen": acted.chosen,
        "remaining": acted.remaining,
        "next_cursor": acted.next_cursor,
    }

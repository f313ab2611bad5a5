"""Endpoints of bulk commands: one command for all executions that match a filter."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from tenuto.service.http.caller import Called
from tenuto.service.http.endpoints import EndpointRouter
from tenuto.service.http.idempotency import IdempotencyKey, run_once
from tenuto.service.http.openapi import documented
from tenuto.service.http.request_models import CancelManyBody, ManyBody, RetryManyBody
from tenuto.service.http.responses import json_response
from tenuto.views.bulk_results import BulkResult

router = EndpointRouter(tags=["executions"])


@router.operation(
    "POST",
    "/v1/executions:cancel",
    "executions:write",
    summary="Cancel all matching active executions, oldest first",
    responses=documented({200: "Canceled"}, 409, 422),
)
async def cancel_executions(
    body: CancelManyBody, request: Request, caller: Called, key: IdempotencyKey = None
) -> Response:
    """Needs at least one filter. Reports the result for each execution; `remaining` ones matched but were not reached:
    call again with `next_cursor` as `cursor`. The verdict of `pending` ones is not known yet."""
    act = partial(caller.engine.cancel_many, status=body.status, mode=body.mode)
    return await run_once(caller, "POST /v1/executions:cancel", key, await request.body(), _told(act, body, "canceled"))


@router.operation(
    "POST",
    "/v1/executions:retry",
    "executions:write",
    summary="Retry all matching failed executions, oldest first",
    responses=documented({200: "Retried"}, 409, 422),
)
async def retry_executions(
    body: RetryManyBody, request: Request, caller: Called, key: IdempotencyKey = None
) -> Response:
    """Needs at least one filter. Executions that cannot be retried are reported with a reason and left unchanged. It
    also retries executions whose dead letter was discarded; `/v1/dlq:reprocess` takes only open dead letters."""
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

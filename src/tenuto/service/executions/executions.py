"""Endpoints of executions: start, read, list and command them."""

from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Annotated, Any, Literal, NamedTuple

from fastapi import Header, Query
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from tenuto.authoring.markers import ExpandEach, StepInputs
from tenuto.errors import ResultTimeout, TenantLimit
from tenuto.kernel.definition import ErrorClass
from tenuto.kernel.state import ExecutionStatus
from tenuto.runtime.start_request import StartOptions
from tenuto.service.http.caller import Called, Caller
from tenuto.service.http.endpoints import EndpointRouter
from tenuto.service.http.fast_path import body_of, is_valid_header
from tenuto.service.http.headers import header, trace_of
from tenuto.service.http.idempotency import REPLAYED, IdempotencyKey, exclusive_start, unquoted_key
from tenuto.service.http.openapi import documented
from tenuto.service.http.request_models import (
    CancelBody,
    NoFields,
    PauseBody,
    RetryBody,
    StartBody,
    StepInput,
    Timestamp,
)
from tenuto.service.http.responses import Cursor, Limit, json_response, page_response
from tenuto.views import Until
from tenuto.views.shapes import BlockedReason

router = EndpointRouter(tags=["executions"])

Sort = Literal["newest", "oldest"]
Correlation = Annotated[str | None, Header(alias="X-Correlation-ID", min_length=1, max_length=255)]


@router.operation(
    "POST",
    "/v1/executions",
    "executions:start",
    status_code=201,
    summary="Start an execution",
    responses=documented({201: "ExecutionDocument", 200: "ExecutionDocument"}, 404, 409, 422, 429),
)
async def start_execution(
    body: StartBody, caller: Called, request: Request, key: IdempotencyKey = None, correlation: Correlation = None
) -> Response:
    """Returns 201 once the execution is durable. A repeated `Idempotency-Key` returns 200 and the same execution, 409
    while the first request is in progress, and 422 if the first request was different."""
    return await _start(caller, _Start(body, trace_of(request.scope), key, correlation))


class _Start(NamedTuple):
    body: StartBody
    trace: dict[str, str]
    key: str | None
    correlation: str | None


def _read_start(scope: Scope) -> _Start | None:
    body = body_of(scope, StartBody)
    key, correlation = header(scope, b"idempotency-key"), header(scope, b"x-correlation-id")
    if body is None or not is_valid_header(key) or not is_valid_header(correlation):
        return None
    return _Start(body, trace_of(scope), key, correlation)


async def _start(caller: Caller, given: _Start) -> Response:
    body = given.body
    options: StartOptions = {
        "version": body.version,
        "priority": body.priority,
        "concurrency_key": body.concurrency_key,
        "variables": body.variables,
        "headers": {**given.trace, **body.headers},
        "correlation_id": given.correlation,
        "target": None if body.target is None else (body.target.type, body.target.id),
    }
    input = body.input if body.inputs is None else by_step(body.inputs)
    key = unquoted_key(given.key)
    with exclusive_start(caller, key):
        try:
            handle = await caller.engine.start(body.definition, input, idempotency_key=key, **options)
        except TenantLimit:
            caller.service.limiter.refused_starts.remember(caller.credential.authorization, caller.principal.tenant)
            raise
    document = await handle.first_status()
    headers = {"Location": f"/v1/executions/{handle.id}"}
    if document["correlation_id"].isascii() and document["correlation_id"].isprintable():  # one from Python may be any
        headers["X-Correlation-ID"] = document["correlation_id"]
    if handle.created:
        return json_response(document, 201, headers)
    return json_response(document, 200, {**headers, **REPLAYED})


router.add_fast_path(start_execution, _read_start, _start)


def by_step(inputs: Mapping[str, StepInput]) -> StepInputs:
    """The inputs by step, as the Python API takes them."""
    return StepInputs(
        {step: given.value if given.each is None else _each(given.each, given.labels) for step, given in inputs.items()}
    )


def _each(items: list[Any], labels: list[str] | None) -> ExpandEach[Any]:
    if labels is None:
        return ExpandEach(items)
    left = iter(labels)
    return ExpandEach(items, suffix=lambda _: next(left))  # asked for once for each item, in their order


@router.operation(
    "GET",
    "/v1/executions",
    "executions:read",
    summary="List executions",
    responses=documented({200: "[ExecutionSummary]"}, 422),
)
async def list_executions(
    caller: Called,
    status: ExecutionStatus | None = None,
    definition: Annotated[str | None, Query(max_length=256)] = None,
    target_id: Annotated[str | None, Query(max_length=256)] = None,
    correlation_id: Annotated[str | None, Query(max_length=256)] = None,
    since: Annotated[Timestamp | None, Query(description="started at this time or later (RFC 3339)")] = None,
    before: Annotated[
        Timestamp | None, Query(description="started before this time; with `blocked`: blocked since before it")
    ] = None,
    version: Annotated[int | None, Query(ge=1, le=2**31 - 1, description="of the definition")] = None,
    error_class: Annotated[ErrorClass | None, Query(description="of executions that failed")] = None,
    error_code: Annotated[str | None, Query(max_length=256, description="of executions that ended with it")] = None,
    failed_step: Annotated[
        str | None, Query(max_length=1024, description="the step whose error ended the execution, with all its clones")
    ] = None,
    blocked_reason: Annotated[
        BlockedReason | None, Query(description="only executions blocked for this reason")
    ] = None,
    q: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=256,
            description="an id or its beginning, an idempotency key, a target id or a correlation id",
        ),
    ] = None,
    blocked: Annotated[bool, Query(description="only blocked executions, with the reason")] = False,
    sort: Annotated[Sort | None, Query(description="by start; default: `newest`")] = None,
    order: Annotated[Sort, Query(deprecated=True, description="the earlier name of `sort`, which wins")] = "newest",
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Response:
    """With `blocked`, `blocked_reason`, `error_code` or `failed_step`, a page may have fewer than `limit` items, even
    none; more follow if there is a `next_cursor`."""
    found = await caller.engine.listing.executions(
        status=status,
        definition=definition,
        target_id=target_id,
        correlation_id=correlation_id,
        since=since,
        before=before,
        version=version,
        error_class=error_class,
        error_code=error_code,
        failed_step=failed_step,
        blocked_reason=blocked_reason,
        q=q,
        blocked=blocked,
        newest_first=(sort or order) == "newest",
        cursor=cursor,
        limit=limit,
    )
    return page_response(found)


@router.operation(
    "GET",
    "/v1/executions:count",
    "executions:read",
    summary="Count executions",
    responses=documented({200: "Counts"}, 422),
)
async def count_executions(
    caller: Called,
    group_by: Literal["status", "definition"] = "status",
    definition: Annotated[str | None, Query(max_length=256)] = None,
    correlation_id: Annotated[str | None, Query(max_length=256)] = None,
) -> Response:
    counts = await caller.engine.count(group_by=group_by, definition=definition, correlation_id=correlation_id)
    return json_response({"counts": counts})


@router.operation(
    "GET",
    "/v1/executions:statuses",
    "executions:read",
    summary="Get the statuses of several executions",
    responses=documented({200: "Statuses"}, 422),
)
async def list_statuses(
    caller: Called, id: Annotated[list[str], Query(min_length=1, max_length=100, description="repeatable")]
) -> Response:
    """Leaves out unknown executions and those of other tenants."""
    return json_response({"statuses": await caller.engine.listing.statuses(id)})


@router.operation(
    "GET",
    "/v1/executions/{id:plain}",
    "executions:read",
    summary="Get the state of an execution, and why it is blocked",
    responses=documented({200: "ExecutionDocument"}, 404),
)
async def get_execution(
    id: str,
    caller: Called,
    wait: Annotated[
        Until | None,
        Query(description="wait until it has ended (`terminal`), or also until it needs a person (`settled`)"),
    ] = None,
    seconds: Annotated[
        float, Query(ge=0, le=60, description="how long to wait; then the current state is returned")
    ] = 20,
) -> Response:
    handle = caller.engine.get(id)
    if wait is not None:
        with caller.stream_slot(), suppress(ResultTimeout):
            await caller.wait_for(handle.result(timeout=seconds, return_when=wait))
    document = await handle.status()
    if wait is not None:
        await caller.confirm()
    return json_response(document)


router.add_fast_path(
    get_execution,
    lambda scope: str(scope["path_params"]["id"]),
    lambda caller, id: get_execution(id, caller),
)


# -- Commands ----------------------------------------------------------------------------------------------------------

_COMMANDED = documented({200: "ExecutionDocument", 202: "ExecutionDocument"}, 404, 409)


async def commanded(caller: Caller, id: str, command: Coroutine[Any, Any, object]) -> Response:
    """Returns 200 with the state after the verdict, or 202 if the verdict is not known yet."""
    heard = await caller.has_verdict(command)
    return json_response(await caller.engine.get(id).status(), 200 if heard else 202)


@router.operation(
    "POST",
    "/v1/executions/{id:plain}:pause",
    "executions:write",
    summary="Pause an execution: running steps finish, no new ones start",
    responses=_COMMANDED,
)
async def pause_execution(id: str, caller: Called, body: PauseBody | None = None) -> Response:
    reason = "" if body is None else body.reason
    return await commanded(caller, id, caller.engine.get(id).pause(reason=reason))


@router.operation(
    "POST",
    "/v1/executions/{id:plain}:resume",
    "executions:write",
    summary="Resume a paused execution",
    responses=_COMMANDED,
)
async def resume_execution(id: str, caller: Called, body: NoFields | None = None) -> Response:
    return await commanded(caller, id, caller.engine.get(id).resume())


@router.operation(
    "POST",
    "/v1/executions/{id:plain}:cancel",
    "executions:write",
    summary="Cancel an execution: drain, terminate or compensate",
    responses=_COMMANDED,
)
async def cancel_execution(id: str, caller: Called, body: CancelBody | None = None) -> Response:
    given = body or CancelBody()
    return await commanded(caller, id, caller.engine.get(id).cancel(given.mode, reason=given.reason))


@router.operation(
    "POST",
    "/v1/executions/{id:plain}:retry",
    "executions:write",
    summary="Retry a failed execution",
    responses=_COMMANDED,
)
async def retry_execution(id: str, caller: Called, body: RetryBody) -> Response:
    command = caller.engine.get(id).retry(from_step=body.from_, again=body.again, reason=body.reason)
    return await commanded(caller, id, command)

"""Starting executions, looking at them, and telling them what to do."""

from collections.abc import Coroutine
from typing import Annotated, Any, NamedTuple

from fastapi import Header, Query
from starlette.requests import Request
from starlette.responses import Response

from tenuto.engine import StartOptions
from tenuto.kernel.state import ExecutionStatus
from tenuto.service.http.answers import Cursor, Limit, answer, opened, page
from tenuto.service.http.bodies import CancelBody, PauseBody, ResumeBody, RetryBody, StartBody
from tenuto.service.http.caller import Called, Caller, Face
from tenuto.service.http.lean import body_of, is_short
from tenuto.service.http.moment import Moment
from tenuto.service.http.openapi import documented
from tenuto.service.http.replay import REPLAYED, IdempotencyKey, unquoted

face = Face(tags=["executions"])

Correlation = Annotated[str | None, Header(alias="X-Correlation-ID", min_length=1, max_length=255)]


@face.operation(
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
    """Answers 201 when it is durable. With an `Idempotency-Key` that was seen, 200 and the execution it started."""
    options: StartOptions = {
        "version": body.version,
        "priority": body.priority,
        "concurrency_key": body.concurrency_key,
        "variables": body.variables,
        "headers": {**_traced(request), **body.headers},
        "correlation_id": correlation,
        "target": None if body.target is None else (body.target.type, body.target.id),
    }
    handle = await caller.engine.start(body.definition, body.input, idempotency_key=unquoted(key), **options)
    document = await handle.first_status()
    headers = {"Location": f"/v1/executions/{handle.id}", "X-Correlation-ID": document["correlation_id"]}
    if handle.created:
        return answer(document, 201, headers)
    return answer(document, 200, {**headers, **REPLAYED})


class _Start(NamedTuple):
    body: StartBody
    request: Request
    key: str | None
    correlation: str | None


def _read_start(request: Request) -> _Start | None:
    body = body_of(request, StartBody)
    key, correlation = request.headers.get("idempotency-key"), request.headers.get("x-correlation-id")
    if body is None or not is_short(key) or not is_short(correlation):
        return None
    return _Start(body, request, key, correlation)


async def _start(caller: Caller, given: _Start) -> Response:
    return await start_execution(given.body, caller, given.request, given.key, given.correlation)


face.shorten(start_execution, _read_start, _start)


def _traced(request: Request) -> dict[str, str]:
    """The trace that a request belongs to goes on in what its execution calls."""
    found = {name: request.headers.get(name) for name in ("traceparent", "tracestate")}
    return {name: value for name, value in found.items() if value is not None and len(value) <= 512}


@face.operation(
    "GET",
    "/v1/executions",
    "executions:read",
    summary="List executions, newest first",
    responses=documented({200: "[ExecutionSummary]"}, 422),
)
async def list_executions(
    caller: Called,
    status: ExecutionStatus | None = None,
    definition: Annotated[str | None, Query(max_length=256)] = None,
    target_id: Annotated[str | None, Query(max_length=256)] = None,
    correlation_id: Annotated[str | None, Query(max_length=256)] = None,
    since: Annotated[Moment | None, Query(description="started at this moment or later (RFC 3339)")] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> Response:
    found = await caller.engine.listing.executions(
        status=status,
        definition=definition,
        target_id=target_id,
        correlation_id=correlation_id,
        since=since,
        cursor=opened(cursor),
        limit=limit,
    )
    return page(found.items, found.next_cursor)


@face.operation(
    "GET",
    "/v1/executions/{id:plain}",
    "executions:read",
    summary="Where an execution stands, and why it is blocked if it is",
    responses=documented({200: "ExecutionDocument"}, 404),
)
async def get_execution(id: str, caller: Called) -> Response:
    return answer(await caller.engine.get(id).status())


face.shorten(
    get_execution, lambda request: str(request.path_params["id"]), lambda caller, id: get_execution(id, caller)
)


# -- Commands ----------------------------------------------------------------------------------------------------------

_COMMANDED = documented({200: "ExecutionDocument", 202: "ExecutionDocument"}, 404, 409)


async def commanded(caller: Caller, id: str, command: Coroutine[Any, Any, object]) -> Response:
    """200 with the execution as it stands after the verdict; 202 if that is not known yet."""
    heard = await caller.heard(command)
    return answer(await caller.engine.get(id).status(), 200 if heard else 202)


@face.operation(
    "POST",
    "/v1/executions/{id:plain}:pause",
    "executions:write",
    summary="Start nothing more; what runs finishes",
    responses=_COMMANDED,
)
async def pause_execution(id: str, caller: Called, body: PauseBody | None = None) -> Response:
    reason = "" if body is None else body.reason
    return await commanded(caller, id, caller.engine.get(id).pause(reason=reason))


@face.operation(
    "POST",
    "/v1/executions/{id:plain}:resume",
    "executions:write",
    summary="Go on with what was paused",
    responses=_COMMANDED,
)
async def resume_execution(id: str, caller: Called, body: ResumeBody | None = None) -> Response:
    return await commanded(caller, id, caller.engine.get(id).resume())


@face.operation(
    "POST",
    "/v1/executions/{id:plain}:cancel",
    "executions:write",
    summary="Cancel: await what runs, end it, or undo what was done",
    responses=_COMMANDED,
)
async def cancel_execution(id: str, caller: Called, body: CancelBody | None = None) -> Response:
    given = body or CancelBody()
    return await commanded(caller, id, caller.engine.get(id).cancel(given.mode, reason=given.reason))


@face.operation(
    "POST",
    "/v1/executions/{id:plain}:retry",
    "executions:write",
    summary="Open the next run of a failed execution",
    responses=_COMMANDED,
)
async def retry_execution(id: str, caller: Called, body: RetryBody | None = None) -> Response:
    given = body or RetryBody()
    command = caller.engine.get(id).retry(from_step=given.from_, again=given.again, reason=given.reason)
    return await commanded(caller, id, command)

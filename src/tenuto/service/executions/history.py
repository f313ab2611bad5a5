"""Endpoints of histories: attempts, steps, clones, events, and the live event stream."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Literal

import msgspec
from fastapi import Header, Query
from starlette.responses import Response, StreamingResponse

from tenuto.errors import EngineClosed, InvalidInput, NotAuthenticated, RateExceeded, StorageError
from tenuto.kernel.state import StepStatus
from tenuto.runtime.shared.pages import Paging, part_of
from tenuto.service.http.caller import Called, Caller
from tenuto.service.http.endpoints import EndpointRouter
from tenuto.service.http.openapi import documented, streamed
from tenuto.service.http.responses import Cursor, Limit, json_response, page_response
from tenuto.views import EventDocument
from tenuto.views.shapes import AttemptKind

router = EndpointRouter(tags=["executions"])

KEEP_ALIVE_SECONDS = 15
CHUNK_BYTES = 64 * 1024
LAST = 2**53


@router.operation(
    "GET",
    "/v1/executions/{id:plain}/history",
    "executions:read",
    summary="List the attempts of an execution, or with `view=events` its events",
    responses=documented({200: "[AttemptRow|EventDocument]"}, 404, 422),
)
async def get_history(
    id: str,
    caller: Called,
    view: Literal["attempts", "events"] = "attempts",
    step_id: Annotated[str | None, Query(max_length=256, description="attempts of this step or clone")] = None,
    kind: Annotated[AttemptKind | None, Query(description="attempts of this kind")] = None,
    status: Annotated[StepStatus | None, Query(description="attempts with this status")] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """`step_id`, `kind` and `status` select attempts; events cannot be selected."""
    if view == "events":
        if step_id or kind or status:
            raise InvalidInput.at("/view", "not_filtered", "`step_id`, `kind` and `status` select attempts, not events")
        return page_response(await caller.engine.listing.events(id, cursor=cursor, limit=limit))
    found = await caller.engine.listing.attempts(
        id, step_id=step_id, kind=kind, status=status, cursor=cursor, limit=limit
    )
    return page_response(found)


@router.operation(
    "GET",
    "/v1/executions/{id:plain}/graph",
    "executions:read",
    summary="Get the steps and scopes of an execution as a graph",
    responses=documented({200: "GraphDocument"}, 404, 422),
)
async def get_graph(
    id: str,
    caller: Called,
    at: Annotated[int | None, Query(ge=1, description="the graph after this event; default: now")] = None,
) -> Response:
    """Nodes and scopes are named by their place in the plan. A fan-out is one node; a loop shows its latest visit.
    Children that a planner added are included."""
    return json_response(await caller.engine.get(id).graph(at=at))


@router.operation(
    "GET",
    "/v1/executions/{id:plain}/steps",
    "executions:read",
    summary="List the steps of an execution, or with `of=` the clones of a fan-out",
    responses=documented({200: "[StepDocument|CloneDocument]"}, 404, 422),
)
async def list_steps(
    id: str,
    caller: Called,
    of: Annotated[str | None, Query(max_length=256, description="list the clones of this fan-out")] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    if of is not None:
        return page_response(await caller.engine.listing.clones(id, of, cursor=cursor, limit=limit))
    paging = Paging("steps", {"execution": id}, cursor)
    return page_response(part_of(paging, (await caller.engine.get(id).status())["steps"], limit))


@router.operation(
    "GET",
    "/v1/executions/{id:plain}/events",
    "executions:read",
    summary="Stream the events of an execution",
    responses=streamed(documented({}, 404)),
)
async def stream_events(
    id: str,
    caller: Called,
    follow: Annotated[bool, Query(description="false: return the events so far and end")] = True,
    last_event_id: Annotated[int | None, Header(alias="Last-Event-ID", ge=0, le=2**53)] = None,
) -> Response:
    """Server-sent events: `id` is the number of the event, `event` its type. The last one is `end`."""
    after = last_event_id or 0
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    if not follow:
        found = await caller.engine.listing.events(id, after=after, limit=LAST)
        recorded = b"".join(_written(event) for event in found.items) + await _end(caller, id)
        return Response(recorded, 200, headers, "text/event-stream")
    await caller.engine.get(id).status()  # a missing execution is a 404, not an empty stream
    with caller.stream_slot():  # too many streams are a 429, not an empty stream
        pass
    return StreamingResponse(_stream(caller, id, after), 200, headers, "text/event-stream")


def _written(event: EventDocument) -> bytes:
    told = (event["seq"], event["type"].encode(), msgspec.json.encode(event))
    return b"id: %d\nevent: %s\ndata: %s\n\n" % told


async def _end(caller: Caller, id: str) -> bytes:
    status = (await caller.engine.get(id).status())["status"]
    return b"event: end\ndata: %s\n\n" % msgspec.json.encode({"execution_id": id, "status": status})


async def _stream(caller: Caller, id: str, after: int) -> AsyncIterator[bytes]:
    """Confirms the credential before each chunk is sent."""
    events = caller.engine.get(id).events(after=after)
    coming: asyncio.Future[EventDocument | None] | None = None
    clock = asyncio.get_running_loop().time
    sent_at = clock()
    try:
        with caller.stream_slot():
            while not caller.shutdown.is_set():
                coming = coming or asyncio.ensure_future(anext(events, None))
                await caller.wait(coming)
                chunk = b""
                while coming.done() and (event := coming.result()) is not None and len(chunk) < CHUNK_BYTES:
                    chunk += _written(event)
                    coming = asyncio.ensure_future(anext(events, None))
                    await asyncio.sleep(0)  # events of the same read are ready at once
                is_over = coming.done() and coming.result() is None
                if is_over:
                    chunk += await _end(caller, id)
                elif not chunk and clock() - sent_at >= KEEP_ALIVE_SECONDS:
                    chunk = b": still here\n\n"
                if chunk:
                    await caller.confirm()
                    yield chunk
                    sent_at = clock()
                if is_over:
                    return
    except (EngineClosed, NotAuthenticated, StorageError, RateExceeded):
        return  # ends without `end`, as at shutdown: the client reconnects
    finally:
        if coming is not None:
            coming.cancel()

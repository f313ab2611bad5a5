"""What happened in an execution: its attempts, its events, the clones of its fan-outs; and what happens, live."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Literal

import msgspec
from fastapi import Header, Query
from starlette.responses import Response, StreamingResponse

from tenuto.errors import EngineClosed, NotAuthenticated, RateExceeded, StorageError
from tenuto.runtime.shared.pages import Paging, part_of
from tenuto.service.http.caller import Called, Caller
from tenuto.service.http.endpoints import EndpointRouter
from tenuto.service.http.openapi import documented, streamed
from tenuto.service.http.responses import Cursor, Limit, page_response
from tenuto.views import EventDocument

router = EndpointRouter(tags=["executions"])

KEEP_ALIVE_SECONDS = 15
CHUNK_BYTES = 64 * 1024
LAST = 2**53


@router.operation(
    "GET",
    "/v1/executions/{id:plain}/history",
    "executions:read",
    summary="All attempts, or with `view=events` what was recorded",
    responses=documented({200: "[AttemptRow|EventDocument]"}, 404, 422),
)
async def get_history(
    id: str,
    caller: Called,
    view: Literal["attempts", "events"] = "attempts",
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    if view == "events":
        return page_response(await caller.engine.listing.events(id, cursor=cursor, limit=limit))
    return page_response(await caller.engine.listing.attempts(id, cursor=cursor, limit=limit))


@router.operation(
    "GET",
    "/v1/executions/{id:plain}/steps",
    "executions:read",
    summary="The current state of each step, or with `of=` the clones of a fan-out",
    responses=documented({200: "[StepDocument|CloneDocument]"}, 404, 422),
)
async def list_steps(
    id: str,
    caller: Called,
    of: Annotated[str | None, Query(max_length=256, description="the fan-out whose clones are wanted")] = None,
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
    summary="What is recorded, as it happens",
    responses=streamed(documented({}, 404)),
)
async def stream_events(
    id: str,
    caller: Called,
    follow: Annotated[bool, Query(description="false: what is recorded so far, and no more")] = True,
    last_event_id: Annotated[int | None, Header(alias="Last-Event-ID", ge=0, le=2**53)] = None,
) -> Response:
    """Server-sent events: each has the number of its event as `id`, and its type as `event`. The last is `end`."""
    after = last_event_id or 0
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    if not follow:
        found = await caller.engine.listing.events(id, after=after, limit=LAST)
        recorded = b"".join(_written(event) for event in found.items) + await _end(caller, id)
        return Response(recorded, 200, headers, "text/event-stream")
    await caller.engine.get(id).status()  # what is not there is said with a status, not in a stream
    with caller.stream_slot():  # or it is refused now, with a status
        pass
    return StreamingResponse(_stream(caller, id, after), 200, headers, "text/event-stream")


def _written(event: EventDocument) -> bytes:
    told = (event["seq"], event["type"].encode(), msgspec.json.encode(event))
    return b"id: %d\nevent: %s\ndata: %s\n\n" % told


async def _end(caller: Caller, id: str) -> bytes:
    status = (await caller.engine.get(id).status())["status"]
    return b"event: end\ndata: %s\n\n" % msgspec.json.encode({"execution_id": id, "status": status})


async def _stream(caller: Caller, id: str, after: int) -> AsyncIterator[bytes]:
    """Each chunk is confirmed after it was put together and before it is sent."""
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
                    await asyncio.sleep(0)  # what was read with the event before is there at once
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
        return  # as at the end of the server, without `end`: a client comes back, to whoever is there then
    finally:
        if coming is not None:
            coming.cancel()

"""Endpoints of what a tenant's executions do together: the overview, and the live feed."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Header, Query
from starlette.responses import Response, StreamingResponse

from tenuto.api.feed import MAX_WATCHED
from tenuto.errors import EngineClosed, NotAuthenticated, RateExceeded, StorageError
from tenuto.service.http.caller import Called, Caller
from tenuto.service.http.endpoints import EndpointRouter
from tenuto.service.http.openapi import documented, feed_streamed
from tenuto.service.http.responses import json_response
from tenuto.views.feed import FeedChunk

router = EndpointRouter(tags=["executions"])

KEEP_ALIVE_SECONDS = 15


@router.operation(
    "GET",
    "/v1/overview",
    "executions:read",
    summary="Get the figures of the tenant: executions, reviews, dead letters, workers and queues",
    responses=documented({200: "OverviewDocument"}),
)
async def get_overview(caller: Called) -> Response:
    """Requests at the same time share one computation. Counts stop at `counted_to`."""
    return json_response(await caller.engine.overview())


@router.operation(
    "GET",
    "/v1/feed",
    "executions:read",
    summary="Stream status changes of the tenant's executions",
    responses=feed_streamed(documented({}, 404)),
)
async def stream_feed(
    caller: Called,
    watch: Annotated[
        list[str] | None,
        Query(
            max_length=MAX_WATCHED,
            description="an execution whose events are added, or `ID:SEQ` for those after event SEQ; repeatable",
        ),
    ] = None,
    follow: Annotated[bool, Query(description="false: return what was missed since `Last-Event-ID`, and end")] = True,
    last_event_id: Annotated[str | None, Header(alias="Last-Event-ID", max_length=512)] = None,
) -> Response:
    """Server-sent events: `status` when an execution's status changed, `event` for each event of a watched execution,
    and `reset` if changes were missed: then read the lists again. Several changes of an execution may be one event.
    An event may be repeated: `seq` tells whether you know it. The stream has no end."""
    chunks = caller.engine.feed_chunks(watch or (), last_event_id or None)
    first = await anext(chunks)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    if not follow:
        return Response(_written(first), 200, headers, "text/event-stream")
    with caller.stream_slot():  # too many streams are a 429, not an empty stream
        pass
    return StreamingResponse(_stream(caller, chunks, first), 200, headers, "text/event-stream")


def _written(chunk: FeedChunk) -> bytes:
    """The id comes with the last event: a stream that breaks before it repeats the others."""
    parts = [b"event: %s\ndata: %s\n" % (event.kind.encode(), event.data) for event in chunk.events] or [b": here\n"]
    return b"\n".join([*parts[:-1], b"id: %s\n" % chunk.id.encode() + parts[-1], b""])


async def _stream(caller: Caller, chunks: AsyncIterator[FeedChunk], first: FeedChunk) -> AsyncIterator[bytes]:
    """Confirms the credential before each chunk is sent."""
    coming: asyncio.Future[FeedChunk] | None = None
    clock = asyncio.get_running_loop().time
    sent_at, reached = clock(), first.id
    try:
        with caller.stream_slot():
            yield _written(first)
            while not caller.shutdown.is_set():
                coming = coming or asyncio.ensure_future(anext(chunks))
                await caller.wait(coming)
                chunk: FeedChunk | None = None
                if coming.done():
                    chunk, coming = coming.result(), None
                elif clock() - sent_at >= KEEP_ALIVE_SECONDS:
                    chunk = FeedChunk(reached, [])
                if chunk is not None:
                    await caller.confirm()
                    yield _written(chunk)
                    sent_at, reached = clock(), chunk.id
    except (EngineClosed, NotAuthenticated, StorageError, RateExceeded):
        return  # the client connects again, as after a shutdown
    finally:
        if coming is not None:
            coming.cancel()

"""The feed of an engine: status changes, and the events of executions that are watched."""

from collections.abc import AsyncIterator, Iterable
from typing import Final

from tenuto.errors import InvalidInput
from tenuto.values.names import check_text
from tenuto.views.feed import FeedChunk, FeedDocument

from .context import EngineContext

MAX_WATCHED: Final = 20
LAST_SEQ: Final = 2**31 - 1


def feed_chunks(context: EngineContext, watch: Iterable[str], after: str | None) -> AsyncIterator[FeedChunk]:
    context.scope.require("executions:read")
    watched = dict(_watched(each) for each in watch)
    if len(watched) > MAX_WATCHED:
        raise InvalidInput.at("/watch", "too_many", f"at most {MAX_WATCHED} executions")
    if after is not None:
        check_text(after, "after")
    return context.backend.feed.follow(context.scope.tenant, watched, after)


async def feed_documents(
    context: EngineContext, watch: Iterable[str], after: str | None
) -> AsyncIterator[FeedDocument]:
    reached = after or ""
    async for chunk in feed_chunks(context, watch, after):
        for event in chunk.events:
            is_last = event is chunk.events[-1]
            yield {"id": chunk.id if is_last else reached, "event": event.kind, "data": event.document}
        reached = chunk.id


def _watched(text: str) -> tuple[str, int | None]:
    """An id, or an id and the number of the last event that is known."""
    check_text(text, "watch")
    id, _, seq = text.partition(":")
    if not seq:
        return id, None
    if not (seq.isascii() and seq.isdecimal() and len(seq) <= 10 and int(seq) <= LAST_SEQ):
        raise InvalidInput.at("/watch", "bad_seq", f"{text!r} must be an id, or an id and an event number: ID:SEQ")
    return id, int(seq)

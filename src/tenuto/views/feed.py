"""Events of the feed: status changes of a tenant's executions, and all events of those that a viewer watches."""

from typing import Any, Literal, NamedTuple, TypedDict

import msgspec

from tenuto.kernel.definition import plain_name
from tenuto.kernel.state import ExecutionStatus

from .events import EventDocument
from .shapes import rfc3339, time_text

FeedKind = Literal["status", "event", "reset"]


class StatusDocument(TypedDict):
    """An execution after a status change. `seq` is the number of its last event then."""

    execution_id: str
    definition_id: str
    definition_version: int
    status: ExecutionStatus
    seq: int
    at: str
    started_at: str
    completed_at: str | None
    error_class: str | None


class WatchedEventDocument(EventDocument):
    """An event of an execution that is watched."""

    execution_id: str


class FeedDocument(TypedDict):
    """An event of the feed. `data` belongs to `event`: a status, an event of an execution, or nothing for `reset`.

    `id` is where to continue after it.
    """

    id: str
    event: FeedKind
    data: StatusDocument | WatchedEventDocument | None


class FeedEvent(NamedTuple):
    """An event as all viewers share it: encoded once."""

    kind: FeedKind
    execution_id: str
    data: bytes  # JSON

    @property
    def document(self) -> Any:
        return msgspec.json.decode(self.data)


class FeedChunk(NamedTuple):
    """What a viewer is sent at once, and where it continues after that."""

    id: str
    events: list[FeedEvent]


RESET = FeedEvent("reset", "", b"null")


def status_event(
    *,
    id: str,
    definition: str,
    version: int,
    status: Any,
    seq: int,
    at: int,
    created_at: int,
    ended_at: int | None,
    error_class: str,
) -> FeedEvent:
    document: StatusDocument = {
        "execution_id": id,
        "definition_id": plain_name(definition),
        "definition_version": version,
        "status": status,
        "seq": seq,
        "at": rfc3339(at),
        "started_at": rfc3339(created_at),
        "completed_at": time_text(ended_at),
        "error_class": error_class or None,
    }
    return FeedEvent("status", id, msgspec.json.encode(document))


def watched_event(execution_id: str, event: EventDocument) -> FeedEvent:
    return FeedEvent("event", execution_id, msgspec.json.encode({"execution_id": execution_id, **event}))

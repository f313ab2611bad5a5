"""Recorded events as documents: each with its sequence number, its cause and its data."""

from datetime import datetime
from typing import Any, TypedDict, get_args

import msgspec

from tenuto.kernel import events as e
from tenuto.kernel.definition import plain_name
from tenuto.values.redaction import redact_headers

from .shapes import rfc3339


class EventDocument(TypedDict):
    """An event. `data` are its own fields; `grants` are the attempts that it started."""

    seq: int
    at: str
    type: str
    actor: str | None
    cause: str | None
    epoch: int
    data: dict[str, Any]
    grants: list[dict[str, Any]]


def event_document(entry: e.Entry) -> EventDocument:
    event = entry.event
    return {
        "seq": entry.seq,
        "at": rfc3339(entry.at),
        "type": str(event.__struct_config__.tag),
        "actor": entry.actor,
        "cause": entry.cause,
        "epoch": entry.epoch,
        "data": _data(event),
        "grants": [{name: getattr(grant, name) for name in grant.__struct_fields__} for grant in entry.grants],
    }


def _data(event: e.Event) -> dict[str, Any]:
    data: dict[str, Any] = {name: getattr(event, name) for name in event.__struct_fields__}
    if isinstance(event, e.ExecutionStarted):
        data["definition"] = plain_name(event.definition)
        data["headers"] = redact_headers(event.headers)
    return data


def entry_of(document: EventDocument) -> e.Entry:
    """Converts a document back to an entry. Fields that were added after the event was recorded get their defaults."""
    event, data = _EVENTS[document["type"]], document["data"]
    row = [
        document["seq"],
        round(datetime.fromisoformat(document["at"]).timestamp() * 1_000),
        document["epoch"],
        [document["type"], *(data[name] for name in event.__struct_fields__ if name in data)],
        [list(grant.values()) for grant in document["grants"]],
        document["cause"],
        document["actor"],
    ]
    return _decode(msgspec.json.encode(row))


_decode = msgspec.json.Decoder(e.Entry).decode
_EVENTS: dict[str, type[e.Recorded]] = {str(kind.__struct_config__.tag): kind for kind in get_args(e.Event)}

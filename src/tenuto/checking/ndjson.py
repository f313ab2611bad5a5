"""Records as lines of JSON: what `tenuto export` writes, and `tenuto check --file` reads.

Every line is an object with `record`, which says what kind it is, and the fields of that kind. Bodies that are JSON in
the database are JSON in the line. An entry of a history is written with the names of its fields.
"""

from collections.abc import AsyncIterator, Iterable
from typing import Any, get_type_hints

import msgspec
from msgspec import Raw, Struct

from tenuto.errors import StorageError
from tenuto.kernel import events as e
from tenuto.kernel.codec import decode_entries, encode_entries
from tenuto.storage.records import (
    ActRecord,
    AdmissionRow,
    AuditRecord,
    DuplicateKey,
    EventsRow,
    ExecutionRecord,
    HeadRecord,
    HolderRecord,
    InboxRecord,
    LimitRecord,
    MailRow,
    MessageRow,
    MigrationRecord,
    NoticeRecord,
    ProgressRecord,
    ReviewRecord,
    SessionRecord,
    TaskRecord,
    TenantLimitRow,
)
from tenuto.storage.store import DefinitionRow, SnapshotRow

from .callbacks import CallbackRow
from .derived import AttemptRow, RunRow, StepRow, TimerRow
from .records import FORMAT, End, Head, Page

KINDS: dict[str, type[Struct]] = {
    "head": Head,
    "migration": MigrationRecord,
    "definition": DefinitionRow,
    "session": SessionRecord,
    "duplicate_key": DuplicateKey,
    "tenant_limit": TenantLimitRow,
    "limit": LimitRecord,
    "limit_holder": HolderRecord,
    "audit_head": HeadRecord,
    "audit": AuditRecord,
    "inbox": InboxRecord,
    "page": Page,
    "execution": ExecutionRecord,
    "snapshot": SnapshotRow,
    "events": EventsRow,
    "mail": MailRow,
    "review": ReviewRecord,
    "task": TaskRecord,
    "admission": AdmissionRow,
    "progress": ProgressRecord,
    "message": MessageRow,
    "notice": NoticeRecord,
    "act": ActRecord,
    "run": RunRow,
    "step": StepRow,
    "attempt": AttemptRow,
    "timer": TimerRow,
    "callback": CallbackRow,
    "end": End,
}
DERIVED = (RunRow, StepRow, AttemptRow, TimerRow, CallbackRow)
"""Worked out from the history for those who read an export. A check works them out again, and so does not read them."""

_NAMES = {kind: name for name, kind in KINDS.items()}
_JSON_FIELDS = {
    kind: [name for name, hint in get_type_hints(kind).items() if hint in (bytes, bytes | None)]
    for kind in KINDS.values()
}
_EVENTS = {kind.__struct_config__.tag: kind for kind in e.Event.__args__}
_encoder = msgspec.json.Encoder()


def line_of(record: Struct) -> bytes:
    kind = type(record)
    fields: dict[str, Any] = {"record": _NAMES[kind], **msgspec.structs.asdict(record)}
    if isinstance(record, EventsRow):
        del fields["body"]
        fields["entries"] = _entries(record)
    else:
        for name in _JSON_FIELDS[kind]:
            fields[name] = _as_json(fields[name])
    return _encoder.encode(fields) + b"\n"


def _as_json(body: bytes | None) -> Raw | None:
    return None if body is None else Raw(body)


def _entries(row: EventsRow) -> list[dict[str, Any]] | Raw:
    """Named fields; a body that cannot be read is passed on as it is, so that a check can find it."""
    try:
        return [_named(entry) for entry in decode_entries(row.body)]
    except msgspec.DecodeError:
        return Raw(_encoder.encode(row.body.decode(errors="replace")))


def _named(entry: e.Entry) -> dict[str, Any]:
    event = entry.event
    fields = msgspec.structs.asdict(entry)
    fields["event"] = {"type": event.__struct_config__.tag, **msgspec.structs.asdict(event)}
    fields["grants"] = [msgspec.structs.asdict(grant) for grant in entry.grants]
    return fields


async def read_lines(lines: Iterable[bytes]) -> AsyncIterator[Struct]:
    """The records of an export, without what was derived."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = record_of(line)
        except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
            raise _bad(number, type(error).__name__) from None
        if isinstance(record, Head) and record.format != FORMAT:
            raise _bad(number, f"format {record.format}, this program reads {FORMAT}")
        if not isinstance(record, DERIVED):
            yield record


def _bad(number: int, why: str) -> StorageError:
    return StorageError(
        f"line {number} is no record of an export ({why})", code="bad_record", hint="export again with this release"
    )


def record_of(line: bytes) -> Struct:
    fields: dict[str, Raw] = msgspec.json.decode(line, type=dict[str, Raw])
    kind = KINDS[msgspec.json.decode(fields.pop("record"), type=str)]
    if kind is EventsRow:
        entries = fields.pop("entries")
        return EventsRow(body=_body(entries), **{name: msgspec.json.decode(raw) for name, raw in fields.items()})
    bodies = {name: _as_bytes(fields.pop(name)) for name in _JSON_FIELDS[kind] if name in fields}
    values = {name: msgspec.json.decode(raw) for name, raw in fields.items()}
    plain = msgspec.convert({**values, **dict.fromkeys(bodies, b"")}, kind)
    return msgspec.structs.replace(plain, **bodies)


def _as_bytes(raw: Raw) -> bytes | None:
    return None if bytes(raw) == b"null" else bytes(raw)


def _body(entries: Raw) -> bytes:
    named = msgspec.json.decode(entries, type=list[dict[str, Raw]] | str)
    if isinstance(named, str):
        return named.encode()
    return encode_entries([_entry(fields) for fields in named])


def _entry(fields: dict[str, Raw]) -> e.Entry:
    event: dict[str, Raw] = msgspec.json.decode(fields["event"], type=dict[str, Raw])
    kind = _EVENTS[msgspec.json.decode(event.pop("type"), type=str)]
    grants: list[dict[str, Any]] = msgspec.json.decode(fields["grants"])
    array = [
        *(fields[name] for name in ("seq", "at", "epoch")),
        [kind.__struct_config__.tag, *(event[name] for name in kind.__struct_fields__ if name in event)],
        [list(grant.values()) for grant in grants],
        fields["cause"],
        fields["actor"],
    ]
    return msgspec.json.decode(_encoder.encode(array), type=e.Entry)

"""Records as lines of JSON: written by `tenuto export`, read by `tenuto check --file`.

Every line is an object with `record`, the kind of the record, and its fields. Bodies that are JSON in the database are
JSON in the line. Entries of a history are written with field names.
"""

from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any, get_type_hints

import msgspec
from msgspec import Raw, Struct

from tenuto.errors import StorageError
from tenuto.kernel import events as e
from tenuto.kernel.codec import decode_entries, encode_entries
from tenuto.storage.ledger.port import IndexRow
from tenuto.storage.port import DefinitionRow, SnapshotRow
from tenuto.storage.shared.records import (
    ActRecord,
    AdmissionRow,
    AuditRecord,
    BusRecord,
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
from tenuto.views.jobs import CallbackRow as JobCallback
from tenuto.views.jobs import LedgerAttempt, LedgerRow

from .callbacks import CallbackRow
from .derived import AttemptRow, RunRow, StepRow, TimerRow, TransitionRow
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
    "ledger": LedgerRow,
    "ledger_attempt": LedgerAttempt,
    "job_index": IndexRow,
    "job_callback": JobCallback,
    "bus_message": BusRecord,
    "run": RunRow,
    "transition": TransitionRow,
    "step": StepRow,
    "attempt": AttemptRow,
    "timer": TimerRow,
    "callback": CallbackRow,
    "end": End,
}
DERIVED = (RunRow, TransitionRow, StepRow, AttemptRow, TimerRow, CallbackRow)
"""Derived from the history for readers of an export. A check derives them itself and skips these lines."""

_NAMES = {kind: name for name, kind in KINDS.items()}
_JSON_FIELDS = {  # and whether they may be null
    kind: [(name, hint is not bytes) for name, hint in get_type_hints(kind).items() if hint in (bytes, bytes | None)]
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
        for name, _ in _JSON_FIELDS[kind]:
            fields[name] = _as_json(fields[name])
    return _encoder.encode(fields) + b"\n"


def _as_json(body: bytes | None) -> Raw | None:
    return None if body is None else Raw(body)


def _entries(row: EventsRow) -> list[dict[str, Any]] | Raw:
    """Returns entries with field names. An unreadable body is passed through, so that a check can report it."""
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


async def read_lines(lines: Iterable[bytes]) -> AsyncGenerator[Struct]:
    """Yields the records of an export, without derived ones."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = record_of(line)
        except msgspec.DecodeError as error:
            raise _bad(number, str(error)) from None
        except (RecursionError, UnicodeDecodeError) as error:
            nested = isinstance(error, RecursionError)
            raise _bad(number, "it is nested too deeply" if nested else "it is no UTF-8") from None
        if isinstance(record, Head) and record.format != FORMAT:
            raise _bad(number, f"format {record.format}, this program reads {FORMAT}")
        if not isinstance(record, DERIVED):
            yield record


def _bad(number: int, why: str) -> StorageError:
    return StorageError(
        f"line {number} is no record of an export ({why})", code="bad_record", hint="export again with this release"
    )


def record_of(line: bytes) -> Struct:
    """Parses a line. Raises `msgspec.DecodeError` if a field is missing or has another type."""
    fields: dict[str, Raw] = msgspec.json.decode(line, type=dict[str, Raw])
    name = msgspec.json.decode(_take(fields, "record"), type=str)
    kind = KINDS.get(name)
    if kind is None:
        raise msgspec.ValidationError(f"there is no record {name[:30]!r}")
    bodies = {
        name: _as_bytes(name, fields.pop(name), optional) for name, optional in _JSON_FIELDS[kind] if name in fields
    }
    if kind is EventsRow:
        bodies["body"] = _body(_take(fields, "entries"))
    values = {name: msgspec.json.decode(raw) for name, raw in fields.items()}
    plain = msgspec.convert({**values, **dict.fromkeys(bodies, b"")}, kind)
    return msgspec.structs.replace(plain, **bodies)


def _take(fields: dict[str, Raw], name: str) -> Raw:
    try:
        return fields.pop(name)
    except KeyError:
        raise msgspec.ValidationError(f"it has no `{name}`") from None


def _as_bytes(name: str, raw: Raw, optional: bool) -> bytes | None:
    if bytes(raw) != b"null":
        return bytes(raw)
    if not optional:
        raise msgspec.ValidationError(f"`{name}` is null")
    return None


def _body(entries: Raw) -> bytes:
    named = msgspec.json.decode(entries, type=list[dict[str, Raw]] | str)
    if isinstance(named, str):
        return named.encode()
    return encode_entries([_entry(fields) for fields in named])


def _entry(fields: dict[str, Raw]) -> e.Entry:
    event: dict[str, Raw] = msgspec.json.decode(_take(fields, "event"), type=dict[str, Raw])
    tag = msgspec.json.decode(_take(event, "type"), type=str)
    if tag not in _EVENTS:
        raise msgspec.ValidationError(f"there is no event {tag[:30]!r}")
    grants = msgspec.json.decode(_take(fields, "grants"), type=list[dict[str, Raw]])
    parts = {
        **fields,
        "event": [tag, *_in_order(_EVENTS[tag], event)],
        "grants": [_in_order(e.Grant, each) for each in grants],
    }
    return msgspec.json.decode(_encoder.encode(_in_order(e.Entry, parts)), type=e.Entry)


def _in_order(kind: type[Struct], fields: Mapping[str, Any]) -> list[Any]:
    """Converts named fields to the stored array. Trailing fields that were unknown when it was written are left out."""
    names = kind.__struct_fields__
    given = [name for name in names if name in fields]
    if given != list(names[: len(given)]):
        missing = next(name for name in names if name not in fields)
        raise msgspec.ValidationError(f"it has no `{missing}`")
    return [fields[name] for name in given]

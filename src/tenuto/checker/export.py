"""`tenuto export`: writes the record stream as lines of JSON, with rows derived from each history."""

from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import msgspec
from msgspec import Struct

from tenuto.kernel.codec import decode_entries
from tenuto.storage.port import DefinitionRow
from tenuto.storage.shared.records import EventsRow, ExecutionRecord, MailRow, TaskRecord

from .callbacks import callback
from .definitions import Plans
from .derived import Deriver
from .history import Follower
from .invariants import Violated
from .ndjson import line_of
from .records import End, Head, Page


class Exporter:
    """Passes records through and derives rows. A history that cannot be folded is passed through for the check."""

    def __init__(self) -> None:
        self._plans = Plans()
        self._deriver: Deriver | None = None
        self._now = 0

    async def lines(self, records: AsyncIterator[Struct]) -> AsyncIterator[bytes]:
        async for record in records:
            if isinstance(record, ExecutionRecord | DefinitionRow | Page | End):
                for row in self._ended():
                    yield line_of(row)
            yield line_of(record)
            for row in self._derive(record):
                yield line_of(row)

    def _ended(self) -> Iterator[Struct]:
        deriver, self._deriver = self._deriver, None
        if deriver is not None:
            yield from deriver.end()

    def _derive(self, record: Struct) -> list[Struct]:
        match record:
            case Head() | Page():
                self._now = record.at
            case DefinitionRow():
                with suppress(Violated):
                    self._plans.add(record)
            case ExecutionRecord():
                self._deriver = self._begin(record)
            case EventsRow() if self._deriver is not None:
                return self._follow(self._deriver, record)
            case MailRow():
                opened = callback(record)
                return [] if opened is None else [opened]
            case TaskRecord() if self._deriver is not None:
                self._deriver.taken(record.path, record.phase, record.number, record.session_expires_at)
        return []

    def _begin(self, row: ExecutionRecord) -> Deriver | None:
        definition = self._plans.row(row.definition, row.version)
        if definition is not None:
            with suppress(Violated):
                return Deriver(Follower(self._plans.plan(definition), lambda *_: None), row, self._now)
        return None

    def _follow(self, deriver: Deriver, row: EventsRow) -> list[Struct]:
        found: list[Struct] = []
        try:
            for entry in decode_entries(row.body):
                found += deriver.entry(entry)
        except (msgspec.DecodeError, LookupError, AssertionError, AttributeError, TypeError, ValueError):
            self._deriver = None
        return found

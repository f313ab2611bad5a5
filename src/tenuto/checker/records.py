"""The stream of records, from a database or from an export in lines of JSON.

The stream starts with a head, then definitions and records that belong to no single execution, then pages of
executions, each followed by its rows, then rows of executions that do not exist, and an end, which proves that nothing
is missing. A definition may also come later, before the first execution that needs it, because it may be published
during the read.
"""

from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from contextlib import aclosing

import msgspec
from msgspec import Struct

from tenuto.storage.port import DefinitionRow
from tenuto.storage.registry import AuditEntry
from tenuto.storage.shared.records import (
    NOBODYS,
    OF_EXECUTION,
    OF_NONE,
    ActRecord,
    AuditRecord,
    ExecutionRecord,
    InboxRecord,
    Reader,
    ReviewRecord,
    select,
)
from tenuto.views.jobs import CallbackRow
from tenuto.views.projections import AuditRow, execution_of

FORMAT = 2
PAGE = 100
LONG_PAGE = 2_000


class Head(Struct, frozen=True, kw_only=True):
    format: int
    at: int
    tenuto: str


class Page(Struct, frozen=True, kw_only=True):
    """Starts a page of executions that were read at this time. Whether something is overdue is judged by that time."""

    at: int


class End(Struct, frozen=True, kw_only=True):
    executions: int
    records: int


async def read_database(reader: Reader, version: str) -> AsyncGenerator[Struct]:
    """Yields everything that is stored. The reader is open."""
    yield Head(format=FORMAT, at=await reader.now(), tenuto=version)
    executions = records = 0
    known: dict[tuple[str, int], None] = {}
    async with aclosing(_records(reader, known)) as found:
        async for record in found:
            executions += isinstance(record, ExecutionRecord)
            records += 1
            yield record
    yield End(executions=executions, records=records)


async def _records(reader: Reader, known: dict[tuple[str, int], None]) -> AsyncGenerator[Struct]:
    async with reader.page():
        for kind in OF_NONE:
            async for record in reader.rows(kind, select(kind)):
                if isinstance(record, DefinitionRow):
                    known[record.name, record.version] = None
                yield record
    async with aclosing(_audit(reader)) as noted:
        async for row in noted:
            yield row
    async for met in _inbox(reader):
        yield met
    after: str | None = ""
    while after is not None:
        async with reader.page():
            page = await _page(reader, after)
            yield Page(at=await reader.now())
            async for record in _executions(reader, after, page, known):
                yield record
        after = page[-1].id if len(page) == PAGE else None
    async with reader.page():
        for kind in OF_EXECUTION:
            async for orphan in reader.rows(kind, select(kind, NOBODYS + _BUT.get(kind, ""))):
                yield orphan


# Callbacks that no execution decided may name a job that does not exist.
_BUT: dict[type[Struct], str] = {CallbackRow: " AND t.verdict NOT IN ('unknown', 'rejected')"}


# -- Long tables, page by page -----------------------------------------------------------------------------------------


async def _audit(reader: Reader) -> AsyncGenerator[AuditRecord]:
    """Yields the hash chains one after another, then rows that are in no chain yet."""
    query = select(AuditRecord, "t.n IS NOT NULL AND (t.tenant, t.n) > ($1, $2)", limit=LONG_PAGE)
    tenant, n = "", 0
    while True:
        async with reader.page():
            page = [row async for row in reader.rows(AuditRecord, query, tenant, n)]
        for row in page:
            yield row
        if len(page) < LONG_PAGE:
            break
        tenant, n = page[-1].tenant, page[-1].n or 0
    async with reader.page():
        async for row in reader.rows(AuditRecord, select(AuditRecord, "t.n IS NULL")):
            yield row


async def _inbox(reader: Reader) -> AsyncIterator[InboxRecord]:
    query = select(InboxRecord, "(t.consumer, t.id) > ($1, $2)", limit=LONG_PAGE)
    consumer, id = "", ""
    while True:
        async with reader.page():
            page = [row async for row in reader.rows(InboxRecord, query, consumer, id)]
        for row in page:
            yield row
        if len(page) < LONG_PAGE:
            return
        consumer, id = page[-1].consumer, page[-1].id


# -- Executions --------------------------------------------------------------------------------------------------------


async def _page(reader: Reader, after: str) -> list[ExecutionRecord]:
    query = select(ExecutionRecord, "t.id > $1", limit=PAGE)
    return [row async for row in reader.rows(ExecutionRecord, query, after)]


async def _executions(
    reader: Reader, after: str, page: list[ExecutionRecord], known: dict[tuple[str, int], None]
) -> AsyncIterator[Struct]:
    if not page:
        return
    acts = await acts_of(reader, after, page)
    kinds = rows_of_page(reader, after, page)
    for row in page:
        if (row.definition, row.version) not in known:
            query = select(DefinitionRow, "t.name = $1 AND t.version = $2")
            async for definition in reader.rows(DefinitionRow, query, row.definition, row.version):
                known[definition.name, definition.version] = None
                yield definition
        yield row
        for rows in kinds:
            async for record in rows.of(row.id):
                yield record
        for act in acts.pop(row.id, ()):
            yield act


_IN_PAGE = "t.execution > $1 AND t.execution <= $2"


class Rows:
    """The rows of one kind, ordered by execution. Rows of executions that do not exist are skipped."""

    def __init__(self, rows: AsyncIterator[Struct], executions: Collection[str]) -> None:
        self._rows = rows
        self._executions = executions
        self._next: Struct | None = None
        self._over = False

    async def of(self, execution: str) -> AsyncIterator[Struct]:
        """Yields the rows of one execution. Executions must be requested in order, each once."""
        while (row := await self._peek()) is not None and _execution(row) == execution:
            self._next = None
            yield row

    async def _peek(self) -> Struct | None:
        while not self._over and (self._next is None or _execution(self._next) not in self._executions):
            self._next = await anext(self._rows, None)
            self._over = self._next is None
        return self._next


def _execution(row: Struct) -> str:
    execution: str = getattr(row, "execution")  # noqa: B009  (what is read here has one, whatever kind it is)
    return execution


def rows_of_page(reader: Reader, after: str, page: list[ExecutionRecord]) -> list[Rows]:
    executions = frozenset(row.id for row in page)
    last = page[-1].id
    return [Rows(reader.rows(kind, select(kind, _IN_PAGE), after, last), executions) for kind in OF_EXECUTION]


AT_ONCE = 200

Acts = dict[str, list[ActRecord]]


async def acts_of(reader: Reader, after: str, page: list[ExecutionRecord]) -> Acts:
    """Returns the audited actions of each execution of a page, in the order of writing."""
    tenants = {row.id: row.tenant for row in page}
    objects: defaultdict[str, list[str]] = defaultdict(list)
    for row in page:
        objects[row.tenant].append(row.id)
    query = select(ReviewRecord, "t.execution > $1 AND t.execution <= $2")
    async for review in reader.rows(ReviewRecord, query, after, page[-1].id):
        if (tenant := tenants.get(review.execution)) is not None:
            objects[tenant].append(review.id)
    found: defaultdict[str, list[ActRecord]] = defaultdict(list)
    for tenant, ids in objects.items():
        for first in range(0, len(ids), AT_ONCE):
            for entry in await _about(reader, tenant, ids[first : first + AT_ONCE]):
                act = ActRecord(execution=_execution_of(entry), **msgspec.structs.asdict(entry))
                found[act.execution].append(act)
    return found


async def _about(reader: Reader, tenant: str, objects: list[str]) -> list[AuditEntry]:
    marks = ", ".join(f"${number + 2}" for number in range(len(objects)))
    query = select(
        AuditEntry, f"t.tenant = $1 AND t.object_id IN ({marks}) AND t.object_type IN ('execution', 'review')"
    )
    return [row async for row in reader.rows(AuditEntry, query, tenant, *objects)]


def _execution_of(entry: AuditEntry) -> str:
    fields = {name: getattr(entry, name) for name in AuditRow.__struct_fields__}
    return execution_of(AuditRow(**fields))

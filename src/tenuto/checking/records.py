"""The stream of records: from a database, or from lines of JSON that were exported from one.

First a head, then definitions and what belongs to no single execution, then each execution followed by all that is its
own, at last rows of executions that do not exist, and an end, which proves that nothing was cut off. A definition can
also come later, before the first execution that needs it: somebody may publish while we read.
"""

from collections.abc import AsyncIterator

from msgspec import Struct

from tenuto.storage.records import (
    NOBODYS,
    OF_EXECUTION,
    DuplicateKey,
    ExecutionRecord,
    Reader,
    TenantLimitRow,
    select,
)
from tenuto.storage.store import DefinitionRow

FORMAT = 1
PAGE = 100


class Head(Struct, frozen=True, kw_only=True):
    format: int
    at: int
    tenuto: str


class End(Struct, frozen=True, kw_only=True):
    executions: int
    records: int


async def read_database(reader: Reader, version: str) -> AsyncIterator[Struct]:
    """Everything that is stored. The reader is open."""
    yield Head(format=FORMAT, at=await reader.now(), tenuto=version)
    executions = records = 0
    known: dict[tuple[str, int], None] = {}
    async for record in _records(reader, known):
        executions += isinstance(record, ExecutionRecord)
        records += 1
        yield record
    yield End(executions=executions, records=records)


async def _records(reader: Reader, known: dict[tuple[str, int], None]) -> AsyncIterator[Struct]:
    async with reader.page():
        async for definition in reader.rows(DefinitionRow, select(DefinitionRow)):
            known[definition.name, definition.version] = None
            yield definition
        async for duplicate in reader.rows(DuplicateKey, select(DuplicateKey)):
            yield duplicate
        async for limit in reader.rows(TenantLimitRow, select(TenantLimitRow)):
            yield limit
    after: str | None = ""
    while after is not None:
        async with reader.page():
            page = await _page(reader, after)
            for execution in page:
                async for record in _execution(reader, execution, known):
                    yield record
        after = page[-1].id if len(page) == PAGE else None
    async with reader.page():
        for kind in OF_EXECUTION:
            async for orphan in reader.rows(kind, select(kind, NOBODYS)):
                yield orphan


async def _page(reader: Reader, after: str) -> list[ExecutionRecord]:
    query = select(ExecutionRecord, "t.id > $1", limit=PAGE)
    return [row async for row in reader.rows(ExecutionRecord, query, after)]


async def _execution(reader: Reader, row: ExecutionRecord, known: dict[tuple[str, int], None]) -> AsyncIterator[Struct]:
    if (row.definition, row.version) not in known:
        query = select(DefinitionRow, "t.name = $1 AND t.version = $2")
        async for definition in reader.rows(DefinitionRow, query, row.definition, row.version):
            known[definition.name, definition.version] = None
            yield definition
    yield row
    for kind in OF_EXECUTION:
        async for record in reader.rows(kind, select(kind, "t.execution = $1"), row.id):
            yield record

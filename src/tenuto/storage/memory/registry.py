"""A registry without a file, for executions that live in memory: the same statements on a database of its own."""

from collections.abc import Sequence
from typing import Any

import apsw
from msgspec import structs

from tenuto.storage.catalog import Catalog, SqlCatalog
from tenuto.storage.jobs import JobStore
from tenuto.storage.migrations import migrations
from tenuto.storage.port import Batch
from tenuto.storage.registry import SqlRegistry
from tenuto.storage.shared.rows import rest_of
from tenuto.storage.sqlite.database import all_or_none
from tenuto.storage.sqlite.errors import translated
from tenuto.storage.statements import NOTE, Statement
from tenuto.views.projections import AuditRow


class MemoryRegistry(SqlRegistry):
    def __init__(self) -> None:
        self._memory = MemoryDatabase()
        super().__init__(self._memory)
        self.catalog: Catalog = SqlCatalog(self._memory)
        self.jobs = JobStore(self._memory, skip_locked=False)

    def note_now(self, row: AuditRow) -> None:
        """At once, for a runtime that does not suspend between deciding and recording."""
        self._memory.execute(NOTE, structs.astuple(row))

    def write_now(self, batch: Batch) -> None:
        """The rows beside the entries of a decision, at once."""
        for query, rows in rest_of(batch, ()):
            for row in rows:
                self._memory.execute(query, row)


class MemoryDatabase:
    """A SQLite database without a file. Implements `Statements`."""

    def __init__(self) -> None:
        self._connection = apsw.Connection(":memory:")
        for migration in migrations("sqlite"):
            self._connection.execute(migration.sql)

    def execute(self, query: str, values: Sequence[Any]) -> list[Any]:
        return list(self._connection.execute(query.replace("$", "?"), tuple(values)))

    async def fetch(self, query: str, values: Sequence[object]) -> list[Any]:
        return self.execute(query, values)

    async def run(self, query: str, values: Sequence[object]) -> list[Any]:
        return await self.fetch(query, values)

    async def run_all(self, statements: Sequence[Statement]) -> bool:
        with translated():
            return all_or_none(self._connection, statements)

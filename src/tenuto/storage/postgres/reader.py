"""Reading a PostgreSQL database that others write: read-only transactions of a page each, through a cursor."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg
from msgspec import Struct

from tenuto.errors import StorageError
from tenuto.storage.migrations import NO_SCHEMA, migrations, missing

from .database import CONNECT_SECONDS
from .errors import translated
from .statements import NOW

BATCH = 100

_PERMIT = "as the owner of the schema, run GRANT SELECT ON ALL TABLES IN SCHEMA, with its name, to this role"

T = TypeVar("T", bound=Struct)


class PostgresReader:
    """Implements `records.Reader`. A replica that is read is a moment behind, and just as consistent."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._connection: asyncpg.Connection

    async def open(self) -> None:
        async with translated(_PERMIT):
            self._connection = await asyncpg.connect(self.dsn, timeout=CONNECT_SECONDS)
            try:
                await self._check()
            except BaseException:
                await self._connection.close()
                raise

    async def _check(self) -> None:
        await self._connection.execute("SET default_transaction_read_only = on")
        if not await self._connection.fetchval("SELECT to_regclass('tenuto_migrations') IS NOT NULL"):
            raise StorageError("the database has no tenuto schema", code="no_schema", hint=NO_SCHEMA)
        rows = await self._connection.fetch("SELECT number, checksum FROM tenuto_migrations")
        if missing(migrations("postgres"), {row["number"]: row["checksum"] for row in rows}):
            raise StorageError("the schema is out of date", code="old_schema", hint="run `tenuto migrate`")

    async def close(self) -> None:
        await self._connection.close()

    async def now(self) -> int:
        async with translated(_PERMIT):
            now: int = await self._connection.fetchval(f"SELECT {NOW}")
            return now
        raise AssertionError("translated() does not swallow")

    @asynccontextmanager
    async def page(self) -> AsyncIterator[None]:
        async with translated(_PERMIT), self._connection.transaction(isolation="repeatable_read", readonly=True):
            yield

    async def rows(self, kind: type[T], query: str, *values: Any) -> AsyncIterator[T]:
        async for row in self._connection.cursor(query, *values, prefetch=BATCH):
            yield kind(**dict(zip(kind.__struct_fields__, row.values(), strict=True)))

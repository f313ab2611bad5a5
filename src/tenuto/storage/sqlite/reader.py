"""Reading a SQLite file that others write: on a connection of its own, which cannot write."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import apsw
from msgspec import Struct

from tenuto.errors import StorageError
from tenuto.storage.migrations import NO_SCHEMA, migrations, missing
from tenuto.storage.shared.executions import row_of

from .database import BUSY_MS
from .errors import translated
from .files import Unchanged, connect_to_read, opening

BATCH = 100

T = TypeVar("T", bound=Struct)
R = TypeVar("R")


class SqliteReader:
    """Implements `records.Reader`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._thread = ThreadPoolExecutor(1, "tenuto-sqlite-records")
        self._unchanged: Unchanged
        self._connection: apsw.Connection

    async def open(self) -> None:
        try:
            await self._run(self._open)
        except BaseException:
            self._thread.shutdown()
            raise

    def _open(self) -> None:
        with translated(), opening(self.path, to_read=True):
            if not Path(self.path).is_file():
                raise StorageError(f"there is no file {self.path}", code="unreachable", hint="check the URL")
            self._unchanged = Unchanged(self.path)
            self._connection = connect_to_read(self.path)
            self._connection.set_busy_timeout(BUSY_MS)
            self._connection.execute("PRAGMA query_only = ON")
            known = "SELECT 1 FROM sqlite_master WHERE name = 'tenuto_migrations'"
            if self._connection.execute(known).fetchone() is None:
                raise StorageError("the database has no tenuto schema", code="no_schema", hint=NO_SCHEMA)
            applied = dict(self._connection.execute("SELECT number, checksum FROM tenuto_migrations"))
            if missing(migrations("sqlite"), applied):
                raise StorageError("the schema is out of date", code="old_schema", hint="run `tenuto migrate`")

    async def close(self) -> None:
        await self._run(self._connection.close)
        self._thread.shutdown()
        self._unchanged.check()

    async def now(self) -> int:
        return time.time_ns() // 1_000_000

    @asynccontextmanager
    async def page(self) -> AsyncIterator[None]:
        await self._run(lambda: self._connection.execute("BEGIN"))
        try:
            yield
        finally:
            await self._run(lambda: self._connection.execute("ROLLBACK"))

    async def rows(self, kind: type[T], query: str, *values: Any) -> AsyncIterator[T]:
        cursor = await self._run(lambda: self._connection.execute(query.replace("$", "?"), values))
        while batch := await self._run(lambda: list(islice(cursor, BATCH))):
            for row in batch:
                yield row_of(kind, row)

    async def _run(self, work: Callable[[], R]) -> R:
        def translating() -> R:
            with translated():
                return work()

        return await asyncio.get_running_loop().run_in_executor(self._thread, translating)

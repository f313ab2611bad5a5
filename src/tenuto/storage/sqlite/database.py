"""Connections to a SQLite file: a thread that writes and one that reads, with a connection each.

apsw brings its own SQLite: the one that Python is linked with may have the WAL-reset bug, which loses data.
"""

import asyncio
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import apsw

from tenuto.errors import StorageError
from tenuto.storage.migrations import MIGRATIONS_TABLE, NO_SCHEMA, migrations, missing
from tenuto.storage.shared.database import Dialect
from tenuto.storage.statements import Statement
from tenuto.values.wall_clock import WallClock

from .errors import translated
from .files import Unchanged, check_writable, connect_to_read, opening
from .plain_batch import install

T = TypeVar("T")

BUSY_MS = 10_000
MOST_AHEAD_MS = 86_400_000  # a clock further ahead than this was wrong, and new processes do not follow it
DIALECT = Dialect(
    name="sqlite",
    mark="?",
    among="IN (SELECT value FROM json_each($1))",
    plans="(SELECT value ->> 0 AS definition, value ->> 1 AS version FROM json_each($1))",
)

_LATEST = "SELECT max(max(started_at), max(renewed_at), coalesce(max(ended_at), 0)) FROM sessions"


class SqliteDatabase:
    """Implements `Database`. Two processes on one file are safe: every transaction that writes begins IMMEDIATE."""

    dialect = DIALECT

    def __init__(
        self, path: str, *, synchronous: str = "FULL", clock: Callable[[], int] | None = None, read_only: bool = False
    ) -> None:
        self.path = path
        self.read_only = read_only
        self.synchronous = synchronous
        self.now = clock or WallClock()
        self.writer = ThreadPoolExecutor(1, "tenuto-sqlite-write")
        self.reader = ThreadPoolExecutor(1, "tenuto-sqlite-read")
        self.write_connection: apsw.Connection
        self.read_connection: apsw.Connection
        self._unchanged: Unchanged | None = None

    async def open(self, *, migrate: bool) -> int:
        try:
            await self.in_writer(lambda: self._open(migrate=migrate))
        except BaseException:
            self.writer.shutdown()
            self.reader.shutdown()
            raise
        return self.now()

    def _open(self, *, migrate: bool) -> None:
        with translated(), opening(self.path, to_read=self.read_only):
            if self.read_only:
                self._open_to_read()
                return
            _keep_private(self.path)
            check_writable(self.path)
            self.write_connection = self.connect()
            try:
                self._migrate(apply=migrate)
                self._follow_clock()
                install(self.write_connection)
                self.read_connection = self.connect(read_only=True)
            except BaseException:
                self.write_connection.close()
                raise

    def _open_to_read(self) -> None:
        """Neither connection can write: SQLite refuses statements that would."""
        self._unchanged = Unchanged(self.path)
        self.write_connection, self.read_connection = self.connect(read_only=True), self.connect(read_only=True)
        applied = dict(self.read_connection.execute("SELECT number, checksum FROM tenuto_migrations"))
        if missing(migrations("sqlite"), applied):
            raise StorageError("the schema is out of date", code="old_schema", hint="run `tenuto migrate`")

    def connect(self, *, read_only: bool = False) -> apsw.Connection:
        connection = connect_to_read(self.path) if read_only else apsw.Connection(self.path)
        connection.set_busy_timeout(BUSY_MS)
        if not read_only:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {self.synchronous}")
            connection.execute("PRAGMA wal_autocheckpoint = 4000")
        connection.execute("PRAGMA cache_size = -65536")
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        return connection

    def _migrate(self, *, apply: bool) -> None:
        known = migrations("sqlite")
        connection = self.write_connection
        has_table = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'tenuto_migrations'").fetchone()
        if not apply and has_table is None:
            raise StorageError("the database has no tenuto schema", code="no_schema", hint=NO_SCHEMA)
        with self.transaction():
            connection.execute(MIGRATIONS_TABLE)
            applied = dict(connection.execute("SELECT number, checksum FROM tenuto_migrations"))
            for migration in missing(known, applied):
                if not apply:
                    raise StorageError("the schema is out of date", code="old_schema", hint="run `tenuto migrate`")
                connection.execute(migration.sql)
                row = (migration.number, migration.name, migration.checksum, self.now())
                connection.execute("INSERT INTO tenuto_migrations VALUES (?, ?, ?, ?)", row)

    def _follow_clock(self) -> None:
        """Continues from the time of other processes, if the machine's clock was set back."""
        if isinstance(self.now, WallClock):
            latest = self.write_connection.execute(_LATEST).get or 0
            if latest - self.now() <= MOST_AHEAD_MS:
                self.now.reach(latest)

    async def close(self) -> None:
        # The reader first: only a connection that may write leaves no log behind when it is the last.
        await self.in_reader(self.read_connection.close)
        await self.in_writer(self._close)
        self.writer.shutdown()
        self.reader.shutdown()
        if self._unchanged is not None:
            self._unchanged.check()

    def _close(self) -> None:
        with suppress(apsw.Error):  # other processes may be using the log
            self.write_connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self.write_connection.close()

    async def data_version(self) -> int:
        def work() -> int:
            with translated():
                version: int = self.write_connection.execute("PRAGMA data_version").get
                return version

        return await self.in_writer(work)

    async def in_writer(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.writer, work)

    async def in_reader(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.reader, work)

    async def in_transaction(self, work: Callable[[apsw.Connection], T]) -> T:
        def write() -> T:
            with translated(), self.transaction():
                return work(self.write_connection)

        return await self.in_writer(write)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        connection = self.write_connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    async def fetch(self, query: str, values: Sequence[object]) -> list[Any]:
        def work() -> list[Any]:
            with translated():
                return list(self.read_connection.execute(query.replace("$", "?"), tuple(values)))

        return await self.in_reader(work)

    async def run(self, query: str, values: Sequence[object]) -> list[Any]:
        def work() -> list[Any]:
            with translated():
                return list(self.write_connection.execute(query.replace("$", "?"), tuple(values)))

        return await self.in_writer(work)

    async def run_all(self, statements: Sequence[Statement]) -> bool:
        def work() -> bool:
            with translated():
                return all_or_none(self.write_connection, statements)

        return await self.in_writer(work)

    async def run_many(self, statements: Sequence[tuple[str, Sequence[Sequence[object]]]]) -> None:
        def work(connection: apsw.Connection) -> None:
            for query, rows in statements:
                connection.executemany(query.replace("$", "?"), [tuple(row) for row in rows])

        await self.in_transaction(work)

    async def check(self) -> None:
        applied = dict(await self.fetch("SELECT number, checksum FROM tenuto_migrations", ()))
        if missing(migrations("sqlite"), applied):
            raise StorageError("the schema is out of date", code="old_schema", hint="run `tenuto migrate`")

    def listed(self, values: Sequence[str]) -> object:
        return json.dumps(list(values))

    def clock(self) -> str:
        return str(self.now())


def all_or_none(connection: apsw.Connection, statements: Sequence[Statement]) -> bool:
    """All in one transaction, unless the first returns no row."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        first, *rest = statements
        if not list(connection.execute(first[0].replace("$", "?"), tuple(first[1]))):
            connection.execute("ROLLBACK")
            return False
        for query, values in rest:
            connection.execute(query.replace("$", "?"), tuple(values))
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return True


def _keep_private(path: str) -> None:
    """Creates a missing file with access for its owner only; SQLite gives the log beside it the same mode.

    An existing file is not opened here: closing it would drop the locks that this process has on it.
    """
    with suppress(OSError):  # it exists, or SQLite reports why it cannot be created
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))

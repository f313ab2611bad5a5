"""The tables of one service. The URL selects where they are, as it does for Tenuto.

Statements number their parameters `$1`, `$2`, … in the order in which they first appear, which both databases accept.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

import apsw

BUSY_SECONDS = 0.002  # between two looks at a SQLite file that another connection is writing

Row = Sequence[Any]


class Transaction(Protocol):
    # For Tenuto: `engine.start(…, connection=transaction.connection)`. None in memory, where there is nothing to join.
    connection: Any

    async def run(self, statement: str, *values: object) -> list[Row]: ...


class Database(Protocol):
    def transaction(self) -> AbstractAsyncContextManager[Transaction]: ...

    async def read(self, statement: str, *values: object) -> list[Row]: ...

    async def close(self) -> None: ...


def connect(url: str, *schema: str) -> Database:
    """The database that a URL names. It is opened on first use, and `schema` creates its tables."""
    if url == "memory://":
        return _Sqlite(":memory:", schema, joinable=False)
    if url.startswith("sqlite:///"):
        return _Sqlite(url.removeprefix("sqlite:///"), schema, joinable=True)
    if url.startswith(("postgresql://", "postgres://")):
        return _Postgres(url, schema)
    raise ValueError(f"{url!r} is not supported: use memory://, sqlite:///file.db or postgresql://host/database")


class _Sqlite:
    """One connection, which one transaction has at a time. Nothing here blocks the event loop for long."""

    def __init__(self, path: str, schema: Sequence[str], *, joinable: bool) -> None:
        self._path = path
        self._schema = schema
        self._joinable = joinable
        self._turn = asyncio.Lock()
        self._opened: apsw.Connection | None = None

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        async with self._turn:
            connection = await self._open()
            await _begin(connection)
            try:
                yield _SqliteTransaction(connection, connection if self._joinable else None)
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    async def read(self, statement: str, *values: object) -> list[Row]:
        async with self._turn:
            connection = await self._open()
            return list(connection.execute(statement, values))

    async def close(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None

    async def _open(self) -> apsw.Connection:
        if self._opened is None:
            connection = apsw.Connection(self._path)
            connection.set_busy_timeout(10_000)  # for what follows, once
            connection.execute("PRAGMA journal_mode = WAL")
            for statement in self._schema:
                connection.execute(statement)
            connection.set_busy_timeout(0)
            self._opened = connection
        return self._opened


async def _begin(connection: apsw.Connection) -> None:
    """Waits for other writers without blocking the event loop: one of them may need it to finish."""
    while True:
        try:
            connection.execute("BEGIN IMMEDIATE")
            return
        except apsw.BusyError:
            await asyncio.sleep(BUSY_SECONDS)


class _SqliteTransaction:
    def __init__(self, own: apsw.Connection, joined: apsw.Connection | None) -> None:
        self._own = own
        self.connection = joined

    async def run(self, statement: str, *values: object) -> list[Row]:
        return list(self._own.execute(statement, values))


class _Postgres:
    def __init__(self, url: str, schema: Sequence[str]) -> None:
        self._url = url
        self._schema = schema
        self._opening = asyncio.Lock()
        self._opened: Any = None

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        pool = await self._open()
        async with pool.acquire() as connection, connection.transaction():
            yield _PostgresTransaction(connection)

    async def read(self, statement: str, *values: object) -> list[Row]:
        pool = await self._open()
        return list(await pool.fetch(statement, *values))

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()
            self._opened = None

    async def _open(self) -> Any:
        async with self._opening:
            if self._opened is None:
                import asyncpg  # pip install 'tenuto[postgres]'

                pool = await asyncpg.create_pool(self._url, min_size=1)
                async with pool.acquire() as connection, connection.transaction():
                    await connection.execute("SELECT pg_advisory_xact_lock(1)")  # processes that start at once
                    for statement in self._schema:
                        await connection.execute(statement)
                self._opened = pool
        return self._opened


class _PostgresTransaction:
    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def run(self, statement: str, *values: object) -> list[Row]:
        return list(await self.connection.fetch(statement, *values))

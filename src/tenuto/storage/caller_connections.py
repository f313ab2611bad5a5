"""A caller's own connection, inside his transaction: what we write there is committed with what he writes.

Drivers are told apart by what their connections can do, so that none has to be imported: asyncpg has `fetchval`, async
psycopg a `pgconn`, apsw a `last_insert_rowid`. A connection of the standard library's `sqlite3` is refused: two SQLite
libraries on one file in one process corrupt it, because closing a file in one drops the locks of the other.

Statements are written once, with `$1`, `$2`, …, and turned into what the driver takes.
"""

import inspect
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal, Protocol, TypeAlias

from tenuto.errors import NotSupported, StorageError

Row: TypeAlias = tuple[Any, ...]

_MARK = re.compile(r"\$(\d+)")
_SAVEPOINT = "tenuto"


class Caller(Protocol):
    """A connection of the caller, from any supported driver."""

    dialect: Literal["postgres", "sqlite"]

    async def fetch(self, query: str, *values: object) -> list[Row]: ...

    async def change(self, query: str, *values: object) -> int:
        """Runs a statement, and gives how many rows it wrote."""

    @property
    def in_transaction(self) -> bool:
        """Whether what we write waits for the caller's commit."""


class AsyncpgCaller:
    dialect: Literal["postgres", "sqlite"] = "postgres"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, query: str, *values: object) -> list[Row]:
        return [tuple(row.values()) for row in await self._connection.fetch(query, *values)]

    async def change(self, query: str, *values: object) -> int:
        tag: str = await self._connection.execute(query, *values)  # "INSERT 0 1"
        return int(number) if (number := tag.rpartition(" ")[2]).isdecimal() else 0

    @property
    def in_transaction(self) -> bool:
        return bool(self._connection.is_in_transaction())


class PsycopgCaller:
    """psycopg begins a transaction with the first statement, unless the connection commits by itself."""

    dialect: Literal["postgres", "sqlite"] = "postgres"

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._is_raw = "Raw" in getattr(connection.cursor_factory, "__name__", "")  # such cursors take `$1` as it is

    async def fetch(self, query: str, *values: object) -> list[Row]:
        rows: list[Row] = await (await self._run(query, values)).fetchall()
        return rows

    async def change(self, query: str, *values: object) -> int:
        return int((await self._run(query, values)).rowcount)

    async def _run(self, query: str, values: Sequence[object]) -> Any:
        cursor = self._connection.cursor(row_factory=lambda _: tuple)  # whatever rows the caller has chosen for himself
        if self._is_raw:
            return await cursor.execute(query, values)
        named = {f"p{number}": value for number, value in enumerate(values, 1)}
        return await cursor.execute(_MARK.sub(r"%(p\1)s", query), named)

    @property
    def in_transaction(self) -> bool:
        return not self._connection.autocommit or bool(self._connection.pgconn.transaction_status)


class ApswCaller:
    dialect: Literal["postgres", "sqlite"] = "sqlite"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, query: str, *values: object) -> list[Row]:
        return list(self._connection.execute(_MARK.sub(r"?\1", query), values))

    async def change(self, query: str, *values: object) -> int:
        self._connection.execute(_MARK.sub(r"?\1", query), values)
        return int(self._connection.changes())

    @property
    def in_transaction(self) -> bool:
        return bool(self._connection.in_transaction)


def caller_of(connection: Any) -> Caller:
    """The caller behind a connection that is in a transaction; `NotSupported` says what is wrong with any other."""
    caller = _told_apart(connection)
    if not caller.in_transaction:
        raise NotSupported(
            "The connection is not in a transaction, so there is nothing to be part of.",
            code="no_transaction",
            hint="begin a transaction on it, do your own writing there, and commit it afterwards",
        )
    return caller


def _told_apart(connection: Any) -> Caller:
    if hasattr(connection, "fetchval") and hasattr(connection, "is_in_transaction"):
        return AsyncpgCaller(connection)
    if hasattr(connection, "pgconn") and inspect.iscoroutinefunction(connection.execute):
        return PsycopgCaller(connection)
    if hasattr(connection, "last_insert_rowid"):
        return ApswCaller(connection)
    kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
    if kind == "sqlite3.Connection":
        why = "The standard library's sqlite3 is refused: two SQLite libraries on one file in one process corrupt it."
        raise NotSupported(why, code="bad_connection", hint="open the file with apsw, which the engine uses too")
    raise NotSupported(
        f"A {kind} is no connection that can be joined.",
        code="bad_connection",
        hint="give an asyncpg, an async psycopg or an apsw connection, and not a pool or a cursor",
    )


@asynccontextmanager
async def savepoint(caller: Caller) -> AsyncIterator[None]:
    """What fails inside leaves nothing behind, and the caller's transaction goes on."""
    await caller.change(f"SAVEPOINT {_SAVEPOINT}")
    try:
        yield
    except BaseException:
        await caller.change(f"ROLLBACK TO {_SAVEPOINT}")
        await caller.change(f"RELEASE {_SAVEPOINT}")
        raise
    await caller.change(f"RELEASE {_SAVEPOINT}")


async def check_database(caller: Caller, session: str) -> None:
    """Whether it is the engine's own database: the row of its session is there, and nowhere else."""
    try:
        async with savepoint(caller):
            if caller.dialect == "sqlite":
                # SQLite refuses a write after a read of an older state, so a write that changes nothing comes first.
                await caller.change("DELETE FROM sessions WHERE id = ''")
            found = await caller.fetch("SELECT 1 FROM sessions WHERE id = $1", session)
    except Exception as error:
        if not is_missing_table(error):
            raise
        found = []
    if not found:
        raise StorageError(
            "The connection is to another database than the engine's.",
            code="other_database",
            hint="connect to the database that the engine's URL names; with PostgreSQL, check the search_path too",
        )


def is_missing_table(error: Exception) -> bool:
    return getattr(error, "sqlstate", None) == "42P01" or "no such table" in str(error)

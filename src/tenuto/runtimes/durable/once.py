"""`ctx.once(connection)`: true once per step key, in the caller's own transaction."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tenuto.errors import NotSupported

_POSTGRES = "INSERT INTO inbox (consumer, id, at) VALUES ('tenuto.once', {}, {}) ON CONFLICT DO NOTHING"
_SQLITE = "INSERT OR IGNORE INTO inbox (consumer, id, at) VALUES ('tenuto.once', ?, ?)"


@asynccontextmanager
async def once(key: str, connection: Any) -> AsyncIterator[bool]:
    """The key's row is written with whatever the caller writes: both are committed, or neither is.

    Drivers are told apart by what they can do, so that none has to be imported: asyncpg answers `execute` with a
    command tag, psycopg with a cursor, apsw counts its changes.
    """
    now = time.time_ns() // 1_000_000
    if hasattr(connection, "fetchval"):  # asyncpg
        tag: str = await connection.execute(_POSTGRES.format("$1", "$2"), key, now)
        yield tag.endswith(" 1")
    elif hasattr(connection, "pgconn"):  # psycopg
        cursor = await connection.execute(_POSTGRES.format("%s", "%s"), (key, now))
        yield cursor.rowcount == 1
    elif hasattr(connection, "last_insert_rowid"):  # apsw
        connection.execute(_SQLITE, (key, now))
        yield connection.changes() == 1
    else:
        raise NotSupported(
            "`ctx.once` takes an asyncpg, an async psycopg or an apsw connection",
            hint="a standard library sqlite3 connection is refused: two SQLite libraries on one file corrupt it",
        )

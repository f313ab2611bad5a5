"""Callers with a database connection of their own, by each driver that the engine can be given."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import psycopg
from psycopg.rows import dict_row

from tests.servers import sqlite

DRIVERS = ["apsw", "asyncpg", "psycopg", "psycopg-raw"]


@dataclass
class Own:
    """An open connection in a transaction, which ends with the block: committed, unless something is raised."""

    connection: Any
    run: Callable[[str], Awaitable[list[tuple[Any, ...]]]]


def url_of(driver: str, sqlite: str, postgres: Callable[[], str]) -> str:
    return sqlite if driver == "apsw" else postgres()


def transaction(driver: str, url: str) -> AbstractAsyncContextManager[Own]:
    return {"apsw": _apsw, "asyncpg": _asyncpg, "psycopg": _psycopg, "psycopg-raw": _psycopg_raw}[driver](url)


@asynccontextmanager
async def _apsw(url: str) -> AsyncIterator[Own]:
    connection = sqlite.connect(url)

    async def run(query: str) -> list[tuple[Any, ...]]:
        return list(connection.execute(query))

    try:
        connection.execute("BEGIN")
        try:
            yield Own(connection, run)
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")
    finally:
        connection.close()


@asynccontextmanager
async def _asyncpg(url: str) -> AsyncIterator[Own]:
    connection = await asyncpg.connect(url)

    async def run(query: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await connection.fetch(query)]

    try:
        async with connection.transaction():
            yield Own(connection, run)
    finally:
        await connection.close()


@asynccontextmanager
async def _psycopg(url: str) -> AsyncIterator[Own]:
    async with await psycopg.AsyncConnection.connect(url) as connection:

        async def run(query: str) -> list[tuple[Any, ...]]:
            cursor = await connection.execute(query.encode())
            return await cursor.fetchall() if cursor.description else []

        yield Own(connection, run)


@asynccontextmanager
async def _psycopg_raw(url: str) -> AsyncIterator[Own]:
    """The caller has chosen other cursors and other rows, and commits by itself outside of `transaction()`."""
    connection = await psycopg.AsyncConnection.connect(
        url, autocommit=True, row_factory=dict_row, cursor_factory=psycopg.AsyncRawCursor
    )

    async def run(query: str) -> list[tuple[Any, ...]]:
        cursor = await connection.execute(query.encode())
        return [tuple(row.values()) for row in await cursor.fetchall()] if cursor.description else []

    async with connection, connection.transaction():
        yield Own(connection, run)

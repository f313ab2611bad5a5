"""Sessions of processes that are dead for certain. Others would find out when their lease is over; tests say so."""

import asyncio

import psycopg

from tests.servers import sqlite


async def expire(url: str, pid: int) -> None:
    """The lease of a process that was killed is over now.

    So it can be long: one that a busy machine does not renew in time would be lost before anybody is killed.
    """
    await asyncio.to_thread(expire_now, url, pid)


def expire_now(url: str, pid: int) -> None:
    statement = f"UPDATE sessions SET expires_at = 0 WHERE ended_at IS NULL AND worker LIKE '%:{int(pid)}'"  # noqa: S608  (a number)
    if url.startswith("sqlite"):
        connection = sqlite.connect(url)
        connection.execute(statement)
        connection.close()
        return
    with psycopg.connect(url, autocommit=True) as session:
        session.execute(statement.encode())

"""Where executions live: a PostgreSQL server that may be killed, or a file. Asked from outside, without the engine."""

import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import apsw
import psycopg

from tests.servers import postgres

OPEN = "SELECT count(*) FROM executions WHERE ended_at IS NULL"
UNDECIDED = "SELECT count(*) FROM reviews WHERE resolution IS NULL"
DECISIONS = "SELECT count(*) FROM events"
LEFT = (
    "SELECT count(*) FROM executions e JOIN sessions s ON s.id = e.owner "
    "WHERE e.ended_at IS NULL AND s.worker = '{}' AND s.started_at <= {}"
)
BUSY_MS = 20_000
STILL_OPEN = (
    "SELECT id, definition, status, seq, coalesce(owner, ''), wake_at, parked FROM executions WHERE ended_at IS NULL"
)


class Unreachable(Exception):
    """The database is away, or busy."""


class Place(Protocol):
    url: str
    name: str

    def rows(self, query: str) -> list[tuple[Any, ...]]: ...


def ask(place: Place, query: str) -> int:
    return int(place.rows(query)[0][0])


def left_by(pid: int, before_ms: int) -> str:
    """How many executions a process still owns that was there before."""
    return LEFT.format(f"{socket.gethostname()}:{pid}", before_ms)


class Postgres:
    name = "PostgreSQL"

    def __init__(self, server: postgres.Server) -> None:
        self._server = server
        self.url = server.dsn()

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        try:
            with psycopg.connect(self.url, autocommit=True, connect_timeout=5) as connection:
                return connection.execute(query.encode()).fetchall()
        except psycopg.Error as error:
            raise Unreachable from error

    def kill(self) -> None:
        """The postmaster, the hard way; and another in its place, as soon as its children have noticed."""
        self._server.kill()
        self._server.process = self._restarted()

    def _restarted(self) -> "subprocess.Popen[bytes]":
        while True:
            try:
                return postgres.start(self._server.directory, durable=True, port=self._server.port).process
            except RuntimeError:
                continue


class File:
    name = "SQLite"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        try:
            connection = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READWRITE)
            connection.set_busy_timeout(BUSY_MS)
            try:
                return connection.execute(query).fetchall()
            finally:
                connection.close()
        except apsw.Error as error:
            raise Unreachable from error


@contextmanager
def postgres_place() -> Iterator[Postgres]:
    """Durable: what it acknowledged, it keeps when it is killed."""
    directory = Path(tempfile.mkdtemp(prefix="tenuto-chaos-pg-"))
    postgres.initialise(directory)
    server = postgres.start(directory, durable=True)
    try:
        yield Postgres(server)
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)

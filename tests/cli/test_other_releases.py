"""Commands on a database of another release: what looks or acts leaves the schema to those who work on it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

import apsw
import psycopg
import pytest
from typer.main import get_command

from tenuto.cli.app import app
from tenuto.storage.migrations import MIGRATIONS_TABLE, migrations
from tests.servers import postgres
from tests.servers.databases import database

from .conftest import Done, Run

PATIENCE = 120
STEP = {"step_id": "ok", "type": "human_approval", "timeout_ms": 60_000}
LOOKING_OR_ACTING = (
    "run x",
    "ls",
    "show x",
    "history x",
    "watch x",
    "pause x",
    "resume x",
    "cancel x",
    "cancel --definition x --yes",
    "retry x --reason r",
    "approve x",
    "reject x",
    "signal x go",
    "reviews ls",
    "reviews resolve x.1 dismiss --reason r",
    "dlq ls",
    "dlq show x",
    "dlq reprocess x --reason r",
    "dlq discard x --reason r",
    "definitions",
    "doctor",
    "restored",
    "export",
    "check",
    "check --stuck",
    "workers",
    "keys ls",
    "keys revoke x",
    "limits",
    "limits ls",
    "limits lift x",
    "audit",
    "audit verify",
    "audit export",
    "graph x",
    "overview",
    "feed",
    "whoami",
    "console",
    "sessions ls",
    "sessions revoke x",
    "jobs ls",
    "jobs show x",
    "jobs cancel x",
)
SETTING_UP = (
    "migrate",
    "apply saga.json",
    "keys create --tenant a --role admin",
    "limits set ses --concurrency 1",
    "limits tenant a --in-flight 1",
)
PROCESSES = ("dev", "serve --port 0", "worker")
BENCH = "bench --executions 10 --url {url}"  # which is a process for a while
ON_NO_DATABASE = ("validate saga.json", "protocols check protocols.json")


class Place(Protocol):
    """A database that has no schema yet."""

    url: str
    dialect: str

    def run(self, sql: str) -> list[Any]: ...

    def contents(self) -> object:
        """All that is in it."""


class File:
    dialect = "sqlite"

    def __init__(self, path: Path) -> None:
        self.url = f"sqlite:///{path}"
        self._path = path
        path.touch()

    def run(self, sql: str) -> list[Any]:
        with closing(apsw.Connection(str(self._path))) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            return list(connection.execute(sql))

    def contents(self) -> object:
        logs = [log.read_bytes() for log in self._path.parent.glob(f"{self._path.name}-wal")]
        return self._path.read_bytes(), b"".join(logs)


class Database:
    dialect = "postgres"

    def __init__(self, url: str) -> None:
        self.url = url
        self.run("DROP SCHEMA public CASCADE; CREATE SCHEMA public")

    def run(self, sql: str) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def contents(self) -> object:
        columns = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
        indexes = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'"
        tables = self.run("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        rows = [f"TABLE {table}" for (table,) in sorted(tables)]
        return [sorted(map(str, self.run(query))) for query in (columns, indexes, *rows)]


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    (tmp_path / "saga.json").write_text(json.dumps({"name": "x", "version": 1, "steps": [STEP]}))
    if request.param == "sqlite":
        yield File(tmp_path / "tenuto.db")
        return
    server: postgres.Server = request.getfixturevalue("postgres_server")
    with database(server) as address:
        monkeypatch.setenv("TENUTO_URL", address)
        yield Database(address)


def applied(place: Place) -> list[int]:
    return [number for (number,) in place.run("SELECT number FROM tenuto_migrations ORDER BY number")]


def known(place: Place) -> list[int]:
    return [migration.number for migration in migrations(place.dialect)]


@pytest.fixture
def older(place: Place) -> Place:
    """As the release before the last migration made it."""
    *earlier, _ = migrations(place.dialect)
    place.run(MIGRATIONS_TABLE)
    for number, name, sql, checksum in earlier:
        place.run(sql)
        row = f"({number}, '{name}', '{checksum}', 1)"
        place.run(f"INSERT INTO tenuto_migrations VALUES {row}")  # noqa: S608  (the values are ours)
    return place


@pytest.fixture
def newer(place: Place, tenuto: Run) -> Place:
    """As a release will make it that has one more migration."""
    assert tenuto("migrate").code == 0
    place.run("INSERT INTO tenuto_migrations VALUES (999, 'later', 'sum', 1)")
    return place


def told(done: Done) -> str:
    """What was wrong with the database. Of it, the doctor tells among other things."""
    assert done.code == (1 if "✗ database: " in done.out else 7), done
    return " ".join((done.out.rpartition("✗ database: ")[2] + done.err).split())


def test_of_every_command_it_is_known_what_it_does_to_a_schema() -> None:
    lines = [*LOOKING_OR_ACTING, *SETTING_UP, *PROCESSES, BENCH, *ON_NO_DATABASE]
    root: Any = get_command(app)
    names = set()
    for name, command in root.commands.items():
        inner = getattr(command, "commands", {})
        if not inner or command.invoke_without_command:
            names.add(name)
        names |= {f"{name} {each}" for each in inner}
    assert {name for name in names if any(f"{line} ".startswith(f"{name} ") for line in lines)} == names


def test_what_looks_or_acts_does_not_migrate(older: Place, tenuto: Run) -> None:
    before = older.contents()
    for line in LOOKING_OR_ACTING:
        answer = told(tenuto(*line.split()))
        assert "the schema is out of date [old_schema] What to do: run `tenuto migrate`" in answer, line
    assert older.contents() == before
    assert applied(older) == known(older)[:-1]
    assert tenuto("migrate").out == "the schema is up to date\n"
    assert applied(older) == known(older)
    assert tenuto("ls") == (0, "", "")


@pytest.mark.parametrize("line", [*SETTING_UP, BENCH])
def test_what_sets_something_up_migrates(older: Place, tenuto: Run, line: str) -> None:
    done = tenuto(*line.format(url=older.url).split())
    assert (done.code, done.err) == (0, "")
    assert applied(older) == known(older)


def test_where_the_schema_is_to_be_migrated_is_told(older: Place, tenuto: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TENUTO_URL")
    done = tenuto("--url", older.url, "ls")
    assert f"What to do: run `tenuto --url {older.url} migrate`" in " ".join(done.err.split())


def test_a_newer_schema_is_left_alone_by_every_command(newer: Place, tenuto: Run) -> None:
    before = newer.contents()
    for line in (*LOOKING_OR_ACTING, *SETTING_UP, *PROCESSES, BENCH):
        words = line.format(url=newer.url).split()
        answer = told(_process(*words) if line in PROCESSES else tenuto(*words))
        assert f"the database has schema version 999, this program knows up to {known(newer)[-1]}" in answer, line
        assert "[newer_schema] What to do: run a release of tenuto that is at least as new" in answer, line
    assert newer.contents() == before


def _process(*arguments: str) -> Done:
    """In a process of its own: it sets up logs and more for all of it."""
    command = [sys.executable, "-m", "tenuto", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ), timeout=PATIENCE)
    return Done(done.returncode, done.stdout, done.stderr)

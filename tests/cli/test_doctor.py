"""`tenuto doctor` on what is no database of this release: it says so once, says what helps, and changes nothing."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest

from tests.servers import postgres
from tests.servers.databases import database

from .conftest import Run


@pytest.fixture
def file(url: str, tmp_path: Path) -> Path:
    return tmp_path / "tenuto.db"


def checks(done: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(done.out)["checks"]
    return found


def only_check(tenuto: Run) -> str:
    """What is told of the database. Nothing else is: it could not be looked at."""
    done = tenuto("doctor", "--json")
    (check,) = checks(done)
    assert (done.code, done.err, check["name"], check["ok"]) == (1, "", "database", False)
    told: str = check["found"]
    assert f"✗ database: {told}\n" in tenuto("doctor").out
    return told


NO_SCHEMA = "the database has no tenuto schema [no_schema] What to do: run `tenuto migrate`, or check the URL."


def test_an_empty_file(tenuto: Run, file: Path) -> None:
    file.touch()
    assert only_check(tenuto) == NO_SCHEMA
    assert file.read_bytes() == b""
    assert tenuto("migrate").code == 0
    assert [check["ok"] for check in checks(tenuto("doctor", "--json"))] == [True, False]  # only workers are missing


def test_a_file_that_is_another_programs_database(tenuto: Run, file: Path) -> None:
    with closing(apsw.Connection(str(file))) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    before = file.read_bytes()
    assert only_check(tenuto) == NO_SCHEMA
    for command in (["ls"], ["show", "x"], ["run", "x"], ["keys", "ls"], ["dlq", "ls"]):
        done = tenuto(*command)
        assert (done.code, done.err.startswith("tenuto: the database has no tenuto schema [no_schema]")) == (7, True)
    assert [path.read_bytes() for path in file.parent.iterdir()] == [before]


@pytest.mark.parametrize("text", ["no database", "no database\n" * 1_000])
def test_a_file_that_is_no_database(tenuto: Run, file: Path, text: str) -> None:
    file.write_text(text)
    what_to_do = "What to do: name another file, or move this one away."
    assert only_check(tenuto) == f"{file} is not a SQLite database [not_a_database] {what_to_do}"
    assert file.read_text() == text


def test_a_folder(tenuto: Run, file: Path) -> None:
    file.mkdir()
    assert only_check(tenuto) == f"there is no file {file} [unreachable] What to do: check the URL."


def test_no_file(tenuto: Run, file: Path) -> None:
    told = only_check(tenuto)
    assert told.startswith(f"There is no database {file}. [no_database] What to do: ")
    assert not file.exists()


NEWER = "[newer_schema] What to do: run a release of tenuto that is at least as new as the one that migrated"
LATER = "INSERT INTO tenuto_migrations VALUES (999, 'later', 'sum', 0)"


def test_a_schema_that_is_newer(tenuto: Run, file: Path) -> None:
    tenuto("migrate")
    with closing(apsw.Connection(str(file))) as connection:
        connection.execute(LATER)
    told = only_check(tenuto)
    assert told.startswith("the database has schema version 999, this program knows up to ")
    assert NEWER in told


def test_a_schema_that_is_older(tenuto: Run, file: Path) -> None:
    tenuto("migrate")
    with closing(apsw.Connection(str(file))) as connection:
        connection.execute("DELETE FROM tenuto_migrations WHERE number > 1")
    assert only_check(tenuto) == "the schema is out of date [old_schema] What to do: run `tenuto migrate`."


@pytest.fixture
def connection(
    url: str, postgres_server: postgres.Server, monkeypatch: pytest.MonkeyPatch
) -> Iterator["psycopg.Connection[Any]"]:
    """To a database of PostgreSQL, in place of the file."""
    with database(postgres_server) as place, psycopg.connect(place, autocommit=True) as connection:
        monkeypatch.setenv("TENUTO_URL", place)
        yield connection


def test_an_empty_database(connection: "psycopg.Connection[Any]", tenuto: Run) -> None:
    connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    assert only_check(tenuto) == NO_SCHEMA
    assert tenuto("ls").code == 7
    assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)
    assert tenuto("migrate").code == 0
    assert [check["name"] for check in checks(tenuto("doctor", "--json")) if not check["ok"]] == ["workers"]


def test_a_newer_schema_of_postgresql(connection: "psycopg.Connection[Any]", tenuto: Run) -> None:
    connection.execute(LATER)
    assert NEWER in only_check(tenuto)


def test_a_server_of_postgresql_that_is_not_there(tenuto: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENUTO_URL", "postgresql://ada:geheim@127.0.0.1:1/tenuto")
    told = "PostgreSQL cannot be reached [unreachable] What to do: check the URL and that the server is up."
    assert only_check(tenuto) == told

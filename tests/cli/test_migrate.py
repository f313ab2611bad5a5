"""`tenuto migrate`, as a person types it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.servers import postgres, sqlite
from tests.servers.databases import SERVICE, database

from .conftest import Run
from .processes import TENUTO


def process(*command: str, url: str = "") -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "TENUTO_URL": url} if url else dict(os.environ)
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_a_database_is_prepared_and_may_be_prepared_again(tmp_path: Path) -> None:
    for _ in range(2):
        done = process(TENUTO, "migrate", url=f"sqlite:///{tmp_path}/x.db")
        assert (done.returncode, done.stdout, done.stderr) == (0, "the schema is up to date\n", "")
    assert (tmp_path / "x.db").exists()


def test_what_cannot_be_prepared_says_why_and_what_to_do(tmp_path: Path, tenuto: Run) -> None:
    done = tenuto("migrate", "--url", f"sqlite:///{tmp_path}/missing/x.db")
    assert done.code == 7
    assert "cannot be opened" in done.err
    assert "What to do" in done.err


def test_a_url_that_names_no_database(tenuto: Run) -> None:
    done = tenuto("migrate", "--url", "mysql://nowhere")
    assert done.code == 1
    assert "sqlite:///file.db" in done.err


def test_the_command_says_what_it_can(tenuto: Run) -> None:
    assert "migrate" in tenuto("--help").out
    assert tenuto("--version").out.startswith("tenuto ")
    assert tenuto().code == 2


def test_the_package_is_the_command_too() -> None:
    done = process(sys.executable, "-m", "tenuto", "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, process(TENUTO, "--version").stdout, "")
    assert process(sys.executable, "-m", "tenuto").returncode == 2


def test_only_postgresql_has_roles(tenuto: Run) -> None:
    assert tenuto("migrate", "--prunes").code == 2
    refused = tenuto("migrate", "--role", "service")
    assert (refused.code, "Only PostgreSQL has roles" in refused.err) == (1, True)


def test_a_role_is_made_ready_for_services(
    postgres_server: postgres.Server, tenuto: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with database(postgres_server) as owner, psycopg.connect(owner, autocommit=True) as connection:
        connection.execute(f"REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {SERVICE}")
        service = owner.replace("postgres@", f"{SERVICE}@")
        monkeypatch.setenv("TENUTO_URL", service)
        lacking = tenuto("ls")
        assert (lacking.code, "tenuto migrate --role" in lacking.err) == (7, True)
        for more in ([], ["--prunes"]):
            done = tenuto("migrate", "--url", owner, "--role", SERVICE, *more)
            assert done.out == f"the schema is up to date, and {SERVICE} may run services on it\n", done.err
            assert tenuto("ls").code == 0
        refused = tenuto("migrate", "--url", owner, "--role", "postgres")
        assert (refused.code, "postgres is a superuser" in refused.err) == (1, True)


def test_after_a_restore_every_session_is_ended(tmp_path: Path, tenuto: Run) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    assert tenuto("migrate", "--url", url).code == 0
    connection = sqlite.connect(url)
    connection.execute(
        "INSERT INTO sessions (id, worker, build, queues, started_at, expires_at) VALUES ('s', 'w', '', '[]', 1, ?)",
        (2**53,),
    )
    done = tenuto("restored", "--json", "--url", url)
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["sessions_ended"] == 1
    assert connection.execute("SELECT count(*) FROM sessions WHERE ended_at IS NULL").get == 0
    connection.close()
    assert tenuto("restored", "--url", url).out.endswith("0 sessions ended\n")


def test_only_the_owner_of_the_schema_raises_the_incarnation(postgres_server: postgres.Server, tenuto: Run) -> None:
    with database(postgres_server) as url:
        refused = tenuto("restored", "--url", url.replace("postgres@", f"{SERVICE}@"))
        assert refused.code == 7
        assert "run it as the owner of the schema" in refused.err
        assert tenuto("restored", "--url", url).code == 0

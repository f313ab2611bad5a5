"""`tenuto migrate`, as a person types it."""

import os
import subprocess
import sys
from pathlib import Path

import psycopg

from tests.servers import postgres
from tests.servers.databases import SERVICE, database


def tenuto(*arguments: str, url: str = "") -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "TENUTO_URL": url} if url else dict(os.environ)
    command = [str(Path(sys.executable).parent / "tenuto"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_a_database_is_prepared_and_may_be_prepared_again(tmp_path: Path) -> None:
    for _ in range(2):
        done = tenuto("migrate", url=f"sqlite:///{tmp_path}/x.db")
        assert (done.returncode, done.stdout, done.stderr) == (0, "the schema is up to date\n", "")
    assert (tmp_path / "x.db").exists()


def test_what_cannot_be_prepared_says_why_and_what_to_do(tmp_path: Path) -> None:
    done = tenuto("migrate", "--url", f"sqlite:///{tmp_path}/missing/x.db")
    assert done.returncode == 7
    assert "cannot be opened" in done.stderr
    assert "What to do" in done.stderr


def test_a_url_that_names_no_database() -> None:
    done = tenuto("migrate", "--url", "mysql://nowhere")
    assert done.returncode == 1
    assert "sqlite:///file.db" in done.stderr


def test_the_command_says_what_it_can() -> None:
    assert "migrate" in tenuto("--help").stdout
    assert tenuto("--version").stdout.startswith("tenuto ")
    assert tenuto().returncode == 2


def test_the_package_is_the_command_too() -> None:
    command = [sys.executable, "-m", "tenuto"]
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, tenuto("--version").stdout, "")
    assert subprocess.run(command, capture_output=True, check=False).returncode == 2


def test_only_postgresql_has_roles(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    assert tenuto("migrate", "--prunes", url=url).returncode == 2
    refused = tenuto("migrate", "--role", "service", url=url)
    assert (refused.returncode, "Only PostgreSQL has roles" in refused.stderr) == (1, True)


def test_a_role_is_made_ready_for_services(postgres_server: postgres.Server) -> None:
    with database(postgres_server) as owner, psycopg.connect(owner, autocommit=True) as connection:
        connection.execute(f"REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {SERVICE}")
        service = owner.replace("postgres@", f"{SERVICE}@")
        lacking = tenuto("ls", url=service)
        assert (lacking.returncode, "tenuto migrate --role" in lacking.stderr) == (7, True)
        for more in ([], ["--prunes"]):
            done = tenuto("migrate", "--url", owner, "--role", SERVICE, *more)
            assert done.stdout == f"the schema is up to date, and {SERVICE} may run services on it\n", done.stderr
            assert tenuto("ls", url=service).returncode == 0
        refused = tenuto("migrate", "--url", owner, "--role", "postgres")
        assert (refused.returncode, "postgres is a superuser" in refused.stderr) == (1, True)

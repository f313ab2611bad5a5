"""Where commands work, how they start, and what they say when they cannot."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tenuto.cli.app import app

from .conftest import Run

NEVER_LOADED = {"apsw", "asyncpg", "asyncio", "fastapi", "httpx2", "msgspec", "rich", "uvicorn"}


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["run", "--help"], ["dlq", "--help"]])
def test_help_is_quick_because_it_loads_nothing(arguments: list[str]) -> None:
    program = f"""
import json, sys
from tenuto.cli import main
code = main({arguments!r})
print(json.dumps([code, sorted(sys.modules)]))
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    code, loaded = json.loads(answer.stdout.splitlines()[-1])
    assert code == 0
    assert "typer" in loaded
    assert NEVER_LOADED & set(loaded) == set()


NOT_FOR_LISTS = {"asyncpg", "fastapi", "httpx2", "opentelemetry", "pydantic", "starlette", "structlog", "uvicorn"}


def test_lists_are_quick_because_they_load_only_what_they_use(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/list.db"
    program = f"""
import json, sys
from tenuto.cli import main
codes = [main(["--url", {url!r}, "migrate"]), main(["--url", {url!r}, "ls", "--definition", "x"])]
print(json.dumps([codes, sorted(sys.modules)]))
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    codes, loaded = json.loads(answer.stdout.splitlines()[-1])
    assert codes == [0, 0]
    assert "tenuto.api.engine" in loaded
    assert (NOT_FOR_LISTS | {"tenuto.client", "tenuto.service", "tenuto.telemetry"}) & set(loaded) == set()


@pytest.mark.parametrize(
    "words",
    [
        "--url {url} --json ls",
        "ls --url {url} --json",
        "--json ls --url {url}",
        "keys --url {url} ls --json",
        "--json --url {url} keys ls",
        "keys --json ls --url {url}",
        "--url sqlite:///elsewhere.db ls --url {url} --json",
    ],
)
def test_the_options_that_all_commands_share_go_before_and_after_the_name(
    tenuto: Run, tmp_path: Path, words: str
) -> None:
    url = f"sqlite:///{tmp_path}/other.db"
    tenuto("migrate", "--url", url)
    done = tenuto(*words.format(url=url).split())
    assert (done.code, json.loads(done.out)) == (0, [])


@pytest.mark.parametrize("words", ["--server {server} ls --json", "--json ls --server {server}"])
def test_the_server_goes_before_and_after_the_name(tenuto: Run, words: str) -> None:
    done = tenuto(*words.format(server="http://127.0.0.1:9").split())
    assert (done.code, json.loads(done.err)["code"]) == (7, "service_unreachable")


def test_every_command_accepts_the_shared_options() -> None:
    lacking = []

    def look(command: Any, path: str) -> None:
        context = command.make_context("tenuto", [], resilient_parsing=True)
        names = {name for parameter in command.get_params(context) for name in parameter.opts}
        if not names >= {"--url", "--server", "--json"}:
            lacking.append(path)
        for name, inner in getattr(command, "commands", {}).items():
            look(inner, f"{path} {name}")

    look(get_command(app), "tenuto")
    assert lacking == []


def test_a_command_without_output_prints_its_errors_as_json(tenuto: Run) -> None:
    done = tenuto("--json", "worker", "--url", "memory://")
    assert (done.code, json.loads(done.err)["code"]) == (1, "not_supported")


def test_looking_makes_no_database(tenuto: Run, tmp_path: Path) -> None:
    done = tenuto("ls")
    assert done.code == 7
    assert done.err.startswith(f"tenuto: There is no database {tmp_path}/tenuto.db. [no_database]\nWhat to do: ")
    assert list(tmp_path.iterdir()) == []


def test_errors_for_programs_are_json(tenuto: Run) -> None:
    done = tenuto("ls", "--json")
    assert (done.code, done.out) == (7, "")
    told = json.loads(done.err)
    assert told["code"] == "no_database"
    assert told["what_to_do"]


def test_memory_is_no_place_to_look_at(tenuto: Run) -> None:
    done = tenuto("--url", "memory://", "ls")
    assert done.code == 1
    assert "Only its own process can see memory://" in done.err


@pytest.mark.parametrize("process", ["serve", "worker"])
def test_memory_is_no_place_where_processes_meet(tenuto: Run, process: str) -> None:
    done = tenuto("--url", "memory://", process)
    assert (done.code, done.out) == (1, "")
    assert "a service and its workers cannot share it" in done.err
    assert "`tenuto --url memory:// dev`" in done.err


@pytest.mark.parametrize("command", ["ls", "run x", "doctor", "migrate", "keys ls", "dev", "serve", "worker"])
def test_a_service_is_no_database(tenuto: Run, command: str) -> None:
    done = tenuto("--url", "https://ada:hunter2@tenuto.example", *command.split())
    assert done.code == 1
    told = " ".join((done.out + done.err).split())
    assert "https://[secret]@tenuto.example is the URL of a service, not of a database." in told
    assert "--server or TENUTO_SERVER" in told
    assert "hunter2" not in told


def test_an_address_that_nobody_knows_is_told_without_its_password(tenuto: Run) -> None:
    for command in ("ls", "migrate", "serve"):
        done = tenuto("--url", "postgrs://app:hunter2@db/orders", command)
        assert (done.code, done.out) == (1, "")
        assert "What to do: " in done.err
        assert "hunter2" not in done.err


@pytest.mark.parametrize("address", ["sqlite:///", "sqlite:///:memory:"])
def test_a_database_that_no_file_holds_is_refused(tenuto: Run, address: str) -> None:
    """Each connection would have one of its own."""
    for command in ("ls", "migrate", "serve", "doctor"):
        done = tenuto("--url", address, command)
        assert (done.code, f"'{address}' names no file." in done.out + done.err) == (1, True)


@pytest.mark.parametrize("command", [["ls"], ["run", "expenses"], ["migrate"]])
def test_a_sqlite_url_with_two_slashes_is_refused_with_the_right_one(
    tenuto: Run, tmp_path: Path, command: list[str]
) -> None:
    done = tenuto("--url", "sqlite://other.db", *command)
    assert done.code == 1
    assert "'sqlite://other.db' has two slashes before the file." in done.err
    assert "write sqlite:///other.db for a file in this folder" in done.err
    assert list(tmp_path.iterdir()) == []


def test_a_database_in_a_missing_folder_is_refused_with_its_path(tenuto: Run) -> None:
    done = tenuto("--url", "sqlite:///missing/other.db", "migrate")
    assert done.code == 7
    assert "the database missing/other.db" in done.err
    assert "the folder missing does not exist" in done.err
    assert "create the folder, or name another file" in done.err


@pytest.mark.parametrize("command", ["ls", "migrate", "serve", "doctor"])
def test_an_unsupported_scheme_is_refused_with_the_supported_ones(tenuto: Run, command: str) -> None:
    done = tenuto("--url", "mysql://host/database", command)
    assert done.code == 1
    assert "Unsupported URL scheme 'mysql'." in done.out + done.err
    assert "use sqlite:///file.db or postgresql://host/database" in done.out + done.err


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("serve --port 99999", "--port: it must be from 0 to 65535"),
        ("worker --queue=", "--queue: name at least one"),
        ("--url x.db ls", "use sqlite:///file.db or postgresql://host/database"),
        ("reviews resolve x.1 dismiss --reason r", "run `tenuto reviews ls` to list the open ones"),
        ("run nothing", "no definition is registered yet; run `tenuto definitions` to list definitions"),
    ],
)
def test_what_is_wrong_is_told_in_the_words_of_the_command(tenuto: Run, command: str, told: str) -> None:
    tenuto("migrate")
    done = tenuto(*command.split())
    assert (done.code > 0, done.out) == (True, "")
    assert told in " ".join(done.err.split())


def test_an_option_goes_before_the_environment(tenuto: Run, tmp_path: Path) -> None:
    assert tenuto("--url", f"sqlite:///{tmp_path}/other.db", "migrate").code == 0
    assert tenuto("--url", f"sqlite:///{tmp_path}/other.db", "ls") == (0, "", "")
    assert [path.name for path in tmp_path.glob("*.db")] == ["other.db"]


def test_a_setting_that_is_wrong(tenuto: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENUTO_PORT", "many")
    done = tenuto("ls")
    assert done.code == 1
    assert "TENUTO_PORT" in done.err


def test_a_command_that_is_none_is_usage(tenuto: Run) -> None:
    done = tenuto("appove")
    assert done.code == 2
    assert "Did you mean 'approve'?" in done.err
    assert tenuto().code == 2


# -- doctor ------------------------------------------------------------------------------------------------------------


def test_doctor_says_where_settings_come_from_and_masks_secrets(
    tenuto: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tenuto.toml").write_text("port = 9090\n")
    monkeypatch.setenv("TENUTO_API_KEY", "tnt_very_secret")
    assert tenuto("migrate").code == 0
    done = tenuto("doctor")
    assert "tnt_very_secret" not in done.out
    rows = {line.split("\t")[0]: line.split("\t")[1:] for line in done.out.splitlines() if "\t" in line}
    assert rows["TENUTO_PORT"] == ["tenuto.toml", "9090"]
    assert rows["TENUTO_HOST"] == ["default", "127.0.0.1"]
    assert rows["TENUTO_URL"][0] == "TENUTO_URL"
    assert rows["TENUTO_API_KEY"] == ["TENUTO_API_KEY", "[secret]"]
    assert "✓ database: it can be opened" in done.out
    assert done.code == 1  # because nobody works
    assert "✗ workers: no worker is running" in done.out


def test_doctor_looks_at_the_app(tenuto: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    tenuto("migrate")
    monkeypatch.setenv("TENUTO_APP", "tests.cli.shop:NOTHING")
    checks = {check["name"]: check for check in json.loads(tenuto("doctor", "--json").out)["checks"]}
    assert not checks["app"]["ok"]
    assert "has no 'NOTHING'" in checks["app"]["found"]
    monkeypatch.setenv("TENUTO_APP", "tests.cli.shop:ALL")
    checks = {check["name"]: check for check in json.loads(tenuto("doctor", "--json").out)["checks"]}
    assert checks["app"]["ok"]


@pytest.mark.parametrize("arguments", [["export", "--to"], ["check", "--file"]])
def test_a_file_that_cannot_be_used_is_named(tenuto: Run, arguments: list[str]) -> None:
    tenuto("migrate")
    done = tenuto(*arguments, "/nowhere/at/all")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("tenuto: /nowhere/at/all: No such file or directory. [file_unusable]\nWhat to do: ")


def test_what_is_stuck_is_not_asked_of_a_file(tenuto: Run) -> None:
    done = tenuto("check", "--stuck", "--file", "export.ndjson")
    assert (done.code, "remove --file" in done.err) == (2, True)


@pytest.mark.parametrize("key", ["tnt_é", "tnt_a\n", "two words"])
def test_what_cannot_be_a_key_is_told_and_not_shown(tenuto: Run, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("TENUTO_API_KEY", key)
    done = tenuto("--server", "http://127.0.0.1:9", "ls")
    assert done.code == 8
    assert "TENUTO_API_KEY" in done.err
    assert key not in done.err


def test_a_server_that_is_not_asked(tenuto: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What works on a database alone says on which, and makes none beside the server's."""
    monkeypatch.setenv("TENUTO_SERVER", "http://127.0.0.1:9")
    told = f"tenuto: this command uses the database sqlite:///{tmp_path}/tenuto.db, not TENUTO_SERVER\n"
    for command in (["check"], ["export"], ["keys", "create", "--tenant", "a", "--role", "admin"]):
        done = tenuto(*command)
        assert (done.code, done.out) == (7, "")
        assert done.err.startswith(f"{told}tenuto: There is no database ")
    assert list(tmp_path.iterdir()) == []
    migrated = tenuto("migrate")
    assert (migrated.code, migrated.err) == (0, told)
    checked = tenuto("check")
    assert (checked.code, checked.err) == (0, told)


def test_doctor_finds_what_would_stop_a_process(tenuto: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    tenuto("migrate")
    monkeypatch.setenv("TENUTO_MESSAGES", "foo.bar")
    done = tenuto("doctor")
    assert done.code == 1
    assert "✗ messages: " in done.out
    assert "TENUTO_MESSAGES: 'foo.bar' is not a kind of message" in done.out
    stopped = tenuto("serve", "--port", "0")
    assert stopped.code == 1
    assert "TENUTO_MESSAGES: 'foo.bar' is not a kind of message" in stopped.err


def test_doctor_reads_the_keys_of_issuers(tenuto: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tenuto("migrate")
    keys = str(tmp_path / "keys.json")
    bounds = {"tenants": ["*"], "roles": ["viewer"]}
    issuer = {"issuer": "https://id.example", "audience": "tenuto", "jwks_file": keys, **bounds}
    monkeypatch.setenv("TENUTO_JWT_ISSUERS", json.dumps([issuer]))
    assert f"✗ issuer: https://id.example: {tmp_path}/keys.json cannot be read" in tenuto("doctor").out
    (tmp_path / "keys.json").write_text("{}")
    assert f"✓ issuer: https://id.example: {tmp_path}/keys.json can be read" in tenuto("doctor").out


def test_a_worker_serves_a_queue(tenuto: Run) -> None:
    done = tenuto("worker", "--queue", "")
    assert done.code == 2
    assert "a worker without a queue runs nothing" in done.err

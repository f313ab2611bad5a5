"""What is particular to commands that talk to a service: keys, names, tenants, and services that are not there."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenuto.client import transport

from .conftest import Run, Work, service_on
from .processes import on_terminal
from .test_executions import expenses, oslo


@pytest.fixture
def server(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with service_on(url) as (address, key):
        monkeypatch.setenv("TENUTO_SERVER", address)
        monkeypatch.setenv("TENUTO_API_KEY", key)
        yield address


def test_it_is_done_in_the_name_of_the_key(server: str, tenuto: Run, work: Work) -> None:
    id = work(expenses)
    assert tenuto("approve", id, "--comment", "fine") == (0, f"approved: expenses {id}\n", "")
    (row,) = [row for row in json.loads(tenuto("audit", "--json").out) if row["action"] == "review.approved"]
    assert (row["actor"].startswith("key:ada:"), row["object_id"].startswith(id)) == (True, True)
    (consent,) = [row for row in json.loads(tenuto("history", id, "--json").out) if row["step_id"] == "consent"]
    assert consent["result"]["by"].startswith("key:ada:")


def test_the_key_says_whose_executions_are_seen(
    url: str, tenuto: Run, work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = work(oslo)
    with service_on(url, "theirs") as (address, key):
        monkeypatch.setenv("TENUTO_API_KEY", key)
        assert tenuto("--server", address, "ls") == (0, "", "")
        assert tenuto("--server", address, "show", id).code == 3
        named = tenuto("--server", address, "--tenant", "theirs", "ls")
    assert named.code == 2
    assert "the API key decides the tenant" in named.err


def test_definitions_go_over_a_server(server: str, tenuto: Run, tmp_path: Path) -> None:
    step = {"step_id": "ok", "type": "human_approval", "timeout_ms": 60_000}
    file = tmp_path / "asks.json"
    file.write_text(json.dumps({"name": "asks", "version": 1, "steps": [step]}))
    assert tenuto("apply", str(file)) == (0, "published: asks version 1\n", "")
    assert tenuto("definitions").out.startswith("asks\t1\tpublished\t1 step\t")
    file.write_text(json.dumps({"name": "asks", "version": 1, "steps": [{**step, "timeout_ms": 1}]}))
    changed = tenuto("apply", str(file))
    assert changed.code == 1
    assert "[definition_changed]" in changed.err
    file.write_text(json.dumps({"name": "asks", "version": 2, "steps": [{**step, "on_success": "nowhere"}]}))
    assert "nowhere" in tenuto("apply", str(file)).err


def test_who_is_not_told_of_workers_hears_that_and_not_that_there_are_none(
    url: str, tenuto: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with service_on(url, "theirs") as (address, key):
        monkeypatch.setenv("TENUTO_API_KEY", key)
        assert tenuto("--server", address, "workers") == (0, "", "")
        _, shown = on_terminal("--server", address, "workers", columns=200)
        assert "No worker is running, or your API key is not of the tenant 'default'" in shown


def test_what_runs_the_service_is_seen_and_checked(server: str, tenuto: Run) -> None:
    assert tenuto("workers") == (0, "", "")
    done = tenuto("doctor")
    assert (done.code, f"✓ server: {server} answers, and has 0 executions" in done.out) == (0, True)


def test_a_key_that_is_wrong_or_may_not(url: str, tenuto: Run, work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    id = work(expenses)
    with service_on(url, "default", "viewer") as (address, key):
        monkeypatch.setenv("TENUTO_SERVER", address)
        nothing = tenuto("ls")
        assert (nothing.code, "[unauthenticated]" in nothing.err) == (8, True)
        monkeypatch.setenv("TENUTO_API_KEY", key)
        assert tenuto("show", id).code == 0
        done = tenuto("cancel", id)
        assert (done.code, "[forbidden]\nWhat to do: roles that have it: operator, admin" in done.err) == (8, True)
        assert key not in done.err


def test_keys_are_made_on_the_database(server: str, tenuto: Run) -> None:
    made = tenuto("keys", "create", "--tenant", "acme", "--role", "viewer", "--json")
    assert made.code == 0
    assert json.loads(made.out)["key"].startswith("tnt_")


def test_a_service_that_is_not_there(tenuto: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "OUTAGE_SECONDS", 0.0)
    done = tenuto("--server", "http://127.0.0.1:1", "ls", "--json")
    assert done.code == 7
    told = json.loads(done.err)
    assert (told["code"], bool(told["what_to_do"])) == ("service_unreachable", True)

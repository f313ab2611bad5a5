"""Real processes: a worker and the commands beside it, on one database; and what a terminal shows."""

import json
import re
import signal
import subprocess
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.servers.databases import database
from tests.servers.postgres import Server

from .conftest import Work, steady
from .processes import TENUTO, on_terminal, running
from .test_executions import atlantis, expenses

APP = "tests.cli.shop:ALL"


def tenuto(url: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([TENUTO, "--url", url, *arguments], capture_output=True, text=True, check=False)


@pytest.mark.requirement("F19")
def test_a_worker_runs_what_others_start_and_ends_when_it_is_told(url: str) -> None:
    with running("worker", "--app", APP, ready="worker on", TENUTO_URL=url) as worker:
        (row,) = json.loads(tenuto(url, "workers", "--json").stdout)
        assert row["queues"] == ["default"]
        oslo = tenuto(url, "run", "book-trip", "-i", '"Oslo"', "--wait")
        assert (oslo.returncode, oslo.stderr) == (0, "")
        assert steady(oslo.stdout).endswith('book-trip <id>: succeeded\n  output "paid for Oslo"\n')
        assert tenuto(url, "run", "book-trip", "-i", '"Atlantis"', "--wait").returncode == 1
        waiting = json.loads(tenuto(url, "run", "expenses", "-i", "120", "--wait", "--json").stdout)
        assert waiting["status"] == "waiting_approval"
        assert tenuto(url, "approve", waiting["execution_id"]).returncode == 0
        watched = tenuto(url, "watch", waiting["execution_id"])
        assert (watched.returncode, "pay: succeeded" in watched.stdout) == (0, True)
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait() == 0
    assert json.loads(tenuto(url, "workers", "--json").stdout) == []


def test_a_worker_ends_although_a_handler_does_not(url: str) -> None:
    app = "tests.cli.stubborn:ALL"
    with running("worker", "--app", app, ready="worker on", TENUTO_URL=url, TENUTO_SHUTDOWN_GRACE="10ms") as worker:
        assert tenuto(url, "run", "stubborn").returncode == 0
        assert worker.process.stdout is not None
        while worker.process.stdout.readline() != "began\n":
            pass
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait() == 0
        assert worker.process.stderr is not None
        assert "did not end when it was told to" in worker.process.stderr.read()
    assert json.loads(tenuto(url, "workers", "--json").stdout) == []


@pytest.mark.parametrize("role", ["dev", "serve", "worker"])
def test_a_process_does_not_tell_the_password_of_its_database(role: str, postgres_server: Server) -> None:
    with database(postgres_server) as url:
        scheme, rest = url.split("://")
        user, at = rest.split("@") if "@" in rest else ("postgres", rest)
        secret = f"{scheme}://{user.partition(':')[0]}:canary@{at}"
        port = ("--app", APP) if role == "worker" else ("--port", "0")
        ready = {"dev": "In another terminal", "serve": "serving on", "worker": "worker on"}[role]
        with running(role, *port, ready=ready, TENUTO_URL=secret) as process:
            assert "canary" not in process.seen
            assert "[secret]@" in process.seen


def applied(url: str, folder: Path, name: str, handler: str) -> None:
    step = {"step_id": "say", "type": "notify", "handler": handler, "idempotency_strategy": "SAFE_TO_RETRY"}
    file = folder / f"{name}.json"
    file.write_text(json.dumps({"name": name, "steps": [{**step, "with": {"message": "hello"}}]}))
    assert tenuto(url, "apply", str(file)).returncode == 0


def test_a_worker_without_an_app_refuses_to_start_if_nothing_can_run(url: str, tmp_path: Path) -> None:
    empty = tenuto(url, "worker")
    assert (empty.returncode, "No definition is stored. [nothing_to_run]" in empty.stderr) == (1, True)
    applied(url, tmp_path, "own", "my_function")
    refused = tenuto(url, "worker")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "Only code can run what is stored: own 1. [nothing_to_run]\nWhat to do: name the module" in refused.stderr


def test_a_worker_without_an_app_runs_what_consists_of_built_in_handlers(url: str, tmp_path: Path) -> None:
    applied(url, tmp_path, "plain", "log")
    applied(url, tmp_path, "own", "my_function")
    with running("worker", ready="worker on", TENUTO_URL=url) as worker:
        assert worker.seen.endswith("queue default: plain 1; no code here for own 1\n")
        assert tenuto(url, "run", "plain", "--wait").returncode == 0


def test_a_worker_that_cannot_load_its_app_says_so(url: str) -> None:
    done = tenuto(url, "worker", "--app", "nowhere.at.all")
    assert done.returncode == 1
    assert "There is no module 'nowhere.at.all'" in done.stderr
    assert "[app_not_loaded]\nWhat to do: --app" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("columns", [80, 120])
def test_on_a_terminal_there_are_columns_and_colour_and_nothing_is_broken(url: str, work: Work, columns: int) -> None:
    failed, waits = work(atlantis), work(expenses)
    code, shown = on_terminal("--url", url, "ls", columns=columns)
    assert code == 0
    lines = plain(shown).splitlines()
    assert lines[0].split() == ["ID", "DEFINITION", "STARTED", "TOOK", "STATUS"]
    assert lines[1].startswith(f"{waits}  expenses    ")
    assert lines[2].startswith(f"{failed}  book-trip   ")
    assert "\x1b[31mfailed: NON_RETRYABLE" in shown
    _, shown = on_terminal("--url", url, "show", failed, columns=columns)
    lines = plain(shown).splitlines()
    lines.remove(f"    tenuto --url {url} retry {failed} --reason TEXT")  # to be copied, so it is not broken
    assert max(map(len, lines)) <= columns


def test_progress_is_drawn_on_a_terminal(url: str) -> None:
    with running("worker", "--app", APP, ready="worker on", TENUTO_URL=url):
        code, shown = on_terminal("--url", url, "run", "book-trip", "-i", '"Oslo"', "--wait")
    assert code == 0
    assert "\x1b[?25l" in shown  # the cursor is hidden while it is drawn
    assert "✓ pay     succeeded" in plain(shown)


def plain(shown: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).replace("\r", "")


def test_dev_gives_no_link_to_a_page_that_needs_a_key(url: str) -> None:
    ready = "In another terminal"
    with running(
        "dev", "--port", "0", ready=ready, TENUTO_URL=url, TENUTO_OPEN_ROUTES="false", TENUTO_CONSOLE="off"
    ) as dev:
        assert "#key=" not in dev.seen
        assert "TENUTO_OPEN_ROUTES has closed /docs" in dev.seen


def test_dev_is_the_service_and_a_worker_with_a_link_and_a_key(url: str) -> None:
    ready = "export TENUTO_SERVER"
    with running("dev", "--app", APP, "--port", "0", ready=ready, TENUTO_URL=url, TENUTO_CONSOLE="off") as dev:
        found = re.search(r"open\s+(http://127\.0\.0\.1:\d+)/docs#key=(tnt_\w+)", dev.seen)
        assert found is not None
        server, key = found.groups()
        assert f"export TENUTO_SERVER={server} TENUTO_API_KEY={key}" in dev.seen
        with httpx2.Client(base_url=server, timeout=60, headers={"Authorization": f"Bearer {key}"}) as client:
            assert client.get("/docs").status_code == 200
            started = client.post("/v1/executions", json={"definition": "book-trip", "input": "Oslo"})
            assert started.status_code == 201
        watched = tenuto(url, "watch", started.json()["execution_id"])
        assert watched.returncode == 0
        dev.process.send_signal(signal.SIGINT)
        assert dev.process.wait() == 0
    (row,) = json.loads(tenuto(url, "keys", "ls", "--json").stdout)
    assert row["revoked_at"] is not None


@pytest.mark.requirement("F19")
def test_serve_answers_and_runs_nothing(url: str) -> None:
    key = tenuto(url, "keys", "create", "--tenant", "default", "--role", "operator").stdout.strip()
    with running("serve", "--app", APP, "--port", "0", ready="serving on", TENUTO_URL=url) as service:
        server = re.search(r"http://[\d.:]+", service.seen)
        assert server is not None
        with httpx2.Client(base_url=server[0], timeout=60, headers={"Authorization": f"Bearer {key}"}) as client:
            assert client.get("/readyz").status_code == 200
            assert client.get("/v1/executions", headers={"Authorization": "Bearer tnt_wrong"}).status_code == 401
            begin = {"definition": "book-trip", "input": "Oslo"}
            started = client.post("/v1/executions", json=begin).json()
            assert json.loads(tenuto(url, "workers", "--json").stdout) == []
            with running("worker", "--app", APP, ready="worker on", TENUTO_URL=url):
                ended = client.get(f"/v1/executions/{started['execution_id']}?wait=terminal&seconds=60").json()
                while client.post("/v1/executions", json=begin).json()["blocked"] is not None:
                    pass  # that there was no worker is remembered for a second
        assert (started["blocked"]["reason"], ended["status"]) == ("no_worker", "succeeded")
        taken = tenuto(url, "serve", "--port", server[0].rpartition(":")[2])
        assert taken.returncode == 1
        assert "[address_unusable]\nWhat to do: choose another" in taken.stderr
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait() == 0


@pytest.mark.parametrize("role", ["dev", "serve"])
def test_who_listens_or_waits_does_not_keep_a_service_from_ending(url: str, role: str) -> None:
    key = tenuto(url, "keys", "create", "--tenant", "default", "--role", "operator").stdout.strip()
    ready = {"dev": "In another terminal", "serve": "serving on"}[role]
    arguments = (role, "--app", APP, "--port", "0")
    given: Any = {"TENUTO_URL": url, "TENUTO_SHUTDOWN_GRACE": "1h", "TENUTO_LOG_LEVEL": "WARNING"}
    with running(*arguments, ready=ready, **given) as service:
        server = re.search(r"http://([\d.]+):(\d+)", service.seen)
        assert server is not None
        headers = {"Authorization": f"Bearer {key}"}
        with httpx2.Client(base_url=server[0], timeout=60, headers=headers) as client:
            id = client.post("/v1/executions", json={"definition": "invoice"}).json()["execution_id"]
            listening, waiting = (HTTPConnection(server[1], int(server[2]), timeout=60) for _ in range(2))
            listening.request("GET", f"/v1/executions/{id}/events", headers=headers)
            events = listening.getresponse()
            assert events.readline() == b"id: 1\n"
            waiting.request("GET", f"/v1/executions/{id}?wait=terminal&seconds=60", headers=headers)
            assert client.get("/healthz").status_code == 200
        service.process.send_signal(signal.SIGTERM)
        answer = waiting.getresponse()
        assert (answer.status, json.loads(answer.read())["execution_id"]) == (200, id)
        assert b"event: end" not in events.read()  # whole, or this raises
        for connection in (listening, waiting):
            connection.close()
        assert service.process.wait() == 0
        assert service.process.stderr is not None
        assert service.process.stderr.read() == ""

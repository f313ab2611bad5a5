"""Every option of every command is in some test; those that nothing else is about are here."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import typer

from tenuto import Engine
from tenuto.cli.app import app

from .conftest import Run, Work
from .processes import TENUTO, running
from .test_executions import expenses
from .test_processes import APP

TESTS = Path(__file__).parent.parent


def commands(command: Any, name: str = "tenuto") -> Iterator[tuple[str, Any]]:
    yield name, command
    for inner, found in getattr(command, "commands", {}).items():
        yield from commands(found, f"{name} {inner}")


def test_every_option_is_in_some_test() -> None:
    texts = "\n".join(
        path.read_text() for folder in ("cli", "checking", "commands") for path in (TESTS / folder).glob("test_*.py")
    )
    missing = [
        f"{name} {option}"
        for name, command in commands(typer.main.get_command(app))
        for parameter in command.params
        if (option := next((each for each in parameter.opts if each.startswith("--")), None)) is not None
        if f'"{option}"' not in texts
    ]
    assert missing == []


# -- Starting and listing ----------------------------------------------------------------------------------------------


def test_of_one_concurrency_key_one_runs(tenuto: Run, work: Work) -> None:
    work(expenses)
    first, second = (tenuto("run", "expenses", "-i", "7", "--concurrency-key", "one").out.strip() for _ in range(2))

    async def reasons(engine: Engine) -> list[Any]:
        await engine.get(first).result()
        return [(await engine.get(id).status())["blocked"]["reason"] for id in (first, second)]  # type: ignore[index]  # both are blocked

    assert work(reasons) == ["approval", "concurrency_key"]


def test_executions_are_listed_by_their_age_and_by_what_they_are_about(tenuto: Run, work: Work) -> None:
    work(expenses)
    about = tenuto("run", "expenses", "-i", "7", "--target", "invoice:inv-1").out.strip()
    assert tenuto("ls", "--since", "1h", "--count").out == "2\n"
    assert tenuto("ls", "--since", "1ms", "--count").out == "0\n"
    (found,) = json.loads(tenuto("ls", "--target-id", "inv-1", "--json").out)
    assert found["execution_id"] == about


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("--server 127.0.0.1:8080 ls", "begins with https:// or http://"),
        ("ls --status odd", "'running', 'waiting_approval'"),
        ("ls --limit 0", "greater than or equal to 1"),
        ("ls --since yesterday", '"24h" or "2d"'),
        ("ls --older-than 99999999999d", "is too long"),
        ("dlq ls --error-class odd", "'TRANSIENT', 'RETRYABLE'"),
        ("reviews ls --kind odd", "'approval', 'compensation'"),
        ("cancel --status odd --dry-run", "'running', 'waiting_approval', 'paused'"),
        ("audit --limit 0", "greater than or equal to 1"),
        ("run expenses --version 0", "greater than or equal to 1"),
        ("run expenses --version 99999999999999999999", "less than or equal to 2147483647"),
        ("limits set bank --concurrency 99999999999999999999", "less than or equal to 2147483647"),
    ],
)
def test_what_makes_no_sense_is_told_with_what_does(tenuto: Run, work: Work, command: str, told: str) -> None:
    done = tenuto(*command.split())
    assert (done.code, done.out) == (2, "")
    assert told in " ".join(done.err.split())


def test_a_definition_that_is_none_is_not_found(tenuto: Run, work: Work) -> None:
    work(expenses)
    for options in ([], ["--json"]):
        done = tenuto("definitions", "nix", *options)
        assert (done.code, done.out) == (3, "")
        assert "There is no definition 'nix'." in done.err
    assert tenuto("definitions", "expenses").code == 0


def test_settings_that_are_wrong_say_what_to_do(tenuto: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENUTO_PORT", "many")
    done = tenuto("ls")
    assert (done.code, "[settings_invalid]" in done.err) == (1, True)
    assert "What to do: mend the variable" in done.err


@pytest.mark.parametrize(("word", "status"), [("approve", "succeeded"), ("reject", "failed")])
def test_a_decision_brings_data(tenuto: Run, work: Work, word: str, status: str) -> None:
    id = work(expenses)
    assert tenuto(word, id, "--data", "{not json").code == 2
    assert tenuto(word, id, "--data", '{"by": "post"}', "--comment", "seen").code == 0

    async def end(engine: Engine) -> Any:
        result = await engine.get(id).result()
        rows = [row for row in await engine.get(id).history() if row["step_id"] == "consent"]
        return result.status, [row["result"] for row in rows]

    assert work(end) == (status, [{"by": "post"}])


def test_a_definition_is_applied_on_a_database(tenuto: Run, tmp_path: Path) -> None:
    step = {"step_id": "a", "type": "task", "handler": "greet", "idempotency_strategy": "SAFE_TO_RETRY"}
    file = tmp_path / "greets.json"
    file.write_text(json.dumps({"name": "greets", "steps": [step]}))
    assert tenuto("apply", str(file)) == (0, "published: greets version 1\n", "")
    (found,) = json.loads(tenuto("definitions", "--json").out)
    assert (found["name"], found["status"]) == ("greets", "published")


# -- Keys, checks, figures ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("days", "lasts"), [("7", 7 * 24 * 3_600), ("0", None)])
def test_keys_last_as_long_as_is_set(
    tenuto: Run, monkeypatch: pytest.MonkeyPatch, days: str, lasts: int | None
) -> None:
    monkeypatch.setenv("TENUTO_KEY_DAYS", days)
    made = json.loads(tenuto("keys", "create", "--tenant", "acme", "--role", "viewer", "--json").out)
    assert (made["expires_at"] is None) == (lasts is None)
    if lasts is not None:
        assert _seconds(made["expires_at"]) - _seconds(made["created_at"]) == lasts


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def test_what_is_late_is_for_the_caller_to_say(tenuto: Run, work: Work) -> None:
    work(expenses)
    tenuto("run", "expenses", "-i", "7")  # and nobody is there to run it
    assert tenuto("check", "--stuck").code == 0
    late = tenuto("check", "--stuck", "--slack", "0")
    assert (late.code, late.out.startswith("V5 in ")) == (1, True)
    assert tenuto("check", "--slack", "3600").code == 0


def test_bench_measures(tenuto: Run) -> None:
    rows = json.loads(tenuto("bench", "--executions", "10", "--json").out)
    assert [(row["metric"], row["unit"]) for row in rows] == [
        ("executions", "1/s"), ("steps", "1/s"), ("p50", "ms"), ("p95", "ms"), ("p99", "ms")
    ]  # fmt: skip
    assert all(row["value"] > 0 for row in rows)


# -- Processes ---------------------------------------------------------------------------------------------------------


def test_a_worker_serves_the_queues_that_it_is_given(url: str) -> None:
    with running("worker", "--app", APP, "--queue", "gpu", "--queue", "mail", ready="worker on", TENUTO_URL=url):
        for options in ([], ["--tenant", "theirs"]):  # it works for all of them
            command = [TENUTO, "--url", url, *options, "workers", "--json"]
            (row,) = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
            assert row["queues"] == ["gpu", "mail"]


@pytest.mark.parametrize(
    ("role", "ready", "level", "told"),
    [("serve", "serving on", "ERROR", set()), ("dev", "In another terminal", "INFO", {"info"})],
)
def test_a_service_listens_where_it_is_told_and_logs_as_it_is_told(
    url: str, role: str, ready: str, level: str, told: set[str]
) -> None:
    """Of its own accord, `serve` tells more than that, and `dev` less."""
    logs: dict[str, Any] = {"TENUTO_LOG_LEVEL": level, "TENUTO_LOG_FORMAT": "json"}
    given = ("--host", "127.0.0.2", "--port", "0")
    with running(role, "--app", APP, *given, ready=ready, TENUTO_URL=url, **logs) as service:
        assert "http://127.0.0.2:" in service.seen
        service.process.send_signal(signal.SIGTERM)
        assert service.process.wait() == 0
        assert service.process.stderr is not None
        lines = [json.loads(line) for line in service.process.stderr.read().splitlines()]
    assert {line["level"] for line in lines} == told


@pytest.mark.parametrize(("shell", "file"), [("bash", ".bash_completions/tenuto.sh"), ("zsh", ".zfunc/_tenuto")])
@pytest.mark.parametrize("option", ["--install-completion", "--show-completion"])
def test_the_shell_that_is_named_completes_commands(tmp_path: Path, option: str, shell: str, file: str) -> None:
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(
        [TENUTO, option, shell], env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    script = done.stdout if option == "--show-completion" else (tmp_path / file).read_text()
    assert f"_TENUTO_COMPLETE=complete_{shell}" in script


@pytest.mark.parametrize("given", [["--install-completion", "ksh"], ["--show-completion=ksh"]])
def test_a_shell_that_is_not_known_is_refused_with_those_that_are(tenuto: Run, given: list[str]) -> None:
    done = tenuto(*given)
    assert (done.code, done.out) == (2, "")
    assert "'ksh' is not one of bash, zsh, fish, powershell, pwsh" in " ".join(done.err.split())


def test_a_definition_is_checked_without_a_database(tenuto: Run, tmp_path: Path) -> None:
    step = {"step_id": "a", "type": "task", "handler": "greet", "idempotency_strategy": "SAFE_TO_RETRY"}
    good, bad, none = tmp_path / "good.json", tmp_path / "bad.json", tmp_path / "none.json"
    good.write_text(json.dumps({"name": "greets", "version": 1, "steps": [step]}))
    bad.write_text(json.dumps({"name": "greets", "version": 1, "steps": [{**step, "timeout_ms": -1}]}))
    none.write_text("{")
    assert tenuto("validate", str(good)) == (0, f"{good}: valid; needs handlers: greet\n", "")
    done = tenuto("validate", str(good), str(bad))
    assert (done.code, f"{bad}#/steps/0/timeout_ms: " in done.out) == (1, True)
    assert [each["valid"] for each in json.loads(tenuto("validate", str(good), str(bad), "--json").out)] == [
        True,
        False,
    ]
    assert tenuto("validate", str(none)).code == 2
    assert not (tmp_path / "tenuto.db").exists()


def test_counts_agree_with_their_nouns(tenuto: Run, work: Work) -> None:
    tenuto("migrate")
    assert tenuto("check").out.startswith("0 executions, ")
    work(expenses)
    assert tenuto("check").out.startswith("1 execution, ")

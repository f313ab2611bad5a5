"""Data cannot command the terminal: control characters in it are shown escaped, whatever prints them."""

import ast
import json
import re
import subprocess
from pathlib import Path

import pytest

import tenuto
from tenuto import Engine, SagaBuilder
from tenuto.cli.connection import Connection
from tenuto.cli.printer import Printer, print_error
from tenuto.errors import NonRetryableError, TenutoError
from tenuto.values.terminal import escape_controls, escape_lines

from .conftest import Run, Work
from .processes import TENUTO, on_terminal

# Sets the title, clears the screen by C0 and by C1, rings, returns to overwrite the line, and turns the text round.
HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b2J\x7f\x08\rforged\n\u202eforged\u2066\u2028"
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
STYLE = re.compile(r"\x1b\[[0-9;]*m")  # what colours a line, and nothing more


@pytest.fixture
def id(work: Work) -> str:
    """An execution that failed, with control characters in everything that a caller or a handler may write."""

    async def fail(text: str) -> None:
        raise NonRetryableError(f"refused {HOSTILE}", code="refused")

    async def start(engine: Engine) -> str:
        saga = SagaBuilder("fails").step("a", fail).build()
        engine.register(saga)
        ada = engine.scoped(tenant="default", actor=f"ada {HOSTILE}", roles=["admin"])
        handle = await ada.start(
            "fails", HOSTILE, correlation_id=HOSTILE, idempotency_key=HOSTILE, target=("order", HOSTILE)
        )
        await handle.result()
        await ada.keys.create(tenant="default", roles=["viewer"], name=HOSTILE)
        waiting = await ada.start("expenses", 5)
        await waiting.pause(reason=HOSTILE)
        return handle.id

    found: str = work(start)
    return found


LOOK = ["show ID", "history ID", "watch ID", "ls", "ls --blocked", "audit", "audit export", "dlq ls", "dlq show ID.1"]
LOOK += ["keys ls", "definitions", "reviews ls", "limits", "workers", "doctor", "check"]


def _letter(tenuto: Run) -> str:
    return str(json.loads(tenuto("dlq", "ls", "--json").out)[0]["id"])


@pytest.mark.parametrize("json_too", ["", " --json"])
def test_no_command_prints_a_control_character(tenuto: Run, id: str, json_too: str) -> None:
    letter = _letter(tenuto)
    for command in LOOK:
        words = (command + json_too * (command != "audit export")).split()
        done = tenuto(*[id if word == "ID" else letter if word == "ID.1" else word for word in words])
        assert done.code in (0, 1), (command, done.err)
        assert CONTROLS.findall(done.out + done.err) == [], command


def test_they_are_shown_and_not_left_out(tenuto: Run, id: str) -> None:
    shown = tenuto("show", id).out
    assert r"refused \u001b]0;owned\u0007\u001b[2J\u009b2J\u007f\u0008\rforged\n\u202eforged" in shown
    document = json.loads(tenuto("show", id, "--json").out)
    assert document["input"] == HOSTILE


def test_a_terminal_gets_none_either(url: str, tenuto: Run, id: str) -> None:
    letter = _letter(tenuto)
    for command in (*LOOK, "export", "show ID --json", "audit --json"):
        if command == "watch ID":  # it draws with commands of its own
            continue
        words = [id if word == "ID" else letter if word == "ID.1" else word for word in command.split()]
        _, shown = on_terminal("--url", url, *words, columns=200)
        assert shown, command
        assert CONTROLS.findall(STYLE.sub("", shown).replace("\r\n", "\n")) == [], command


def test_what_is_drawn_anew_has_none_of_them(url: str, id: str) -> None:
    _, shown = on_terminal("--url", url, "watch", id, columns=200)
    assert "owned" in shown
    assert not re.search("\x1b\\]|\x07|\x9b|\x7f|\u202e|\u2066|\x1b\\[2J", shown)


def test_an_export_that_no_terminal_shows_is_as_it_is_stored(url: str, id: str) -> None:
    written = subprocess.run([TENUTO, "--url", url, "export"], capture_output=True, check=True).stdout
    assert "\x9b".encode() in written


def test_an_error_is_escaped_and_keeps_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(TenutoError("one \x1b[2J\ntwo \x9b", code="c", hint="do \x07"), Connection())
    assert capsys.readouterr().err == "tenuto: one \\u001b[2J [c]\ntwo \\u009b\nWhat to do: do \\u0007\n"


def test_an_argument_that_is_refused_is_escaped(tenuto: Run) -> None:
    assert CONTROLS.findall(tenuto("run", "x", "--target", HOSTILE).err) == []
    assert CONTROLS.findall(tenuto("ls", f"--no-such-{HOSTILE}").err) == []
    assert CONTROLS.findall(tenuto("show", HOSTILE).err) == []
    assert CONTROLS.findall(tenuto("show", HOSTILE, "--json").err) == []


def test_what_nobody_expected_is_told_escaped(
    tenuto: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(HOSTILE)

    monkeypatch.setattr(Printer, "listing", fail)
    done = tenuto("keys", "create", "--tenant", "default", "--role", "viewer")
    assert done.code == 0
    done = tenuto("keys", "ls")
    assert done.code == 1
    assert "Traceback" in done.err
    assert "owned" in done.err
    assert CONTROLS.findall(done.err) == []


def test_escaped_json_means_the_same() -> None:
    text = json.dumps(HOSTILE, ensure_ascii=False)
    assert json.loads(escape_controls(text)) == HOSTILE
    assert escape_controls("Zürich ✓ 東京 👍") == "Zürich ✓ 東京 👍"
    assert escape_lines("a\tb\nc") == "a\\tb\nc"


def test_commands_print_through_the_screen_alone() -> None:
    """A `print` elsewhere would not be escaped."""
    folder = Path(tenuto.__file__).parent / "cli"
    found = [
        f"{path.name}:{node.lineno}"
        for path in folder.glob("*.py")
        if path.name not in ("output.py", "printer.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ("print", "echo", "print_exc")
    ]
    assert found == []

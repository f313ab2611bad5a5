"""The README keeps its word: its code is the quickstart's, and its session is what happens."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from .pages import ROOT, fences, run_page, steady

README = ROOT / "README.md"
QUICKSTART = ROOT / "examples" / "quickstart.py"
KILL = "timeout -s KILL 4 "


class Command(NamedTuple):
    typed: str
    printed: str


def session() -> list[Command]:
    """The commands of the session with the quickstart, and what they print."""
    (text,) = [fence.text for fence in fences(README) if fence.info == "console" and "quickstart" in fence.text]
    parts = [part.partition("\n") for part in text.removeprefix("$ ").split("\n$ ")]
    return [Command(typed, printed.rstrip()) for typed, _, printed in parts]


def start(typed: str, url: str) -> "subprocess.Popen[str]":
    program, *arguments = typed.split()
    assert program == "python"
    environment = {**os.environ, "TENUTO_URL": url, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, *arguments]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, encoding="utf-8")


def run_and_kill(typed: str, url: str, last_line: str) -> str:
    """Kills it where the README does. The README goes by time; here it is when the last line has been printed."""
    printed: list[str] = []
    with start(typed, url) as process:
        assert process.stdout is not None
        for line in process.stdout:
            printed.append(line)
            if line.rstrip() == last_line:
                process.kill()
    return "".join(printed)


def run(typed: str, url: str) -> str:
    with start(typed, url) as process:
        printed, _ = process.communicate()
    assert process.returncode == 0
    return printed


def test_the_session_is_what_happens(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'trips.db'}"
    killed, again = session()
    before_the_end, _, end = killed.printed.rpartition("\n")
    assert end == "Killed"
    last_line = before_the_end.splitlines()[-1]
    assert run_and_kill(killed.typed.removeprefix(KILL), url, last_line).rstrip() == before_the_end
    assert steady(run(again.typed, url)) == steady(again.printed)


def test_the_session_kills_in_the_middle() -> None:
    assert session()[0].typed.startswith(KILL)
    assert len(session()) == 2


def test_a_failed_payment_cancels_the_bookings(tmp_path: Path) -> None:
    printed = run("python examples/quickstart.py Atlantis", f"sqlite:///{tmp_path / 'trips.db'}")
    assert "cancelled: hotel in Atlantis\ncancelled: flight to Atlantis\n" in printed
    assert "NON_RETRYABLE (card_refused)" in printed


def test_the_code_is_that_of_the_quickstart() -> None:
    program = QUICKSTART.read_text(encoding="utf-8")
    blocks = [fence.text for fence in fences(README) if fence.info == "python"]
    assert len(blocks) == 2
    assert [block for block in blocks if block not in program] == []


def test_the_code_runs() -> None:
    assert run_page(README) == 2


def test_it_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 120

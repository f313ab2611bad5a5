"""The demo: what it shows happened, and it says so with its exit code."""

import os
import pty
import re
import signal
import subprocess
import sys
from io import StringIO

import httpx2
import pytest

from examples.demo.__main__ import ATLANTIS, EXPENSES, OSLO, PARCEL, REFUND, STEPS, conclude
from examples.demo.news import News
from examples.demo.screen import Screen

from .pages import ROOT

DEMO = [sys.executable, "-m", "examples.demo"]


def test_the_quick_demo() -> None:
    done = subprocess.run([*DEMO, "--quick"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "\x1b" not in done.stdout
    in_order(done.stdout, OSLO, "hotel will be tried again", "hotel is done, attempt 2", "over: succeeded")
    in_order(done.stdout, ATLANTIS, "pay failed", "hotel is undone", "flight is undone", "over: failed")
    in_order(done.stdout, REFUND, "send will be tried again", "send failed, attempt 2", "over: failed")
    in_order(done.stdout, EXPENSES, "waits for a person", "consent is done", "over: succeeded")
    in_order(done.stdout, PARCEL, "pack begins", "is killed (SIGKILL)", "starts, on the same file", "over: succeeded")
    assert done.stdout.endswith("All five ended as they must.\n")


def in_order(printed: str, row: str, *texts: str) -> None:
    lines = iter([line for line in printed.splitlines() if row in line])
    for text in texts:
        assert any(text in line for line in lines), f"{row}: {text!r} is missing, or too early, in\n{printed}"


def test_the_demo_on_a_terminal_asks_takes_no_for_an_answer_and_stays() -> None:
    terminal, inner = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    demo = subprocess.Popen(DEMO, cwd=ROOT, env=environment, stdin=inner, stdout=inner, stderr=inner)
    os.close(inner)
    printed = b""
    asked = stays = False
    while chunk := read(terminal):
        printed += chunk
        if not asked and b"y/n" in printed:
            asked = True
            os.write(terminal, b"xn")  # any other key is no answer
        if not stays and b"Ctrl-C ends it" in printed:
            stays = True
            link = re.search(rb"The service goes on: (http://[^\s#]+)", printed)
            assert link is not None
            assert httpx2.get(link[1].decode(), timeout=60).status_code == 200
            demo.send_signal(signal.SIGINT)
    os.close(terminal)
    assert demo.wait() == 0, printed.decode()
    assert (asked, stays) == (True, True)
    assert b"\x1b[31m" in printed  # in colour
    assert b"failed; the answer was no" in printed
    live, _, over = printed.partition(b"; the answer was no")
    assert live.rpartition(b"\x1b[J")[2].count(OSLO.encode()) == 1  # one table is left, the one with the endings
    assert b"\x1b[J" not in over  # and nothing of what follows, as the link, is taken away


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65_536)
    except OSError:  # how Linux says that nobody holds the other end any more
        return b""


def test_the_demo_fails_if_something_ended_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    screen = Screen(STEPS, StringIO())
    endings = dict.fromkeys(STEPS, "succeeded")
    complaints: dict[str, list[str]] = {row: [] for row in STEPS}
    assert conclude(screen, endings, complaints) == 0
    complaints[OSLO].append("it should have rained")
    del endings[PARCEL]
    assert conclude(screen, endings, complaints) == 1
    printed = capsys.readouterr().out
    assert "it should have rained" in printed
    assert printed.endswith(f"Not as it must be: {OSLO}, {PARCEL}.\n")


def test_off_a_terminal_there_are_lines_only() -> None:
    out = StringIO()
    screen = Screen(STEPS, out)
    screen.show(News(OSLO, "hotel begins", "hotel", "runs"))
    screen.close()
    assert out.getvalue().endswith("trip to Oslo      hotel begins\n")
    assert len(out.getvalue().splitlines()) == 1
    assert "▶ hotel" in screen.table()[0]

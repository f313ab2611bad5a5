"""Whoever reads the output may close it: `tenuto export | head -1`. Then a command ends, and complains of nothing."""

import os
import subprocess

import pytest

from tenuto import Engine
from tenuto.cli.exits import Exit

from .conftest import Work
from .processes import TENUTO

CITY = "Oslo " * 2_000


@pytest.fixture
def id(work: Work) -> str:
    """One of some executions, which tell more than a pipe holds."""

    async def start(engine: Engine) -> str:
        started = [await engine.start("book-trip", CITY) for _ in range(10)]
        for handle in started:
            await handle.result()
        return started[0].id

    found: str = work(start)
    return found


def _run(*arguments: str, lines: int, errors_too: bool = False) -> tuple[int, str]:
    """The exit code and the complaints of a command whose output is closed after some lines."""
    reading, writing = os.pipe()
    stderr = writing if errors_too else subprocess.PIPE
    process = subprocess.Popen([TENUTO, *arguments], stdout=writing, stderr=stderr, text=True)
    os.close(writing)
    with os.fdopen(reading, "rb", 0) as output:
        for _ in range(lines):
            assert output.readline()
    complaints = process.communicate()[1]
    return process.returncode, complaints or ""


@pytest.mark.parametrize(
    "command",
    ["export", "check", "check --stuck", "ls", "show ID", "history ID", "watch ID", "definitions", "--help"],
)
def test_a_command_that_nobody_reads_says_nothing_of_it(id: str, command: str) -> None:
    arguments = [id if word == "ID" else word for word in command.split()]
    assert _run(*arguments, lines=0) == (Exit.CUT_OFF, "")


def test_a_command_ends_when_the_reader_has_enough(id: str) -> None:
    assert _run("export", lines=1) == (Exit.CUT_OFF, "")


@pytest.mark.parametrize("command", ["show nothing", "ls --no-such-option"])
def test_an_error_that_nobody_reads_ends_it_as_well(url: str, command: str) -> None:
    assert _run(*command.split(), lines=0, errors_too=True) == (Exit.CUT_OFF, "")

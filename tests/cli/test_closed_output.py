"""Whoever reads the output may close it: `tenuto export | head -1`. Then a command ends, and complains of nothing."""

import os
import subprocess

import pytest

from tenuto import Engine
from tenuto.cli.exit_codes import Exit

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


EVERY = ["ls", "ls --json", "show ID", "history ID", "watch ID", "definitions", "check", "check --stuck", "export"]
EVERY += ["--help", "--version", "doctor", "keys create --tenant default --role viewer"]


@pytest.mark.parametrize(
    ("command", "unbuffered"), [*((each, "") for each in EVERY), ("check", "1"), ("export", "1"), ("--help", "1")]
)
def test_a_full_disk_is_told_without_a_traceback(id: str, command: str, unbuffered: str) -> None:
    arguments = [id if word == "ID" else word for word in command.split()]
    given = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "w") as full:
        done = subprocess.run([TENUTO, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, env=given)
    assert done.returncode == Exit.FAILED
    assert "standard output: No space left on device." in done.stderr
    assert "file_unusable" in done.stderr
    assert len(done.stderr.splitlines()) == (1 if "--json" in command else 2)


def test_a_file_to_export_to_that_is_full_is_named(id: str) -> None:
    done = subprocess.run([TENUTO, "export", "--to", "/dev/full"], capture_output=True, text=True)
    assert done.returncode == Exit.FAILED
    assert done.stderr.startswith("tenuto: /dev/full: No space left on device. [file_unusable]\n")


@pytest.mark.parametrize("command", ["show nothing", "ls --no-such-option"])
def test_an_error_that_cannot_be_written_keeps_its_exit_code(url: str, work: Work, command: str) -> None:
    work(_nothing)
    with open("/dev/full", "w") as full:
        done = subprocess.run([TENUTO, *command.split()], stdout=subprocess.PIPE, stderr=full, text=True)
    assert (done.returncode, done.stdout) == (Exit.NOT_FOUND if command == "show nothing" else Exit.USAGE, "")


async def _nothing(engine: Engine) -> None:
    """The database is there when this is called."""

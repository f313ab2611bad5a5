"""A database that this user may not write: commands that only read work, the others name the file and the cause."""

import asyncio
import ctypes
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tenuto import Engine
from tenuto.cli.exit_codes import Exit
from tenuto.errors import NotSupported

from . import shop
from .processes import TENUTO

PR_CAPBSET_DROP = 24
DAC_OVERRIDE, DAC_READ_SEARCH = 1, 2


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "data"
    made.mkdir()
    yield made
    made.chmod(0o755)  # pytest removes it


@pytest.fixture
def id(folder: Path) -> str:
    """An execution that failed, in a database that was closed in good order."""
    return asyncio.run(_fill(f"sqlite:///{folder / 'tenuto.db'}"))


async def _fill(url: str) -> str:
    async with Engine(url) as engine:
        engine.register(*shop.ALL)
        handle = await engine.start("book-trip", "Atlantis")
        await handle.result()
        await engine.start("expenses", 5)
        return handle.id


def _as_reader(*arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """Runs a command that the permissions of files bind, even if root runs the tests."""
    given = {key: value for key, value in os.environ.items() if not key.startswith("TENUTO_")}
    given["TENUTO_URL"] = f"sqlite:///{folder / 'tenuto.db'}"
    return subprocess.run(
        [TENUTO, *arguments], cwd=folder, env=given, capture_output=True, text=True, preexec_fn=_obey_permissions
    )


def _obey_permissions() -> None:
    """Root loses its right to pass over them with the next program that is executed."""
    for capability in (DAC_OVERRIDE, DAC_READ_SEARCH) if os.getuid() == 0 else ():
        if ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
            raise OSError("root cannot give up capabilities here: run the tests as another user")


def _close_off(folder: Path) -> None:
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o555)


READS = [
    "ls",
    "ls --blocked",
    "show ID",
    "history ID",
    "watch ID",
    "definitions",
    "reviews ls",
    "dlq ls",
    "dlq show LETTER",
]
READS += ["limits", "workers", "audit", "audit verify", "audit export", "keys ls", "check", "export"]


def test_commands_that_only_read_work_in_a_read_only_folder(folder: Path, id: str) -> None:
    _close_off(folder)
    letter = json.loads(_as_reader("dlq", "ls", "--json", folder=folder).stdout)[0]["id"]
    for command in READS:
        words = [{"ID": id, "LETTER": letter}.get(word, word) for word in command.split()]
        done = _as_reader(*words, folder=folder)
        expected = Exit.FAILED if command == "watch ID" else Exit.OK  # what came of the execution
        assert (done.returncode, done.stderr) == (expected, ""), command
    assert "Atlantis" in _as_reader("show", id, folder=folder).stdout
    assert [file.name for file in folder.iterdir()] == ["tenuto.db"]


def test_a_file_that_is_read_only_in_a_folder_that_is_not_stays_alone(folder: Path, id: str) -> None:
    """Files that SQLite would create beside it belong to the reader, and would keep the writer out."""
    (folder / "tenuto.db").chmod(0o444)
    folder.chmod(0o777)
    done = _as_reader("ls", folder=folder)
    assert (done.returncode, len(done.stdout.splitlines())) == (Exit.OK, 2)
    assert _as_reader("check", folder=folder).returncode == Exit.OK
    assert [file.name for file in folder.iterdir()] == ["tenuto.db"]


def test_what_a_running_process_has_not_written_back_yet_is_read(folder: Path) -> None:
    """It is in the log beside the file, which is read as well."""

    async def fill_and_look() -> "subprocess.CompletedProcess[str]":
        url = f"sqlite:///{folder / 'tenuto.db'}"
        async with Engine(url) as engine:
            engine.register(*shop.ALL)
            await (await engine.start("book-trip", "Oslo")).result()
            _close_off(folder)
            return await asyncio.to_thread(_as_reader, "ls", "--json", folder=folder)

    done = asyncio.run(fill_and_look())
    assert [each["status"] for each in json.loads(done.stdout)] == ["succeeded"]


def test_a_log_that_cannot_be_read_in_is_told_and_not_passed_over(folder: Path, id: str) -> None:
    """As in a copy of the files of a process that was killed."""
    (folder / "tenuto.db-wal").write_bytes(b"")
    _close_off(folder)
    done = _as_reader("ls", folder=folder)
    assert done.returncode == Exit.UNREACHABLE
    assert f"the database {folder}/tenuto.db cannot be opened: it has a write-ahead log (-wal)" in done.stderr
    assert "copy the file and the log" in done.stderr


@pytest.mark.parametrize(
    "command", ["pause ID", "keys create --tenant default --role viewer", "migrate", "run expenses"]
)
def test_commands_that_write_name_the_file_and_the_cause(folder: Path, id: str, command: str) -> None:
    (folder / "tenuto.db").chmod(0o666)
    folder.chmod(0o555)
    words = [id if word == "ID" else word for word in command.split()]
    done = _as_reader(*words, folder=folder)
    told = f"tenuto: the database {folder}/tenuto.db cannot be opened: this user may not write {folder} [read_only]\n"
    assert (done.returncode, done.stdout) == (Exit.UNREACHABLE, "")
    assert done.stderr.startswith(told)


def test_a_file_that_may_not_be_written_is_the_cause(folder: Path, id: str) -> None:
    _close_off(folder)
    done = _as_reader("pause", id, folder=folder)
    assert f"cannot be opened: this user may not write {folder}/tenuto.db [read_only]" in done.stderr


def test_a_database_that_cannot_be_made_is_told_with_the_folder(folder: Path) -> None:
    folder.chmod(0o555)
    done = _as_reader("migrate", folder=folder)
    assert done.returncode == Exit.UNREACHABLE
    assert f"there is no such file, and this user may not write {folder} [unreachable]" in done.stderr


def test_a_database_that_may_not_even_be_read_is_told(folder: Path, id: str) -> None:
    (folder / "tenuto.db").chmod(0o000)
    done = _as_reader("ls", folder=folder)
    assert done.returncode == Exit.UNREACHABLE
    assert f"{folder}/tenuto.db cannot be opened: this user may not read it" in done.stderr


@pytest.mark.parametrize(("url", "worker"), [("sqlite:///x.db", True), ("memory://", False), ("https://x", False)])
def test_only_an_engine_without_a_worker_on_a_database_is_opened_to_read(url: str, worker: bool) -> None:
    with pytest.raises(NotSupported):
        Engine(url, worker=worker, read_only=True)

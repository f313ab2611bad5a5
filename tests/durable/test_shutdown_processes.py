"""A worker that is told to end hands over what it has, and nothing of that counts as a loss."""

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tenuto import Engine
from tests.durable.draining_worker import SLOTS, Held
from tests.durable.worker_process import noted

EXECUTIONS = 12
WITHIN_S = 120


def _start(
    url: str,
    log: Path,
    executions: int = EXECUTIONS,
    *,
    module: str = "tests.durable.draining_worker",
    word: str = "ready",
) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", module, url, str(log), str(executions)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert _line(process) == word
    return process


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


async def _until_full(log: Path) -> None:
    """Until all slots are taken."""
    while len(noted(str(log))) < SLOTS:
        await asyncio.to_thread(lambda: None)


@pytest.mark.requirement("G8")
async def test_a_worker_that_is_told_to_end_loses_and_counts_nothing(url: str, tmp_path: Path) -> None:
    log = tmp_path / "effects"
    process = _start(url, log)
    await _until_full(log)
    process.send_signal(signal.SIGTERM)
    assert _line(process) == "stopping"
    process.communicate("go\n", timeout=WITHIN_S)
    assert process.returncode == 0
    assert Counter(line[0] for line in noted(str(log))) == {"first": SLOTS}  # what ran has ended, nothing was begun
    go = asyncio.Event()
    go.set()
    async with Engine(url) as engine:
        engine.register(Held(str(log), go))
        handles = [await engine.start(Held, number, idempotency_key=f"key-{number}") for number in range(EXECUTIONS)]
        assert [(await handle.result()).output for handle in handles] == list(range(EXECUTIONS))
        rows = [row for handle in handles for row in await handle.history()]
    assert Counter(row["status"] for row in rows) == {"succeeded": 2 * EXECUTIONS}
    assert {row["attempt_number"] for row in rows} == {1}
    assert Counter(line[0] for line in noted(str(log))) == {"first": EXECUTIONS, "last": EXECUTIONS}


async def test_a_second_signal_ends_a_worker_at_once(url: str, tmp_path: Path) -> None:
    log = tmp_path / "effects"
    process = _start(url, log)
    await _until_full(log)
    process.send_signal(signal.SIGTERM)
    assert _line(process) == "stopping"  # and waits for handlers that nobody lets end
    process.send_signal(signal.SIGTERM)
    assert process.wait(WITHIN_S) == -signal.SIGTERM
    process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_serve_forever_ends_with_a_signal(url: str, tmp_path: Path, number: signal.Signals) -> None:
    process = _start(url, tmp_path / "effects", executions=0)
    process.send_signal(number)
    process.communicate(timeout=WITHIN_S)
    assert process.returncode == 0


async def test_two_quick_interrupts_end_a_process_that_does_not_listen_for_them(url: str, tmp_path: Path) -> None:
    """As when somebody presses Ctrl-C twice in a program that only runs `asyncio.run`."""
    process = _start(url, tmp_path / "effects", 5, module="tests.durable.worker_process", word="started")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=WITHIN_S)
    assert process.returncode != 0

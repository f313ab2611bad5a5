"""Processes die. What they had accepted is finished by others, and what may not be repeated is not."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tenuto import Engine
from tenuto.storage import make_store
from tests.checking.soundness import assert_sound
from tests.durable.sessions import expire
from tests.durable.worker_process import LEASE, Slow, noted

EXECUTIONS = 20

pytestmark = pytest.mark.usefixtures("sound")


def _child(url: str, log: Path, starts: int = 0) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "tests.durable.worker_process", url, str(log), str(starts)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _until_started(child: "subprocess.Popen[str]") -> None:
    assert child.stdout is not None
    assert child.stdout.readline() == "started\n"


def _kill(child: "subprocess.Popen[str]") -> None:
    child.send_signal(signal.SIGKILL)
    child.communicate()


@pytest.mark.requirement("B9")
async def test_a_killed_worker_is_replaced_and_nothing_is_lost_or_repeated(url: str, tmp_path: Path) -> None:
    log = tmp_path / "effects"
    child = _child(url, log, EXECUTIONS)
    _until_started(child)
    while sum(line[0] == "begun" for line in noted(str(log))) < EXECUTIONS:
        await asyncio.to_thread(os.sched_yield)
    _kill(child)
    await expire(url, child.pid)
    async with Engine(url, lease=LEASE) as engine:
        engine.register(Slow(str(log)))
        results = [
            await (await engine.start(Slow, number, idempotency_key=f"key-{number}")).result()
            for number in range(EXECUTIONS)
        ]
    effects = noted(str(log))
    paid = Counter(line[1] for line in effects if line[0] == "paid")
    assert [result.status for result in results] == ["succeeded"] * EXECUTIONS
    assert len(paid) == EXECUTIONS
    assert set(paid.values()) == {1}
    # The lost attempt was looked for before it was repeated, and the first step was not made again at all.
    assert Counter(line[0] for line in effects) == {
        "first": EXECUTIONS,
        "begun": 2 * EXECUTIONS,
        "paid": EXECUTIONS,
        "last": EXECUTIONS,
    }


@pytest.mark.requirement("G8")
async def test_a_worker_that_leaves_in_good_order_loses_nothing(url: str, tmp_path: Path) -> None:
    log = tmp_path / "effects"
    async with Engine(url, lease=LEASE) as engine:
        engine.register(Slow(str(log)))
        handles = [await engine.start(Slow, number) for number in range(EXECUTIONS)]
    async with Engine(url, lease=LEASE) as engine:
        engine.register(Slow(str(log)))
        results = [await engine.get(handle.id).result() for handle in handles]
    effects = noted(str(log))
    assert {result.status for result in results} == {"succeeded"}
    assert Counter(line[0] for line in effects)["paid"] == EXECUTIONS


async def test_what_a_dead_worker_left_is_sound_before_anybody_takes_it(url: str, tmp_path: Path) -> None:
    """Its session is ended, and nobody is there: the rows are as it left them, and the histories are further."""
    log = tmp_path / "effects"
    child = _child(url, log, EXECUTIONS)
    _until_started(child)
    while sum(line[0] == "begun" for line in noted(str(log))) < EXECUTIONS:
        await asyncio.to_thread(os.sched_yield)
    _kill(child)
    store = make_store(url)
    await store.open(migrate=False)
    while not await store.sessions.reap():
        await asyncio.to_thread(os.sched_yield)
    await store.close()
    await assert_sound(url)


async def test_two_processes_share_one_database(url: str, tmp_path: Path) -> None:
    """One submits and never works; another works and never submits. Commands find their way between them."""
    log = tmp_path / "effects"
    child = _child(url, log)
    _until_started(child)
    try:
        async with Engine(url, worker=False) as engine:
            engine.register(Slow(str(log)))
            handles = [await engine.start(Slow, number) for number in range(EXECUTIONS)]
            results = [await handle.result() for handle in handles]
            assert {result.output for result in results} == {"paid"}
    finally:
        _kill(child)

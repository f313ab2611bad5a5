"""Processes that serve a queue, or own what is on it, are killed. Nothing is lost, and nothing is made twice."""

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tenuto import Engine
from tenuto.storage import Store
from tests.contract.doubles import until_blocked
from tests.durable.sessions import expire_now
from tests.durable.task_worker import LEASE, Safety, paying
from tests.durable.worker_process import noted

WITHIN_S = 120


@contextmanager
def process(url: str, log: Path, role: str, safety: Safety) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "tests.durable.task_worker", url, str(log), role, safety]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        try:
            yield child
        finally:
            child.kill()
            child.wait()
            expire_now(url, child.pid)


async def until(found: Callable[[], Any]) -> None:
    while not found():
        await asyncio.to_thread(lambda: None)


def words(log: Path) -> Counter[str]:
    return Counter(line[0] for line in noted(str(log)))


def owner(url: str) -> Engine:
    return Engine(url, lease=LEASE, queues=())


def guest(url: str) -> Engine:
    return Engine(url, lease=LEASE, queues=("gpu",))


@pytest.mark.requirement("B9")
@pytest.mark.parametrize(
    ("safety", "asked"), [("safe_to_retry", 0), ("safe_to_retry_with_guard", 1), ("not_safe_to_retry", 1)]
)
async def test_a_killed_guest_is_replaced(url: str, tmp_path: Path, safety: Safety, asked: int) -> None:
    """An attempt that may have been made is looked for before it is made again, unless that is safe."""
    log = tmp_path / "effects"
    limited = safety == "safe_to_retry"
    async with owner(url) as home, guest(url) as away:
        home.register(paying(str(log), safety, limited=limited))
        with process(url, log, "guest", safety):
            handle = await home.start("pays")
            await until(lambda: words(log)["begun"])
        away.register(paying(str(log), safety, limited=limited))
        result = await handle.result()
        rows = [(row["kind"], row["attempt_number"]) for row in await handle.history()]
    assert (result.output, words(log)["paid"], words(log)["asked"]) == ("attempt 2", 1, asked)
    assert [row for row in rows if row[0] == "forward"] == [("forward", 1), ("forward", 2)]
    assert words(log)["begun"] == 2


@pytest.mark.requirement("C10")
async def test_what_may_not_be_repeated_waits_for_a_person(url: str, tmp_path: Path) -> None:
    log = tmp_path / "effects"
    async with owner(url) as home, guest(url) as away:
        home.register(paying(str(log), "manual"))
        with process(url, log, "guest", "manual"):
            handle = await home.start("pays")
            await until(lambda: words(log)["begun"])
        away.register(paying(str(log), "manual"))
        blocked = await until_blocked(handle, "review")
        assert "resolve:completed" in blocked["commands"]
        (review,) = [item async for item in home.reviews()]
        await home.resolve(review["id"], "completed", reason="it is in the books", result="by hand")
        assert (await handle.result()).output == "by hand"
    assert words(log) == {"begun": 1}


async def test_what_a_killed_guest_had_not_begun_counts_for_nothing(url: str, tmp_path: Path, store: Store) -> None:
    log = tmp_path / "effects"
    async with owner(url) as home, guest(url) as away:
        home.register(paying(str(log), "safe_to_retry", limited=True))
        await home.limit("one", concurrency=1)
        with process(url, log, "guest", "safe_to_retry"):
            handles = [await home.start("pays") for _ in range(4)]
            await until(lambda: words(log)["begun"])
            while not all([await _is_taken(store, handle.id) for handle in handles]):
                await asyncio.to_thread(lambda: None)
        away.register(paying(str(log), "safe_to_retry", limited=True))
        results = [await handle.result() for handle in handles]
    assert Counter(result.output for result in results) == {"attempt 1": 3, "attempt 2": 1}
    assert words(log) == {"begun": 5, "paid": 4}


async def _is_taken(store: Store, execution: str) -> bool:
    return all(state.worker is not None for state in await store.tasks.of(execution))


async def test_an_owner_is_killed_while_a_guest_runs(url: str, tmp_path: Path, store: Store) -> None:
    """The guest goes on, and its answer reaches whoever owns the execution then."""
    log = tmp_path / "effects"
    goes_on = asyncio.Event()
    async with guest(url) as away:
        away.register(paying(str(log), "manual", goes_on=goes_on))
        with process(url, log, "owner", "manual"):
            await until(lambda: words(log)["begun"])
            handle = await away.start("pays", idempotency_key="key")
            before = await _owner(store, handle.id)
        while await _owner(store, handle.id) == before:
            await asyncio.to_thread(lambda: None)
        goes_on.set()
        assert (await handle.result()).output == "attempt 1"
    assert words(log) == {"begun": 1, "paid": 1}


async def _owner(store: Store, execution: str) -> str | None:
    row = await store.executions.find(execution)
    assert row is not None
    return row.owner


async def test_a_guest_that_is_told_to_end_leaves_in_good_order(url: str, tmp_path: Path, store: Store) -> None:
    log = tmp_path / "effects"
    async with owner(url) as home, guest(url) as away:
        home.register(paying(str(log), "safe_to_retry", limited=True))
        await home.limit("one", concurrency=1)
        with process(url, log, "guest", "safe_to_retry") as child:
            handles = [await home.start("pays") for _ in range(3)]
            await until(lambda: words(log)["begun"])
            child.send_signal(signal.SIGTERM)
            assert child.wait(WITHIN_S) == 0
        # It ended its session itself: nobody has to wait for a lease to run out. What it had begun may wait again too.
        states = [state for handle in handles for state in await store.tasks.of(handle.id)]
        assert [state.worker for state in states if not state.begun and state.key.number == 1] == [None, None]
        away.register(paying(str(log), "safe_to_retry", limited=True))
        results = [await handle.result() for handle in handles]
    assert Counter(result.output for result in results) == {"attempt 1": 2, "attempt 2": 1}


@pytest.mark.requirement("B9")
async def test_guests_are_killed_one_after_another(url: str, tmp_path: Path) -> None:
    """Whatever is killed when: every payment is made, and each of them once."""
    log = tmp_path / "effects"
    async with owner(url) as home:
        home.register(paying(str(log), "not_safe_to_retry"))
        batch = await home.start_many("pays", range(12))
        for kills in (1, 2):
            with process(url, log, "guest", "not_safe_to_retry"):
                await until(lambda kills=kills: words(log)["begun"] >= 4 * kills)  # type: ignore[misc]  # bound at once
        async with guest(url) as away:
            away.register(paying(str(log), "not_safe_to_retry"))
            results = [result async for result in batch.results()]
    paid = Counter(line[1] for line in noted(str(log)) if line[0] == "paid")
    assert {result.status for result in results} == {"succeeded"}
    assert (len(results), len(paid), set(paid.values())) == (12, 12, {1})

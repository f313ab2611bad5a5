"""The whole shop in a process that is killed at one of its commits, in whichever service; and one that recovers.

`python -m tests.orders.crash FOLDER` makes the databases. With `SCENARIO [COMMIT before|after]`, it runs the scenario,
and prints the number of commits and what is wrong.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import NamedTuple

from examples.orders import database
from tests.crash.harness import EXPIRE
from tests.crash.points import Point, Trap, set_trap
from tests.servers import sqlite

from .matrix import settle
from .shop import Moment, Shop
from .verdict import wrong

ROOT = Path(__file__).parents[2]
ORDER = "a"
LEASE = "1s"
PATIENCE_SECONDS = 300
AT_A_TIME = 3
HASTE = {
    "ORDERS_PAY_TIMEOUT": "1s",
    "ORDERS_PAY_POLL": "20ms",
    **{f"ORDERS_{step}_DELAY": "10ms" for step in ("RESERVE", "PAY", "UPDATE", "COMPENSATE")},
}


class Scenario(NamedTuple):
    """Faults of services, a moment at which the customer cancels, and how the order may end if a process is killed."""

    faults: tuple[tuple[str, str], ...]
    cancel: Moment | None
    statuses: tuple[str, ...]


SCENARIOS = {
    "confirmed": Scenario((), None, ("confirmed",)),
    "retried": Scenario((("reserve", "error"), ("receive", "reset")), None, ("confirmed",)),
    "declined": Scenario((("pay", "refuse"),), None, ("canceled", "confirmed")),
    "reconciled": Scenario((("pay", "reset"),), None, ("confirmed",)),
    "polled": Scenario((("pay", "pending"),), None, ("confirmed",)),
    "canceled": Scenario((), Moment("PUT payments", "before", 1), ("canceled", "refunded", "confirmed")),
    "refunded": Scenario(
        (("refund", "error"), ("release", "reset")), Moment("PUT payments", "after", 1), ("refunded", "confirmed")
    ),
}


# -- The process -------------------------------------------------------------------------------------------------------


async def prepare(folder: Path) -> None:
    """Makes the databases, and publishes the definition of the saga as these processes have configured it."""
    async with Shop.on_files(folder, lease=LEASE):
        pass


async def play(name: str, folder: Path) -> list[str]:
    """Runs the scenario from its beginning. What was done before, it finds done."""
    scenario = SCENARIOS[name]
    accepted = folder / "canceled"
    async with Shop.on_files(folder, lease=LEASE) as shop:

        async def watch(_: str, moment: Moment) -> None:
            if moment == scenario.cancel and await shop.cancel(ORDER) == 202:
                accepted.touch()

        shop.watcher.watch = watch
        for operation, kind in scenario.faults:
            await shop.fault(operation, kind, ORDER)
        await shop.order(ORDER)
        await settle(shop, ORDER)
        while (await shop.service.engine.outbox()).waiting:
            await asyncio.to_thread(lambda: None)
        await shop.quiet()
        found = await wrong(shop, [ORDER])
        status = (await shop.stored(ORDER)).status
    if status not in scenario.statuses:
        found.append(f"the order is {status}")
    if accepted.exists() and status == "confirmed":
        found.append("the order was canceled, and is confirmed")
    return found


def main() -> None:
    folder, *scenario = sys.argv[1:]
    if not scenario:
        asyncio.run(prepare(Path(folder)))
        return
    name, *place = scenario
    point = Point(int(place[0]), "before" if place[1] == "before" else "after") if place else None
    trap = Trap(point)
    set_trap("sqlite", trap, database)
    found = asyncio.run(play(name, Path(folder)))
    sys.stdout.write(json.dumps({"commits": trap.commits, "wrong": found}))


# -- The process that kills it -----------------------------------------------------------------------------------------


class Told(NamedTuple):
    commits: int
    wrong: list[str]


class Outcome(NamedTuple):
    scenario: str
    point: Point
    killed: bool
    wrong: list[str]


def points(scenario: str) -> list[Point]:
    """Every point of a run that is not interrupted."""
    with _place() as folder:
        told = _run(scenario, folder, None)
    assert told is not None
    assert told.wrong == []
    trap = Trap(None)
    trap.commits = told.commits
    return trap.points()


def crash(scenario: str, point: Point) -> Outcome:
    with _place() as folder:
        killed = _run(scenario, folder, point) is None
        if killed:
            _expire(folder)
        told = _run(scenario, folder, None)
    assert told is not None
    return Outcome(scenario, point, killed, told.wrong)


def crash_all(cases: Iterable[tuple[str, Point]]) -> list[Outcome]:
    with ThreadPoolExecutor(AT_A_TIME) as threads:
        return list(threads.map(lambda case: crash(*case), cases))


def _run(scenario: str, folder: Path, point: Point | None) -> Told | None:
    """What the process tells, or None if it was killed at its point."""
    given = [str(part) for part in point] if point else []
    done = _process(folder, scenario, *given)
    if point is not None and done.returncode == -signal.SIGKILL:
        return None
    if done.returncode:
        raise RuntimeError(f"{scenario}, {point}: the process ended with {done.returncode}:\n{done.stderr}")
    return Told(**json.loads(done.stdout))


def _process(folder: Path, *scenario: str) -> subprocess.CompletedProcess[str]:
    """All of them have the same settings: what an engine publishes must not be changed by the next one."""
    command = [sys.executable, "-m", "tests.orders.crash", str(folder), *scenario]
    environment = os.environ | HASTE
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )


def _expire(folder: Path) -> None:
    """The process is dead: its lease is over now, not later."""
    connection = sqlite.connect(f"sqlite:///{folder}/orders.db")
    for statement in EXPIRE:
        connection.execute(statement)
    connection.close()


@contextmanager
def _place() -> Iterator[Path]:
    """A folder with the databases of a shop that nothing was ordered in."""
    with TemporaryDirectory(prefix="tenuto-orders-") as folder:
        shutil.copytree(_template(), folder, dirs_exist_ok=True)
        yield Path(folder)


@cache
def _template() -> Path:
    folder = Path(mkdtemp(prefix="tenuto-orders-"))
    made = _process(folder)
    if made.returncode:
        raise RuntimeError(f"The databases could not be made:\n{made.stderr}")
    return folder


if __name__ == "__main__":
    main()

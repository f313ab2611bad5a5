"""Four sagas on one SQLite file: one is retried, one undone, one asks you, one loses its process and finishes anyway.

`python -m examples.demo` makes pauses, so that you can follow. With `--quick` there are none, and nobody is asked.
"""

import argparse
import asyncio
import io
import os
import sys
import tempfile
from pathlib import Path

from tenuto import Engine

from . import keys
from .news import News, Reporter
from .sagas import BookTrip, Expenses, Trip
from .screen import Screen

ROOT = Path(__file__).parents[2]
LEASE = "2s"  # how long a silent process keeps what it has. The default is 15s; the demo is in a hurry
QUICK_SECONDS = 25
OSLO, ATLANTIS, EXPENSES, PARCEL = ROWS = ("trip to Oslo", "trip to Atlantis", "expenses", "parcel")
STEPS = {
    OSLO: ("flight", "hotel", "pay"),
    ATLANTIS: ("flight", "hotel", "pay"),
    EXPENSES: ("check", "consent", "pay"),
    PARCEL: ("pick", "pack", "ship"),
}


class Story:
    """Runs the four, and notes of each how it ended, and what about that is not as it must be."""

    def __init__(self, engine: Engine, screen: Screen, pace: float, *, asks: bool) -> None:
        self.engine = engine
        self.screen = screen
        self.pace = pace
        self.asks = asks
        self.endings: dict[str, str] = {}
        self.complaints: dict[str, list[str]] = {row: [] for row in ROWS}

    async def tell(self) -> None:
        async with asyncio.TaskGroup() as together:
            for part in (self.oslo(), self.atlantis(), self.expenses(), self.parcel()):
                together.create_task(part)

    def expect(self, row: str, holds: bool, complaint: str) -> None:
        if not holds:
            self.complaints[row].append(complaint)

    async def oslo(self) -> None:
        result = await self.engine.execute(BookTrip, Trip("Oslo"), correlation_id=OSLO)
        attempts = result.steps["hotel"].attempts
        self.endings[OSLO] = f"{result.status}; the hotel took {attempts} attempts"
        self.expect(OSLO, result.succeeded, "it should have succeeded")
        self.expect(OSLO, attempts > 1, "the hotel should have been tried again")

    async def atlantis(self) -> None:
        result = await self.engine.execute(BookTrip, Trip("Atlantis", card="refused"), correlation_id=ATLANTIS)
        self.endings[ATLANTIS] = f"{result.status}; undone: {', '.join(result.compensated_steps)}"
        self.expect(ATLANTIS, result.status == "failed", "it should have failed")
        self.expect(ATLANTIS, result.compensated_steps == ["hotel", "flight"], "undone in reverse, it should have been")

    async def expenses(self) -> None:
        handle = await self.engine.start(Expenses, 120, correlation_id=EXPENSES)
        result = await handle.result()  # comes when it is over, or waits for a person
        self.expect(EXPENSES, result.status == "waiting_approval", "it should have waited for a person")
        self.screen.show(News(EXPENSES, "waits for a person", "consent", "asks"))
        if await self.consent():
            await handle.approve(Expenses.consent, comment="in the demo")
            said, wanted = "yes", "succeeded"
        else:
            await handle.reject(Expenses.consent, comment="in the demo")
            said, wanted = "no", "failed"
        result = await handle.result()
        self.endings[EXPENSES] = f"{result.status}; the answer was {said}"
        self.expect(EXPENSES, result.status == wanted, f"it should have {wanted}")

    async def consent(self) -> bool:
        if not self.asks:
            return True
        self.screen.ask("Pay 120 to Ada? y/n")
        try:
            return await keys.yes_or_no()
        finally:
            self.screen.ask("")

    async def parcel(self) -> None:
        first = await self.send_parcel(killed=True)
        second = await self.send_parcel(killed=False)
        if not first.execution or not second.execution:
            self.expect(PARCEL, False, "a process ended without a word")
            return
        handle = self.engine.get(second.execution)
        result = await handle.result()
        finishers = {attempt["step_id"]: attempt["worker"] for attempt in await handle.history() if attempt["worker"]}
        by = {step: int(worker.rpartition(":")[2]) for step, worker in finishers.items()}
        self.endings[PARCEL] = f"{result.status}; begun in process {by.get('pick')}, finished in {by.get('ship')}"
        self.expect(PARCEL, first.execution == second.execution, "there should have been one execution")
        self.expect(PARCEL, result.succeeded, "it should have succeeded")
        self.expect(PARCEL, by.get("pick") == first.process, "what the first process had done should have stood")
        self.expect(PARCEL, by.get("ship") == second.process, "the second process should have finished it")

    async def send_parcel(self, *, killed: bool) -> News:
        """Another process works on it, until it has finished or is killed. Returns the last that was heard of it."""
        command = [sys.executable, "-m", "examples.demo.parcel", self.engine.url, "--lease", LEASE]
        command += ["--pace", str(self.pace), *(["--doomed"] if killed else [])]
        child = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
        assert child.stdout is not None
        news = News(PARCEL, f"process {child.pid} starts")
        self.screen.show(news)
        try:
            async for line in child.stdout:
                news = News.from_line(line)
                self.screen.show(news)
                if killed and news.step == "pack":
                    await asyncio.sleep(self.pace)
                    child.kill()
                    self.screen.show(News(PARCEL, f"process {child.pid} is killed (SIGKILL)"))
            await child.wait()
        except BaseException:
            if child.returncode is None:
                child.kill()
            raise
        return news


async def run(*, quick: bool) -> int:
    pace = 0.05 if quick else 0.8
    screen = Screen(STEPS)
    with tempfile.TemporaryDirectory(prefix="tenuto-demo-") as folder:
        url = f"sqlite:///{Path(folder) / 'demo.db'}"
        screen.say(f"Four sagas on {url}, in process {os.getpid()} and two others.")
        screen.say()
        async with Engine(url, lease=LEASE, events=[Reporter(screen.show)]) as engine:
            engine.register(BookTrip(pace), Expenses(pace))
            story = Story(engine, screen, pace, asks=keys.can_ask and screen.is_live and not quick)
            try:
                async with asyncio.timeout(QUICK_SECONDS if quick else None):
                    await story.tell()
            except TimeoutError:
                print(f"Not over after {QUICK_SECONDS} s.", file=sys.stderr)
            finally:
                screen.close()
    return conclude(screen, story)


def conclude(screen: Screen, story: Story) -> int:
    print()
    for row, drawn in zip(ROWS, screen.table(), strict=True):
        print(f"{drawn}   {story.endings.get(row, 'not over')}")
        for complaint in story.complaints[row]:
            print(f"      {complaint}")
    wrong = [row for row in ROWS if story.complaints[row] or row not in story.endings]
    print()
    print("All four ended as they must." if not wrong else f"Not as it must be: {', '.join(wrong)}.")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo", description="Four sagas on one SQLite file, shown while they run."
    )
    parser.add_argument("--quick", action="store_true", help="no pauses for the reader, and nobody is asked")
    given = parser.parse_args()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # signs that a terminal cannot show are no reason to stop
    try:
        return asyncio.run(run(quick=given.quick))
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())

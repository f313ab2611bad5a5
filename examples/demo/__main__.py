"""`tenuto dev` with five sagas: one is retried, one undone, one fails, one asks you, one loses its process and goes on.

`python -m examples.demo` makes pauses, so that you can follow, and leaves the service running until Ctrl-C. With
`--quick` there are no pauses, nobody is asked, and it ends by itself.
"""

import argparse
import asyncio
import io
import signal
import sys
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tenuto import Engine, Handle

from . import keys
from .news import News, follow
from .screen import Screen
from .service import Service

QUICK_SECONDS = 90  # on a busy machine; it takes about five
OSLO, ATLANTIS, REFUND, EXPENSES, PARCEL = ROWS = ("trip to Oslo", "trip to Atlantis", "refund", "expenses", "parcel")
STEPS = {
    OSLO: ("flight", "hotel", "pay"),
    ATLANTIS: ("flight", "hotel", "pay"),
    REFUND: ("check", "send"),
    EXPENSES: ("check", "consent", "pay"),
    PARCEL: ("pick", "pack", "ship"),
}
STARTS: dict[str, tuple[str, Any]] = {
    OSLO: ("book-trip", {"city": "Oslo"}),
    ATLANTIS: ("book-trip", {"city": "Atlantis", "card": "refused"}),
    REFUND: ("refund", 40),
    EXPENSES: ("expenses", 120),
    PARCEL: ("parcel", "a tea pot"),
}


class Story:
    """Starts the five, and notes of each how it ended, and what about that is not as it must be."""

    def __init__(self, engine: Engine, service: Service, screen: Screen, *, asks: bool) -> None:
        self.engine = engine
        self.service = service
        self.screen = screen
        self.asks = asks
        self.handles: dict[str, Handle[Any]] = {}
        self.told: dict[str, dict[str, str]] = {row: {} for row in ROWS}
        self.packing = asyncio.Event()
        self.endings: dict[str, str] = {}
        self.complaints: dict[str, list[str]] = {row: [] for row in ROWS}

    async def tell(self) -> None:
        for row, (name, given) in STARTS.items():
            self.handles[row] = await self.engine.start(name, given, correlation_id=row)
        first = self.service.pid
        async with asyncio.TaskGroup() as together:
            parcel = together.create_task(self.follow(PARCEL))
            others = [self.follow(row) for row in ROWS if row != PARCEL]
            await asyncio.gather(self.packing.wait(), *others)
            await self.kill_and_start_again()
            await self.expenses()
            await parcel
        await self.oslo()
        await self.atlantis()
        await self.refund()
        await self.parcel(first)

    async def follow(self, row: str) -> None:
        async for news in follow(self.handles[row], row, self.told[row]):
            self.screen.show(news)
            if row == PARCEL and news.step == "pack":
                self.packing.set()

    async def kill_and_start_again(self) -> None:
        await asyncio.sleep(self.service.pace)
        pid = self.service.pid
        await self.service.kill()
        self.screen.show(News(PARCEL, f"process {pid} is killed (SIGKILL), in the middle of packing"))
        await asyncio.sleep(self.service.pace)
        await self.service.start()
        self.screen.show(News(PARCEL, f"process {self.service.pid} starts, on the same file"))

    def expect(self, row: str, holds: bool, complaint: str) -> None:
        if not holds:
            self.complaints[row].append(complaint)

    async def oslo(self) -> None:
        result = await self.handles[OSLO].result()
        attempts = result.steps["hotel"].attempts
        self.endings[OSLO] = f"{result.status}; the hotel took {attempts} attempts"
        self.expect(OSLO, result.succeeded, "it should have succeeded")
        self.expect(OSLO, attempts > 1, "the hotel should have been tried again")

    async def atlantis(self) -> None:
        result = await self.handles[ATLANTIS].result()
        self.endings[ATLANTIS] = f"{result.status}; undone: {', '.join(result.compensated_steps)}"
        self.expect(ATLANTIS, result.status == "failed", "it should have failed")
        self.expect(ATLANTIS, result.compensated_steps == ["hotel", "flight"], "undone in reverse, it should have been")

    async def refund(self) -> None:
        result = await self.handles[REFUND].result()
        letters = [letter["execution_id"] async for letter in self.engine.dlq(definition="refund")]
        self.endings[REFUND] = f"{result.status}; kept for somebody to look at"
        self.expect(REFUND, result.status == "failed", "it should have failed")
        self.expect(REFUND, letters == [result.execution_id], "it should have left a dead letter")

    async def expenses(self) -> None:
        handle = self.handles[EXPENSES]
        waiting = (await handle.result()).status
        self.expect(EXPENSES, waiting == "waiting_approval", "it should have waited for a person")
        if await self.consent():
            await handle.approve("consent", comment="in the demo")
            said, wanted = "yes", "succeeded"
        else:
            await handle.reject("consent", comment="in the demo")
            said, wanted = "no", "failed"
        await self.follow(EXPENSES)
        status = (await handle.result()).status
        self.endings[EXPENSES] = f"{status}; the answer was {said}"
        self.expect(EXPENSES, status == wanted, f"it should have {wanted}")

    async def consent(self) -> bool:
        if not self.asks:
            return True
        self.screen.ask("Pay 120 to Ada? y/n")
        try:
            return await keys.yes_or_no()
        finally:
            self.screen.ask("")

    async def parcel(self, first: int) -> None:
        handle = self.handles[PARCEL]
        result = await handle.result()
        finishers = {attempt["step_id"]: attempt["worker"] for attempt in await handle.history() if attempt["worker"]}
        by = {step: int(worker.rpartition(":")[2]) for step, worker in finishers.items()}
        self.endings[PARCEL] = f"{result.status}; begun in process {by.get('pick')}, finished in {by.get('ship')}"
        self.expect(PARCEL, result.succeeded, "it should have succeeded")
        self.expect(PARCEL, by.get("pick") == first, "what the first process had done should have stood")
        self.expect(PARCEL, by.get("ship") == self.service.pid, "the second process should have finished it")


async def run(*, quick: bool) -> int:
    _end_in_good_order()
    screen = Screen(STEPS)
    with tempfile.TemporaryDirectory(prefix="tenuto-demo-") as folder:
        service = Service(Path(folder), pace=0.05 if quick else 0.8)
        try:
            await service.start(doomed=True)
            screen.say(f"`tenuto dev` runs in process {service.pid}, on {service.url}. Five sagas are started.")
            screen.say()
            code = await play(service, screen, quick=quick)
            if not quick:
                await stay(service, screen)
        finally:
            screen.close()
            await service.stop()
    return code


def _end_in_good_order() -> None:
    """SIGTERM is like Ctrl-C: the service beside this process is stopped, too."""
    task = asyncio.current_task()
    with suppress(NotImplementedError):  # Windows knows no such signal
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: task and task.cancel())


async def play(service: Service, screen: Screen, *, quick: bool) -> int:
    async with Engine(service.url, worker=False) as engine:
        story = Story(engine, service, screen, asks=keys.can_ask and screen.is_live and not quick)
        try:
            async with asyncio.timeout(QUICK_SECONDS if quick else None):
                await story.tell()
        except TimeoutError:
            print(f"Not over after {QUICK_SECONDS} s.", file=sys.stderr)
        finally:
            screen.close()
    return conclude(screen, story.endings, story.complaints)


def conclude(screen: Screen, endings: dict[str, str], complaints: dict[str, list[str]]) -> int:
    print()  # `say` would draw the live table again, and closing that would erase what is printed here
    for row, drawn in zip(ROWS, screen.table(), strict=True):
        print(f"{drawn}   {endings.get(row, 'not over')}")
        for complaint in complaints[row]:
            print(f"      {complaint}")
    wrong = [row for row in ROWS if complaints[row] or row not in endings]
    print()
    print("All five ended as they must." if not wrong else f"Not as it must be: {', '.join(wrong)}.")
    return 1 if wrong else 0


async def stay(service: Service, screen: Screen) -> None:
    for line in invitation(service):
        print(line, flush=True)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):  # Windows: Ctrl-C is an exception there
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    ended = asyncio.create_task(service.wait())
    told = asyncio.create_task(stop.wait())
    await asyncio.wait([ended, told], return_when=asyncio.FIRST_COMPLETED)
    told.cancel()


def invitation(service: Service) -> Iterable[str]:
    yield ""
    yield f"The service goes on: {service.link}"
    yield f"Its log is {service.log}"
    yield "In another terminal, with the virtual environment active:"
    yield f"  export TENUTO_URL={service.url}"
    yield "  tenuto ls"
    yield "Ctrl-C ends it, and takes its data away."


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo", description="Five sagas in `tenuto dev`, shown while they run."
    )
    parser.add_argument("--quick", action="store_true", help="no pauses for the reader, nobody is asked, and it ends")
    given = parser.parse_args()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # signs that a terminal cannot show are no reason to stop
    try:
        return asyncio.run(run(quick=given.quick))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130


if __name__ == "__main__":
    sys.exit(main())

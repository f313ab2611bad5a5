"""A shop under faults: orders are sent, services fail, the worker is killed, and in the end everything adds up.

`python -m examples.demo` asks you for one approval and leaves the services running until Ctrl-C. With `--quick` it asks
nothing and ends. The exit code is 0 only if the ledger adds up.
"""

import argparse
import asyncio
import io
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import httpx2

from tenuto import Engine

from . import keys
from .customers import IN_FLIGHT, LARGE, PRICES, Customers
from .ledger import settle
from .news import FINAL, News
from .processes import Shop
from .view import View

FRAME_SECONDS = 0.2
IN_TROUBLE = 6  # orders: half of them are being paid when the worker is killed, half are sent while there is none
PATIENCE_SECONDS = 120  # on a busy machine; everything takes about twelve

INTRODUCTION = """\
A shop: for each order, Tenuto reserves stock, takes a payment, and confirms.
Services fail on purpose, and the worker is killed. Every order is completed
or rolled back. Three services and `tenuto dev` are starting.
"""


@dataclass(frozen=True)
class Pace:
    """How many orders are sent, the seconds between two of them, and the seconds without a worker."""

    orders: int
    pause: float
    dead: float


SLOW = Pace(orders=60, pause=0.3, dead=3)
QUICK = Pace(orders=34, pause=0.05, dead=0.5)


class Demo:
    def __init__(self, shop: Shop, engine: Engine, client: httpx2.AsyncClient, pace: Pace, *, asks: bool) -> None:
        self._shop = shop
        self._engine = engine
        self._pace = pace
        self._customers = Customers(shop, client)
        self._client = client
        self.news = News(shop, engine, client)
        self.view = View(self.news)
        self._asks = asks and keys.can_ask and self.view.is_live

    async def run(self) -> int:
        self.view.open()
        watching = asyncio.create_task(self._watch())
        try:
            async with asyncio.timeout(None if self._asks else PATIENCE_SECONDS):
                await self._play()
        except TimeoutError:
            self.news.add(f"not over after {PATIENCE_SECONDS} s", "bad")
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching
            self.view.close()
        ledger = await settle(self._shop, self._customers, self._client)
        self.view.tell(ledger)
        return 1 if ledger.wrong else 0

    async def _play(self) -> None:
        await self._customers.stock()
        self.view.phase(f"Orders come in, services fail. The worker is process {self._shop.worker.pid}.")
        await self._customers.order(LARGE, "pot")
        await self._customers.stream((self._pace.orders - IN_TROUBLE) * 3 // 5, self._pace.pause)
        await self._kill()
        await self._customers.stream(self._pace.orders - len(self._customers.sent), self._pace.pause)
        self.view.phase("All orders are sent. The last ones are being completed.")
        await self._approve()
        await self._until(lambda: self._completed() == len(self._customers.sent))
        self.view.phase("All orders are completed.")

    async def _kill(self) -> None:
        in_flight = [await self._customers.order(IN_FLIGHT) for _ in range(IN_TROUBLE // 2)]
        await self._until(lambda: all(self.news.running.get(order) == "pay" for order in in_flight))
        pid = self._shop.worker.pid
        await self._shop.kill_worker()
        self.view.phase(f"kill -9 {pid}: the worker is dead, {len(in_flight)} payments are in flight.")
        await self._customers.stream(IN_TROUBLE // 2, self._pace.pause)
        await asyncio.sleep(self._pace.dead)
        await self._shop.start_worker()
        self.view.phase(f"Process {self._shop.worker.pid} takes over what the dead worker had.")

    async def _approve(self) -> None:
        await self._until(lambda: bool(self.news.waiting))
        ((order, execution),) = self.news.waiting.items()
        handle = self._engine.get(execution)
        if await self._consent(order):
            await handle.approve("approve", comment="given in the demo")
            self.news.add(f"{order}: approved", "loud")
        else:
            await handle.reject("approve", comment="given in the demo")
            self.news.add(f"{order}: rejected", "loud")

    async def _consent(self, order: str) -> bool:
        if not self._asks:
            return True
        self.view.question = f" {order} is for €{PRICES['pot'] * LARGE.quantity / 100:,.2f}. Approve it? y/n "
        self.view.show()
        try:
            return await keys.yes_or_no()
        finally:
            self.view.question = ""

    async def leave(self) -> dict[str, str]:
        """Leaves an order that waits for an approval. Returns commands, and what they show."""
        waits = await self._customers.order(LARGE, "pot")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while waits not in self.news.waiting:
                await asyncio.sleep(FRAME_SECONDS)
                await self.news.read()
        statuses, executions = self.news.statuses, self.news.executions
        survived = max(self.news.taken_over, key=lambda order: statuses[order] == "confirmed")
        undone = max(self.news.rolled_back, key=lambda order: statuses[order] == "refunded")
        return {
            f"tenuto show {executions[survived]}": f"{survived} survived the killed worker",
            f"tenuto show {executions[undone]}": f"{undone} was rolled back",
            f"tenuto approve {executions[waits]}": f"{waits} waits for you",
            "tenuto ls --status failed": "orders that were refused",
        }

    def _completed(self) -> int:
        return sum(self.news.count(status) for status in FINAL)

    async def _until(self, holds: Callable[[], bool]) -> None:
        while not holds():  # noqa: ASYNC110  (what is waited for is in other processes)
            await asyncio.sleep(FRAME_SECONDS / 2)

    async def _watch(self) -> None:
        while True:
            await self.news.read()
            self.view.show()
            await asyncio.sleep(FRAME_SECONDS)


async def run(pace: Pace, *, stays: bool) -> int:
    _stop_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="tenuto-demo-") as folder:
        shop = Shop(Path(folder))
        try:
            print(INTRODUCTION, flush=True)
            await shop.start()
            async with Engine(shop.database, worker=False) as engine, httpx2.AsyncClient(timeout=30) as client:
                demo = Demo(shop, engine, client, pace, asks=stays)
                code = await demo.run()
                commands = await demo.leave() if stays else {}
            if stays:
                await stay(shop, commands)
        finally:
            await shop.stop()
    return code


def _stop_on_sigterm() -> None:
    """SIGTERM is like Ctrl-C: the processes beside this one are stopped, too."""
    task = asyncio.current_task()
    with suppress(NotImplementedError):  # Windows has no such signal
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: task and task.cancel())


async def stay(shop: Shop, commands: Mapping[str, str]) -> None:
    width = max(map(len, commands))
    shown = "\n".join(f"  {command:<{width}}  # {what}" for command, what in commands.items())
    print(
        f"""
Everything is still running, and everything in it is yours to try:
  Tenuto         {await shop.link()}
  order service  {shop.orders}/docs
  faults         {shop.payment}/docs, {shop.inventory}/docs
  metrics        {shop.tenuto}/metrics
In another terminal, with the virtual environment active:
  export TENUTO_URL={shop.database}
{shown}
Ctrl-C stops it, and removes its data.""",
        flush=True,
    )
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        with suppress(NotImplementedError):  # Windows: Ctrl-C is an exception there
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await stop.wait()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.demo", description="A shop under faults, in a terminal.")
    parser.add_argument("--quick", action="store_true", help="fewer orders, no question, and it ends")
    parser.add_argument("--orders", type=int, help="how many orders are sent (default: 60, or 34 with --quick)")
    given = parser.parse_args()
    pace = QUICK if given.quick else SLOW
    if given.orders is not None:
        pace = replace(pace, orders=given.orders)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # signs that a terminal cannot show are no reason to stop
    try:
        return asyncio.run(run(pace, stays=not given.quick))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130


if __name__ == "__main__":
    sys.exit(main())

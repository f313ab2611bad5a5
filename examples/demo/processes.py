"""The processes of the demo: three services, a consumer of their events, and `tenuto dev`, which runs the sagas."""

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import httpx2

from examples.orders.config import MESSAGES

ROOT = Path(__file__).parents[2]
TENUTO = str(Path(sys.executable).parent / "tenuto")
START_SECONDS = 60  # on a busy machine; it takes about three
STOP_SECONDS = 10

# Short, so that a reader does not wait. The limits of `examples.orders.config` are those of a real shop.
HASTE = {
    "TENUTO_LEASE": "3s",
    "ORDERS_RESERVE_TIMEOUT": "1s",
    "ORDERS_PAY_TIMEOUT": "2s",
    "ORDERS_PAY_POLL": "500ms",
    "ORDERS_COMPENSATE_TIMEOUT": "2s",
}

_LINK = re.compile(r"open\s+(\S+)")
_SIGN_IN = "#token="  # in the links to the console
_READY = "TENUTO_API_KEY="


class Process:
    """A program beside this one, with a log file. Ctrl-C in the terminal does not reach it."""

    def __init__(self, name: str, command: list[str], environment: Mapping[str, str], log: Path) -> None:
        self.name = name
        self._command = command
        self._environment = environment
        self._log = log
        self._running: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        assert self._running is not None
        return self._running.pid

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._running = await asyncio.create_subprocess_exec(
                *self._command, cwd=ROOT, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )

    async def end(self, how: signal.Signals) -> None:
        if self._running is None or self._running.returncode is not None:
            return
        self._running.send_signal(how)
        try:
            await asyncio.wait_for(self._running.wait(), STOP_SECONDS)
        except TimeoutError:
            self._running.kill()
            await self._running.wait()

    async def until(self, text: str, *, after: int = 0) -> str:
        """What the process wrote, as soon as that text is in it."""
        async with asyncio.timeout(START_SECONDS):
            while text not in (written := self._log.read_text(errors="replace")[after:]):
                if self._running is None or self._running.returncode is not None:
                    raise RuntimeError(f"{self.name} has ended before it was ready:\n{written}")
                await asyncio.sleep(0.05)
        return written

    def log_length(self) -> int:
        return len(self._log.read_text(errors="replace")) if self._log.exists() else 0


class Shop:
    """All processes, on files in one folder and on free ports."""

    def __init__(self, folder: Path) -> None:
        orders, inventory, payment, consumer, dev = _free_ports(5)
        self.folder = folder
        self.database = f"sqlite:///{folder / 'orders.db'}"
        self.orders = f"http://127.0.0.1:{orders}"
        self.inventory = f"http://127.0.0.1:{inventory}"
        self.payment = f"http://127.0.0.1:{payment}"
        self.consumer = f"http://127.0.0.1:{consumer}"
        self.tenuto = f"http://127.0.0.1:{dev}"
        self._link = ""  # that `tenuto dev` prints
        self._environment = (
            _without_settings(os.environ)
            | HASTE
            | {
                "PYTHONUNBUFFERED": "1",
                "TENUTO_URL": self.database,
                "TENUTO_PORT": str(dev),
                "TENUTO_MESSAGES": ",".join(MESSAGES),
                "ORDERS_WORKER": "no",
                "ORDERS_DATABASE": self.database,
                "INVENTORY_DATABASE": f"sqlite:///{folder / 'inventory.db'}",
                "PAYMENT_DATABASE": f"sqlite:///{folder / 'payment.db'}",
                "CONSUMER_DATABASE": f"sqlite:///{folder / 'consumer.db'}",
                "INVENTORY_URL": self.inventory,
                "PAYMENT_URL": self.payment,
                "CONSUMER_URL": self.consumer,
            }
        )
        self._services = [
            self._service("inventory", inventory),
            self._service("payment", payment),
            self._service("consumer", consumer),
            self._service("service", orders),
        ]
        command = [TENUTO, "dev", "--app", "examples.orders.worker:sagas"]
        self.worker = Process("tenuto dev", command, self._environment, folder / "worker.log")

    async def start(self) -> None:
        await asyncio.gather(self.start_worker(), *(process.start() for process in self._services))
        async with httpx2.AsyncClient() as client, asyncio.timeout(START_SECONDS):
            for process, url in zip(
                self._services, (self.inventory, self.payment, self.consumer, self.orders), strict=True
            ):
                await self._answering(client, process, url)

    async def start_worker(self) -> None:
        """Returns when it runs sagas."""
        before = self.worker.log_length()
        await self.worker.start()
        link = _LINK.search(await self.worker.until(_READY, after=before))
        assert link is not None
        self._link = link[1]

    async def kill_worker(self) -> None:
        """As a power cut would."""
        await self.worker.end(signal.SIGKILL)

    async def stop(self) -> None:
        await asyncio.gather(*(process.end(signal.SIGTERM) for process in (*self._services, self.worker)))

    async def check(self) -> tuple[bool, str]:
        """`tenuto check`: whether it finds nothing, and what it prints."""
        return await self._tenuto("check", self.database)

    async def link(self) -> str:
        """A link to the console that has not expired. If this installation has none, to the API's documentation."""
        if _SIGN_IN not in self._link:
            return self._link
        return (await self._tenuto("console"))[1]

    async def _tenuto(self, *arguments: str) -> tuple[bool, str]:
        process = await asyncio.create_subprocess_exec(
            TENUTO, *arguments, cwd=ROOT, env=self._environment,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        printed, _ = await process.communicate()
        return process.returncode == 0, printed.decode().strip()

    def _service(self, module: str, port: int) -> Process:
        command = [sys.executable, "-m", "uvicorn", "--factory", f"examples.orders.{module}:create_app"]
        options = ["--port", str(port), "--log-level", "warning"]
        return Process(module, [*command, *options], self._environment, self.folder / f"{module}.log")

    async def _answering(self, client: httpx2.AsyncClient, process: Process, url: str) -> None:
        while True:
            with suppress(httpx2.TransportError):
                await client.get(f"{url}/openapi.json")
                return
            await process.until("")  # raises if it has ended
            await asyncio.sleep(0.05)


def _free_ports(number: int) -> list[int]:
    sockets = [socket.socket() for _ in range(number)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _without_settings(given: Mapping[str, str]) -> dict[str, str]:
    """The settings of another engine that the reader may have are not those of the demo."""
    return {name: value for name, value in given.items() if not name.startswith(("TENUTO_", "ORDERS_"))}

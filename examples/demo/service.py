"""`tenuto dev` as a process beside this one: it is started, killed, and started again."""

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TENUTO = str(Path(sys.executable).parent / "tenuto")
LEASE = "2s"  # how long a silent process keeps what it has. The default is 15s; the demo is in a hurry

_ADDRESS = re.compile(r"export TENUTO_SERVER=\S+:(\d+) TENUTO_API_KEY=\S+\n")
_LINK = re.compile(r"open\s+(\S+)")


class Service:
    def __init__(self, folder: Path, pace: float) -> None:
        self.url = f"sqlite:///{folder / 'demo.db'}"
        self.log = folder / "service.log"
        self.pace = pace
        self.link = ""
        self._port = "0"
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self, *, doomed: bool = False) -> None:
        """Returns when it answers. One that is doomed waits for its end in the middle of its work."""
        environment = {**os.environ, "TENUTO_URL": self.url, "TENUTO_LEASE": LEASE, "DEMO_PACE": str(self.pace)}
        environment.pop("TENUTO_APP", None)
        if doomed:
            environment["DEMO_DOOMED"] = "yes"
        with self.log.open("ab") as log:
            self._process = process = await asyncio.create_subprocess_exec(
                TENUTO,
                *("dev", "--app", "examples.demo.sagas", "--port", self._port),
                cwd=ROOT,
                env={**environment, "PYTHONUNBUFFERED": "1"},
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        assert process.stdout is not None
        said = ""
        while (found := _ADDRESS.search(said)) is None:
            line = await process.stdout.readline()
            if not line:
                raise RuntimeError(f"tenuto dev ended before it was ready: {said}{self.log.read_text()}")
            said += line.decode()
        self._port = found[1]
        link = _LINK.search(said)
        assert link is not None
        self.link = link[1]
        self._reading = asyncio.create_task(_read_on(process.stdout))

    async def kill(self) -> None:
        """As a power cut would: without a word to it."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        await self._end(signal.SIGTERM)

    async def wait(self) -> None:
        """Until it ends; that is Ctrl-C, which reaches it too."""
        if self._process is not None:
            await self._process.wait()

    async def _end(self, how: signal.Signals) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            process.send_signal(how)
            await process.wait()
        if self._reading is not None:
            await self._reading


async def _read_on(said: asyncio.StreamReader) -> None:
    """What it says later is read, so that it can go on saying it."""
    while await said.read(65_536):
        pass

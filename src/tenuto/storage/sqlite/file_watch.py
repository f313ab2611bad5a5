"""Hints between processes on one SQLite file: whether another process has written to it.

Every write changes the modification time of the write-ahead log, which is cheap to read. If it changed, `PRAGMA
data_version` tells whether another connection wrote.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from tenuto.errors import StorageError
from tenuto.storage.port import EVERYTHING, Hints
from tenuto.values.jitter import spread

BUSY_SECONDS = 0.005  # between checks while another process writes
IDLE_SECONDS = 0.02
SETTLED_NS = 100_000_000  # a file's time may be as coarse as this: what is younger may hide another write
COOLING = 0.05  # so much nearer to idle with every look that finds nothing


class Watch:
    def __init__(self, path: str, version: Callable[[], Awaitable[int]], hear: Callable[[Hints], None]) -> None:
        self._log = f"{path}-wal"
        self._version = version
        self._hear = hear
        self._task = asyncio.create_task(self._keep_looking())

    async def _keep_looking(self) -> None:
        wait, written, seen = IDLE_SECONDS, 0, -1
        while True:
            await asyncio.sleep(spread(wait))
            wait += (IDLE_SECONDS - wait) * COOLING
            found = self._written()
            if found == written and abs(time.time_ns() - found) > SETTLED_NS:
                continue
            written = found
            with suppress(StorageError):
                version = await self._version()
                if version != seen:
                    seen, wait = version, BUSY_SECONDS
                    self._hear(EVERYTHING)

    def _written(self) -> int:
        try:
            return os.stat(self._log).st_mtime_ns
        except OSError:  # the log is made with the first write, and may be out of reach for a while
            return 0

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])

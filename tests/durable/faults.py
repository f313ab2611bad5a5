"""Faults between a runtime and its database: a store whose commits go wrong by a script, and a wire that is cut."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Literal

from tenuto.errors import StorageError
from tenuto.storage.port import Append, Batch, Committed, Store

Fault = Literal["lost", "applied", "late"]
Forward = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class FaultyStore:
    """A real store. The next commits have these faults, one each; everything else is passed on.

    `lost`: it never arrived. `applied`: it did, and the answer was lost. `late`: it is applied after the worker looked.
    """

    def __init__(self, store: Store, *faults: Fault) -> None:
        self._store = store
        self.faults = list(faults)
        self._late: Batch | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def commit(self, batch: Batch) -> Committed:
        fault = self.faults.pop(0) if self.faults else None
        if fault is None:
            return await self._store.commit(batch)
        if fault == "applied":
            await self._store.commit(batch)
        elif fault == "late":
            self._late = batch
        raise StorageError("the connection was lost", code="unreachable")

    async def written(self, appends: list[Append]) -> list[bool]:
        found = await self._store.written(appends)
        if self._late is not None:
            await self._store.commit(self._late)
            self._late = None
        return found


class Wire:
    """A TCP proxy in front of a server. `cut` breaks all connections, without a word to either side."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._open: dict[asyncio.StreamWriter, None] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._server: asyncio.Server
        self.replies_until_cut: int | None = None

    async def open(self) -> int:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self._to)
        except OSError:
            writer.transport.abort()
            return
        for source, target, is_reply in ((reader, other_writer, False), (other_reader, writer, True)):
            self._open[target] = None
            task = asyncio.create_task(self._pass_on(source, target, is_reply=is_reply))
            self._tasks[task] = None
            task.add_done_callback(self._tasks.pop)

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, is_reply: bool) -> None:
        with suppress(OSError):
            while data := await source.read(1 << 16):
                if is_reply and self._is_last():
                    self.cut()
                    return
                target.write(data)
                await target.drain()
        target.transport.abort()
        self._open.pop(target, None)

    def _is_last(self) -> bool:
        """Whether this reply is the one that does not arrive."""
        if self.replies_until_cut is None:
            return False
        self.replies_until_cut -= 1
        if self.replies_until_cut >= 0:
            return False
        self.replies_until_cut = None
        return True

    def cut(self) -> None:
        for writer in self._open:
            writer.transport.abort()
        self._open.clear()

    async def close(self) -> None:
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

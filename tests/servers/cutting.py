"""A proxy that loses what a test tells it to lose: answers whole, or streams in the middle."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final
from urllib.parse import urlsplit

HEAD_END: Final = b"\r\n\r\n"

Fate = Callable[[str], int | None]


class Cutter:
    """`fate(request line)` says after how many bytes of the answer the line is cut; None leaves it whole.

    `seen` are the request lines that went through to the service, all of which it answered.
    """

    def __init__(self, upstream: str) -> None:
        parts = urlsplit(upstream)
        assert parts.hostname is not None
        assert parts.port is not None
        self._at = (parts.hostname, parts.port)
        self.fate: Fate = lambda line: None
        self.seen: list[str] = []
        self._lines: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._lines.add(task)
        task.add_done_callback(self._lines.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request for each connection: the service is asked to close it."""
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                head = await reader.readuntil(HEAD_END)
                line = head.split(b"\r\n", 1)[0].decode()
                body = await reader.readexactly(_length(head))
                up_reader, up_writer = await asyncio.open_connection(*self._at)
                up_writer.write(head.replace(HEAD_END, b"\r\nConnection: close" + HEAD_END) + body)
                await self._carry(line, up_reader, writer)
                up_writer.close()
        finally:
            writer.close()

    async def _carry(self, line: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        left = self.fate(line)
        first = await reader.read(65_536)
        self.seen.append(line)
        while first:
            writer.write(first if left is None else first[:left])
            await writer.drain()
            if left is not None and (left := left - len(first)) <= 0:
                return
            first = await reader.read(65_536)

    async def close(self) -> None:
        for task in list(self._lines):
            task.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


@asynccontextmanager
async def cutting(upstream: str) -> AsyncIterator[tuple[str, Cutter]]:
    """The proxy's address, and the proxy."""
    cutter = Cutter(upstream)
    server = await asyncio.start_server(cutter.accept, "127.0.0.1", 0)
    try:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}", cutter
    finally:
        server.close()
        await cutter.close()

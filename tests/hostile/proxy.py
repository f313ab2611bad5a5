"""A TCP proxy in front of PostgreSQL that knows when something is committed, and cuts the connection at that moment.

It reads the messages of the client as far as it must: a type, a length, the text of statements and their names. A
commit is a statement that writes, executed on its own, or the word COMMIT of a transaction. It can also answer for the
server that its disk is full: then the statement never gets there. Or it passes on nothing, in one direction or in both,
and nobody is told.
"""

import asyncio
import struct
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Literal

# The commit never reaches the server; it is sent, and both sides are cut at once; it is answered, and the answer lost.
Cut = Literal["before it is sent", "after it is sent", "after it is answered"]
CUTS: tuple[Cut, ...] = ("before it is sent", "after it is sent", "after it is answered")

SSL_REQUEST, CANCEL_REQUEST = 80877103, 80877102
EVENTS = b"INSERT INTO events"
COMMIT = b"COMMIT"
OTHERS = {
    b"UPDATE executions e SET owner": "a claim",
    b"INSERT INTO mailbox": "a letter",
    b"UPDATE tasks": "a task",
}
"""What is written beside events, each by a statement of its own or in a transaction."""
DISK_FULL = {b"S": b"ERROR", b"V": b"ERROR", b"C": b"53100", b"M": b"could not extend file: No space left on device"}


class Proxy:
    def __init__(
        self, port: int, wanted: Callable[[], Cut | None], at: Mapping[bytes, str] = {EVENTS: "events"}
    ) -> None:
        """`at`: parts of the statements that are cut, and what they are called."""
        self.at = at
        self._port = port
        self._wanted = wanted
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()
        self.cuts: dict[str, int] = {}
        self.is_full = False
        self.refused = 0  # because the disk was full
        self.hears, self.speaks = (
            asyncio.Event(),
            asyncio.Event(),
        )  # unset: what clients say, or the server, is held back
        self.hears.set()
        self.speaks.set()
        self.port = 0

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._server is not None
        self._server.close()
        for link in self._links:
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        to_server: asyncio.StreamWriter | None = None
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._port)
            link = _Link(self, reader, writer, from_server, to_server)
            with suppress(OSError, asyncio.IncompleteReadError):
                await link.run()
        except (OSError, asyncio.CancelledError):
            pass  # the server is away, or the proxy is closed
        finally:
            for end in (writer, to_server):
                if end is not None:
                    end.transport.abort()
            self._links.discard(task)

    def next_cut(self, what: str) -> Cut | None:
        cut = self._wanted()
        if cut is not None:
            self.cuts[what] = self.cuts.get(what, 0) + 1
        return cut


class _Link:
    """One connection of a client, and the one to the server that belongs to it."""

    def __init__(
        self,
        proxy: Proxy,
        from_client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        from_server: asyncio.StreamReader,
        to_server: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._from_client = from_client
        self._to_client = to_client
        self._from_server = from_server
        self._to_server = to_server
        self._writing: set[bytes] = set()  # names of statements that write events
        self._named: dict[bytes, str] = {}  # what statements are that are cut; empty for others
        self._armed = ""
        self._touched = ""  # by the transaction that is open
        self._refusing = False
        self._in_transaction = False
        self._mute = asyncio.Event()

    async def run(self) -> None:
        await self._greet()
        both = [asyncio.create_task(self._upwards()), asyncio.create_task(self._downwards())]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)

    async def _greet(self) -> None:
        while True:
            head = await self._from_client.readexactly(8)
            await self._proxy.hears.wait()
            length, code = struct.unpack("!ii", head)
            self._to_server.write(head + await self._from_client.readexactly(length - 8))
            if code != SSL_REQUEST:
                return
            self._to_client.write(await self._from_server.readexactly(1))

    async def _downwards(self) -> None:
        while chunk := await self._from_server.read(65_536):
            if self._mute.is_set():
                return  # it was answered, and nobody hears it
            await self._proxy.speaks.wait()
            self._to_client.write(chunk)
            await self._to_client.drain()

    async def _upwards(self) -> None:
        while True:
            kind = await self._from_client.readexactly(1)
            size = await self._from_client.readexactly(4)
            body = await self._from_client.readexactly(struct.unpack("!i", size)[0] - 4)
            await self._proxy.hears.wait()
            if self._refuses(kind, body):
                continue
            what = self._commits(kind, body)
            cut = self._proxy.next_cut(what) if what else None
            if cut == "before it is sent":
                return
            if cut == "after it is answered":
                self._mute.set()
            self._to_server.write(kind + size + body)
            await self._to_server.drain()
            if cut == "after it is sent":
                return
            if cut == "after it is answered":
                await asyncio.Event().wait()  # until the answer has come, which ends the link

    def _refuses(self, kind: bytes, body: bytes) -> bool:
        """Whether the server is not to hear of this: a statement that writes, when there is no room for it."""
        if kind == b"B" and self._proxy.is_full and body.split(b"\0", 2)[1] in self._writing:
            self._refusing = True
        if not self._refusing:
            return False
        if kind == b"S":
            self._refusing = False
            self._proxy.refused += 1
            self._to_client.write(_error(DISK_FULL) + _message(b"Z", b"E" if self._in_transaction else b"I"))
        return True

    def _commits(self, kind: bytes, body: bytes) -> str:
        """What this commits; empty, if nothing that is cut."""
        if kind == b"Q":  # a plain query
            if body.startswith(b"BEGIN"):
                self._in_transaction, self._touched = True, ""
            self._in_transaction = self._in_transaction and not _ends(body)
            return self._touched if body.startswith(COMMIT) else ""
        if kind == b"P":  # parse: a name, a text
            name, text, _ = body.split(b"\0", 2)
            if EVENTS in text:
                self._writing.add(name)
            self._named[name] = next((what for part, what in self._proxy.at.items() if part in text), "")
        elif kind == b"B":  # bind: a portal, the name of a statement
            _, name, _ = body.split(b"\0", 2)
            what = self._named.get(name, "")
            if self._in_transaction:
                self._touched = what or self._touched
            else:
                self._armed = what
        elif kind == b"S":  # sync: what was bound is carried out, and committed unless in a transaction
            armed, self._armed = self._armed, ""
            return armed
        return ""


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack("!i", len(body) + 4) + body


def _error(fields: dict[bytes, bytes]) -> bytes:
    return _message(b"E", b"".join(key + text + b"\0" for key, text in fields.items()) + b"\0")


def _ends(body: bytes) -> bool:
    return body.startswith((b"COMMIT", b"ROLLBACK"))

"""Load over HTTP, from a process of its own: `python -m benchmarks.programs.http_client HOST PORT [KEY]`.

A client that costs next to nothing, so that what is measured is the service: connections that are kept, requests that
are bytes, and of an answer only its status, its length and its body.
"""

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.runner import Answer, Load, obey

DEFINITION = "http-create"
CREATE = "/v1/executions"
LIMITS = "/v1/tenant-limits"
BODY = json.dumps({"definition": DEFINITION, "input": {"amount": 1200, "to": "ann"}}).encode()
PAUSE_S = 0.02


class Refused(Exception):
    """An answer that was not expected."""


@dataclass
class Address:
    host: str
    port: int
    key: str
    connections: list["Connection"] = field(default_factory=list)

    async def connect(self) -> "Connection":
        made = Connection(self, *await asyncio.open_connection(self.host, self.port))
        self.connections.append(made)
        return made

    async def connected(self, number: int) -> list["Connection"]:
        """So many connections, those that are there already among them."""
        while len(self.connections) < number:
            await self.connect()
        return self.connections[:number]


class Connection:
    def __init__(self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        who = f"Authorization: Bearer {address.key}\r\n" if address.key else ""
        self._head = f"Host: {address.host}:{address.port}\r\n{who}"
        self.says_when = False  # the last answer said when to come again

    async def ask(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
        extra = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
        self._writer.write(f"{method} {path} HTTP/1.1\r\n{self._head}{kind}{extra}\r\n".encode() + body)
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        status = int(head[9:12])
        self.says_when = b"\r\nretry-after:" in head
        at = head.find(b"content-length:")
        length = int(head[at + 15 : head.index(b"\r", at)]) if at >= 0 else 0
        return status, await self._reader.readexactly(length) if length else b""

    async def wanted(self, status: int, method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
        found, answer = await self.ask(method, path, body, **headers)
        if found != status:
            raise Refused(f"{method} {path}: {found} {answer[:300].decode(errors='replace')}")
        return answer

    def close(self) -> None:
        self._writer.close()


class CreatedOrRefused:
    """What became of requests to start something."""

    def __init__(self) -> None:
        self._run = f"{time.time_ns():x}"
        self._number = 0
        self._accepted: list[float] = []
        self._refused: list[float] = []
        self._without_when = 0

    async def create(self, connection: Connection, came: float) -> bool:
        self._number += 1
        status, answer = await connection.ask("POST", CREATE, BODY, Idempotency_Key=f"{self._run}-{self._number}")
        if status not in (201, 429):
            raise Refused(f"{status} {answer[:300].decode(errors='replace')}")
        (self._accepted if status == 201 else self._refused).append(time.perf_counter() - came)
        self._without_when += status == 429 and not connection.says_when
        return status == 201

    async def counted(self, until: float, under_way: list["asyncio.Task[None]"]) -> Answer:
        """From now until then. Those under way are waited for, and do not count."""
        at, accepted, refused = time.perf_counter(), len(self._accepted), len(self._refused)
        await asyncio.sleep(until - at)
        seconds = time.perf_counter() - at
        counts = {"accepted": self._accepted[accepted:], "refused": self._refused[refused:], "seconds": seconds}
        await asyncio.gather(*under_way)
        return {**counts, "without_when": self._without_when}


class Commands:
    def __init__(self, address: Address) -> None:
        self._address = address
        self._ids: list[str] = []
        self._number = 0

    async def define(self, *, document: dict[str, Any]) -> Answer:
        (connection,) = await self._address.connected(1)
        await connection.wanted(201, "POST", "/v1/definitions", json.dumps(document).encode())
        at = f"/v1/definitions/{document['name']}/{document['version']}"
        await connection.wanted(200, "POST", f"{at}:publish", b"{}")
        return {}

    async def create(self, *, seconds: float, lanes: int) -> Answer:
        """As many creations as can be, each with an idempotency key of its own."""

        async def once(connection: Connection) -> None:
            self._number += 1
            answer = await connection.wanted(201, "POST", CREATE, BODY, Idempotency_Key=f"k-{self._number}")
            if len(self._ids) < 10_000:
                self._ids.append(json.loads(answer)["execution_id"])

        return await self._load(once, seconds, lanes)

    async def read(self, *, seconds: float, lanes: int) -> Answer:
        """As many reads as can be, of executions that were created before."""
        if not self._ids:
            raise Refused("nothing was created")

        async def once(connection: Connection) -> None:
            self._number += 1
            await connection.wanted(200, "GET", f"{CREATE}/{self._ids[self._number % len(self._ids)]}")

        return await self._load(once, seconds, lanes)

    async def limit(self, *, tenant: str, at_most: int) -> Answer:
        (connection,) = await self._address.connected(1)
        body = json.dumps({"max_in_flight": at_most}).encode()
        await connection.wanted(204, "PUT", f"/v1/tenant-limits/{tenant}", body)
        return {}

    async def drain(self) -> Answer:
        """Until nothing is in flight of any tenant that has a limit."""
        (connection,) = await self._address.connected(1)
        while True:
            rows = json.loads(await connection.wanted(200, "GET", LIMITS))["items"]
            if not any(row["in_flight"] for row in rows):
                return {}
            await asyncio.sleep(PAUSE_S)

    async def best(self, *, lead: float, seconds: float, lanes: int) -> Answer:
        """As many creations as are accepted; whoever is refused comes again soon."""
        load = CreatedOrRefused()
        connections = await self._address.connected(lanes)
        began = time.perf_counter()

        async def lane(connection: Connection) -> None:
            while time.perf_counter() - began < lead + seconds:
                if not await load.create(connection, time.perf_counter()):
                    await asyncio.sleep(PAUSE_S)

        lanes_under_way = [asyncio.create_task(lane(connection)) for connection in connections]
        await asyncio.sleep(lead)
        return await load.counted(began + lead + seconds, lanes_under_way)

    async def offer(self, *, lead: float, seconds: float, lanes: int, rate: float) -> Answer:
        """Requests come at this rate, whatever becomes of the earlier ones; each waits for a free connection."""
        load = CreatedOrRefused()
        free: asyncio.LifoQueue[Connection] = asyncio.LifoQueue()
        for connection in await self._address.connected(lanes):
            free.put_nowait(connection)

        async def one() -> None:
            came = time.perf_counter()
            connection = await free.get()
            await load.create(connection, came)
            free.put_nowait(connection)

        coming = Load(one)
        began = time.perf_counter()
        await coming.come(began, lead, rate)
        under_way = asyncio.create_task(coming.come(began, lead + seconds, rate))
        answer = await load.counted(began + lead + seconds, [under_way])
        await coming.drain()
        return answer

    async def pages(self, *, path: str, seconds: float, at_most: int) -> Answer:
        """One page at a time, the same again and again. `items` tells whether there was anything on it."""
        (connection,) = await self._address.connected(1)
        each: list[float] = []
        items = 0
        began = time.perf_counter()
        while not each or (len(each) < at_most and time.perf_counter() - began < seconds):
            at = time.perf_counter()
            answer = await connection.wanted(200, "GET", path)
            each.append(time.perf_counter() - at)
            items = len(json.loads(answer)["items"])
        return {"each": each, "items": items}

    async def walk(self, *, path: str, pages: int) -> Answer:
        """So many pages in a row; the cursor that the last of them gives."""
        (connection,) = await self._address.connected(1)
        cursor = None
        for _ in range(pages):
            answer = json.loads(await connection.wanted(200, "GET", f"{path}{f'&cursor={cursor}' if cursor else ''}"))
            cursor = answer["next_cursor"]
        return {"cursor": cursor}

    async def _load(self, once: Callable[[Connection], Any], seconds: float, lanes: int) -> Answer:
        connections = await self._address.connected(lanes)
        each: list[float] = []
        began = time.perf_counter()

        async def lane(connection: Connection) -> None:
            while (at := time.perf_counter()) - began < seconds:
                await once(connection)
                each.append(time.perf_counter() - at)

        await asyncio.gather(*(lane(connection) for connection in connections))
        return {"each": each, "seconds": time.perf_counter() - began}


@asynccontextmanager
async def opening(options: argparse.Namespace) -> AsyncIterator[Address]:
    address = Address(options.host, options.port, options.key)
    try:
        yield address
    finally:
        for connection in address.connections:
            connection.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("key", nargs="?", default="")
    obey(opening(parser.parse_args()), Commands)

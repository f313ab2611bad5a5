"""Load over HTTP, from a process of its own: `python -m benchmarks.programs.http_client HOST PORT [KEY]`.

A client that costs next to nothing, so that what is measured is the service: connections that are kept, requests that
are bytes, and of an answer only its status, its length and its body. Nothing here makes a task or a stream of what can
be a callback: beside a service and a worker on two processors, what the client takes is missing there.
"""

import argparse
import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from benchmarks.runner import TURN_S, Answer, obey

DEFINITION = "http-create"
CREATE = "/v1/executions"
LIMITS = "/v1/tenant-limits"
BODY = json.dumps({"definition": DEFINITION, "input": {"amount": 1200, "to": "ann"}}).encode()
PAUSE_S = 0.02
AGAIN_S = 0.1  # after a refusal


class Refused(Exception):
    """An answer that was not expected."""


@dataclass(frozen=True)
class Reply:
    status: int
    body: bytes
    says_when: bool  # to come again


@dataclass
class Address:
    host: str
    port: int
    key: str
    connections: list["Connection"] = field(default_factory=list)

    async def connect(self) -> None:
        made = Connection(self)
        await asyncio.get_running_loop().create_connection(lambda: made, self.host, self.port)
        self.connections.append(made)

    async def connected(self, number: int) -> list["Connection"]:
        """So many connections, those that are there already among them. The service closes what is never used."""
        self.connections = [connection for connection in self.connections if connection.is_open]
        while len(self.connections) < number:
            await self.connect()
        return self.connections[:number]


class Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self, address: Address) -> None:
        who = f"Authorization: Bearer {address.key}\r\n" if address.key else ""
        self._head = f"Host: {address.host}:{address.port}\r\n{who}"
        self._transport: asyncio.Transport
        self.is_open = True
        self._come = b""
        self._then: Callable[[Reply | None], None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvloop's is its own
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._come += data
        end = self._come.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self._come[: end + 2].lower()
        at = head.find(b"\r\ncontent-length:")
        length = int(head[at + 17 : head.index(b"\r", at + 2)]) if at >= 0 else 0
        if len(self._come) < end + 4 + length:
            return
        body, self._come = self._come[end + 4 : end + 4 + length], self._come[end + 4 + length :]
        self._tell(Reply(int(head[9:12]), body, b"\r\nretry-after:" in head))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._tell(None)

    def _tell(self, reply: Reply | None) -> None:
        then, self._then = self._then, None
        if then is not None:
            then(reply)

    def send(self, then: Callable[[Reply | None], None], method: str, path: str, body: bytes, extra: str = "") -> None:
        """`then` gets the answer; None if the connection was lost before it came."""
        kind = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
        self._then = then
        self._transport.write(f"{method} {path} HTTP/1.1\r\n{self._head}{kind}{extra}\r\n".encode() + body)

    async def ask(self, method: str, path: str, body: bytes = b"", extra: str = "") -> Reply:
        answered: asyncio.Future[Reply | None] = asyncio.get_running_loop().create_future()
        self.send(answered.set_result, method, path, body, extra)
        reply = await answered
        if reply is None:
            raise Refused(f"{method} {path}: the connection was lost")
        return reply

    async def wanted(self, status: int, method: str, path: str, body: bytes = b"", extra: str = "") -> bytes:
        reply = await self.ask(method, path, body, extra)
        if reply.status != status:
            raise Refused(f"{method} {path}: {reply.status} {reply.body[:300].decode(errors='replace')}")
        return reply.body

    def close(self) -> None:
        self._transport.close()


class Creations:
    """Requests to start something, over so many connections, and what became of them."""

    def __init__(self, connections: list[Connection]) -> None:
        self._run = f"{time.time_ns():x}"
        self._free = deque(connections)  # in turn: the service does not keep one that never asks anything
        self._waiting: deque[tuple[float, Callable[[bool], None] | None]] = deque()  # since when, for a connection
        self._number = 0
        self._under_way = 0
        self._accepted: list[float] = []
        self._refused: list[float] = []
        self._slips: list[float] = []
        self._without_when = 0
        self._trouble = ""

    def come(self, then: Callable[[bool], None] | None = None) -> None:
        """Now, whatever became of the earlier ones. `then` is told whether it was accepted."""
        came = time.perf_counter()
        while self._free and not self._free[0].is_open:
            self._free.popleft()
        if self._free:
            self._send(self._free.popleft(), came, then)
        else:
            self._waiting.append((came, then))

    def _send(self, connection: Connection, came: float, then: Callable[[bool], None] | None) -> None:
        def answered(reply: Reply | None) -> None:
            self._under_way -= 1
            if reply is None or reply.status not in (201, 429):
                self._trouble = "a connection was lost" if reply is None else f"{reply.status} {reply.body[:300]!r}"
                return
            (self._accepted if reply.status == 201 else self._refused).append(time.perf_counter() - came)
            self._without_when += reply.status == 429 and not reply.says_when
            if self._waiting:
                self._send(connection, *self._waiting.popleft())
            else:
                self._free.append(connection)
            if then is not None:
                then(reply.status == 201)

        self._number += 1
        self._under_way += 1
        connection.send(answered, "POST", CREATE, BODY, f"Idempotency-Key: {self._run}-{self._number}\r\n")

    async def offer(self, began: float, since: float, until: float, rate: float) -> None:
        """At this rate, from so many seconds after a moment until so many after it. Notes how late each one is sent."""
        number = int(since * rate)
        while (now := time.perf_counter() - began) < until:
            while number < int(now * rate):
                number += 1
                self._slips.append(time.perf_counter() - began - number / rate)
                self.come()
            self._check()
            await asyncio.sleep(TURN_S)

    async def counted(self, seconds: float) -> Answer:
        """From now on, for so long."""
        at, accepted, refused, slips = time.perf_counter(), len(self._accepted), len(self._refused), len(self._slips)
        await asyncio.sleep(seconds)
        took = time.perf_counter() - at
        counts = {"accepted": self._accepted[accepted:], "refused": self._refused[refused:], "seconds": took}
        return {**counts, "slips": self._slips[slips:], "without_when": self._without_when}

    async def drain(self) -> None:
        while self._under_way:
            self._check()
            await asyncio.sleep(TURN_S)
        self._check()

    def _check(self) -> None:
        if self._trouble:
            raise Refused(self._trouble)


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
            answer = await connection.wanted(201, "POST", CREATE, BODY, f"Idempotency-Key: k-{self._number}\r\n")
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
        """Until nothing is in flight of any tenant that has a limit. All that there was must have succeeded."""
        (connection,) = await self._address.connected(1)
        while True:
            rows = json.loads(await connection.wanted(200, "GET", LIMITS))["items"]
            if not any(row["in_flight"] for row in rows):
                break
            await asyncio.sleep(PAUSE_S)
        counts = json.loads(await connection.wanted(200, "GET", f"{CREATE}:count"))["counts"]
        if set(counts) - {"succeeded"}:
            raise Refused(f"not all that was created has succeeded: {counts}")
        return {}

    async def best(self, *, lead: float, seconds: float, lanes: int) -> Answer:
        """As many creations as are accepted; whoever is refused comes again a little later."""
        load = Creations(await self._address.connected(lanes))
        loop = asyncio.get_running_loop()
        ends = time.perf_counter() + lead + seconds

        def come(was_accepted: bool = True) -> None:
            if time.perf_counter() < ends and was_accepted:
                load.come(come)
            elif time.perf_counter() < ends:
                loop.call_later(AGAIN_S, come)

        for _ in range(lanes):
            come()
        await asyncio.sleep(lead)
        answer = await load.counted(seconds)
        await load.drain()
        return answer

    async def offer(self, *, lead: float, seconds: float, lanes: int, rate: float) -> Answer:
        """Requests come at this rate, whatever becomes of the earlier ones; each waits for a free connection."""
        load = Creations(await self._address.connected(lanes))
        began = time.perf_counter()
        await load.offer(began, 0.0, lead, rate)
        coming = asyncio.create_task(load.offer(began, lead, lead + seconds, rate))
        answer = await load.counted(began + lead + seconds - time.perf_counter())
        await coming
        await load.drain()
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

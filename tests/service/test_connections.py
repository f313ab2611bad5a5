"""Connections that ask nothing: they are not kept, and however many there are, others are heard."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest
from starlette.types import Receive, Scope, Send

from tenuto.service import connection
from tenuto.service.connection import MAX_HEAD_BYTES, MAX_HEADERS, MAX_PIPELINED, Connection, Peers
from tenuto.service.http.client_address import TrustedProxies
from tenuto.settings import Settings
from tests.servers.http import serving
from tests.service.conftest import MakeSite

REQUEST = b"GET /healthz HTTP/1.1\r\nHost: tenuto\r\n\r\n"


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'tenuto.db'}"


@pytest.fixture
async def address(make_site: MakeSite) -> AsyncIterator[tuple[str, int]]:
    site = await make_site()
    async with serving(site.app) as found:
        place = httpx2.URL(found)
        assert place.port is not None
        yield place.host, place.port


@pytest.fixture
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "head_seconds", 0.2)


async def answered(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
    return head.partition(b"\r\n")[0] + await reader.readexactly(length)


@pytest.mark.usefixtures("in_a_hurry")
@pytest.mark.parametrize("sent", [b"", b"GET /healthz HTTP/1.1\r\nHost: ten", b"\r\n"])
async def test_one_that_does_not_say_what_it_wants_is_closed(address: tuple[str, int], sent: bytes) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(sent)
    assert await reader.read() == b""
    writer.close()


@pytest.mark.usefixtures("in_a_hurry")
async def test_a_byte_now_and_then_does_not_put_it_off(address: tuple[str, int]) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"GET /healthz HTTP/1.1\r\nX-Slow: ")
    ended = asyncio.create_task(reader.read())
    while not ended.done():
        writer.write(b"a")
        await asyncio.wait([ended], timeout=0.02)
    assert (ended.exception(), ended.cancelled()) == (None, False) or isinstance(ended.exception(), ConnectionError)
    writer.close()


@pytest.mark.usefixtures("in_a_hurry")
async def test_after_an_answer_the_next_request_has_as_long_as_the_first(address: tuple[str, int]) -> None:
    reader, writer = await asyncio.open_connection(*address)
    for _ in range(2):
        writer.write(REQUEST)
        assert b"200" in await answered(reader)
    writer.write(REQUEST[:20])
    assert await reader.read() == b""
    writer.close()


@pytest.mark.usefixtures("in_a_hurry")
async def test_the_rest_of_a_body_that_nobody_read_does_not_close_it(address: tuple[str, int]) -> None:
    """A stranger is answered by the head of his request. What he sends after that is no head of another one."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"POST /v1/executions HTTP/1.1\r\nHost: tenuto\r\nContent-Length: 10\r\n\r\n")
    assert b"401" in await answered(reader)
    writer.write(b"0123")
    writer.write(b"456789")
    await closed_when_silent(address)
    writer.write(REQUEST)
    assert b"200" in await answered(reader)
    writer.write(b"POST /v1/executions HTTP/1.1\r\nHost: tenuto\r\nContent-Length: 10\r\n\r\n")
    assert b"401" in await answered(reader)
    writer.write(b"0123")
    assert await reader.read() == b""  # the rest of it does not come
    writer.close()


async def closed_when_silent(address: tuple[str, int]) -> None:
    """As long as one that says nothing is kept, and those before it were."""
    reader, writer = await asyncio.open_connection(*address)
    assert await reader.read() == b""
    writer.close()


async def test_there_are_so_many_and_no_more(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "most_connections", lambda: 2)
    site = await make_site()
    async with serving(site.app, Settings(max_connections_per_address=0)) as found:
        await assert_at_most_two(found)


async def test_one_address_has_so_many_connections_and_no_more(make_site: MakeSite) -> None:
    site = await make_site()
    async with serving(site.app, Settings(max_connections_per_address=2)) as found:
        await assert_at_most_two(found)


async def assert_at_most_two(found: str) -> None:
    place = httpx2.URL(found)
    held = [await asyncio.open_connection(place.host, place.port) for _ in range(2)]
    for reader, writer in held:
        writer.write(REQUEST)
        assert b"200" in await answered(reader)
    reader, writer = await asyncio.open_connection(place.host, place.port)
    writer.write(REQUEST)
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await answered(reader)
    held[0][1].write(REQUEST)
    assert b"200" in await answered(held[0][0])
    for each in (writer, held[0][1], held[1][1]):
        each.close()


def test_connections_are_counted_by_client_and_not_by_the_way_an_address_is_written() -> None:
    peers = Peers(2)
    assert [peers.add(each) for each in ("::ffff:192.0.2.1", "192.0.2.1", "192.0.2.1")] == [True, True, False]
    assert [peers.add(f"2001:db8::{n}") for n in range(3)] == [True, True, False]  # one customer has a /64
    assert peers.add("2001:db8:0:1::")
    peers.remove("192.0.2.1")
    peers.remove("192.0.2.1")
    assert peers.add("192.0.2.1")


def test_a_trusted_proxy_brings_the_connections_of_many() -> None:
    peers = Peers(1, TrustedProxies(["10.0.0.0/8"]))
    assert all(peers.add("10.1.2.3") for _ in range(5))
    assert [peers.add("192.0.2.1") for _ in range(2)] == [True, False]


# -- Heads -------------------------------------------------------------------------------------------------------------

GET = b"GET /healthz HTTP/1.1\r\nHost: tenuto\r\n"
CHUNKED = b"POST /v1/executions HTTP/1.1\r\nHost: tenuto\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
HEADS = {
    "one long value": GET + b"X-A: " + b"a" * MAX_HEAD_BYTES + b"\r\n\r\n",
    "one long name": GET + b"a" * MAX_HEAD_BYTES + b": a\r\n\r\n",
    "a long address": b"GET /" + b"a" * MAX_HEAD_BYTES + b" HTTP/1.1\r\n\r\n",
    "many headers": GET + b"X: a\r\n" * MAX_HEADERS + b"\r\n",
    "many values": GET + (b"X: " + b"a" * 1_000 + b"\r\n") * 70 + b"\r\n",
    "a value that does not end": GET + b"X-A: " + b"a" * 1_000_000,
    "a trailer that does not end": CHUNKED + b"X-A: " + b"a" * 1_000_000,
    "many trailers": CHUNKED + b"X: a\r\n" * MAX_HEADERS + b"\r\n",
}


@pytest.mark.parametrize("name", HEADS)
async def test_a_head_that_is_too_large_is_refused_and_the_connection_closed(
    address: tuple[str, int], name: str
) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(HEADS[name])
    head = await reader.readuntil(b"\r\n\r\n")
    if b"401" in head:  # the request of a stranger is answered by its head: its trailers only close the connection
        await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0]))
        head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 431 ")
    assert b"application/problem+json" in head
    assert json.loads(await reader.read())["code"] == "head_too_large"
    writer.close()


async def test_a_head_within_the_limits_is_answered(address: tuple[str, int]) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(GET + b"X: a\r\n" * (MAX_HEADERS - 1) + b"\r\n")
    assert b"200" in await answered(reader)
    writer.write(GET + b"X: " + b"a" * (MAX_HEAD_BYTES - 100) + b"\r\n\r\n")
    assert b"200" in await answered(reader)
    writer.close()


async def test_what_follows_a_request_does_not_take_its_answer(address: tuple[str, int]) -> None:
    """A request that is refused comes after one that is under way: the first answer is the first request's."""
    for wrong in (HEADS["one long value"], b"nonsense\r\n\r\n"):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(REQUEST + wrong)
        assert b"200" in await answered(reader)
        assert await reader.read() == b""
        writer.close()


async def test_trailers_are_not_headers() -> None:
    seen: list[list[tuple[bytes, bytes]]] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            while (await receive()).get("more_body"):
                pass
            seen.append(scope["headers"])
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body"})

    async with serving(app) as found:
        place = httpx2.URL(found)
        reader, writer = await asyncio.open_connection(place.host, place.port)
        writer.write(CHUNKED + b"Authorization: Bearer forged\r\n\r\n")
        assert b"200" in await answered(reader)
        writer.close()
    assert [name for name, _ in seen[0]] == [b"host", b"transfer-encoding"]


# -- Answers that are not read -----------------------------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "drain_seconds", 0.2)


OPENAPI = b"GET /openapi.json HTTP/1.1\r\nHost: tenuto\r\n\r\n"


async def unread(address: tuple[str, int], sent: bytes) -> socket.socket:
    """A connection that sends this, and reads nothing."""
    loop = asyncio.get_running_loop()
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    client.setblocking(False)
    await loop.sock_connect(client, address)
    await loop.sock_sendall(client, sent)
    return client


async def aborted(client: socket.socket) -> None:
    """Waits for the end of the connection without reading: what is there would otherwise be drained."""
    loop = asyncio.get_running_loop()
    with suppress(ConnectionError):
        while True:
            await loop.sock_sendall(client, b"\r\n")
            await asyncio.wait([loop.create_future()], timeout=0.02)


async def test_connections_that_read_nothing_leave_room_for_others(make_site: MakeSite) -> None:
    site = await make_site(settings=Settings(rate_per_second=0, max_requests=4))
    async with serving(site.app) as found:
        place = httpx2.URL(found)
        assert place.port is not None
        clients = [await unread((place.host, place.port), OPENAPI * 64) for _ in range(8)]
        async with httpx2.AsyncClient(base_url=found, trust_env=False) as other:
            for _ in range(20):
                assert (await other.get("/openapi.json")).status_code == 200
        assert site.app.state.service.limiter.in_flight == 0
        for client in clients:
            client.close()


async def large(scope: Scope, receive: Receive, send: Send) -> None:
    """More than the buffers of both sides hold."""
    if scope["type"] == "http":
        head = [(b"content-length", b"%d" % LARGE_BYTES)]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": bytes(LARGE_BYTES)})


LARGE_BYTES = 16_000_000
AND_CLOSE = REQUEST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("sent", [REQUEST, REQUEST * 2, AND_CLOSE])
async def test_a_connection_that_reads_nothing_is_aborted(sent: bytes) -> None:
    async with serving(large) as found:
        place = httpx2.URL(found)
        assert place.port is not None
        client = await unread((place.host, place.port), sent)
        await aborted(client)
        client.close()


@pytest.mark.usefixtures("impatient")
async def test_a_connection_that_reads_slowly_gets_all_of_it() -> None:
    """Each look finds that something was read since the last one, although writing stays paused all the while."""
    loop = asyncio.get_running_loop()
    async with serving(large) as found:
        place = httpx2.URL(found)
        assert place.port is not None
        client = await unread((place.host, place.port), REQUEST)
        size = 0
        while size < LARGE_BYTES:
            got = await loop.sock_recv(client, 65_536)
            assert got
            size += len(got)
        client.close()


async def test_more_pipelined_requests_than_may_wait_close_the_connection_after_those(
    address: tuple[str, int],
) -> None:
    reader, writer = await asyncio.open_connection(*address)
    writer.write(REQUEST * 1_000)
    whole = await reader.read()
    assert whole.count(b"HTTP/1.1 200") == MAX_PIPELINED + 1
    assert whole.count(b"HTTP/1.1 ") == MAX_PIPELINED + 1
    writer.close()


async def test_a_request_with_another_behind_it_ends_with_its_connection() -> None:
    left = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        while (await receive())["type"] != "http.disconnect":
            pass
        left.set()

    async with serving(app) as found:
        place = httpx2.URL(found)
        _, writer = await asyncio.open_connection(place.host, place.port)
        writer.write(REQUEST * 2)
        await writer.drain()
        writer.transport.abort()
        await left.wait()


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What is handed to the system, call by call."""
    calls: list[bytes] = []
    made = Connection.connection_made

    def connection_made(self: Connection, transport: asyncio.Transport) -> None:
        class Watched(type(transport)):  # type: ignore[misc]  # whatever the loop makes
            def write(self, data: bytes) -> None:
                calls.append(data)
                super().write(data)

        transport.__class__ = Watched
        made(self, transport)

    monkeypatch.setattr(Connection, "connection_made", connection_made)
    return calls


async def test_the_head_of_an_answer_and_its_body_are_written_together(
    address: tuple[str, int], written: list[bytes]
) -> None:
    reader, writer = await asyncio.open_connection(*address)
    for _ in range(2):
        writer.write(REQUEST)
        assert b"200" in await answered(reader)
    assert len(written) == 2
    writer.close()


async def test_a_head_does_not_wait_for_a_body_that_is_not_there_yet() -> None:
    more = asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await more.wait()
        await send({"type": "http.response.body", "body": b"here"})

    async with serving(slow) as found:
        place = httpx2.URL(found)
        reader, writer = await asyncio.open_connection(place.host, place.port)
        writer.write(REQUEST)
        assert b"200" in await reader.readuntil(b"\r\n\r\n")
        more.set()
        assert await reader.readexactly(4) == b"here"
        writer.close()

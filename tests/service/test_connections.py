"""Connections that ask nothing: they are not kept, and however many there are, others are heard."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from starlette.types import Receive, Scope, Send

from tenuto.service.connection import Connection
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


async def test_there_are_so_many_and_no_more(address: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "most", 2)
    held = [await asyncio.open_connection(*address) for _ in range(2)]
    for reader, writer in held:
        writer.write(REQUEST)
        assert b"200" in await answered(reader)
    reader, writer = await asyncio.open_connection(*address)
    writer.write(REQUEST)
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await answered(reader)
    held[0][1].write(REQUEST)
    assert b"200" in await answered(held[0][0])
    for each in (writer, held[0][1], held[1][1]):
        each.close()


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

"""Lines that break, and services that ask to come again: nothing is done twice, and what is not known is said."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from tenuto import Engine, SagaBuilder
from tenuto.client import transport
from tenuto.errors import RateExceeded, ServiceError
from tenuto.service.server import address_of, bind, serve
from tenuto.settings import Settings
from tests.servers.cutting import Cutter, cutting

from .conftest import MakePlace

ASKS = SagaBuilder("asks").approval("ok")


def first(wanted: str, after: int = 0, times: int = 1) -> Callable[[str], int | None]:
    """Cuts the first answers to requests whose line has this in it."""
    left = times

    def fate(line: str) -> int | None:
        nonlocal left
        if wanted in line and left:
            left -= 1
            return after
        return None

    return fate


async def test_a_start_whose_answer_is_lost_is_made_once(make_place: MakePlace) -> None:
    place = await make_place(ASKS)
    async with cutting(place.address) as (address, cutter):
        client = await place.client(at=address)
        cutter.fate = first("POST /v1/executions", times=2)
        handle = await client.start("asks", {"n": 1})
        assert sum("POST /v1/executions" in line for line in cutter.seen) == 3
        assert handle.created is False, "the first of the three requests made it"
        assert sum((await client.count()).values()) == 1


async def test_questions_are_asked_again(make_place: MakePlace) -> None:
    place = await make_place(ASKS)
    async with cutting(place.address) as (address, cutter):
        client = await place.client(at=address)
        handle = await client.start("asks")
        cutter.fate = first(f"GET /v1/executions/{handle.id}", after=40, times=3)
        assert (await handle.result()).status == "waiting_approval"
        assert (await handle.status())["execution_id"] == handle.id


async def test_a_command_whose_answer_is_lost_is_not_sent_again(make_place: MakePlace) -> None:
    place = await make_place(ASKS)
    async with cutting(place.address) as (address, cutter):
        client = await place.client(at=address)
        handle = await client.start("asks")
        cutter.fate = first(":cancel")
        with pytest.raises(ServiceError) as lost:
            await handle.cancel()
        assert lost.value.code == "answer_lost"
        assert sum(":cancel" in line for line in cutter.seen) == 1
        assert (await handle.status())["status"] == "canceled"


async def test_a_signal_has_an_id_and_is_sent_again(make_place: MakePlace) -> None:
    place = await make_place(SagaBuilder("s").signal("paid", "paid").signal("next", "next", depends_on=["paid"]))
    async with cutting(place.address) as (address, cutter):
        client = await place.client(at=address)
        handle = await client.start("s")
        cutter.fate = first("/signals/paid")
        await handle.signal("paid", 1)
        await handle.signal("next", 2)
        assert (await handle.result()).result_of("paid") == 1
        assert sum("/signals/paid " in line for line in cutter.seen) == 2


async def test_a_stream_that_breaks_goes_on_where_it_was(make_place: MakePlace) -> None:
    async def work() -> int:
        return 1

    place = await make_place(SagaBuilder("s").step("a", work).step("b", work, depends_on=["a"]))
    async with cutting(place.address) as (address, cutter):
        client = await place.client(at=address)
        handle = await client.start("s")
        await handle.result()
        whole = [event async for event in handle.events()]
        broken = iter((700, 900, 1100))
        cutter.fate = lambda line: next(broken, None) if "/events" in line else None
        assert [event async for event in handle.events()] == whole
        assert next(broken, None) is None, "all three were cut"


async def test_nobody_there(make_place: MakePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    place = await make_place(ASKS)
    async with cutting(place.address) as (address, _):
        client = await place.client(at=address)
    monkeypatch.setattr(transport, "OUTAGE_SECONDS", 0.2)
    with pytest.raises(ServiceError) as error:
        await client.start("asks")
    assert error.value.code == "service_unreachable"
    assert error.value.hint


async def test_a_service_that_comes_back_in_time_is_waited_for(make_place: MakePlace) -> None:
    place = await make_place(ASKS)
    async with cutting(place.address) as (address, _):
        client = await place.client(at=address)
        await client.count()
    starting = asyncio.create_task(client.start("asks"))
    async with _again(place.address, address):
        assert (await starting).created


@asynccontextmanager
async def _again(upstream: str, address: str) -> AsyncIterator[None]:
    cutter = Cutter(upstream)
    server = await asyncio.start_server(cutter.accept, "127.0.0.1", int(address.rpartition(":")[2]))
    try:
        yield
    finally:
        server.close()
        await cutter.close()


async def test_a_service_that_ends_does_not_shorten_the_wait_for_a_result(make_place: MakePlace) -> None:
    """It answers at once, as if the time were over."""
    place = await make_place(ASKS)
    listener, stop = bind("127.0.0.1", 0), asyncio.Event()
    address = address_of(listener)
    ending = asyncio.create_task(serve(place.app, listener, stop, grace_seconds=3_600))
    client = await place.client(at=address)
    handle = await client.start("asks")
    waiting = asyncio.create_task(handle.result(timeout="20s", return_when="terminal"))
    while not place.app.state.service.limiter.streams:
        await client.count()
    stop.set()
    await ending
    async with _again(place.address, address):
        await handle.approve("ok")
        assert (await waiting).succeeded


# -- Come again --------------------------------------------------------------------------------------------------------


async def test_too_many_requests_are_sent_later(make_place: MakePlace) -> None:
    place = await make_place(ASKS, settings=Settings(rate_per_second=50, rate_burst=1))
    client = await place.client()
    assert [await client.count() for _ in range(2)] == [{}, {}]


async def test_a_service_that_asks_for_too_long_a_wait_is_not_waited_for(make_place: MakePlace) -> None:
    place = await make_place(ASKS, settings=Settings(rate_per_second=0.001, rate_burst=1))
    client = await place.client()
    await client.count()
    with pytest.raises(RateExceeded) as error:
        await client.count()
    assert error.value.retry_after > 60


# -- Somebody else -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@pytest.mark.parametrize(
    ("status", "code"),
    [("200 OK", "service_unknown"), ("404 Not Found", "service_unknown"), ("302 Found", "service_unknown")],
)
async def test_what_is_no_tenuto_service(status: str, code: str) -> None:
    body = b"<h1>Hello</h1>"
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n"
    async with answering(head.encode() + body) as address, Engine(address, api_key="tnt_x") as client:
        with pytest.raises(ServiceError) as error:
            await client.count()
        assert error.value.code == code


@pytest.mark.parametrize("body", [b"{}", b"[]", b'{"hello": "world"}', b"null"])
async def test_what_answers_in_json_is_no_tenuto_service_for_that(body: bytes) -> None:
    """Least of all is done what it was told."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
    async with answering(f"{head}\r\n".encode() + body) as address, Engine(address, api_key="tnt_x") as client:
        handle = client.get("1a1e")
        for asked in (
            client.count(),
            client.start("s"),
            client.limit("a", rate="1/s"),
            client.audit.verify(),
            handle.status(),
            handle.cancel(),
            anext(client.summaries()),
            anext(client.dlq()),
            anext(client.definitions()),
        ):
            with pytest.raises(ServiceError) as error:
                await asked
            assert error.value.code == "service_unknown"


# -- Secrets -----------------------------------------------------------------------------------------------------------


async def test_the_key_is_in_no_text(
    make_place: MakePlace, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "OUTAGE_SECONDS", 0.0)
    place = await make_place(ASKS)
    key = await place.key()
    with caplog.at_level(logging.DEBUG):
        async with Engine(place.address, api_key=key) as client:
            handle = await client.start("asks", {"secret": "tnt_payload"})
            with pytest.raises(ServiceError) as error:
                async with Engine("http://127.0.0.1:1", api_key=key) as nobody:
                    await nobody.count()
            texts = [repr(client), repr(handle), repr(client.__dict__), repr(error.value), str(error.value)]
    assert key not in "\n".join([*texts, caplog.text])

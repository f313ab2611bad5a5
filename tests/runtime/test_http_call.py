"""`HttpCall` against a real server on loopback: what it sends, and what it makes of the answers."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from tenuto import HttpCall, SagaBuilder, SagaContext
from tenuto.errors import (
    DependencyFailedError,
    IndeterminateError,
    NonRetryableError,
    RateLimitedError,
    RetryableError,
    StepError,
    TransientError,
)
from tenuto.handlers.http import HttpStatusError
from tenuto.testing import Harness


@dataclass
class Request:
    method: str
    target: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Server:
    """Answers with what it was told, in turn, and remembers what it was asked."""

    url: str = ""
    answers: list[bytes | None] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    def answer(self, status: int, body: str = "", **headers: str) -> None:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(body.encode())}", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in named.items()]
        self.answers.append(("\r\n".join(lines) + "\r\n\r\n" + body).encode())

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *rest = head.strip().split("\r\n")
            headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in rest)}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            method, target, _ = first.split(" ")
            self.requests.append(Request(method, target, headers, body))
            answer = self.answers.pop(0) if self.answers else b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
            if answer is not None:
                writer.write(answer)
                await writer.drain()
        finally:
            writer.close()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    found = Server()
    listening = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with listening:
        yield found


async def call(work: Callable[[SagaContext], Awaitable[Any]], **start: Any) -> Any:
    """Runs this as a handler, and gives what it returned or raised."""
    came: list[Any] = []

    async def step(ctx: SagaContext) -> None:
        try:
            came.append(await work(ctx))
        except StepError as error:
            came.append(error)

    async with Harness(SagaBuilder("s").step("x", step)) as t:
        await t.execute("s", **start)
    return came[0]


async def test_it_carries_headers_correlation_and_key(server: Server) -> None:
    keys: list[str] = []

    async def post(ctx: SagaContext) -> int:
        keys.append(ctx.idempotency_key)
        response = await HttpCall(ctx, base_url=server.url).post("/pay", json={"cents": 5}, headers={"X-Own": "1"})
        return response.status_code

    headers = {"X-User": "u1", "Host": "elsewhere", "Content-Length": "99"}
    assert await call(post, correlation_id="c-1", headers=headers) == 200
    (request,) = server.requests
    assert (request.method, request.target, json.loads(request.body)) == ("POST", "/pay", {"cents": 5})
    assert request.headers["x-correlation-id"] == "c-1"
    assert request.headers["idempotency-key"] == keys[0]
    assert (request.headers["x-user"], request.headers["x-own"]) == ("u1", "1")
    assert request.headers["host"].startswith("127.0.0.1")


@pytest.mark.parametrize("headers", [{"X-Name": "a\r\nX-Role: admin"}, {"X Name": "a"}, {"X-Name": "a\0"}])
async def test_what_is_no_header_is_refused_before_anything_is_sent(server: Server, headers: dict[str, str]) -> None:
    """Not when it is sent: a request that may have gone out leaves its outcome unknown."""
    came = await call(lambda ctx: HttpCall(ctx).post(server.url, headers=headers))
    assert isinstance(came, NonRetryableError)
    assert (came.code, server.requests) == ("http_request_invalid", [])
    assert "admin" not in str(came)


async def test_names_of_people_go_along_as_they_are_written(server: Server) -> None:
    await call(lambda ctx: HttpCall(ctx).post(server.url, headers={"X-Role": " guest "}), headers={"X-Name": "Jürgen"})
    (request,) = server.requests
    assert (request.headers["x-name"], request.headers["x-role"]) == ("Jürgen", "guest")


@pytest.mark.parametrize("method", ["get", "post", "put", "patch", "delete"])
async def test_every_method(server: Server, method: str) -> None:
    await call(lambda ctx: getattr(HttpCall(ctx), method)(server.url))
    assert server.requests[0].method == method.upper()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (408, TransientError),
        (425, TransientError),
        (500, TransientError),
        (503, TransientError),
        (507, TransientError),
        (502, DependencyFailedError),
        (504, DependencyFailedError),
        (429, RateLimitedError),
        (409, RetryableError),
        (412, RetryableError),
        (423, RetryableError),
        (400, NonRetryableError),
        (401, NonRetryableError),
        (404, NonRetryableError),
        (422, NonRetryableError),
        (302, NonRetryableError),
        (501, NonRetryableError),
    ],
)
async def test_answers_are_classified_by_their_status(server: Server, status: int, error: type[StepError]) -> None:
    server.answer(status, '{"why": "so"}')
    came = await call(lambda ctx: HttpCall(ctx).post(f"{server.url}/pay?token=secret"))
    assert isinstance(came, error)
    assert isinstance(came, HttpStatusError)
    assert (came.status, came.body, came.code) == (status, '{"why": "so"}', f"http_{status}")
    assert "secret" not in str(came)
    assert f"answered {status}" in str(came)


async def test_a_definition_may_know_better(server: Server) -> None:
    server.answer(404)
    came = await call(lambda ctx: HttpCall(ctx, classify={"404": "TRANSIENT"}).get(server.url))
    assert isinstance(came, TransientError)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry_After": "7"}, 7.0),
        ({"Retry_After": "Sun, 15 Nov 2026 12:00:30 GMT", "Date": "Sun, 15 Nov 2026 12:00:00 GMT"}, 30.0),
        ({"Retry_After": "whenever"}, None),
        ({}, None),
    ],
)
async def test_retry_after_is_passed_on(server: Server, headers: dict[str, str], seconds: float | None) -> None:
    server.answer(429, **headers)
    came = await call(lambda ctx: HttpCall(ctx).get(server.url))
    assert came.retry_after == seconds


async def test_an_engine_waits_as_long_as_it_is_told(server: Server) -> None:
    server.answer(429, Retry_After="60")

    async def get(ctx: SagaContext) -> int:
        return (await HttpCall(ctx).get(server.url)).status_code

    async with Harness(SagaBuilder("s").step("x", get)) as t:
        result = await t.execute("s")
        assert result.result_of("x") == 200
        assert t.elapsed.total_seconds() == 60


async def test_nobody_there_is_transient() -> None:
    came = await call(lambda ctx: HttpCall(ctx).post("http://127.0.0.1:9/"))
    assert isinstance(came, TransientError)


async def test_an_answer_that_never_comes_leaves_the_outcome_open(server: Server) -> None:
    server.answers.append(None)
    came = await call(lambda ctx: HttpCall(ctx).post(server.url))  # the connection is closed without a word
    assert isinstance(came, IndeterminateError)
    server.answers.append(None)
    assert isinstance(await call(lambda ctx: HttpCall(ctx).get(server.url)), TransientError)


async def test_a_timeout_after_sending_leaves_the_outcome_open() -> None:
    hold = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await hold.wait()
        writer.close()

    listening = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with listening:
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        came = await call(lambda ctx: HttpCall(ctx, timeout=1).post(url))
        assert isinstance(came, IndeterminateError)
        hold.set()


@pytest.mark.parametrize("url", ["ftp://example.org/x", "no scheme", "http://"])
async def test_a_url_that_is_none_is_refused_for_good(url: str) -> None:
    assert isinstance(await call(lambda ctx: HttpCall(ctx).get(url)), NonRetryableError)


async def test_connections_can_be_kept(server: Server) -> None:
    async def twice(ctx: SagaContext) -> int:
        async with HttpCall(ctx, base_url=server.url) as http:
            await http.get("/1")
            await http.get("/2")
        return 2

    assert await call(twice) == 2
    assert [request.target for request in server.requests] == ["/1", "/2"]

"""Bodies of responses are decoded and bounded while they are read: of every client that we have."""

import gzip
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from tenuto import Done, Engine, HttpCall, SagaBuilder, SagaContext
from tenuto.access.tokens import MAX_KEYS, Tokens
from tenuto.errors import NotAuthenticated, ServiceError
from tenuto.settings import Issuer
from tenuto.values.http_responses import Unreadable, read_body
from tests.contract.doubles import Stage
from tests.servers.web import Web
from tests.service.test_tokens import signed

from .conftest import MakeEngine
from .documents import document, run

MIB = 1024 * 1024
JSON = {"content-type": "application/json"}
BOMB = gzip.compress(bytes(150 * MIB), 6)
TWICE = gzip.compress(BOMB)
TWO_LAYERS = {"content-encoding": "gzip, gzip"}


class Parts(httpx2.AsyncByteStream):
    def __init__(self, *parts: bytes) -> None:
        self.parts = parts

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            yield part


def response(encoding: str | None, *parts: bytes) -> httpx2.Response:
    headers = {} if encoding is None else {"content-encoding": encoding}
    return httpx2.Response(200, headers=headers, stream=Parts(*parts))


def in_pieces(content: bytes, size: int) -> list[bytes]:
    return [content[at : at + size] for at in range(0, len(content), size)]


TEXT = b"Tenuto " * 1_000


# The ids are given because compressed contents, of which they would be made, contain the time.
@pytest.mark.parametrize(
    ("encoding", "content"),
    [
        (None, TEXT),
        ("identity", TEXT),
        ("", TEXT),
        ("gzip", gzip.compress(TEXT)),
        ("X-GZip", gzip.compress(TEXT)),
        ("identity, gzip", gzip.compress(TEXT)),
        ("gzip", gzip.compress(TEXT[:1_000]) + gzip.compress(TEXT[1_000:])),
    ],
    ids=["none", "identity", "empty", "gzip", "x-gzip", "two encodings", "two members"],
)
@pytest.mark.parametrize("size", [1, 7, 100_000])
async def test_a_body_is_decoded(encoding: str | None, content: bytes, size: int) -> None:
    assert await read_body(response(encoding, *in_pieces(content, size)), len(TEXT)) == (TEXT, False)
    assert await read_body(response(encoding, *in_pieces(content, size)), len(TEXT) - 1) == (TEXT[:-1], True)


async def test_a_compressed_body_may_be_empty() -> None:
    assert await read_body(response("gzip"), 10) == (b"", False)
    assert await read_body(response("gzip", gzip.compress(b"")), 10) == (b"", False)


@pytest.mark.parametrize(
    ("encoding", "content"),
    [
        ("gzip, gzip", TWICE),
        ("br", b"x"),
        ("deflate", zlib.compress(TEXT)),
        ("zstd", b"x"),
        ("nonsense", b"x"),
        ("gzip", b"not gzip"),
        ("gzip", gzip.compress(TEXT)[:-10]),
        ("gzip", gzip.compress(TEXT) + b"and more"),
    ],
    ids=["twice", "br", "deflate", "zstd", "nonsense", "no gzip", "cut off", "too long"],
)
async def test_what_cannot_be_decoded_is_said(encoding: str, content: bytes) -> None:
    with pytest.raises(Unreadable):
        await read_body(response(encoding, content), MIB)


async def test_members_without_content_do_not_go_on_for_ever() -> None:
    assert await read_body(response("gzip", *[gzip.compress(b"")] * 10_000), 4_096) == (b"", True)


async def test_no_more_is_decoded_than_is_kept() -> None:
    tracemalloc.start()
    try:
        content, is_cut = await read_body(response("gzip", BOMB), MIB)
        assert (len(content), is_cut) == (MIB, True)
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()


# -- The built-in handlers ---------------------------------------------------------------------------------------------


async def test_a_webhook_reads_nothing_of_the_answer(make_engine: MakeEngine, server: Web) -> None:
    server.answers.append((200, TWO_LAYERS, TWICE))
    tracemalloc.start()
    try:
        result = await run(await make_engine(), "webhook", {"url": server.url})
        assert tracemalloc.get_traced_memory()[1] < 20 * MIB
    finally:
        tracemalloc.stop()
    assert (result.status, result.output["status"]) == ("succeeded", 200)


async def test_one_layer_is_understood_by_http(make_engine: MakeEngine, server: Web) -> None:
    server.answers.append((200, {**JSON, "content-encoding": "gzip"}, gzip.compress(b'{"id": 7}')))
    output = (await run(await make_engine(), "http", {"url": server.url})).output
    assert (output["body"], output["cut"]) == ({"id": 7}, False)
    assert "content-encoding" not in output["headers"]
    assert server.requests[0][2]["accept-encoding"] == "identity"


async def test_a_bomb_of_one_layer_is_cut(make_engine: MakeEngine, server: Web) -> None:
    server.answers.append((200, {"content-encoding": "gzip"}, BOMB))
    output = (await run(await make_engine(), "http", {"url": server.url})).output
    assert (output["body"], output["cut"]) == (None, True)


UNREADABLE: dict[str, tuple[int, dict[str, str], bytes]] = {
    "two layers": (200, TWO_LAYERS, TWICE),
    "another encoding": (200, {"content-encoding": "br"}, b"x"),
    "not what it says": (200, {"content-encoding": "gzip"}, b"not gzip"),
    "nested 1,500 deep": (200, JSON, b"[" * 1_500 + b"]" * 1_500),
    "nested 90,000 deep": (200, JSON, b"[" * 90_000 + b"]" * 90_000),
}
each_answer = pytest.mark.parametrize("answer", UNREADABLE.values(), ids=UNREADABLE)
THREE = {"max_attempts": 3, "initial_delay_ms": 1, "max_delay_ms": 1}


@each_answer
async def test_a_success_that_cannot_be_read_is_sent_once(make_engine: MakeEngine, server: Web, answer: Any) -> None:
    server.answers.append(answer)
    given = {"method": "POST", "url": server.url}
    work = (await run(await make_engine(), "http", given, retry_policy=THREE)).steps["work"]
    assert (work.error_class, work.error_code, work.attempts) == ("NON_RETRYABLE", "invalid_result", 1)
    assert len(server.requests) == 1


@each_answer
async def test_if_it_is_not_safe_to_repeat_its_outcome_is_unknown(
    make_engine: MakeEngine, server: Web, answer: Any
) -> None:
    engine = await make_engine()
    server.answers.append(answer)
    safety = {"idempotency_strategy": "NOT_SAFE_TO_RETRY", "compensation_policy": "manual"}
    result = await run(engine, "http", {"method": "POST", "url": server.url}, retry_policy=THREE, **safety)
    assert (result.status, result.steps["work"].error_class) == ("waiting_approval", "INDETERMINATE")
    assert [row["kind"] async for row in engine.reviews()] == ["indeterminate"]
    assert len(server.requests) == 1


async def test_and_its_reconcile_is_asked(make_engine: MakeEngine, server: Web) -> None:
    engine = await make_engine()
    server.answers.append(UNREADABLE["two layers"])
    safety = {"idempotency_strategy": "NOT_SAFE_TO_RETRY", "reconcile_handler": "look"}
    stage = Stage()
    engine.handler("look", stage.does("look", Done({"status": 200})))
    await engine.apply(document("http", {"method": "POST", "url": server.url}, **safety))
    assert (await engine.execute("one", {})).output == {"status": 200}


async def test_a_failure_is_judged_by_its_status_whatever_its_body_is_like(
    make_engine: MakeEngine, server: Web
) -> None:
    server.answers.append((404, TWO_LAYERS, TWICE))
    work = (await run(await make_engine(), "http", {"url": server.url})).steps["work"]
    assert (work.error_class, work.error_code) == ("NON_RETRYABLE", "http_404")


# -- HttpCall ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("safety", ["safe_to_retry", "not_safe_to_retry"])
@pytest.mark.parametrize("answer", [(200, TWO_LAYERS, TWICE), (200, {}, b"x" * 101)], ids=["encoding", "length"])
async def test_a_handler_that_calls_is_judged_alike(
    make_engine: MakeEngine, server: Web, answer: Any, safety: Any
) -> None:
    async def pay(ctx: SagaContext) -> str:
        return (await HttpCall(ctx, max_bytes=100).post(server.url)).text

    server.answers.append(answer)
    engine = await make_engine()
    engine.register(SagaBuilder("s").step("pay", pay, safety=safety, compensation_policy="manual").build())
    pay_step = (await engine.execute("s")).steps["pay"]
    expected = "NON_RETRYABLE" if safety == "safe_to_retry" else "INDETERMINATE"
    assert (pay_step.error_class, pay_step.error_code, len(server.requests)) == (expected, "invalid_result", 1)


async def test_a_client_of_the_users_own_is_bounded_too(make_engine: MakeEngine) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, json={"accepts": request.headers["accept-encoding"]})

    async def pay(ctx: SagaContext) -> Any:
        async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer)) as client:
            return (await HttpCall(ctx, client=client).get("http://bank.example/")).json()

    engine = await make_engine()
    engine.register(SagaBuilder("s").step("pay", pay).build())
    assert (await engine.execute("s")).output == {"accepts": "gzip, identity"}


# -- Other clients -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "content"),
    [
        (TWO_LAYERS, TWICE),
        ({"content-encoding": "gzip"}, BOMB),
        ({}, b" " * (MAX_KEYS + 1)),
        ({}, b"[" * 100_000),
    ],
    ids=["two layers", "bomb", "length", "depth"],
)
async def test_the_keys_of_an_issuer_are_bounded(server: Web, headers: dict[str, str], content: bytes) -> None:
    server.answers.append((200, headers, content))
    issuer = Issuer(
        issuer="https://login.example",
        audience="tenuto",
        jwks_url=f"{server.url}/jwks",
        tenants=("acme",),
        roles=("viewer",),
    )
    with pytest.raises(NotAuthenticated):
        await Tokens([issuer]).verify(signed(iss="https://login.example"))
    assert len(server.requests) == 1


async def test_an_answer_of_a_service_is_decoded_in_bounds(server: Web) -> None:
    async with Engine(server.url, api_key="tnt_x") as engine:
        for answer in ((200, TWO_LAYERS, TWICE), (200, JSON, b"[" * 100_000)):
            server.answers.append(answer)
            with pytest.raises(ServiceError) as refused:
                await engine.get("01").status()
            assert refused.value.code == "service_unknown"

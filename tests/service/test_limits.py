"""What is refused before anything is written: bodies that are too large, too deep or not JSON; too many requests."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from tenuto import SagaBuilder
from tenuto.errors import RateExceeded
from tenuto.service.http.rate_limits import TokenBuckets
from tenuto.settings import Settings
from tests.service.conftest import MakeSite, Site

JSON = {"Content-Type": "application/json"}
ASKS = SagaBuilder("asks").approval("ok")


def nested(depth: int) -> bytes:
    return b'{"definition": "asks", "input": ' + b"[" * depth + b"]" * depth + b"}"


MALFORMED: dict[str, tuple[bytes, int, str]] = {
    "nothing": (b"", 422, "request_invalid"),
    "not JSON": (b"{", 400, "malformed"),
    "a list": (b"[]", 422, "request_invalid"),
    "not UTF-8": (b'{"definition": "\xff"}', 400, "malformed"),
    "a key twice": (b'{"definition": "asks", "definition": "asks"}', 400, "malformed"),
    "NaN": (b'{"definition": "asks", "input": NaN}', 400, "malformed"),
    "infinity": (b'{"definition": "asks", "input": 1e999}', 400, "malformed"),
    "NUL": (rb'{"definition": "asks", "input": "\u0000"}', 400, "malformed"),
    "NUL in a key": (rb'{"definition": "asks", "input": {"\u0000": 1}}', 400, "malformed"),
    "a lone surrogate": (rb'{"definition": "asks", "input": "\ud800"}', 400, "malformed"),
    "too deep": (nested(40), 400, "malformed"),
    "far too deep": (nested(100_000), 400, "malformed"),
    "too many values": (b'{"definition": "asks", "input": [' + b"1," * 20_000 + b"1]}", 400, "malformed"),
    "a long key": (b'{"definition": "asks", "input": {"' + b"k" * 300 + b'": 1}}', 400, "malformed"),
    "a huge number": (b'{"definition": "asks", "input": ' + b"9" * 5_000 + b"}", 400, "malformed"),
    "a number beyond 2^53": (b'{"definition": "asks", "input": 9007199254740993}', 400, "malformed"),
    "a negative one": (b'{"definition": "asks", "input": [-9007199254740993]}', 400, "malformed"),
    "a long text": (b'{"definition": "asks", "input": "' + b"x" * (128 * 1024 + 1) + b'"}', 400, "malformed"),
    "large headers": (
        b'{"definition": "asks", "headers": {"a": "' + b"x" * 9_000 + b'", "b": "' + b"x" * 9_000 + b'"}}',
        422,
        "input_invalid",
    ),
    "too large": (b'{"definition": "asks", "input": "' + b"x" * (1024 * 1024) + b'"}', 413, "too_large"),
    "an unknown field": (b'{"definition": "asks", "tenant": "other"}', 422, "request_invalid"),
    "a wrong type": (b'{"definition": 5}', 422, "request_invalid"),
    "no definition of that name": (b'{"definition": "nothing"}', 404, "not_found"),
}


@pytest.fixture
async def site(make_site: MakeSite) -> Site:
    return await make_site(ASKS)


@pytest.mark.parametrize("what", MALFORMED)
async def test_what_is_malformed_is_refused_and_nothing_is_started(site: Site, what: str) -> None:
    client = await site.client()
    body, status, code = MALFORMED[what]
    refused = await client.post("/v1/executions", content=body, headers=JSON)
    assert (refused.status_code, refused.json()["code"]) == (status, code), refused.text
    assert refused.headers["content-type"] == "application/problem+json"
    assert (await client.get("/v1/executions")).json()["items"] == []


@pytest.mark.parametrize("path", ["/v1/executions/%00", "/v1/executions?definition=%00", "/v1/dlq/a%00b"])
async def test_an_address_that_cannot_be_stored_is_refused(site: Site, path: str) -> None:
    refused = await (await site.client()).get(path)
    assert (refused.status_code, refused.json()["code"]) == (400, "malformed")


async def test_what_fits_just_so_is_taken(site: Site) -> None:
    client = await site.client()
    for body in (
        nested(30),
        b'{"definition": "asks", "input": "' + b"x" * (128 * 1024) + b'"}',
        b'{"definition": "asks", "input": [9007199254740992, -9007199254740992, 1e300]}',
        b'{"definition": "asks", "headers": {"a": "' + b"x" * 16_000 + b'"}}',
    ):
        assert (await client.post("/v1/executions", content=body, headers=JSON)).status_code == 201


def listed(*values: int) -> bytes:
    return b'{"definition": "asks", "input": %s}' % json.dumps(values).encode()


BOUNDS: dict[str, tuple[int, bytes, bytes, int]] = {
    "max_body_bytes": (len(listed(1, 2)), listed(1, 2), listed(1, 23), 413),
    "max_json_depth": (5, nested(5), nested(6), 400),
    "max_json_nodes": (5, listed(1, 2), listed(1, 2, 3), 400),
}


@pytest.mark.parametrize("setting", BOUNDS)
async def test_the_bounds_of_a_body_are_those_that_are_set(make_site: MakeSite, setting: str) -> None:
    bound, just, beyond, status = BOUNDS[setting]
    given: dict[str, Any] = {setting: bound}
    settings = replace(Settings(rate_per_second=0), **given)
    client = await (await make_site(ASKS, settings=settings)).client()
    taken = await client.post("/v1/executions", content=just, headers=JSON)
    assert taken.status_code == 201, taken.text
    refused = await client.post("/v1/executions", content=beyond, headers=JSON)
    assert refused.status_code == status, refused.text


async def test_a_body_is_json(site: Site) -> None:
    client = await site.client()
    refused = await client.post("/v1/executions", content=b"a=b", headers={"Content-Type": "text/plain"})
    assert (refused.status_code, refused.json()["code"]) == (415, "unsupported_media_type")


async def test_a_body_that_comes_in_parts_is_measured_as_it_comes(site: Site) -> None:
    client = await site.client()
    taken = 0

    async def parts() -> Any:
        nonlocal taken
        while True:
            taken += 1
            yield b"x" * 65_536

    refused = await client.post("/v1/executions", content=parts(), headers=JSON)
    assert refused.status_code == 413
    assert taken < 100


async def test_problems_have_the_fields_of_problems(site: Site) -> None:
    client = await site.client()
    invalid = await client.post("/v1/executions", json={"definition": "asks", "version": "one"})
    for answer, status in (
        (await client.get("/v1/nothing"), 404),
        (await client.delete("/v1/executions"), 405),
        (invalid, 422),
    ):
        problem = answer.json()
        assert answer.headers["content-type"] == "application/problem+json"
        assert {"type", "title", "status", "detail", "code"} <= problem.keys()
        assert (answer.status_code, problem["status"]) == (status, status)
    assert invalid.json()["errors"][0]["pointer"] == "/version"


async def test_headers_come_back(site: Site) -> None:
    client = await site.client()
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    answer = await client.get("/healthz", headers={"X-Correlation-ID": "c-1", "traceparent": trace})
    assert (answer.headers["x-correlation-id"], answer.headers["traceparent"]) == ("c-1", trace)
    started = await client.post("/v1/executions", json={"definition": "asks"}, headers={"X-Correlation-ID": "c-1"})
    assert (started.json()["correlation_id"], started.headers["x-correlation-id"]) == ("c-1", "c-1")


@pytest.mark.parametrize(
    "trace",
    [
        "garbage",
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
    ],
)
async def test_what_is_no_trace_is_not_passed_on(site: Site, trace: str) -> None:
    client = await site.client()
    sent = {"traceparent": trace, "tracestate": "a=1"}
    started = await client.post("/v1/executions", json={"definition": "asks"}, headers=sent)
    assert (started.status_code, "traceparent" in started.headers) == (201, False)
    at = f"/v1/executions/{started.json()['execution_id']}/history"
    first = (await client.get(at, params={"view": "events"})).json()["items"][0]
    assert first["data"]["headers"] == {}


async def test_too_many_requests_are_refused_with_the_time_to_wait(make_site: MakeSite) -> None:
    site = await make_site(ASKS, settings=Settings(rate_per_second=0.001, rate_burst=3))
    client, other = await site.client("acme"), await site.client("other")
    statuses = [(await client.post("/v1/executions", json={"definition": "asks"})).status_code for _ in range(5)]
    assert statuses == [201, 201, 201, 429, 429]
    refused = await client.get("/v1/executions")
    assert (refused.json()["code"], int(refused.headers["retry-after"]) > 1) == ("rate_exceeded", True)
    assert len((await other.get("/v1/executions")).json()["items"]) == 0
    assert sum((await site.engine.count()).values()) == 3


def test_buckets_fill_again() -> None:
    now = 0.0
    buckets = TokenBuckets(2, 2, lambda: now)
    for _ in range(2):
        buckets.take("a")
    with pytest.raises(RateExceeded) as caught:
        buckets.take("a")
    assert caught.value.retry_after == 0.5
    buckets.take("b")
    now = 0.5
    buckets.take("a")
    with pytest.raises(RateExceeded):
        buckets.take("a")


async def test_a_verdict_that_is_late_is_answered_with_202(make_site: MakeSite) -> None:
    site = await make_site(ASKS, settings=Settings(verdict_seconds=0, rate_per_second=0))
    client = await site.client()
    id = (await client.post("/v1/executions", json={"definition": "asks"})).json()["execution_id"]
    paused = await client.post(f"/v1/executions/{id}:pause", json={"reason": "x"})
    assert paused.status_code == 202
    await asyncio.gather(*site.app.state.service.commands)
    assert (await client.get(f"/v1/executions/{id}")).json()["status"] == "paused"

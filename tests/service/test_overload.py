"""More than can be done: what is accepted is done, the rest is turned away and told when to come again.

No time is asserted: a slow machine accepts less, and keeps the same promises.
"""

import asyncio
from collections import Counter
from typing import Any

import httpx2
import pytest
from starlette.types import Receive, Scope, Send

from tenuto import Engine, SagaBuilder
from tenuto.errors import RateExceeded
from tenuto.service.http.request_limits import RequestLimiter, TenantShares
from tenuto.settings import Settings
from tests.service.conftest import MakeSite
from tests.service.test_events import listening


async def double(number: int) -> int:
    return 2 * number


SAGA = SagaBuilder("double").step("double", double)
RAMP = (2, 8, 32, 96)  # requests at once; each that was answered is followed by another
EACH = 4
BURST = 200


async def test_a_ramp_loses_nothing_that_was_accepted(make_site: MakeSite) -> None:
    """The rate lets `BURST` through and hardly more, so that the end of the ramp is refused on any machine."""
    limited = Settings(max_requests=16, rate_per_second=0.1, rate_burst=BURST)
    site = await make_site(SAGA, settings=limited)
    accepted: list[str] = []
    refused: Counter[str] = Counter()

    async with listening(site) as client:
        unlimited = httpx2.Limits(max_connections=max(RAMP), max_keepalive_connections=max(RAMP))
        options: dict[str, Any] = {"base_url": client.base_url, "headers": client.headers, "timeout": 60}
        async with httpx2.AsyncClient(limits=unlimited, trust_env=False, **options) as many:

            async def lane(name: str) -> None:
                for number in range(EACH):
                    key = {"Idempotency-Key": f"{name}-{number}"}
                    answer = await many.post("/v1/executions", json={"definition": "double", "input": 1}, headers=key)
                    if answer.status_code == 201:
                        accepted.append(answer.json()["execution_id"])
                        continue
                    assert answer.status_code == 429, answer.text
                    assert int(answer.headers["retry-after"]) >= 1
                    refused[answer.json()["code"]] += 1

            for lanes in RAMP:
                await asyncio.gather(*(lane(f"{lanes}-{number}") for number in range(lanes)))

    assert len(accepted) == len(set(accepted)) >= 1
    assert sum(refused.values()) + len(accepted) == EACH * sum(RAMP)
    assert refused["rate_exceeded"] >= EACH * sum(RAMP) - BURST - 60  # so many more at most, in the time a test has
    assert sum((await site.engine.count()).values()) == len(accepted)
    results = await asyncio.gather(*(site.engine.get(id).result() for id in accepted))
    assert all(result.succeeded for result in results)


async def test_what_is_under_way_is_bounded_and_probes_are_answered_all_the_same() -> None:
    inside, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/v1/executions":
            inside.release()
            await go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    limiter = RequestLimiter(2, Engine("memory://"))
    transport = httpx2.ASGITransport(app=limiter.reject_early(limiter.hold_slot(slow)))
    async with httpx2.AsyncClient(transport=transport, base_url="http://tenuto") as client:
        taken = [asyncio.create_task(client.get("/v1/executions")) for _ in range(2)]
        for _ in taken:
            await inside.acquire()
        turned_away = await client.get("/v1/executions")
        assert (turned_away.status_code, turned_away.json()["code"]) == (429, "rate_exceeded")
        assert 1 <= int(turned_away.headers["retry-after"]) <= 4
        assert (await client.get("/healthz")).status_code == 200
        go_on.set()
        assert [(await task).status_code for task in taken] == [200, 200]
        assert (await client.get("/v1/executions")).status_code == 200


NOT_FREE = (
    ("POST", "/metrics"),
    ("GET", "/x/metrics"),
    ("POST", "/v1/executions/x/signals/events"),
    ("POST", "/v1/executions?wait=terminal"),
    ("GET", "/v1/executions?wait=terminal"),
    ("GET", "/v1/executions/x/events?follow=false"),
)


async def test_when_it_is_full_only_probes_and_those_who_wait_get_in(make_site: MakeSite) -> None:
    site = await make_site(SAGA, settings=Settings(max_requests=4, rate_per_second=0))
    client = await site.client()
    limiter = site.app.state.service.limiter
    limiter.in_flight = 4
    for method, path in NOT_FREE:
        assert (await client.request(method, path)).status_code == 429, path
    for path in ("/healthz", "/readyz"):
        assert (await client.get(path)).status_code == 200
    assert (await client.get("/v1/executions/x?wait=terminal")).status_code == 404
    assert (await client.get("/v1/executions/x/events")).status_code == 404
    limiter.in_flight = 0
    assert (await client.get("/v1/executions")).status_code == 200
    assert (limiter.in_flight, len(limiter.shares)) == (0, 0)


async def test_one_tenant_leaves_room_for_others(make_site: MakeSite) -> None:
    site = await make_site(SAGA, settings=Settings(max_requests=8, rate_per_second=0))
    acme, other = await site.client("acme"), await site.client("other")
    for _ in range(6):
        site.app.state.service.limiter.shares.take("acme")
    refused = await acme.post("/v1/executions", json={"definition": "double", "input": 1})
    assert (refused.status_code, refused.json()["code"]) == (429, "rate_exceeded")
    assert (await acme.get("/v1/dlq")).status_code == 429
    assert (await other.post("/v1/executions", json={"definition": "double", "input": 1})).status_code == 201


def test_shares() -> None:
    shares = TenantShares(8)
    for _ in range(6):
        shares.take("acme")
    for tenant, words in (("acme", "its share"), ("other", ""), ("third", ""), ("fourth", "at its limit")):
        if not words:
            shares.take(tenant)
            continue
        with pytest.raises(RateExceeded, match=words):
            shares.take(tenant)
    shares.release("acme")
    with shares.held("fourth"):
        assert len(shares) == 8
    assert len(shares) == 7
    unlimited = TenantShares(0)
    for _ in range(1_000):
        unlimited.take("acme")


async def test_bodies_that_do_not_come_take_nobodys_place_and_are_given_up(make_site: MakeSite) -> None:
    site = await make_site(SAGA, settings=Settings(max_requests=2, rate_per_second=0, body_seconds=2))
    async with listening(site) as client:
        lines = [await asyncio.open_connection(client.base_url.host, client.base_url.port) for _ in range(4)]
        known = f"Authorization: {client.headers['Authorization']}\r\n".encode()
        for _, writer in lines:
            writer.write(b"POST /v1/executions HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n" + known + b"\r\n")
            await writer.drain()
        assert (await client.get("/v1/executions")).status_code == 200
        for reader, writer in lines:
            answer = await reader.read()  # until it is closed
            assert answer.startswith(b"HTTP/1.1 408 "), answer
            assert b'"code":"request_timeout"' in answer
            writer.close()

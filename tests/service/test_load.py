"""More than can be done: what is accepted is done, the rest is turned away and told when to come again.

No time is asserted: a slow machine accepts less, and keeps the same promises.
"""

import asyncio
from collections import Counter
from typing import Any

import httpx2
import pytest
from starlette.types import Receive, Scope, Send

from tenuto import SagaBuilder
from tenuto.service.http.gate import Gate
from tenuto.settings import Settings
from tests.service.conftest import MakeSite
from tests.service.test_events import listening


async def double(number: int) -> int:
    return 2 * number


SAGA = SagaBuilder("double").step("double", double)
RAMP = (2, 8, 32, 96)  # requests at once; each that was answered is followed by another
EACH = 4
BURST = 200


@pytest.mark.slow
async def test_a_ramp_loses_nothing_that_was_accepted(make_site: MakeSite) -> None:
    """The rate lets `BURST` through and hardly more, so that the end of the ramp is refused on any machine."""
    limited = Settings(max_requests=16, rate_per_second=1, rate_burst=BURST)
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
    assert refused["rate_exceeded"] >= EACH * sum(RAMP) - BURST - 120  # so many more at most, in the time a test has
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

    transport = httpx2.ASGITransport(app=Gate(slow, most=2))
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

"""Live events, over a real socket: they come as they happen, in order, and end with `end`."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx2
import pytest

from tenuto import SagaBuilder
from tenuto.service.server import address_of, bind, serve
from tests.service.conftest import MakeSite, Site


async def work() -> int:
    return 1


SAGA = SagaBuilder("s").step("a", work).approval("ok", depends_on=["a"])


class Event(NamedTuple):
    id: int | None
    type: str
    data: Any


@asynccontextmanager
async def listening(site: Site, tenant: str = "acme") -> AsyncIterator[httpx2.AsyncClient]:
    key = await site.engine.keys.create(tenant=tenant, roles=["admin"])
    listener, stop = bind("127.0.0.1", 0), asyncio.Event()
    serving = asyncio.create_task(serve(site.app, listener, stop, grace_seconds=1))
    headers = {"Authorization": f"Bearer {key.token}"}
    try:
        async with httpx2.AsyncClient(
            base_url=address_of(listener), headers=headers, timeout=60, trust_env=False
        ) as client:
            yield client
    finally:
        stop.set()
        await serving


async def events(response: httpx2.Response) -> AsyncIterator[Event]:
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "event" in fields:
            id = int(fields["id"]) if "id" in fields else None
            yield Event(id, fields["event"], json.loads(fields["data"]))
            fields = {}


async def test_events_come_as_they_happen_and_end(make_site: MakeSite) -> None:
    site = await make_site(SAGA)
    async with listening(site) as client:
        id = (await client.post("/v1/executions", json={"definition": "s"})).json()["execution_id"]
        found: list[Event] = []
        async with client.stream("GET", f"/v1/executions/{id}/events") as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            async for event in events(response):
                found.append(event)
                if event.type == "review":
                    approved = await client.post(f"/v1/executions/{id}/steps/ok:approve")
                    assert approved.status_code == 200, approved.text
    assert [event.id for event in found[:-1]] == list(range(1, len(found)))
    assert (found[0].type, found[-2].type, found[-1].type) == ("started", "finished", "end")
    assert found[-1].data == {"execution_id": id, "status": "succeeded"}
    async with listening(site) as client:
        history = (await client.get(f"/v1/executions/{id}/history", params={"view": "events"})).json()["items"]
    assert history == [event.data for event in found[:-1]]


async def test_a_client_that_comes_back_goes_on_where_it_was(make_site: MakeSite) -> None:
    site = await make_site(SagaBuilder("s").step("a", work))
    handle = await site.engine.scoped(tenant="acme", actor="a").start("s")
    await handle.result()
    async with listening(site) as client:
        at = f"/v1/executions/{handle.id}/events"
        async with client.stream("GET", at) as response:
            whole = [event async for event in events(response)]
        async with client.stream("GET", at, headers={"Last-Event-ID": "1"}) as response:
            rest = [event async for event in events(response)]
        async with client.stream("GET", at, headers={"Last-Event-ID": str(whole[-2].id)}) as response:
            over = [event async for event in events(response)]
    assert rest == whole[1:]
    assert [event.type for event in over] == ["end"]


async def test_a_stream_of_what_is_not_there_is_a_plain_404(make_site: MakeSite) -> None:
    site = await make_site(SAGA)
    id = (await site.engine.scoped(tenant="acme", actor="a").start("s")).id
    async with listening(site, "other") as client:
        for wanted in (id, "0" * 22):
            answer = await client.get(f"/v1/executions/{wanted}/events")
            assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


async def test_a_client_that_leaves_is_forgotten(make_site: MakeSite) -> None:
    site = await make_site(SAGA)
    async with listening(site) as client:
        id = (await client.post("/v1/executions", json={"definition": "s"})).json()["execution_id"]
        async with client.stream("GET", f"/v1/executions/{id}/events") as response:
            async for event in events(response):
                assert event.type == "started"
                break
        streams = site.app.state.service.limiter.streams
        while streams:
            await client.get("/healthz")


async def test_a_server_that_ends_lets_go_of_those_who_listen_and_wait(
    make_site: MakeSite, caplog: pytest.LogCaptureFixture
) -> None:
    site = await make_site(SAGA)
    listener, stop = bind("127.0.0.1", 0), asyncio.Event()
    serving = asyncio.create_task(serve(site.app, listener, stop, grace_seconds=3_600))
    key = await site.engine.keys.create(tenant="acme", roles=["admin"])
    headers = {"Authorization": f"Bearer {key.token}"}
    async with httpx2.AsyncClient(
        base_url=address_of(listener), headers=headers, timeout=60, trust_env=False
    ) as client:
        id = (await client.post("/v1/executions", json={"definition": "s"})).json()["execution_id"]
        await client.get(f"/v1/executions/{id}?wait=settled")
        waiting = asyncio.create_task(client.get(f"/v1/executions/{id}?wait=terminal&seconds=60"))
        listening = asyncio.create_task(client.get(f"/v1/executions/{id}/events"))
        while len(site.app.state.service.limiter.streams) < 2:
            await client.get("/healthz")
        stop.set()
        assert (await waiting).json()["status"] == "waiting_approval"
        heard = await listening  # whole, or this raises
        assert (heard.status_code, b"event: end" in heard.content) == (200, False)
        await serving
    assert len(site.app.state.service.limiter.streams) == 0
    assert [each.message for each in caplog.records if each.levelno >= logging.WARNING] == []


async def test_streams_are_shared_between_tenants(make_site: MakeSite) -> None:
    site = await make_site(SAGA)
    streams = site.app.state.service.limiter.streams
    for _ in range(750):
        streams.take("acme")
    async with listening(site) as client:
        id = (await client.post("/v1/executions", json={"definition": "s"})).json()["execution_id"]
        assert (await client.get(f"/v1/executions/{id}/events")).status_code == 429
        assert (await client.get(f"/v1/executions/{id}?wait=terminal")).status_code == 429
    streams.take("other")

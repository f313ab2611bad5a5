"""The feed over a real socket: what viewers are sent, and when their streams end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx2
import pytest

from tenuto import Engine, SagaBuilder
from tenuto.access.keys import NewKey
from tests.service.conftest import MakeSite, Site
from tests.service.test_revocation import opened

SAGA = SagaBuilder("s").approval("ok")


class Stream:
    """Lines of a feed, as they come."""

    def __init__(self, response: httpx2.Response) -> None:
        self._lines = aiter(response.aiter_lines())

    async def until(self, *parts: str) -> list[str]:
        """The lines up to one that has all these parts."""
        lines: list[str] = []
        async with asyncio.timeout(20):
            while True:
                lines.append(await anext(self._lines))
                if all(part in lines[-1] for part in parts):
                    return lines

    async def until_end(self) -> list[str]:
        async with asyncio.timeout(20):
            return [line async for line in self._lines]


@asynccontextmanager
async def feed(client: httpx2.AsyncClient, query: str = "", **headers: str) -> AsyncIterator[Stream]:
    async with client.stream("GET", f"/v1/feed{query}", headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        stream = Stream(response)
        await stream.until("id: ")  # from here on, nothing is missed
        yield stream


async def test_a_stream_begins_with_where_it_is_and_continues_there(make_site: MakeSite) -> None:
    site = await make_site(SAGA)
    key = await site.engine.keys.create(tenant="acme", roles=["viewer"])
    acme = site.engine.scoped(tenant="acme", actor="a")
    async with opened(site, key.token) as client:
        async with client.stream("GET", "/v1/feed") as response:
            (told,) = await Stream(response).until("id: ")
        handle = await acme.start("s")
        await handle.result()
        async with client.stream("GET", "/v1/feed", headers={"Last-Event-ID": told.removeprefix("id: ")}) as response:
            lines = await Stream(response).until(handle.id, '"status":"waiting_approval"')
    assert "event: status" in lines
    assert "event: reset" not in lines


async def test_a_status_and_the_events_of_a_watched_execution_are_sent(make_site: MakeSite) -> None:
    site = await make_site(SAGA)
    key = await site.engine.keys.create(tenant="acme", roles=["viewer"])
    handle = await site.engine.scoped(tenant="acme", actor="a").start("s")
    await handle.result()
    async with opened(site, key.token) as client, feed(client, f"?watch={handle.id}") as stream:
        await site.engine.get(handle.id).approve("ok")
        lines = await stream.until('"status":"succeeded"')
        assert "event: status" in lines
        lines += await stream.until('"type":"finished"') if "event: event" not in lines else []
        assert "event: event" in lines


async def test_a_feed_refuses_what_cannot_be_watched(make_site: MakeSite) -> None:
    site = await make_site(SAGA)
    foreign = await site.engine.scoped(tenant="other", actor="a").start("s")
    client = await site.client("acme", "viewer")
    for watch, status in ((foreign.id, 404), ("0" * 22, 404), (f"{foreign.id}:x", 422)):
        assert (await client.get("/v1/feed", params={"watch": watch})).status_code == status, watch
    many = {"watch": [f"{number}" for number in range(21)]}
    assert (await client.get("/v1/feed", params=many)).status_code == 422


End = Callable[[Site, NewKey, str], Awaitable[None]]


async def revoke_elsewhere(site: Site, key: NewKey, url: str) -> None:
    async with Engine(url, worker=False) as other:
        await other.keys.revoke(key.row.id)


async def revoke_here(site: Site, key: NewKey, url: str) -> None:
    await site.engine.keys.revoke(key.row.id)


@pytest.mark.parametrize("end", [revoke_here, revoke_elsewhere])
async def test_a_feed_ends_with_its_key_and_nothing_is_sent_after(make_site: MakeSite, url: str, end: End) -> None:
    site = await make_site(SAGA)
    key = await site.engine.keys.create(tenant="acme", roles=["admin"])
    async with opened(site, key.token) as client, feed(client) as stream:
        await end(site, key, url)
        handle = await site.engine.scoped(tenant="acme", actor="a").start("s")
        assert not any(handle.id in line for line in await stream.until_end())


async def test_a_feed_ends_when_its_session_is_signed_out(make_site: MakeSite) -> None:
    site = await make_site(SAGA)
    key = await site.engine.keys.create(tenant="acme", roles=["viewer"])
    async with opened(site, "") as client:
        del client.headers["Authorization"]
        signed_in = (await client.post("/v1/session", json={"key": key.token})).json()
        async with feed(client) as stream:
            headers = {"X-Tenuto-CSRF": signed_in["csrf_token"], "Sec-Fetch-Site": "same-origin"}
            assert (await client.delete("/v1/session", headers=headers)).status_code == 204
            await stream.until_end()
        assert (await client.get("/v1/feed")).status_code == 401


async def test_a_change_is_encoded_once_for_all_viewers(make_site: MakeSite) -> None:
    site = await make_site(SAGA)
    acme = site.engine.scoped(tenant="acme", actor="a")
    viewers = [acme.feed_chunks() for _ in range(3)]
    for viewer in viewers:
        await anext(viewer)
    handle = await acme.start("s")
    async with asyncio.timeout(20):
        (first, *others) = [await anext(viewer) for viewer in viewers]
    assert first.events[0].execution_id == handle.id
    assert all(other.events[0] is first.events[0] for other in others)

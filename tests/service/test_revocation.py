"""Keys that are revoked, expire or change their roles: what they have open ends, and nothing more is sent to it.

The guides promise that a revoked key is refused everywhere within a second.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx2
import psycopg
import pytest

from tenuto import Engine, SagaBuilder
from tenuto.access import keys
from tenuto.access.keys import DAY_MS, Keyring, NewKey
from tenuto.access.tokens import LEEWAY_SECONDS
from tenuto.service.http import caller
from tenuto.settings import Issuer, Settings
from tests.servers import sqlite
from tests.servers.http import serving
from tests.service.conftest import MakeSite, Site
from tests.service.test_events import events
from tests.service.test_tokens import ISSUER, RSA, jwk, signed, written

SAGA = SagaBuilder("s").approval("ok")
SECRET = "the payload that nobody may see any more"


def test_all_that_a_key_is_remembered_for_is_a_second() -> None:
    assert keys.REFRESH_S < keys.FRESH_S <= 1
    assert caller.CONFIRM_SECONDS + caller.CONFIRMED_SECONDS < 1


@asynccontextmanager
async def opened(site: Site, token: str) -> AsyncIterator[httpx2.AsyncClient]:
    async with AsyncExitStack() as stack:
        address = await stack.enter_async_context(serving(site.app))
        headers = {"Authorization": f"Bearer {token}"}
        client = httpx2.AsyncClient(base_url=address, headers=headers, timeout=60, trust_env=False)
        yield await stack.enter_async_context(client)


async def listen(client: httpx2.AsyncClient, id: str, opening: asyncio.Event) -> list[str]:
    """The types of all events, until the stream ends. `opening` is set when the review is open."""
    types: list[str] = []
    async with client.stream("GET", f"/v1/executions/{id}/events") as response:
        async for event in events(response):
            types.append(event.type)
            assert SECRET not in str(event.data)
            if event.type == "review":
                opening.set()
    return types


End = Callable[[Site, NewKey, str], Awaitable[None]]


async def revoke_here(site: Site, key: NewKey, url: str) -> None:
    await site.engine.keys.revoke(key.row.id)


async def revoke_elsewhere(site: Site, key: NewKey, url: str) -> None:
    """As `tenuto keys revoke` does, in a process of its own."""
    async with Engine(url, worker=False) as other:
        await other.keys.revoke(key.row.id)


@pytest.mark.parametrize("end", [revoke_here, revoke_elsewhere])
async def test_a_stream_and_a_waiting_read_of_a_revoked_key_end(make_site: MakeSite, url: str, end: End) -> None:
    site = await make_site(SAGA)
    key = await site.engine.keys.create(tenant="acme", roles=["admin"])
    handle = await site.engine.scoped(tenant="acme", actor="a").start("s")
    async with opened(site, key.token) as client:
        opening = asyncio.Event()
        stream = asyncio.create_task(listen(client, handle.id, opening))
        waiting = asyncio.create_task(client.get(f"/v1/executions/{handle.id}?wait=terminal&seconds=60"))
        await opening.wait()
        while len(site.app.state.service.limiter.streams) < 2:
            await client.get("/healthz")
        await end(site, key, url)
        assert "end" not in await stream
        assert (await waiting).status_code == 401
    assert (await handle.status())["status"] == "waiting_approval"


@pytest.mark.parametrize("end", [revoke_here, revoke_elsewhere])
async def test_nothing_is_sent_after_the_revocation(make_site: MakeSite, url: str, end: End) -> None:
    """The execution ends right after it: both have something to send, sooner than they look at their key again."""
    site = await make_site(SAGA)
    key = await site.engine.keys.create(tenant="acme", roles=["admin"])
    handle = await site.engine.scoped(tenant="acme", actor="a").start("s")
    async with opened(site, key.token) as client:
        opening = asyncio.Event()
        stream = asyncio.create_task(listen(client, handle.id, opening))
        waiting = asyncio.create_task(client.get(f"/v1/executions/{handle.id}?wait=terminal&seconds=60"))
        await opening.wait()
        while len(site.app.state.service.limiter.streams) < 2:
            await client.get("/healthz")
        await end(site, key, url)
        await site.engine.get(handle.id).approve("ok", data=SECRET)
        assert "end" not in await stream
        answer = await waiting
    assert (answer.status_code, SECRET in answer.text) == (401, False)


async def test_a_stream_ends_when_its_key_expires(make_site: MakeSite) -> None:
    site = await make_site(SAGA)
    handle = await site.engine.scoped(tenant="acme", actor="a").start("s")
    yesterday = int(time.time() * 1_000) - DAY_MS
    key = await Keyring(site.engine.registry, lambda: yesterday + 2_000).create(tenant="acme", roles=["admin"], days=1)
    async with opened(site, key.token) as client:
        assert "end" not in await listen(client, handle.id, asyncio.Event())


def change(url: str, statement: bytes) -> None:
    if url.startswith("sqlite"):
        sqlite.connect(url).execute(statement.decode())
    else:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(statement)


async def test_a_stream_ends_when_its_roles_change(make_site: MakeSite, url: str) -> None:
    site = await make_site(SAGA)
    site.is_tampered = True
    key = await site.engine.keys.create(tenant="acme", roles=["admin"])
    handle = await site.engine.scoped(tenant="acme", actor="a").start("s")
    async with opened(site, key.token) as client:
        opening = asyncio.Event()
        stream = asyncio.create_task(listen(client, handle.id, opening))
        await opening.wait()
        change(url, b"UPDATE api_keys SET roles = '[\"worker\"]'")
        assert "end" not in await stream


async def test_a_stream_ends_when_its_token_expires(make_site: MakeSite, tmp_path: Path) -> None:
    keys = written(tmp_path, [jwk(RSA, "RS256", "rsa")])
    issuer = Issuer(issuer=ISSUER, audience="tenuto", jwks_file=keys, tenant="acme", roles=("operator",))
    site = await make_site(SAGA, settings=Settings(rate_per_second=0, jwt_issuers=(issuer,)))
    handle = await site.engine.scoped(tenant="acme", actor="a").start("s")
    token = signed(exp=int(time.time()) - LEEWAY_SECONDS + 2)
    async with opened(site, token) as client:
        assert "end" not in await listen(client, handle.id, asyncio.Event())

"""Who calls is asked by the head of a request: a stranger's body is not read, and a tenant has one bucket for all."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import httpx2
import pytest
from starlette.types import Message

from tenuto.settings import Settings
from tests.seams import set_tenant_rate
from tests.servers import sqlite
from tests.servers.http import serving
from tests.service.conftest import MakeSite, Site
from tests.service.test_access import SIGN_IN

MIB = 1024 * 1024


async def asked(app: Any, method: str, path: str, *headers: tuple[bytes, bytes]) -> int:
    """The status, of a request whose body must not be asked for."""
    statuses: list[int] = []

    async def receive() -> Message:
        raise AssertionError("the body was asked for")

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json"), (b"content-length", b"1000"), *headers],
        "client": ("192.0.2.1", 1),
    }
    await app(scope, receive, send)
    return statuses[0]


def operations(site: Site) -> list[tuple[str, str]]:
    """All that take a body."""
    return [
        (method.upper(), path.replace("{", "").replace("}", ""))
        for path, item in site.app.openapi()["paths"].items()
        for method, operation in item.items()
        if "requestBody" in operation
    ]


@pytest.mark.requirement("F17")
async def test_the_body_of_a_stranger_is_not_read_whatever_he_asks_for(make_site: MakeSite) -> None:
    site = await make_site()
    found = [each for each in operations(site) if " ".join(each) != SIGN_IN]
    assert len(found) >= 15
    assert ("POST", "/v1/executions") in found
    for method, path in (*found, ("POST", "/v1/nothing/of/this/name")):
        assert await asked(site.app, method, path) == 401, path
        assert await asked(site.app, method, path, (b"authorization", b"Bearer tnt_of_nobody")) == 401, path


async def test_a_stranger_hears_so_before_he_has_sent_his_body(make_site: MakeSite) -> None:
    site = await make_site(settings=Settings(body_seconds=3_600))
    async with serving(site.app) as address:
        place = httpx2.URL(address)
        reader, writer = await asyncio.open_connection(place.host, place.port)
        writer.write(b"POST /v1/executions HTTP/1.1\r\nHost: tenuto\r\nContent-Length: %d\r\n\r\n" % MIB)
        assert b" 401 " in await reader.readline()
        writer.close()


async def test_the_body_of_whoever_asks_too_often_is_not_read(make_site: MakeSite) -> None:
    site = await make_site(settings=Settings(rate_per_second=0.001, rate_burst=1))
    key = (await site.engine.keys.create(tenant="acme", roles=("admin",))).token
    known = (b"authorization", f"Bearer {key}".encode())
    assert await asked(site.app, "GET", "/v1/executions", known) == 200
    assert await asked(site.app, "POST", "/v1/executions", known) == 429


async def test_a_request_is_counted_once(make_site: MakeSite) -> None:
    site = await make_site(settings=Settings(rate_per_second=0.001, rate_burst=3))
    client = await site.client()
    statuses = [(await client.post("/v1/executions", json={"definition": "none"})).status_code for _ in range(4)]
    assert statuses == [404, 404, 404, 429]


# -- A bucket for each tenant ------------------------------------------------------------------------------------------


async def test_all_keys_of_a_tenant_share_its_rate(make_site: MakeSite) -> None:
    limited = Settings(tenant_rate_per_second=0.001, tenant_rate_burst=4)
    site = await make_site(settings=limited)
    keys = [await site.client("acme", role) for role in ("admin", "viewer", "operator")]
    other = await site.client("other")
    statuses = [(await keys[turn % 3].get("/v1/executions")).status_code for turn in range(6)]
    assert statuses == [200, 200, 200, 200, 429, 429]
    refused = await keys[0].get("/v1/executions")
    assert (refused.json()["code"], int(refused.headers["retry-after"]) > 1) == ("rate_exceeded", True)
    assert (await other.get("/v1/executions")).status_code == 200


async def test_what_a_tenant_may_not_is_not_taken_from_its_key(make_site: MakeSite) -> None:
    limited = Settings(rate_per_second=0.001, rate_burst=2, tenant_rate_per_second=0.001, tenant_rate_burst=1)
    site = await make_site(settings=limited)
    client = await site.client()
    told = [await client.get("/v1/executions") for _ in range(4)]
    assert [answer.status_code for answer in told] == [200, 429, 429, 429]
    # By the tenant's bucket, each time: that of the key, which has one left, would tell of another time.
    assert {answer.json()["detail"] for answer in told[1:]} == {told[1].json()["detail"]}
    set_tenant_rate(site.app.state.service.authentication, 0, 1)
    assert [(await client.get("/v1/executions")).status_code for _ in range(2)] == [200, 429]


# -- Strangers ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def no_keys_to_be_had(url: str) -> AsyncIterator[None]:
    """The table of keys is gone for a while: whoever looks for one gets an error of the database."""
    away, back = "ALTER TABLE api_keys RENAME TO api_keys_away", "ALTER TABLE api_keys_away RENAME TO api_keys"
    if url.startswith("sqlite"):
        connection = sqlite.connect(url)
        try:
            await asyncio.to_thread(connection.execute, away)
            yield
            await asyncio.to_thread(connection.execute, back)
        finally:
            connection.close()
    else:
        other = await asyncpg.connect(url)
        try:
            await other.execute(away)
            yield
            await other.execute(back)
        finally:
            await other.close()


async def test_what_the_database_could_not_say_is_not_a_strangers_try(make_site: MakeSite, url: str) -> None:
    site = await make_site(settings=Settings(rate_per_second=0.001, rate_burst=2))
    new = await site.client()
    async with no_keys_to_be_had(url):
        assert [(await new.get("/v1/executions")).status_code for _ in range(4)] == [503] * 4
    assert (await new.get("/v1/executions")).status_code == 200


@pytest.mark.parametrize("path", ["/healthz", "/openapi.json"])
async def test_what_is_open_asks_nobody(make_site: MakeSite, path: str) -> None:
    site = await make_site(settings=Settings(rate_per_second=0.001, rate_burst=1))
    assert [(await (await site.bare()).get(path)).status_code for _ in range(3)] == [200] * 3


async def test_so_many_unknown_keys_are_looked_for_at_once_and_no_more(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = await make_site(settings=Settings(max_requests=8))
    keys = [await site.engine.keys.create(tenant="acme", roles=("admin",)) for _ in range(20)]
    goes_on, looked = asyncio.Event(), 0
    registry: Any = type(site.engine.registry)
    real = registry.key

    async def slow(self: Any, id: str) -> Any:
        nonlocal looked
        looked += 1
        await goes_on.wait()
        return await real(self, id)

    monkeypatch.setattr(registry, "key", slow)
    asking = [
        asyncio.create_task(_status(site.app, (b"authorization", f"Bearer {key.token}".encode()))) for key in keys
    ]
    while looked < 2:
        await asyncio.to_thread(lambda: None)
    for _ in range(20):  # time enough for all of them to ask
        await asyncio.to_thread(lambda: None)
    assert looked == 2
    goes_on.set()
    assert await asyncio.gather(*asking) == [422] * 20, "whoever is known is not turned away for it"


async def test_a_key_is_looked_up_by_one_query_at_a_time(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers that come while a query is running share the next one: it began after they came."""
    site = await make_site(settings=Settings(max_requests=80))
    token = (await site.engine.keys.create(tenant="acme", roles=("admin",))).token
    goes_on, looked = asyncio.Event(), 0
    registry: Any = type(site.engine.registry)
    real = registry.key

    async def slow(self: Any, id: str) -> Any:
        nonlocal looked
        looked += 1
        await goes_on.wait()
        return await real(self, id)

    monkeypatch.setattr(registry, "key", slow)
    authorization = (b"authorization", f"Bearer {token}".encode())
    first = asyncio.create_task(_status(site.app, authorization))
    while looked < 1:
        await asyncio.to_thread(lambda: None)
    others = [asyncio.create_task(_status(site.app, authorization)) for _ in range(10)]
    for _ in range(20):  # time enough for all of them to ask
        await asyncio.to_thread(lambda: None)
    assert looked == 1
    goes_on.set()
    assert await asyncio.gather(first, *others) == [422] * 11
    assert looked == 2


async def _status(app: Any, *headers: tuple[bytes, bytes]) -> int:
    statuses: list[int] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/executions",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json"), *headers],
        "client": ("192.0.2.1", 1),
    }
    await app(scope, receive, send)
    return statuses[0]


async def test_whoever_asked_whether_to_send_his_body_is_not_taken_at_his_next_word(make_site: MakeSite) -> None:
    """He is answered without it: what follows on that connection may be the body, or another request."""
    site = await make_site()
    async with serving(site.app) as address:
        url = httpx2.URL(address)
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write(b"POST /v1/executions HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: 37\r\n\r\n")
        answer = await reader.read()  # until it is closed
        writer.close()
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"\r\nconnection: close\r\n" in answer.lower()

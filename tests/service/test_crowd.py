"""A tenant that asks for far more than it may: it hears so before its requests are read, and nobody else does."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import httpx2
import pytest

from tenuto import SagaBuilder
from tenuto.runtimes.durable import crowds as engine_crowds
from tenuto.service.http import crowds
from tests.service.conftest import MakeSite, Site

WAITS = SagaBuilder("waits").approval("ok")
ROOM = 3
MANY = engine_crowds.MANY + 50
START = {"definition": "waits", "input": None}


async def start(client: httpx2.AsyncClient, number: int = 0) -> httpx2.Response:
    return await client.post("/v1/executions", json=START, headers={"Idempotency-Key": f"k{number}"})


@pytest.fixture
async def crowded(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> Site:
    """`acme` has as many as it may, was told so many times, and is not asked again within this test."""
    monkeypatch.setattr(engine_crowds, "MOMENT_S", 3_600.0)
    site = await refused_often(make_site, monkeypatch)
    assert site.engine.is_crowded("acme")
    return site


async def refused_often(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(engine_crowds, "FORGOTTEN_S", 3_600.0)
    monkeypatch.setattr(crowds, "REMEMBERED_S", 3_600.0)
    site = await make_site(WAITS)
    await site.engine.tenant_limit("acme", max_in_flight=ROOM)
    client = await site.client()
    answers = await asyncio.gather(*(start(client, number) for number in range(MANY)))
    assert Counter(answer.status_code for answer in answers) == {201: ROOM, 429: MANY - ROOM}
    return site


async def test_what_is_refused_is_not_read(crowded: Site) -> None:
    client = await crowded.client()
    answer = await client.post("/v1/executions", content=b"not JSON", headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (429, "tenant_limit")
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_all_else_is_answered_as_ever(crowded: Site) -> None:
    client = await crowded.client()
    assert len((await client.get("/v1/executions")).json()["items"]) == ROOM
    assert (await start(await crowded.client("quiet"))).status_code == 201
    assert (await start(await crowded.bare("tnt_of_nobody"))).status_code == 401
    assert (await start(await crowded.bare())).status_code == 401


async def test_when_there_is_room_it_is_let_in_again(crowded: Site) -> None:
    client = await crowded.client()
    await crowded.engine.tenant_limit("acme", max_in_flight=ROOM + 1)
    assert (await start(client, MANY)).status_code == 201
    assert (await start(client, MANY)).status_code == 200  # the same request again


async def test_when_there_may_be_room_no_more_are_let_in_than_a_few(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is let in is read, and asked about: a whole crowd of it would keep all others waiting."""
    monkeypatch.setattr(engine_crowds, "MOMENT_S", -1.0)  # what was heard last is never good for long enough
    client = await (await refused_often(make_site, monkeypatch)).client()
    sent = asyncio.Event()

    async def slow() -> AsyncIterator[bytes]:
        await sent.wait()
        yield b"not JSON"

    def ask() -> asyncio.Task[httpx2.Response]:
        headers = {"Content-Type": "application/json"}
        return asyncio.create_task(client.post("/v1/executions", content=slow(), headers=headers))

    asked = [ask() for _ in range(engine_crowds.MANY + 7)]
    waiting = set(asked)
    while len(waiting) > engine_crowds.MANY:
        _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    sent.set()
    answers = Counter([(await answer).status_code for answer in asked])
    assert answers == {400: engine_crowds.MANY, 429: 7}


async def test_a_credential_is_looked_at_again(crowded: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been revoked since it was refused."""
    client = await crowded.client()
    monkeypatch.setattr(crowds, "REMEMBERED_S", -1.0)
    answer = await client.post("/v1/executions", content=b"not JSON", headers={"Content-Type": "application/json"})
    assert answer.status_code == 400

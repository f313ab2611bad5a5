"""A tenant that asks for far more than it may: it hears so before its requests are read, and nobody else does."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import httpx2
import pytest

from tenuto import SagaBuilder
from tenuto.runtime.durable import tenant_admission as crowds
from tenuto.service.http import request_limits
from tests.service.conftest import MakeSite, Site

WAITS = SagaBuilder("waits").approval("ok")
ROOM = 3
MANY = crowds.MANY + 50
START = {"definition": "waits", "input": None}


async def start(client: httpx2.AsyncClient, number: int = 0) -> httpx2.Response:
    return await client.post("/v1/executions", json=START, headers={"Idempotency-Key": f"k{number}"})


@pytest.fixture
async def crowded(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> Site:
    """`acme` has as many as it may, was told so many times, and is not asked again within this test."""
    monkeypatch.setattr(crowds, "MOMENT_S", 3_600.0)
    site = await refused_often(make_site, monkeypatch)
    assert site.engine.is_crowded("acme")
    return site


async def refused_often(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(crowds, "FORGOTTEN_S", 3_600.0)
    monkeypatch.setattr(request_limits, "REMEMBERED_S", 3_600.0)
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


class Slow:
    """Starts of something that is not there, sent by halves: the other halves come all at once."""

    def __init__(self, client: httpx2.AsyncClient, number: int) -> None:
        self._coming = asyncio.Semaphore(0)
        self._rest = asyncio.Event()
        headers = {"Content-Type": "application/json"}
        self._asked = [
            asyncio.create_task(client.post("/v1/executions", content=self._body(), headers=headers))
            for _ in range(number)
        ]

    async def _body(self) -> AsyncIterator[bytes]:
        yield b'{"definition": '
        self._coming.release()
        await self._rest.wait()
        yield b'"nothing"}'

    async def are_read(self) -> None:
        for _ in self._asked:
            await self._coming.acquire()

    async def answers(self) -> Counter[int]:
        self._rest.set()
        return Counter([(await answer).status_code for answer in self._asked])


async def test_when_there_may_be_room_no_more_are_let_in_than_a_few(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is let in is asked about: a whole crowd of it would keep all others waiting."""
    monkeypatch.setattr(crowds, "MOMENT_S", -1.0)  # what was heard last is never good for long enough
    client = await (await refused_often(make_site, monkeypatch)).client()
    slow = Slow(client, crowds.AT_ONCE + 7)
    await slow.are_read()
    assert await slow.answers() == {404: crowds.AT_ONCE, 429: 7}


async def test_what_has_not_arrived_whole_takes_nobodys_place(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crowds, "MOMENT_S", -1.0)
    site = await refused_often(make_site, monkeypatch)
    client = await site.client()
    slow = Slow(client, crowds.AT_ONCE + 7)
    await slow.are_read()
    one, *_ = (await client.get("/v1/executions")).json()["items"]
    await site.engine.get(one["execution_id"]).cancel()
    await site.engine.get(one["execution_id"]).result()
    assert (await start(client, MANY)).status_code == 201
    await slow.answers()


async def test_a_credential_is_looked_at_again(crowded: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been revoked since it was refused."""
    client = await crowded.client()
    monkeypatch.setattr(request_limits, "REMEMBERED_S", -1.0)
    answer = await client.post("/v1/executions", content=b"not JSON", headers={"Content-Type": "application/json"})
    assert answer.status_code == 400

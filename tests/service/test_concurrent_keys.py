"""Two requests with one key at once: while the first is under way the second is told to come again, and then has it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from tenuto import SagaBuilder
from tests.servers import sqlite
from tests.service.conftest import MakeSite, until

BODY = {"definition": "asks", "input": {"amount": 1}}
KEY = {"Idempotency-Key": "k-1"}


@asynccontextmanager
async def nothing_is_written(url: str) -> AsyncIterator[None]:
    """No execution can be written while this holds, and all that is there can be read."""
    if url.startswith("sqlite"):
        connection = sqlite.connect(url)
        try:
            await asyncio.to_thread(connection.execute, "BEGIN IMMEDIATE")
            yield
        finally:
            connection.execute("ROLLBACK")
            connection.close()
    else:
        other = await asyncpg.connect(url)
        try:
            async with other.transaction():
                await other.execute("LOCK TABLE executions IN SHARE ROW EXCLUSIVE MODE")
                yield
        finally:
            await other.close()


async def test_a_second_request_while_the_first_is_under_way(make_site: MakeSite, url: str) -> None:
    site = await make_site(SagaBuilder("asks").approval("ok"))
    client, other = await site.client("acme"), await site.client("other")
    assert (await client.post("/v1/executions", json=BODY)).status_code == 201  # the definition is stored now
    assert (await other.get("/v1/executions")).status_code == 200
    starting = site.app.state.service.starting
    async with nothing_is_written(url):
        first = asyncio.create_task(client.post("/v1/executions", json=BODY, headers=KEY))
        await until(lambda: client.get("/v1/definitions"), lambda _: bool(starting))
        second = await client.post("/v1/executions", json=BODY, headers=KEY)
        changed = await client.post("/v1/executions", json={**BODY, "input": 2}, headers=KEY)
        assert not first.done()
    for answer in (second, changed):
        assert (answer.status_code, answer.json()["code"]) == (409, "request_in_flight")
        assert answer.headers["retry-after"] == "1"

    made = await first
    assert made.status_code == 201
    again = await client.post("/v1/executions", json=BODY, headers=KEY)
    assert (again.status_code, again.headers["idempotency-replayed"]) == (200, "true")
    assert again.json()["execution_id"] == made.json()["execution_id"]
    changed = await client.post("/v1/executions", json={**BODY, "input": 2}, headers=KEY)
    assert (changed.status_code, changed.json()["code"]) == (422, "idempotency_conflict")
    assert (await other.post("/v1/executions", json=BODY, headers=KEY)).status_code == 201
    assert not starting


async def test_a_request_that_was_refused_is_not_in_flight(make_site: MakeSite) -> None:
    site = await make_site(SagaBuilder("asks").approval("ok"))
    client = await site.client("acme")
    refused = await client.post("/v1/executions", json={"definition": "nothing"}, headers=KEY)
    assert refused.status_code == 404
    assert (await client.post("/v1/executions", json=BODY, headers=KEY)).status_code == 201


async def test_two_services_on_one_database_make_one_execution(make_site: MakeSite) -> None:
    """What is under way in another process is waited for: its row is there as soon as it is answered."""
    sites = [await make_site(SagaBuilder("asks").approval("ok")) for _ in range(2)]
    clients = [await site.client("acme") for site in sites]
    answers = await asyncio.gather(*(client.post("/v1/executions", json=BODY, headers=KEY) for client in clients))
    assert sorted(answer.status_code for answer in answers) == [200, 201]
    assert len({answer.json()["execution_id"] for answer in answers}) == 1

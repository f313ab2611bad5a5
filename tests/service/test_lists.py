"""Lists: newest first, in pages that neither repeat nor leave out, by filters that find few among many quickly."""

from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import psycopg
import pytest

from tenuto import Engine, SagaBuilder
from tenuto.storage import queries
from tenuto.storage.store import ExecutionRow, Wanted
from tests.servers import sqlite
from tests.service.conftest import MakeSite, Site


async def double(number: int) -> int:
    return 2 * number


SAGAS = (
    SagaBuilder("double").step("double", double),
    SagaBuilder("asks").approval("ok"),
)


@pytest.fixture
async def site(make_site: MakeSite) -> Site:
    return await make_site(*SAGAS)


async def start(client: httpx2.AsyncClient, definition: str = "asks", **more: Any) -> str:
    headers = more.pop("headers", {})
    answer = await client.post("/v1/executions", json={"definition": definition, "input": 1, **more}, headers=headers)
    assert answer.status_code == 201, answer.text
    id: str = answer.json()["execution_id"]
    return id


async def listed(client: httpx2.AsyncClient, **params: Any) -> list[str]:
    """All pages."""
    found: list[str] = []
    while True:
        answer = await client.get("/v1/executions", params=params)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        found += [item["execution_id"] for item in page["items"]]
        if page["next_cursor"] is None:
            return found
        params["cursor"] = page["next_cursor"]


async def test_executions_come_newest_first_in_pages(site: Site) -> None:
    client = await site.client()
    ids = [await start(client) for _ in range(7)]
    assert await listed(client, limit=3) == ids[::-1]
    (newest,) = (await client.get("/v1/executions", params={"limit": 1})).json()["items"]
    assert (newest["execution_id"], newest["definition_id"], newest["tenant_id"]) == (ids[-1], "asks", "acme")


async def test_filters(site: Site) -> None:
    client = await site.client()
    one = await start(client, "double", headers={"X-Correlation-ID": "today"})
    two = await start(client, target={"type": "Invoice", "id": "inv-1"})
    three = await start(client)
    await site.engine.get(one).result()
    for id in (two, three):
        await site.engine.get(id).result()

    assert await listed(client, status="waiting_approval") == [three, two]
    assert await listed(client, status="succeeded") == [one]
    assert await listed(client, definition="double") == [one]
    assert await listed(client, definition="double", status="failed") == []
    assert await listed(client, target_id="inv-1") == [two]
    assert await listed(client, correlation_id="today") == [one]
    assert await listed(client, correlation_id=three) == [three]  # without one of its own, an execution is its own root
    now = datetime.now(UTC)
    assert await listed(client, since=(now - timedelta(hours=1)).isoformat()) == [three, two, one]
    assert await listed(client, since=(now + timedelta(hours=1)).isoformat()) == []


@pytest.mark.parametrize(
    "params", [{"limit": 0}, {"limit": 101}, {"cursor": "x"}, {"status": "odd"}, {"since": "yesterday"}]
)
async def test_what_makes_no_sense_is_refused(site: Site, params: dict[str, Any]) -> None:
    refused = await (await site.client()).get("/v1/executions", params=params)
    assert refused.status_code == 422
    (error,) = refused.json()["errors"]
    assert error["pointer"] == f"query:{next(iter(params))}"


WANTED = [
    Wanted(tenant="t1", newest_first=True),
    Wanted(tenant="t1", status="failed", newest_first=True),
    Wanted(tenant="t1", definition="d1", newest_first=True),
    Wanted(tenant="t1", target_id="x1", newest_first=True),
    Wanted(tenant="t1", correlation_id="c1", newest_first=True),
    Wanted(tenant="t1", since=1, newest_first=True),
    Wanted(tenant="t1", active=True, newest_first=True),
]


@pytest.mark.parametrize("wanted", WANTED, ids=lambda wanted: str(len(repr(wanted))))
@pytest.mark.parametrize("after", [None, "5"])
async def test_a_page_is_read_from_an_index(url: str, wanted: Wanted, after: str | None) -> None:
    async with Engine(url, worker=False):
        pass
    columns = ", ".join(ExecutionRow.__struct_fields__)
    if url.startswith("sqlite"):
        connection = sqlite.connect(url)
        query, values = queries.executions(wanted, after, 50, "?")
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {query}", tuple(values))]
        assert [step for step in plan if step.startswith("SCAN executions")] == [], plan
        return
    rows = ", ".join(_POSTGRES.get(name, f"'{name[0]}' || n % 50") for name in ExecutionRow.__struct_fields__)
    with psycopg.connect(url, autocommit=True) as postgres:
        insert = f"INSERT INTO executions ({columns}) SELECT {rows} FROM generate_series(1, 20000) n"  # noqa: S608  (above)
        postgres.execute(insert.encode())
        postgres.execute("ANALYZE executions")
        query, values = queries.executions(wanted, after, 50, "$")
        for place in range(len(values), 0, -1):
            query = query.replace(f"${place}", "'%s'" % values[place - 1])  # noqa: UP031  (values of this test)
        plan = [row[0] for row in postgres.execute(f"EXPLAIN {query}".encode())]
    assert [step for step in plan if "Seq Scan" in step] == [], "\n".join(plan)


# What the columns hold that are neither texts nor to be found by.
_POSTGRES = {
    "id": "lpad(to_hex(n), 22, '0')",
    "tenant": "'t' || n % 10",
    "version": "1",
    "status": "(ARRAY['running', 'succeeded', 'failed'])[1 + n % 3]",
    "run": "1",
    "seq": "1",
    "epoch": "1",
    "owner": "NULL",
    "wake_at": "NULL",
    "priority": "0",
    "target_id": "'x' || n",
    "key": "NULL",
    "concurrency_key": "NULL",
    "cancel_requested": "false",
    "created_at": "n",
    "ended_at": "NULL",
}

"""Lists: newest first, in pages that neither repeat nor leave out, by filters that find few among many quickly."""

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import httpx2
import psycopg
import pytest

from tenuto import Engine, SagaBuilder
from tenuto.kernel.events import ReviewKind
from tenuto.runtime.shared.pages import Paging
from tenuto.storage.port import ExecutionRow, Wanted
from tenuto.storage.registry import AuditEntry, AuditWanted, wanted_rows
from tenuto.storage.reviews import ReviewsWanted, StoredReview, page_query
from tenuto.storage.shared import queries
from tests.seams import BY_ROW
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
    "params",
    [
        {"limit": 0},
        {"limit": 101},
        {"status": "odd"},
        {"since": "yesterday"},
        {"blocked_reason": "odd"},
        {"sort": "odd"},
    ],
)
async def test_what_makes_no_sense_is_refused(site: Site, params: dict[str, Any]) -> None:
    refused = await (await site.client()).get("/v1/executions", params=params)
    assert refused.status_code == 422
    (error,) = refused.json()["errors"]
    assert error["pointer"] == f"/query/{next(iter(params))}"
    assert not error["message"].startswith("Value error")


async def test_a_cursor_of_another_list_is_refused(site: Site) -> None:
    client, everywhere = await site.client(), await site.client("default")
    ids = [await start(client) for _ in range(2)]
    long = "\N{MUSICAL SYMBOL G CLEF}" * 255  # the longest cursor that there is
    for name in ("a", "b"):
        await site.engine.limit(f"{long}{name}", concurrency=1)
        await site.engine.tenant_limit(name, max_in_flight=1)
    for id in ids:
        await site.engine.get(id).result()
    asked: list[tuple[httpx2.AsyncClient, str, dict[str, Any]]] = [
        (client, "/v1/executions", {}),
        (client, "/v1/executions", {"sort": "oldest"}),
        (client, "/v1/reviews", {}),
        (client, f"/v1/executions/{ids[0]}/history", {"view": "events"}),
        (client, f"/v1/executions/{ids[1]}/history", {"view": "events"}),
        (client, "/v1/definitions", {}),
        (client, "/v1/audit", {}),
        (client, "/v1/audit:export", {}),
        (everywhere, "/v1/limits", {}),
        (everywhere, "/v1/tenant-limits", {}),
    ]
    pages = [(await client.get(path, params={**params, "limit": 1})).json() for client, path, params in asked]
    cursors = [page["next_cursor"] for page in pages]
    assert None not in cursors
    for (client, path, params), own in zip(asked, cursors, strict=True):
        for cursor in cursors:
            answer = await client.get(path, params={**params, "limit": 1, "cursor": cursor})
            assert answer.status_code == (200 if cursor == own else 400), (path, params, answer.text)
            if cursor != own:
                (error,) = answer.json()["errors"]
                assert answer.json()["code"] == "bad_cursor"
                assert (error["pointer"], error["code"]) == ("/query/cursor", "bad_cursor")
    refused = await client.post(
        "/v1/executions:cancel", json={"definition": "asks", "reason": "r", "limit": 1, "cursor": cursors[0]}
    )
    assert [each["pointer"] for each in refused.json()["errors"]] == ["/cursor"]


@pytest.mark.parametrize("position", ["-1", "one", "", "1\0", "9" * 30])
async def test_a_forged_cursor_is_refused(site: Site, position: str) -> None:
    """Of lists that only the service has; `tests/contract` has those of every engine."""
    client = await site.client()
    id = await start(client)
    lists: dict[str, tuple[str, dict[str, Any]]] = {
        f"/v1/executions/{id}/steps": ("steps", {"execution": id}),
        "/v1/audit:export": ("audit:export", {"tenant": "acme", "after": 0}),
        "/v1/executions": ("executions", {}),
    }
    for path, (of, wanted) in lists.items():
        answer = await client.get(path, params={"cursor": Paging(of, wanted, None).sealed(position)})
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_cursor"), path


WANTED = {
    "status": (None, "failed"),
    "definition": (None, "d1"),
    "target_id": (None, "x1"),
    "correlation_id": (None, "c1"),
    "since": (None, 1),
    "before": (None, 10**12),
    "active": (False, True),
    "failed": (False, True),
    "newest_first": (True, False),
}
REVIEWS = {
    "kinds": (get_args(ReviewKind), ("dead_letter",), ("approval",)),
    "resolved": (False, True),
    "definition": (None, "d1"),
    "error_class": (None, "TRANSIENT"),
    "execution": (None, "e1"),
    "before": (None, 10**12),
}


def combined(filters: dict[str, tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Every filter with every other."""
    return [dict(zip(filters, values, strict=True)) for values in itertools.product(*filters.values())]


AUDIT = {
    "all": AuditWanted(),
    "action": AuditWanted(action="a1"),
    "actor": AuditWanted(actor="a1"),
    "object": AuditWanted(object_id="o1"),
}


@pytest.fixture
async def schema(url: str) -> str:
    async with Engine(url, worker=False):
        pass
    return url


@pytest.mark.parametrize("after", [None, "5"])
async def test_a_page_is_read_from_indexes_whatever_is_filtered_by(schema: str, after: str | None) -> None:
    mark = "?" if schema.startswith("sqlite") else "$"
    wanted = [Wanted(tenant="t1", **each) for each in combined(WANTED)]
    read_from_indexes(schema, "executions", [queries.executions(each, after, 50, mark) for each in wanted])


@pytest.mark.parametrize("after", [None, "5"])
async def test_a_page_of_reviews_is_read_from_indexes(schema: str, after: str | None) -> None:
    wanted = [ReviewsWanted(tenant="t1", **each) for each in combined(REVIEWS)]
    read_from_indexes(schema, "reviews", [page_query(each, after, 50) for each in wanted])


@pytest.mark.parametrize("state", ["open", "resolved"])
@pytest.mark.parametrize("by", ["definition", "class"])
async def test_few_reviews_are_found_among_many(schema: str, by: str, state: str) -> None:
    """By an index that leads to them: that of all of a kind would be walked to its end."""
    fill(schema, "reviews")
    given = {"definition": "d49"} if by == "definition" else {"error_class": "RETRYABLE"}
    wanted = ReviewsWanted(tenant="t1", kinds=("dead_letter",), resolved=state == "resolved", **given)  # type: ignore[arg-type]  # as many kinds of text
    expected = f"reviews_{by}" if state == "open" else f"reviews_resolved_{by}"
    assert expected in plan_of(schema, *page_query(wanted, None, 50))


@pytest.mark.parametrize("what", AUDIT)
@pytest.mark.parametrize("before", [None, 5])
async def test_a_page_of_the_audit_is_read_from_an_index(schema: str, what: str, before: int | None) -> None:
    query, values = wanted_rows("t1", AUDIT[what], before, 50)
    read_from_indexes(schema, "audit", [(query, values)])
    # `tenant` alone would be an index, too, and walk all of a tenant's rows.
    index = {"all": "audit_chain", "object": "audit_object"}.get(what, f"audit_{what}")
    assert index in plan_of(schema, query, values)


def read_from_indexes(url: str, table: str, pages: list[tuple[str, list[object]]]) -> None:
    """No table is read from end to end, and nothing is put in order but the few rows that a page was read from."""
    if url.startswith("sqlite"):
        connection = sqlite.connect(url)
        for query, values in pages:
            rows = list(connection.execute(f"EXPLAIN QUERY PLAN {query.replace('$', '?')}", tuple(values)))
            assert [text for *_, text in rows if text.startswith(f"SCAN {table}")] == [], rows
            kept = {id for id, _, _, text in rows if text.startswith(("CO-ROUTINE", "MATERIALIZE"))}
            sorted_in = [parent for _, parent, _, text in rows if text == "USE TEMP B-TREE FOR ORDER BY"]
            assert kept.isdisjoint(sorted_in), rows
        connection.close()
        return
    fill(url, table)
    for plan in plans_of(url, pages):
        assert "Seq Scan" not in plan, plan


def fill(url: str, table: str) -> None:
    """On PostgreSQL, where plans go by what is in a table."""
    if url.startswith("sqlite"):
        return
    names = [name for name in _ROWS[table].__struct_fields__ if name != "position"]  # which is given out
    columns = ", ".join(_POSTGRES[table].get(name, f"'{name[0]}' || n % 50") for name in names)
    with psycopg.connect(url, autocommit=True) as postgres:
        insert = f"INSERT INTO {table} ({', '.join(names)}) SELECT {columns} FROM generate_series(1, 20000) n"  # noqa: S608  (above)
        postgres.execute(insert.encode())
        postgres.execute(f"ANALYZE {table}".encode())


def plan_of(url: str, query: str, values: list[Any]) -> str:
    if url.startswith("sqlite"):
        connection = sqlite.connect(url)
        rows = list(connection.execute(f"EXPLAIN QUERY PLAN {query.replace('$', '?')}", tuple(values)))
        connection.close()
        return "\n".join(text for *_, text in rows)
    (plan,) = plans_of(url, [(query, values)])
    return plan


def plans_of(url: str, pages: list[tuple[str, list[Any]]]) -> Iterator[str]:
    with psycopg.connect(url, autocommit=True) as postgres:
        postgres.execute(f"SET random_page_cost = {BY_ROW['random_page_cost']}".encode())  # as the engine has it
        for query, values in pages:
            for place in range(len(values), 0, -1):
                query = query.replace(f"${place}", "'%s'" % values[place - 1])  # noqa: UP031  (values of this test)
            yield "\n".join(row[0] for row in postgres.execute(f"EXPLAIN {query}".encode()))


# What the columns hold that are neither texts nor to be found by.
_EXECUTIONS = {
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
_REVIEWS = {
    "id": "lpad(to_hex(n), 22, '0') || '.9'",
    "tenant": "'t' || n % 10",
    "kind": "(ARRAY['approval', 'dead_letter', 'escalation'])[1 + n % 3]",
    "error_class": "(ARRAY['', 'TRANSIENT', 'NON_RETRYABLE'])[1 + n % 3]",
    "attempts": "1",
    "opened_at": "n",
    "due_at": "NULL",
    "resolution": "CASE WHEN n % 2 = 0 THEN 'dismiss' END",
    "resolved_by": "NULL",
    "resolved_at": "NULL",
}
_AUDIT = {"tenant": "'t' || n % 10", "at": "n", "n": "n"}
_POSTGRES = {"executions": _EXECUTIONS, "reviews": _REVIEWS, "audit": _AUDIT}
_ROWS: dict[str, Any] = {"executions": ExecutionRow, "reviews": StoredReview, "audit": AuditEntry}

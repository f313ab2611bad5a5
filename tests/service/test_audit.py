"""The audit: everything that somebody did is in it, and nothing in it can be changed unnoticed."""

import asyncio
from typing import Any

import apsw
import psycopg
import pytest

from tenuto import SagaBuilder
from tenuto.errors import NonRetryableError
from tenuto.runtime.durable.audit_sealer import AuditSealer
from tenuto.storage import make_store
from tenuto.storage.audit import seal
from tenuto.storage.credits import SqlCredits
from tenuto.storage.memory.registry import MemoryDatabase
from tenuto.storage.postgres.store import PostgresStore
from tenuto.storage.registry import ANSWERS_KEPT_MS, Answer
from tenuto.storage.sqlite.store import SqliteStore
from tenuto.views.projections import AuditRow
from tests.servers import sqlite
from tests.service.conftest import MakeSite, Site, until
from tests.service.documents import simple


async def refuse() -> None:
    raise NonRetryableError("no")


async def fine() -> int:
    return 1


SAGAS = (
    SagaBuilder("asks").step("book", fine, compensate=fine).approval("ok", depends_on=["book"]),
    SagaBuilder("fails").step("a", refuse),
)


@pytest.fixture
async def site(make_site: MakeSite) -> Site:
    return await make_site(*SAGAS)


async def actions(site: Site, **filters: str) -> list[tuple[str, str]]:
    rows = (await (await site.client()).get("/v1/audit", params={"limit": 100, **filters})).json()["items"]
    return [(row["action"], ":".join(row["actor"].split(":")[:2])) for row in reversed(rows)]


@pytest.mark.requirement("I6")
async def test_what_people_do_to_an_execution_is_in_it(site: Site) -> None:
    admin = await site.client()
    operator = await site.client("acme", "operator")
    id = (await operator.post("/v1/executions", json={"definition": "asks"})).json()["execution_id"]
    status = lambda: admin.get(f"/v1/executions/{id}")  # noqa: E731  (asked again and again)
    await until(status, lambda found: found.json()["status"] == "waiting_approval")
    for command, body in (("pause", {"reason": "lunch"}), ("resume", {})):
        assert (await operator.post(f"/v1/executions/{id}:{command}", json=body)).status_code == 200
    await admin.post(f"/v1/executions/{id}/steps/ok:reject", json={"comment": "too dear"})
    await until(status, lambda found: found.json()["status"] == "failed")

    assert await actions(site, object_id=id) == [
        ("execution.started", "key:operator"),
        ("execution.paused", "key:operator"),
        ("execution.resumed", "key:operator"),
        ("compensation.started", "key:admin"),
        ("execution.failed", "system"),
    ]
    (decided,) = (await admin.get("/v1/audit", params={"action": "review.rejected"})).json()["items"]
    assert decided.keys() == {"action", "actor", "at", "tenant", "object_type", "object_id", "reason", "hash"}
    assert (decided["object_type"], decided["reason"]) == ("review", "too dear")
    assert decided["actor"].startswith("key:admin:")


async def test_retries_definitions_and_keys_are_in_it(site: Site) -> None:
    admin = await site.client()
    id = (await admin.post("/v1/executions", json={"definition": "fails"})).json()["execution_id"]
    await until(lambda: admin.get(f"/v1/executions/{id}"), lambda found: found.json()["status"] == "failed")
    await admin.post(f"/v1/executions/{id}:retry", json={"reason": "once more"})
    await admin.post("/v1/definitions", json=simple())
    await admin.post("/v1/definitions/simple/1:publish")
    await admin.post("/v1/definitions/simple/1:deprecate")
    key = await site.engine.keys.create(tenant="acme", roles=["viewer"], actor="cli:ann")
    await site.engine.keys.revoke(key.row.id, actor="cli:ann")

    told = [action for action, _ in await actions(site)]
    expected = ["execution.started", "execution.retried", "definition.drafted", "definition.published"]
    assert [action for action in told if action in expected] == expected
    assert ("definition.deprecated", "key:admin") in await actions(site, object_id="simple/1")
    assert await actions(site, object_id=key.row.id) == [("key.created", "cli:ann"), ("key.revoked", "cli:ann")]


async def test_a_tenant_sees_its_own_alone(site: Site) -> None:
    for tenant in ("acme", "other"):
        await (await site.client(tenant)).post("/v1/executions", json={"definition": "asks"})
    for tenant in ("acme", "other"):
        rows = (await (await site.client(tenant)).get("/v1/audit")).json()["items"]
        assert {row["tenant"] for row in rows} == {tenant}
    assert (await (await site.client("acme", "operator")).get("/v1/audit")).status_code == 403


async def test_pages_are_whole(site: Site) -> None:
    admin = await site.client()
    for number in range(7):
        await site.engine.registry.note(_row(str(number)))
    found: list[str] = []
    cursor: str | None = None
    while True:
        params: dict[str, Any] = {"limit": 3, "action": "test"} | ({"cursor": cursor} if cursor else {})
        page = (await admin.get("/v1/audit", params=params)).json()
        found += [row["object_id"] for row in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == ["6", "5", "4", "3", "2", "1", "0"]


def _row(object_id: str, tenant: str = "acme") -> AuditRow:
    return AuditRow(tenant=tenant, at=1, actor="a", action="test", object_type="thing", object_id=object_id)


async def test_the_whole_chain_is_had_page_by_page(site: Site) -> None:
    """As every other list: a client that follows `next_cursor` has all of it in the end, and nothing twice."""
    admin = await site.client()
    for _ in range(4):
        await admin.post("/v1/executions", json={"definition": "asks"})
    rows: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        params = {"limit": 2} | ({} if cursor is None else {"cursor": cursor})
        found = (await admin.get("/v1/audit:export", params=params)).json()
        rows += found["items"]
        cursor = found["next_cursor"]
        if cursor is None:
            break
    assert [row["n"] for row in rows] == list(range(1, (await admin.get("/v1/audit:verify")).json()["rows"] + 1))
    assert len(rows) >= 4
    late = (await admin.get("/v1/audit:export", params={"after": rows[-2]["n"]})).json()
    assert late == {"items": rows[-1:], "next_cursor": None}
    wrong = await admin.get("/v1/audit:export", params={"cursor": "x"})
    assert wrong.json()["errors"][0]["code"] == "bad_cursor"


async def test_many_who_chain_at_once_make_one_chain(site: Site) -> None:
    registry = site.engine.registry
    for number in range(250):
        await registry.note(_row(str(number), tenant=f"t{number % 3}"))
    await asyncio.gather(*(seal(registry) for _ in range(5)))
    await seal(registry)
    for tenant in ("t0", "t1", "t2"):
        verified = await site.engine.scoped(tenant=tenant, actor="a").audit.verify()
        assert (verified.broken_at, verified.rows in (83, 84)) == (None, True)
    assert await registry.unchained_tenants(1) == []


@pytest.mark.parametrize("change", ["UPDATE audit SET reason = 'x'", "DELETE FROM audit WHERE n = 2"])
async def test_it_is_append_only_and_a_change_is_noticed(site: Site, url: str, change: str) -> None:
    site.is_tampered = True
    audit = site.engine.scoped(tenant="acme", actor="a").audit
    for number in range(3):
        await site.engine.registry.note(_row(str(number)))
    assert (await audit.verify()).broken_at is None
    with pytest.raises((apsw.ConstraintError, psycopg.errors.RaiseException), match="append-only"):
        await _run(url, change)
    await _run(url, *_WITHOUT_PROTECTION[url.partition(":")[0]], change)
    assert (await audit.verify()).broken_at is not None


async def test_a_chain_that_is_cut_short_is_noticed(site: Site, url: str) -> None:
    site.is_tampered = True
    audit = site.engine.scoped(tenant="acme", actor="a").audit
    for number in range(3):
        await site.engine.registry.note(_row(str(number)))
    assert (await audit.verify()).rows >= 3
    await _run(
        url, *_WITHOUT_PROTECTION[url.partition(":")[0]], "DELETE FROM audit WHERE n = (SELECT max(n) FROM audit)"
    )
    assert (await audit.verify()).broken_at is not None


# Whoever owns the database can do this; the chain is there so that it shows.
_WITHOUT_PROTECTION = {
    "sqlite": ["DROP TRIGGER audit_is_numbered_once", "DROP TRIGGER audit_is_kept"],
    "postgresql": ["ALTER TABLE audit DISABLE TRIGGER ALL"],
}


async def _run(url: str, *statements: str) -> None:
    """In a thread: it may have to wait for the engine, which goes on in this one."""
    await asyncio.to_thread(_run_there, url, *statements)


def _run_there(url: str, *statements: str) -> None:
    if url.startswith("sqlite"):
        connection = sqlite.connect(url)
        for statement in statements:
            connection.execute(statement)
        connection.close()
        return
    with psycopg.connect(url, autocommit=True) as postgres:
        for statement in statements:
            postgres.execute(statement.encode())


async def test_answers_and_confirmations_are_forgotten_when_they_no_longer_count(make_site: MakeSite, url: str) -> None:
    site = await make_site()
    registry, now = site.engine.registry, site.engine.now_ms
    for key, at in (("old", now - ANSWERS_KEPT_MS - 1_000), ("new", now - ANSWERS_KEPT_MS + 60_000)):
        await registry.begin_answer("acme", "POST /v1/definitions", key, Answer(request_hash="x", created_at=at))
        note = AuditRow(
            tenant="acme", at=at, actor="key:a", action="retry_unsafe.requested", object_type="execution", object_id="x"
        )
        await registry.ask("acme", key, "key:a", at, 0, note)
    await AuditSealer(registry, SqlCredits(MemoryDatabase()), lambda: now).look()
    store = make_store(url)
    assert isinstance(store, SqliteStore | PostgresStore)
    await store.open(migrate=False)
    assert [row[0] for row in await store.database.fetch("SELECT key FROM answers", ())] == ["new"]
    assert [row[0] for row in await store.database.fetch("SELECT digest FROM confirmations", ())] == ["new"]
    await store.close()


@pytest.mark.requirement("I6")
async def test_a_signal_is_told_by_its_name_whether_it_came_early_or_not(make_site: MakeSite) -> None:
    saga = SagaBuilder("waits").approval("ok").signal("paid", "paid", depends_on=["ok"])
    site = await make_site(saga.signal("sent", "sent", depends_on=["paid"]))
    http = await site.client()
    id = (await http.post("/v1/executions", json={"definition": "waits"})).json()["execution_id"]
    assert (await http.post(f"/v1/executions/{id}/signals/paid", json={"id": "m-1"})).status_code == 200
    assert (await http.post(f"/v1/executions/{id}/steps/ok:approve")).status_code == 200
    assert (await http.post(f"/v1/executions/{id}/signals/sent", json={"id": "m-2"})).status_code == 200
    await until(lambda: http.get(f"/v1/executions/{id}"), lambda found: found.json()["status"] == "succeeded")

    rows = (await http.get("/v1/audit", params={"object_id": id, "action": "execution.signaled"})).json()["items"]
    assert [row["reason"] for row in reversed(rows)] == ["paid", "sent"], "each once, when it came"


async def test_to_lift_a_limit_that_is_not_there_is_no_act(site: Site) -> None:
    http = await site.client("default")
    for path in ("/v1/limits/none", "/v1/tenant-limits/none"):
        assert (await http.delete(path)).status_code == 204
    assert (await http.put("/v1/limits/mail", json={"concurrency": 2})).status_code == 204
    assert (await http.delete("/v1/limits/mail")).status_code == 204
    rows = (await http.get("/v1/audit", params={"limit": 100})).json()["items"]
    acts = [(row["action"], row["object_id"]) for row in reversed(rows) if "limit" in row["action"]]
    assert acts == [("limit.set", "mail"), ("limit.lifted", "mail")]

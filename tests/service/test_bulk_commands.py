"""Commands for many over HTTP: once for each key, each in the audit, and no other tenant's."""

from itertools import count
from typing import Any

import pytest

from tenuto import SagaBuilder
from tenuto.api import bulk_commands as many
from tenuto.client.transport import ANSWER_SECONDS
from tenuto.errors import NonRetryableError
from tenuto.storage.registry import ABANDONED_MS

from .conftest import MakeSite, Site


async def refuse() -> None:
    raise NonRetryableError("no")


async def fine() -> int:
    return 1


SAGAS = (
    SagaBuilder("waits").signal("paid", "paid"),
    SagaBuilder("fails").step("a", refuse),
    SagaBuilder("unsafe").step("a", refuse, safety="not_safe_to_retry", compensate=fine),
)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is."""
    monkeypatch.setattr("tenuto.api.bulk_commands.VERDICT_SECONDS", 60)


async def started(site: Site, tenant: str, definition: str, number: int) -> list[str]:
    client = await site.client(tenant)
    body = {"definition": definition}
    return [(await client.post("/v1/executions", json=body)).json()["execution_id"] for _ in range(number)]


async def test_a_cancel_by_filter_is_done_once_for_a_key_and_told_of_each(make_site: MakeSite) -> None:
    site = await make_site(*SAGAS)
    ours, theirs = await started(site, "acme", "waits", 3), await started(site, "other", "waits", 1)
    operator = await site.client("acme", "operator")
    body = {"definition": "waits", "limit": 2, "reason": "the shop is closed"}
    first = await operator.post("/v1/executions:cancel", json=body, headers={"Idempotency-Key": "k"})
    assert first.json() == {
        "canceled": ours[:2],
        "pending": [],
        "refused": [],
        "chosen": [],
        "remaining": 1,
        "next_cursor": first.json()["next_cursor"],
    }
    again = await operator.post("/v1/executions:cancel", json=body, headers={"Idempotency-Key": "k"})
    assert (again.json(), again.headers["Idempotency-Replayed"]) == (first.json(), "true")
    more = {**body, "cursor": first.json()["next_cursor"]}
    assert (await operator.post("/v1/executions:cancel", json=more)).json()["canceled"] == ours[2:]

    rows = (await (await site.client()).get("/v1/audit", params={"action": "execution.cancel_requested"})).json()
    assert {row["object_id"]: row["reason"] for row in rows["items"]} == dict.fromkeys(ours, "the shop is closed")
    assert {row["actor"].split(":")[1] for row in rows["items"]} == {"operator"}
    (left,) = theirs
    assert (await (await site.client("other")).get(f"/v1/executions/{left}")).json()["status"] == "running"


async def test_a_request_that_takes_long_is_answered_before_its_key_is_free(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    working = many.CALL_SECONDS + many.COUNT_SECONDS
    assert working <= min(ABANDONED_MS / 1_000, ANSWER_SECONDS) / 2, "the last verdicts and queries take time as well"
    site = await make_site(*SAGAS)
    ids = await started(site, "acme", "fails", 3)
    operator = await site.client("acme", "operator")
    for id in ids:
        await operator.get(f"/v1/executions/{id}", params={"wait": "settled", "seconds": 60})
    monkeypatch.setattr("tenuto.api.bulk_commands.monotonic", count(0, 20).__next__)  # each round takes all the time
    monkeypatch.setattr("tenuto.api.bulk_commands.CONCURRENCY", 1)

    body = {"definition": "fails", "limit": 1_000, "reason": "mended"}
    first = await operator.post("/v1/executions:retry", json=body, headers={"Idempotency-Key": "k"})
    assert (first.json()["retried"], first.json()["remaining"]) == (ids[:1], 2)
    again = await operator.post("/v1/executions:retry", json=body, headers={"Idempotency-Key": "k"})
    assert (again.json(), again.headers["Idempotency-Replayed"]) == (first.json(), "true")
    more = {**body, "cursor": first.json()["next_cursor"]}
    assert (await operator.post("/v1/executions:retry", json=more)).json()["retried"] == ids[1:2]


async def test_what_may_not_be_retried_is_refused_and_the_others_go_on(make_site: MakeSite) -> None:
    site = await make_site(*SAGAS)
    ids = await started(site, "acme", "fails", 1) + await started(site, "acme", "unsafe", 1)
    operator = await site.client("acme", "operator")
    for id in ids:
        await operator.get(f"/v1/executions/{id}", params={"wait": "settled", "seconds": 60})

    body: dict[str, Any] = {"before": "2999-01-01T00:00:00Z", "limit": 10, "reason": "mended"}
    done = (await operator.post("/v1/executions:retry", json=body)).json()
    assert (done["retried"], done["next_cursor"]) == (ids[:1], None)
    assert [(each["id"], each["code"]) for each in done["refused"]] == [(ids[1], "forbidden")]


async def test_a_request_for_many_says_which_how_many_and_why(make_site: MakeSite) -> None:
    site = await make_site(*SAGAS)
    client = await site.client()
    for body in (
        {"limit": 1, "reason": "r"},
        {"definition": "waits", "reason": "r"},
        {"definition": "waits", "limit": 1},
        {"definition": "waits", "limit": 1_001, "reason": "r"},
        {"definition": "waits", "limit": 1, "reason": "r", "what": 1},
    ):
        for verb in ("cancel", "retry"):
            refused = await client.post(f"/v1/executions:{verb}", json=body)
            assert (refused.status_code, bool(refused.json()["errors"])) == (422, True), body
    for verb in ("cancel", "retry"):
        forged = {"definition": "waits", "limit": 1, "reason": "r", "cursor": "no cursor"}
        refused = await client.post(f"/v1/executions:{verb}", json=forged)
        assert (refused.status_code, refused.json()["code"]) == (400, "bad_cursor")
    status = {"status": "failed", "limit": 1, "reason": "r"}
    assert (await client.post("/v1/executions:cancel", json=status)).status_code == 422


async def test_a_document_is_checked_and_nothing_is_stored(make_site: MakeSite) -> None:
    site = await make_site()
    viewer, author = await site.client("acme", "viewer"), await site.client("acme", "author")
    step = {"step_id": "a", "type": "task", "handler": "pay", "idempotency_strategy": "SAFE_TO_RETRY"}
    good = {"name": "mine", "version": 1, "steps": [step]}

    async def told(document: dict[str, Any]) -> dict[str, Any]:
        answer = await viewer.post("/v1/definitions:validate", json=document)
        assert answer.status_code == 200
        found: dict[str, Any] = answer.json()
        return found

    assert await told(good) == {"valid": True, "errors": [], "missing_handlers": ["pay"]}
    bad = await told({**good, "steps": [{**step, "on_success": "nope", "timeout_ms": -1}, {**step, "step_id": "b!"}]})
    assert bad["valid"] is False
    assert {error["pointer"] for error in bad["errors"]} >= {"/steps/0/timeout_ms", "/steps/1/step_id"}
    assert (await author.get("/v1/definitions")).json()["items"] == []

    assert (await author.post("/v1/definitions", json=good)).status_code == 201
    assert (await told({**good, "steps": [{**step, "timeout_ms": 5}]}))["valid"], "a draft may still be changed"
    assert (await author.post("/v1/definitions/mine/1:publish")).status_code == 200
    (taken,) = (await told({**good, "steps": [{**step, "timeout_ms": 5}]}))["errors"]
    assert (taken["pointer"], taken["code"]) == ("/version", "definition_immutable")
    assert (await told(good))["valid"]

"""Who may decide, over HTTP: a review that a timer is about to open is nobody's to decide yet, however it is named."""

from typing import Any

import httpx2
import pytest

from tenuto import SagaBuilder
from tenuto.settings import Settings
from tests.seams import environment_of
from tests.service.conftest import MakeSite, Site, until

FLOW = {
    "name": "gated",
    "mode": "flow",
    "steps": [
        {"step_id": "pause", "type": "wait", "with": {"duration_ms": 5}, "on_success": "gate"},
        {"step_id": "gate", "type": "human_approval", "permission": "invoices:approve"},
    ],
}
SAGA = SagaBuilder("saga").wait("pause", "5ms").approval("gate", permission="invoices:approve", depends_on=["pause"])


async def site_of(make_site: MakeSite, *four_eyes: Any) -> Site:
    """No worker runs here: whatever is due stays due until a request comes."""
    settings = Settings(rate_per_second=0, four_eyes=four_eyes)
    site = await make_site(SAGA, settings=settings, worker=False)
    await site.engine.scoped(tenant="acme", actor="user:author").apply(FLOW)
    return site


async def due(site: Site, starter: httpx2.AsyncClient, definition: str) -> str:
    started = await starter.post("/v1/executions", json={"definition": definition})
    assert started.status_code == 201, started.text
    id: str = started.json()["execution_id"]
    now = environment_of(site.engine).now_ms
    since = now()
    await until(lambda: starter.get(f"/v1/executions/{id}"), lambda _: now() > since + 20)
    return id


@pytest.mark.parametrize("verb", ["approve", "reject"])
@pytest.mark.parametrize(("definition", "step"), [("gated", "gate%401"), ("gated", "gate"), ("saga", "gate")])
async def test_an_approval_that_is_not_open_yet_is_decided_by_nobody(
    make_site: MakeSite, definition: str, step: str, verb: str
) -> None:
    site = await site_of(make_site)
    operator = await site.client("acme", "operator")
    id = await due(site, operator, definition)
    for roles in (("approver",), ("approver", "invoices:approve"), ("admin",)):
        answer = await (await site.client("acme", *roles)).post(f"/v1/executions/{id}/steps/{step}:{verb}")
        assert (answer.status_code, answer.json()["code"]) == (409, "not_waiting")
    assert (await operator.get(f"/v1/executions/{id}")).json()["status"] == "running"


async def test_who_started_it_does_not_decide_it_before_it_is_open(make_site: MakeSite) -> None:
    site = await site_of(make_site, "approvals")
    ann = await site.client("acme", "admin")
    id = await due(site, ann, "gated")
    for step in ("gate%401", "gate"):
        answer = await ann.post(f"/v1/executions/{id}/steps/{step}:approve")
        assert (answer.status_code, answer.json()["code"]) == (409, "not_waiting")


async def test_a_review_is_not_resolved_by_an_id_that_was_guessed(make_site: MakeSite) -> None:
    site = await site_of(make_site)
    approver = await site.client("acme", "approver")
    id = await due(site, await site.client("acme", "operator"), "gated")
    answer = await approver.post(f"/v1/reviews/{id}.4:resolve", json={"resolution": "approved", "reason": "mine"})
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize("step", ["gate%401", "gate"])
async def test_an_approval_of_a_flow_that_is_open_asks_for_its_permission(make_site: MakeSite, step: str) -> None:
    site = await make_site(settings=Settings(rate_per_second=0, four_eyes=("approvals",)))
    await site.engine.scoped(tenant="acme", actor="user:author").apply(FLOW)
    ann, bob = await site.client("acme", "admin"), await site.client("acme", "approver", "invoices:approve")
    id = (await ann.post("/v1/executions", json={"definition": "gated"})).json()["execution_id"]
    await until(lambda: ann.get(f"/v1/executions/{id}"), lambda found: found.json()["status"] == "waiting_approval")
    at = f"/v1/executions/{id}/steps/{step}:approve"
    refused = await (await site.client("acme", "approver")).post(at)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert "invoices:approve" in refused.json()["detail"]
    own = await ann.post(at)
    assert (own.status_code, own.json()["code"]) == (403, "four_eyes")
    assert (await bob.post(at)).status_code == 200

"""Who may do what: every operation, for every role, on what is one's own and on what is another tenant's."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from fastapi.routing import APIRoute

from tenuto import Engine, SagaBuilder
from tenuto.access.permission import GRANTS
from tenuto.errors import IndeterminateError, InvalidInput, NonRetryableError, NotPermitted
from tenuto.service.app import create_app
from tenuto.settings import Settings
from tests.service.conftest import MakeSite, Site, until
from tests.service.documents import simple

ABOUT_THE_SERVICE = {"/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"}
SIGN_IN = "POST /v1/session"
OPEN = {SIGN_IN, *(f"GET {path}" for path in ABOUT_THE_SERVICE)}
EVERYONE: set[str] = set(GRANTS)
READERS = {"viewer", "operator", "approver", "author", "admin"}

# The matrix of the surface, operation by operation. What is not here does not exist, and the other way round.
MAY: dict[str, set[str]] = {
    "GET /v1/definitions": READERS,
    "GET /v1/definitions/{name}/{version}": READERS,
    "GET /v1/schemas/definition.json": READERS,
    "POST /v1/definitions/{name}/{version}:validate": READERS,
    "POST /v1/definitions:validate": READERS,
    "POST /v1/definitions": {"author", "admin"},
    "PUT /v1/definitions/{name}/{version}": {"author", "admin"},
    "POST /v1/definitions/{name}/{version}:publish": {"author", "admin"},
    "POST /v1/definitions/{name}/{version}:deprecate": {"author", "admin"},
    "POST /v1/executions": {"operator", "author", "admin"},
    "GET /v1/executions": READERS,
    "GET /v1/executions:count": READERS,
    "GET /v1/executions:statuses": READERS,
    "GET /v1/executions/{id}": READERS,
    "GET /v1/executions/{id}/history": READERS,
    "GET /v1/executions/{id}/steps": READERS,
    "GET /v1/executions/{id}/graph": READERS,
    "GET /v1/executions/{id}/events": READERS,
    "POST /v1/executions/{id}:pause": {"operator", "admin"},
    "POST /v1/executions/{id}:resume": {"operator", "admin"},
    "POST /v1/executions/{id}:cancel": {"operator", "admin"},
    "POST /v1/executions/{id}:retry": {"operator", "admin"},
    "POST /v1/executions:cancel": {"operator", "admin"},
    "POST /v1/executions:retry": {"operator", "admin"},
    "POST /v1/executions/{id}/signals/{name}": {"operator", "admin"},
    "POST /v1/executions/{id}/steps/{step_id}:retry": {"operator", "admin"},
    "POST /v1/executions/{id}/steps/{step_id}:approve": {"approver", "admin"},
    "POST /v1/executions/{id}/steps/{step_id}:reject": {"approver", "admin"},
    "GET /v1/overview": READERS,
    "GET /v1/feed": READERS,
    "GET /v1/reviews": READERS,
    "GET /v1/reviews/{id}": READERS,
    "POST /v1/reviews/{id}:resolve": {"approver", "admin"},
    "GET /v1/dlq": READERS,
    "GET /v1/dlq/{id}": READERS,
    "POST /v1/dlq/{id}:reprocess": {"operator", "admin"},
    "POST /v1/dlq/{id}:discard": {"operator", "admin"},
    "POST /v1/dlq:reprocess": {"operator", "admin"},
    "GET /v1/audit": {"admin"},
    "GET /v1/audit:verify": {"admin"},
    "GET /v1/audit:export": {"admin"},
    "GET /v1/workers": READERS,
    "GET /v1/limits": {"admin"},
    "GET /v1/tenant-limits": {"admin"},
    "GET /v1/me": EVERYONE,
    "POST /v1/session:reauthenticate": EVERYONE,
    "DELETE /v1/session": EVERYONE,
    "GET /v1/sessions": EVERYONE,
    "POST /v1/sessions/{id}:revoke": EVERYONE,
    # They hold for all tenants: an admin of `default` sets them, and no other.
    "PUT /v1/limits/{name}": set(),
    "DELETE /v1/limits/{name}": set(),
    "PUT /v1/tenant-limits/{tenant}": set(),
    "DELETE /v1/tenant-limits/{tenant}": set(),
}
FACE = ("/v1/",)
BODIES: dict[str, Any] = {
    "POST /v1/definitions": simple("mine"),
    "PUT /v1/definitions/{name}/{version}": simple("draft"),
    "POST /v1/executions": {"definition": "asks"},
    "POST /v1/executions/{id}:retry": {"reason": "x"},
    "POST /v1/executions/{id}/steps/{step_id}:retry": {"reason": "x"},
    "POST /v1/executions:cancel": {"definition": "nothing", "limit": 1, "reason": "x"},
    "POST /v1/executions:retry": {"definition": "nothing", "limit": 1, "reason": "x"},
    "POST /v1/definitions:validate": simple("mine"),
    "POST /v1/reviews/{id}:resolve": {"resolution": "dismiss", "reason": "x"},
    "POST /v1/dlq/{id}:reprocess": {"reason": "x"},
    "POST /v1/dlq/{id}:discard": {"reason": "x"},
    "POST /v1/dlq:reprocess": {"limit": 1, "reason": "x"},
    "PUT /v1/limits/{name}": {"concurrency": 1},
    "PUT /v1/tenant-limits/{tenant}": {"max_in_flight": 1_000},
}


def routes(router: Any) -> Iterator[APIRoute]:
    """Also those of routers that were included."""
    for route in router.routes:
        if isinstance(route, APIRoute):
            yield route
        else:
            yield from routes(route.original_router)


def test_every_route_needs_a_permission_or_is_meant_to_be_open() -> None:
    app = create_app(Engine(), Settings())
    found = {
        f"{method} {route.path_format}"
        for route in routes(app)
        for method in route.methods or ()
        if "x-permission" not in (route.openapi_extra or {})
    }
    assert found == OPEN


# What these roles may do depends on the kind of the review: here it is an approval, which is not theirs.
BY_KIND = {"POST /v1/reviews/{id}:resolve": {"operator"}}


def test_the_matrix_has_every_operation() -> None:
    app = create_app(Engine(), Settings())
    found = {
        f"{method} {route.path_format}"
        for route in routes(app)
        if route.path.startswith(FACE) and "commands" not in route.tags  # those are in tests/commands/test_access.py
        for method in route.methods or ()
    }
    assert found - OPEN == MAY.keys()


async def refuse() -> None:
    raise NonRetryableError("no")


SAGAS = (SagaBuilder("asks").approval("ok"), SagaBuilder("fails").step("a", refuse))


class Things:
    """One of each, of one tenant."""

    def __init__(self) -> None:
        self.waiting = ""
        self.review = ""
        self.letter = ""

    def path(self, template: str) -> str:
        id = self.review if "/reviews/" in template else self.letter if "/dlq/" in template else self.waiting
        filled = template.replace("{id}", id).replace("{step_id}", "ok").replace("/signals/{name}", "/signals/x")
        return filled.replace("{name}", "draft").replace("{version}", "1").replace("{tenant}", "acme")


async def make_things(client: httpx2.AsyncClient) -> Things:
    things = Things()
    things.waiting = (await client.post("/v1/executions", json={"definition": "asks"})).json()["execution_id"]
    await client.post("/v1/executions", json={"definition": "fails"})
    await client.post("/v1/definitions", json=simple("draft"))
    reviews = await until(lambda: client.get("/v1/reviews"), lambda found: len(found.json()["items"]) == 2)
    for row in reviews.json()["items"]:
        if row["kind"] == "approval":
            things.review = row["id"]
        else:
            things.letter = row["id"]
    return things


async def ask(client: httpx2.AsyncClient, operation: str, things: Things) -> httpx2.Response:
    method, template = operation.split(" ")
    body = BODIES.get(operation, {} if method != "GET" else None)
    params = {"id": things.waiting} if template.endswith(":statuses") else None
    if template == "/v1/feed":
        params = {"follow": "false"}
    return await client.request(method, things.path(template), json=body, params=params)


async def test_nobody_does_anything_without_a_credential(make_site: MakeSite) -> None:
    site = await make_site(*SAGAS)
    things = await make_things(await site.client())
    for client in (await site.bare(), await site.bare("tnt_0123456789_" + "x" * 49), await site.bare("a.b.c")):
        for operation in MAY:
            answer = await ask(client, operation, things)
            assert answer.status_code == 401, operation
            assert answer.headers["www-authenticate"] == "Bearer"
    client = await site.bare()
    assert (await client.get("/healthz")).status_code == 200


@pytest.mark.requirement("F17", "I2")
@pytest.mark.parametrize("role", GRANTS)
async def test_a_role_may_what_the_matrix_says_and_nothing_of_another_tenant(make_site: MakeSite, role: str) -> None:
    site = await make_site(*SAGAS)
    own, foreign = await make_things(await site.client("acme")), await make_things(await site.client("other"))
    client = await site.client("acme", role)
    for operation, roles in MAY.items():
        answer = await ask(client, operation, foreign)
        if role not in roles and role not in BY_KIND.get(operation, ()):
            assert answer.status_code == 403, (operation, answer.text)
            assert answer.json()["code"] == "forbidden"
        elif "{id}" in operation:
            assert answer.status_code == 404, (operation, answer.text)
            unknown = await ask(client, operation, Unknown())
            assert unknown.status_code == 404
            assert unknown.json()["code"] == answer.json()["code"]
    # What was refused changed nothing.
    other = await site.client("other")
    assert (await other.get(f"/v1/executions/{foreign.waiting}")).json()["status"] == "waiting_approval"
    assert len((await other.get("/v1/reviews")).json()["items"]) == 2

    for operation, roles in MAY.items():
        if operation.endswith("/events") and role in roles:
            continue  # it would go on until the execution ends: test_events.py
        answer = await ask(client, operation, own)
        if role in BY_KIND.get(operation, ()):  # another operation may have closed it before
            assert answer.status_code in (403, 409), operation
        else:
            assert (answer.status_code == 403) == (role not in roles), (operation, answer.status_code)
        assert answer.status_code < 500, operation


async def test_limits_are_set_by_an_admin_of_the_deployments_own_tenant(make_site: MakeSite) -> None:
    site = await make_site(*SAGAS)
    admin, viewer = await site.client("default"), await site.client("default", "viewer")
    for operation, roles in MAY.items():
        if not roles:
            assert (await ask(viewer, operation, Things())).status_code == 403
            assert (await ask(admin, operation, Things())).status_code == 204


class Unknown(Things):
    def path(self, template: str) -> str:
        self.waiting, self.review, self.letter = "0" * 22, f"{'0' * 22}.1", f"{'0' * 22}.2"
        return super().path(template)


async def test_what_works_for_all_is_shown_to_the_deployment_alone(make_site: MakeSite) -> None:
    site = await make_site(*SAGAS)
    deployment, acme = await site.client("default"), await site.client("acme")
    assert (await deployment.put("/v1/limits/bank", json={"concurrency": 2})).status_code == 204
    for path in ("/v1/workers", "/v1/limits"):
        assert len((await deployment.get(path)).json()["items"]) == 1, path
        assert (await acme.get(path)).json()["items"] == [], path


async def test_limits_are_listed_page_by_page(make_site: MakeSite) -> None:
    client = await (await make_site()).client("default")
    names = ["a", "b", "c"]
    for name in names:
        await client.put(f"/v1/limits/{name}", json={"concurrency": 1})
        await client.put(f"/v1/tenant-limits/{name}", json={"max_in_flight": 1})
    for path, by in (("/v1/limits", "name"), ("/v1/tenant-limits", "tenant")):
        first = (await client.get(path, params={"limit": 2})).json()
        last = (await client.get(path, params={"limit": 2, "cursor": first["next_cursor"]})).json()
        assert [row[by] for row in first["items"] + last["items"]] == names
        assert last["next_cursor"] is None
        exactly = (await client.get(path, params={"limit": 3})).json()
        assert exactly["next_cursor"] is None
    workers = (await client.get("/v1/workers", params={"limit": 1})).json()
    assert (len(workers["items"]), workers["next_cursor"]) == (1, None)
    assert (await client.get("/v1/workers", params={"cursor": "x"})).status_code == 400


async def test_dead_letters_are_for_operators_also_by_way_of_reviews(make_site: MakeSite) -> None:
    site = await make_site(*SAGAS)
    approver, admin = await site.client("acme", "approver"), await site.client("acme", "admin")
    things = await make_things(admin)
    letter, review = things.letter, things.review
    for resolution in ("retry", "dismiss"):
        refused = await approver.post(f"/v1/reviews/{letter}:resolve", json={"resolution": resolution, "reason": "x"})
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
        assert "dlq:write" in refused.json()["detail"]
        assert "operator" in refused.json()["hint"]
    operator = await site.client("acme", "operator")
    refused = await operator.post(f"/v1/reviews/{review}:resolve", json={"resolution": "approved"})
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert "approvals:write" in refused.json()["detail"]
    assert "approver" in refused.json()["hint"]
    resolved = await operator.post(f"/v1/reviews/{letter}:resolve", json={"resolution": "dismiss", "reason": "x"})
    assert (resolved.status_code, resolved.json()["state"]) == (200, "resolved"), resolved.text


async def test_a_scoped_engine_follows_the_same_rules(make_site: MakeSite) -> None:
    site = await make_site(*SAGAS)
    viewer = site.engine.scoped(tenant="acme", actor="user:vi", roles=["viewer"])
    with pytest.raises(NotPermitted, match="executions:start"):
        await viewer.start("asks")
    operator = site.engine.scoped(tenant="acme", actor="user:op", roles=["operator"])
    handle = await operator.start("asks")
    assert (await viewer.get(handle.id).status())["tenant_id"] == "acme"
    for forbidden in (viewer.get(handle.id).pause(), operator.get(handle.id).approve("ok")):
        with pytest.raises(NotPermitted):
            await forbidden
    nobody = site.engine.scoped(tenant="acme", actor="user:no", roles=[])
    with pytest.raises(NotPermitted):
        await nobody.get(handle.id).status()


async def test_closed_routes_need_a_credential(make_site: MakeSite) -> None:
    site = await make_site(settings=Settings(open_routes=False))
    stranger, viewer = await site.bare(), await site.client("acme", "viewer")
    for path in ABOUT_THE_SERVICE - {"/metrics"}:
        assert (await stranger.get(path)).status_code == 401
        assert (await viewer.get(path)).status_code == 200


# -- Keys --------------------------------------------------------------------------------------------------------------


async def test_a_key_is_shown_once_and_can_be_revoked_and_expires(make_site: MakeSite) -> None:
    site = await make_site(*SAGAS)
    key = await site.engine.keys.create(tenant="acme", roles=["viewer"], name="ci", days=90)
    client = await site.bare(key.token)
    assert (await client.get("/v1/executions")).status_code == 200
    (row,) = await site.engine.keys.list("acme")
    assert key.token.split("_")[2] not in repr(row)
    assert (row.name, row.roles, row.last_used_at is not None) == ("ci", ("viewer",), True)
    assert row.expires_at == row.created_at + 90 * 86_400_000

    await site.engine.keys.revoke(key.row.id)
    refused = await client.get("/v1/executions")
    assert (refused.status_code, refused.json()["code"]) == (401, "unauthenticated")
    assert refused.json()["detail"].startswith("The API key was revoked at 20")


async def test_a_key_that_has_expired_or_is_mistyped_is_refused(make_site: MakeSite) -> None:
    site = await make_site()
    keyring = site.engine.keys
    key = await keyring.create(tenant="acme", roles=["viewer"], days=1)
    assert await keyring.find(key.token) is not None
    other = "1" if key.token.endswith("0") else "0"
    for wrong in (key.token[:-1], key.token[:-1] + other, key.token.replace("tnt_", "tnt_0"), key.token.swapcase()):
        assert await keyring.find(wrong) is None
        assert await keyring.refusal(wrong) == "The API key is not valid."
    later = type(keyring)(site.engine.registry, lambda: key.row.created_at + 86_400_000)
    assert await later.find(key.token) is None
    assert (await later.refusal(key.token)).startswith("The API key expired at 20")
    await keyring.revoke(key.row.id)
    forged = key.token.replace(key.token[20:24], "0000")
    assert await keyring.refusal(forged) == "The API key is not valid."


@pytest.mark.parametrize("roles", [[], ["operater"], ["viewer", "executions:write"]])
async def test_a_key_needs_roles_that_there_are(make_site: MakeSite, roles: list[str]) -> None:
    site = await make_site()
    with pytest.raises(InvalidInput):
        await site.engine.keys.create(tenant="acme", roles=roles)


@pytest.mark.parametrize("days", [-1, 36_501])
async def test_a_key_expires_within_a_lifetime(make_site: MakeSite, days: int) -> None:
    site = await make_site()
    with pytest.raises(InvalidInput):
        await site.engine.keys.create(tenant="acme", roles=["viewer"], days=days)


# -- Four eyes ---------------------------------------------------------------------------------------------------------


async def test_four_eyes(make_site: MakeSite) -> None:
    site: Site = await make_site(*SAGAS, settings=Settings(four_eyes=("approvals", "again"), rate_per_second=0))
    ann, bob = await site.client("acme", "admin"), await site.client("acme", "admin", "second:pair")
    id = (await ann.post("/v1/executions", json={"definition": "asks"})).json()["execution_id"]
    await until(lambda: ann.get(f"/v1/executions/{id}"), lambda found: found.json()["blocked"] is not None)
    own = await ann.post(f"/v1/executions/{id}/steps/ok:approve")
    assert (own.status_code, own.json()["code"]) == (403, "four_eyes")
    assert (await bob.post(f"/v1/executions/{id}/steps/ok:approve")).status_code == 200

    failed = (await ann.post("/v1/executions", json={"definition": "fails"})).json()["execution_id"]
    await until(lambda: ann.get(f"/v1/executions/{failed}"), lambda found: found.json()["status"] == "failed")
    pointless = await ann.post(f"/v1/executions/{failed}:retry", json={"again": True, "reason": "make it anew"})
    assert (pointless.status_code, pointless.json()["errors"][0]["pointer"]) == (422, "/again")
    again = {"from": "a", "again": True, "reason": "make it anew"}
    for _ in range(2):  # to ask twice oneself is not to be two
        first = await ann.post(f"/v1/executions/{failed}:retry", json=again)
        assert (first.status_code, first.json()["code"]) == (403, "four_eyes")
    assert (await bob.post(f"/v1/executions/{failed}:retry", json=again)).status_code == 200


async def done() -> str:
    return "done"


PAYS = (
    SagaBuilder("pays")
    .step("first", done)
    .step("pay", refuse, safety="not_safe_to_retry", compensation_policy="manual")
    .group("work", "pay", depends_on=["first"])
)
BEGINNINGS: tuple[dict[str, str], ...] = ({}, {"from": "first"}, {"from": "work"}, {"from": "pay"})


async def failed(client: httpx2.AsyncClient) -> str:
    id: str = (await client.post("/v1/executions", json={"definition": "pays"})).json()["execution_id"]
    await until(lambda: client.get(f"/v1/executions/{id}"), lambda found: found.json()["status"] == "failed")
    return id


async def test_what_is_not_safe_to_retry_is_tried_again_by_an_admin_alone(make_site: MakeSite) -> None:
    site = await make_site(PAYS)
    operator, admin = await site.client("acme", "operator"), await site.client("acme", "admin")
    for begin in BEGINNINGS:
        id = await failed(admin)
        refused = await operator.post(f"/v1/executions/{id}:retry", json={**begin, "reason": "the bank is back"})
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden"), begin
        letter = (await admin.get("/v1/dlq")).json()["items"][-1]["id"]
        refused = await operator.post(f"/v1/dlq/{letter}:reprocess", json={"reason": "the bank is back"})
        assert refused.status_code == 403
        assert (await admin.get(f"/v1/executions/{id}")).json()["attempt_count"] == 1
        taken = await admin.post(f"/v1/executions/{id}:retry", json={**begin, "reason": "the bank is back"})
        assert taken.status_code == 200, taken.text


async def test_four_eyes_on_what_is_not_safe_to_retry(make_site: MakeSite) -> None:
    site = await make_site(PAYS, settings=Settings(four_eyes=("unsafe_retry",), rate_per_second=0))
    ann, bob = await site.client("acme", "admin"), await site.client("acme", "admin", "second:pair")
    for begin in BEGINNINGS:
        id = await failed(ann)
        asked = {**begin, "reason": "the bank is back"}
        first = await ann.post(f"/v1/executions/{id}:retry", json=asked)
        assert (first.status_code, first.json()["code"]) == (403, "four_eyes"), begin
        why = {**begin, "reason": "I see it too"}
        assert (await bob.post(f"/v1/executions/{id}:retry", json=why)).status_code == 200


async def test_why_the_first_person_asks_is_kept_and_shown_to_the_second(make_site: MakeSite) -> None:
    site = await make_site(PAYS, settings=Settings(four_eyes=("unsafe_retry",), rate_per_second=0))
    ann, bob = await site.client("acme", "admin"), await site.client("acme", "admin", "second:pair")
    stranger = await site.client("other", "admin")
    id, other = await failed(ann), await failed(ann)
    await failed(stranger)
    for begin in ({}, {"from": "work"}):
        refused = await ann.post(f"/v1/executions/{id}:retry", json={**begin, "reason": "the bank is back"})
        assert refused.status_code == 403
    letters = {row["execution_id"]: row for row in (await bob.get("/v1/dlq")).json()["items"]}
    letter = letters[id]
    assert [(each["kind"], each["reason"]) for each in letter["requests"]] == [
        ("unsafe_retry", "the bank is back"),
        ("unsafe_retry", "from 'work': the bank is back"),
    ]
    assert {each["actor"] for each in letter["requests"]} == {(await bob.get("/v1/audit")).json()["items"][0]["actor"]}
    assert letters[other]["requests"] == []
    assert (await stranger.get("/v1/dlq")).json()["items"][0]["requests"] == []
    shown = (await bob.get(f"/v1/dlq/{letter['id']}")).json()
    assert "in refuse" in shown.pop("error_trace")
    assert shown == letter
    assert (await bob.get(f"/v1/reviews/{letter['id']}")).json()["requests"] == letter["requests"]
    listed = (await bob.get("/v1/reviews", params={"execution_id": id})).json()["items"]
    assert [row["requests"] for row in listed] == [letter["requests"]]

    done = await bob.post(f"/v1/dlq/{letter['id']}:reprocess", json={"reason": "I see it too"})
    assert (done.status_code, done.json()["requests"]) == (200, [])
    audit = (await bob.get("/v1/audit", params={"object_id": letter["id"]})).json()["items"]
    asked = [row["reason"] for row in reversed(audit) if row["action"] == "unsafe_retry.requested"]
    assert asked == ["the bank is back", "from 'work': the bank is back"]
    audit = (await bob.get("/v1/audit", params={"object_id": id})).json()["items"]
    assert [row["reason"] for row in audit if row["action"] == "execution.retried"] == ["I see it too"]
    again = await until(
        lambda: bob.get("/v1/reviews", params={"execution_id": id}), lambda found: found.json()["items"]
    )
    assert [row["requests"] for row in again.json()["items"]] == [[]]  # what was asked for was about the run before


async def no_answer() -> str:
    raise IndeterminateError("no answer")


CHARGES = SagaBuilder("charges").step("charge", no_answer, safety="not_safe_to_retry", compensation_policy="manual")


@pytest.mark.parametrize("again", [True, False])
async def test_what_is_asked_for_about_a_review_is_shown_with_it(make_site: MakeSite, again: bool) -> None:
    site = await make_site(CHARGES, settings=Settings(four_eyes=("again", "unsafe_retry"), rate_per_second=0))
    ann, bob = await site.client("acme", "admin"), await site.client("acme", "admin", "second:pair")
    await ann.post("/v1/executions", json={"definition": "charges"})
    found = await until(lambda: ann.get("/v1/reviews"), lambda found: found.json()["items"])
    (review,) = found.json()["items"]
    at, asked = f"/v1/reviews/{review['id']}", {"resolution": "retry", "again": again}
    first = await ann.post(f"{at}:resolve", json={**asked, "reason": "the bank saw nothing"})
    assert (first.status_code, first.json()["code"]) == (403, "four_eyes")
    (request,) = (await bob.get(at)).json()["requests"]
    assert (request["kind"], request["reason"]) == ("again" if again else "unsafe_retry", "the bank saw nothing")
    second = await bob.post(f"{at}:resolve", json={**asked, "reason": "nor did we"})
    assert (second.status_code, second.json()["state"], second.json()["requests"]) == (200, "resolved", [])

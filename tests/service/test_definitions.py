"""Definitions over HTTP: a draft changes, what is published does not, what is deprecated is not started."""

from typing import Any

import httpx2
import pytest

from tenuto import Engine, SagaBuilder
from tests.service.conftest import MakeSite, Site, until
from tests.service.documents import flow, simple


async def pay(given: Any) -> Any:
    return given


@pytest.fixture
async def site(make_site: MakeSite) -> Site:
    found = await make_site()
    found.engine.handler("pay", pay, tenants=["*"])
    return found


async def publish(client: httpx2.AsyncClient, document: dict[str, Any]) -> str:
    made = await client.post("/v1/definitions", json=document)
    assert made.status_code == 201, made.text
    at = made.headers["location"]
    assert (await client.post(f"{at}:publish")).status_code == 200
    return at


async def test_a_draft_is_kept_changed_checked_and_published(site: Site) -> None:
    client = await site.client("acme", "author")
    made = await client.post("/v1/definitions", json=flow())
    assert (made.status_code, made.json()["status"]) == (201, "draft")
    assert made.headers["location"] == "/v1/definitions/flow/1"

    changed = await client.put("/v1/definitions/flow/1", json=flow(description="with words"))
    assert (changed.status_code, changed.json()["description"]) == (200, "with words")
    checked = await client.post("/v1/definitions/flow/1:validate")
    assert checked.json() == {"valid": True, "errors": [], "missing_handlers": []}

    published = await client.post("/v1/definitions/flow/1:publish")
    assert published.json()["status"] == "published"
    assert published.json()["published_at"] is not None
    found = (await client.get("/v1/definitions/flow/1")).json()
    assert (found["name"], found["version"], found["status"]) == ("flow", 1, "published")
    assert [step["step_id"] for step in found["steps"]] == ["ok", "pay"]


async def test_code_has_its_handlers_where_it_is_registered(make_site: MakeSite) -> None:
    """A document of its own names handlers that are nowhere; what came with code brings them."""

    async def book() -> int:
        return 1

    site = await make_site(SagaBuilder("coded").step("book", book, compensate=book))
    client = await site.client("acme", "author")
    assert (await client.post("/v1/definitions/coded/1:validate")).json()["missing_handlers"] == []
    await client.post("/v1/definitions", json=simple("other", handler="nowhere.at.all"))
    assert (await client.post("/v1/definitions/other/1:validate")).json()["missing_handlers"] == ["nowhere.at.all"]


@pytest.mark.parametrize("handler", ["log", "http", "webhook", "email"])
async def test_what_every_process_has_is_not_missing(site: Site, handler: str) -> None:
    client = await site.client("acme", "author")
    await client.post("/v1/definitions", json=simple("built-in", handler=handler))
    checked = await client.post("/v1/definitions/built-in/1:validate")
    assert checked.json() == {"valid": True, "errors": [], "missing_handlers": []}


async def test_what_is_published_never_changes(site: Site) -> None:
    client = await site.client()
    at = await publish(client, flow())
    refused = await client.put(at, json=flow(description="other"))
    assert (refused.status_code, refused.json()["code"]) == (409, "definition_immutable")
    again = await client.post("/v1/definitions", json=flow(description="other"))
    assert (again.status_code, again.json()["code"]) == (409, "definition_exists")
    assert (await client.post(f"{at}:publish")).status_code == 200  # once more changes nothing
    assert "other" not in (await client.get(at)).text


async def test_the_same_draft_twice_is_one(site: Site) -> None:
    client = await site.client()
    first = await client.post("/v1/definitions", json=flow())
    second = await client.post("/v1/definitions", json=flow())
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json()["hash"] == second.json()["hash"]


@pytest.mark.requirement("D3")
async def test_a_repeated_request_gets_the_first_answer(site: Site) -> None:
    client = await site.client()
    key = {"Idempotency-Key": "draft-1"}
    first = await client.post("/v1/definitions", json=flow(), headers=key)
    await client.put("/v1/definitions/flow/1", json=flow(description="changed since"))
    second = await client.post("/v1/definitions", json=flow(), headers=key)
    assert (first.status_code, second.status_code) == (201, 200)
    assert "idempotency-replayed" not in first.headers
    assert second.headers["idempotency-replayed"] == "true"
    assert second.headers["location"] == first.headers["location"] == "/v1/definitions/flow/1"
    assert second.json() == first.json()
    other = await client.post("/v1/definitions", json=flow(version=2), headers=key)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_conflict")


async def test_a_refused_request_uses_its_key_not_up(site: Site) -> None:
    client = await site.client()
    key = {"Idempotency-Key": "draft-1"}
    assert (await client.post("/v1/definitions", json={"name": "x"}, headers=key)).status_code == 422
    assert (await client.post("/v1/definitions", json=flow(), headers=key)).status_code == 201


async def test_everything_wrong_is_told_with_its_place_and_nothing_is_kept(site: Site) -> None:
    client = await site.client()
    bad = flow()
    bad["steps"][0]["on_success"] = "nowhere"
    bad["steps"][1].pop("idempotency_strategy")
    refused = await client.post("/v1/definitions", json=bad)
    assert refused.status_code == 422
    assert refused.headers["content-type"] == "application/problem+json"
    problem = refused.json()
    assert problem["code"] == "definition_invalid"
    assert {each["pointer"] for each in problem["errors"]} == {"/steps/0/on_success", "/steps/1/idempotency_strategy"}
    assert (await client.get("/v1/definitions")).json()["items"] == []


async def test_a_draft_is_not_started(site: Site) -> None:
    client = await site.client()
    await client.post("/v1/definitions", json=flow())
    for asked in ({"definition": "flow"}, {"definition": "flow", "version": 1}):
        refused = await client.post("/v1/executions", json={**asked, "input": {"amount": 1}})
        assert refused.status_code == 404, refused.text
        assert refused.json()["hint"] == "it is a draft: publish it first"
    unknown = await client.post("/v1/executions", json={"definition": "nothing"})
    assert "publish" not in unknown.json()["hint"]
    stranger = await (await site.client("other")).post("/v1/executions", json={"definition": "flow"})
    assert "draft" not in stranger.json()["hint"]


async def test_the_newest_published_version_is_started(site: Site) -> None:
    client = await site.client()
    for version in (1, 2):
        await publish(client, simple(version=version))
    await client.post("/v1/definitions", json=simple(version=3))
    started = await client.post("/v1/executions", json={"definition": "simple"})
    assert started.json()["definition_version"] == 2
    await client.post("/v1/definitions/simple/2:deprecate")
    started = await client.post("/v1/executions", json={"definition": "simple"})
    assert (started.status_code, started.json()["definition_version"]) == (201, 1)


async def test_what_is_deprecated_runs_on_and_is_not_started(site: Site) -> None:
    client = await site.client()
    at = await publish(client, flow())
    id = (await client.post("/v1/executions", json={"definition": "flow", "input": {"amount": 1}})).json()[
        "execution_id"
    ]
    gone = await client.post(f"{at}:deprecate")
    assert gone.json()["status"] == "deprecated"

    for asked in ({"version": 1}, {}):
        refused = await client.post("/v1/executions", json={"definition": "flow", "input": {"amount": 1}, **asked})
        assert (refused.status_code, refused.json()["code"]) == (409, "definition_deprecated")
    assert (await client.post(f"{at}:publish")).status_code == 409
    await until(lambda: client.get(f"/v1/executions/{id}"), lambda found: found.json()["blocked"] is not None)
    await client.post(f"/v1/executions/{id}/steps/ok:approve")


@pytest.mark.parametrize("verb", ["publish", "deprecate", "validate"])
async def test_a_word_that_means_nothing_changes_nothing(site: Site, verb: str) -> None:
    """Whoever asks for a rehearsal where there is none does not get the real thing."""
    client = await site.client()
    await client.post("/v1/definitions", json=simple("s"))
    refused = await client.post(f"/v1/definitions/s/1:{verb}", json={"dry_run": True})
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/dry_run")
    assert (await client.get("/v1/definitions/s/1")).json()["status"] == "draft"


async def test_a_tenant_that_deprecates_its_own_has_what_is_there_for_all(site: Site) -> None:
    client = await site.client(tenant="acme")
    at = await publish(client, simple("both"))
    await site.engine.apply({**simple("both"), "steps": [{"step_id": "all", "type": "human_approval"}]})
    await client.post(f"{at}:deprecate")
    started = await client.post("/v1/executions", json={"definition": "both"})
    assert started.status_code == 201


async def test_definitions_are_listed_by_name_and_status_in_pages(site: Site) -> None:
    client = await site.client()
    for name in ("a", "b", "c"):
        await publish(client, simple(name))
    await client.post("/v1/definitions", json=simple("b", version=2))

    names: list[tuple[str, int]] = []
    cursor: str | None = ""
    while cursor is not None:
        found = (
            await client.get("/v1/definitions", params={"limit": 2, **({"cursor": cursor} if cursor else {})})
        ).json()
        assert len(found["items"]) <= 2
        names += [(item["name"], item["version"]) for item in found["items"]]
        cursor = found["next_cursor"]
    assert names == [("a", 1), ("b", 1), ("b", 2), ("c", 1)]

    drafts = (await client.get("/v1/definitions", params={"status": "draft"})).json()["items"]
    assert [(item["name"], item["version"]) for item in drafts] == [("b", 2)]
    assert len((await client.get("/v1/definitions", params={"name": "b"})).json()["items"]) == 2


async def test_two_tenants_have_definitions_of_one_name(site: Site) -> None:
    acme, other = await site.client("acme"), await site.client("other")
    await publish(acme, simple(name="ours"))
    assert (await other.get("/v1/definitions/simple/1")).status_code == 404
    assert (await other.get("/v1/definitions")).json()["items"] == []
    assert (await other.post("/v1/executions", json={"definition": "simple"})).status_code == 404
    assert (await other.post("/v1/definitions/simple/1:deprecate")).status_code == 404

    await publish(other, simple(name="theirs"))
    for client, word in ((acme, "ours"), (other, "theirs")):
        assert (await client.get("/v1/definitions/simple/1")).json()["steps"][0]["name"] == word
        started = await client.post("/v1/executions", json={"definition": "simple", "input": 1})
        assert (started.status_code, started.json()["definition_id"]) == (201, "simple")
        listed = (await client.get("/v1/executions", params={"definition": "simple"})).json()["items"]
        assert [item["execution_id"] for item in listed] == [started.json()["execution_id"]]
        for name in ("acme/simple", "other/simple"):  # how it is kept is nobody's word
            assert (await client.get("/v1/executions", params={"definition": name})).json()["items"] == []
        counted = await client.get("/v1/executions:count", params={"group_by": "definition"})
        assert counted.json()["counts"] == {"simple": 1}
        at = f"/v1/executions/{started.json()['execution_id']}"
        recorded = (await client.get(f"{at}/history", params={"view": "events"})).json()["items"]
        assert recorded[0]["data"]["definition"] == "simple"
        streamed = await client.get(f"{at}/events", params={"follow": "false"})
        assert "/simple" not in streamed.text


async def test_the_deployments_own_are_everybodys_to_start_and_nobodys_to_change(make_site: MakeSite) -> None:
    site = await make_site(SagaBuilder("own").step("pay", pay))
    client = await site.client("acme")
    assert (await client.get("/v1/definitions/own/1")).json()["status"] == "published"
    assert (await client.post("/v1/executions", json={"definition": "own", "input": 1})).status_code == 201
    for verb in ("publish", "deprecate"):
        refused = await client.post(f"/v1/definitions/own/1:{verb}")
        assert (refused.status_code, refused.json()["code"]) == (409, "definition_shared")
    taken = await client.post("/v1/definitions", json=simple("own", version=2))
    assert (taken.status_code, taken.json()["code"]) == (409, "definition_shared")


async def test_a_worker_runs_what_another_process_published(make_site: MakeSite, url: str) -> None:
    site = await make_site(worker=False)
    client = await site.client()
    async with Engine(url, shutdown_grace="1s") as worker:
        worker.handler("pay", pay, tenants=["*"])
        await publish(client, simple())
        id = (await client.post("/v1/executions", json={"definition": "simple", "input": 7})).json()["execution_id"]
        found = await until(lambda: client.get(f"/v1/executions/{id}"), lambda at: at.json()["phase"] == "finished")
    assert (found.json()["status"], found.json()["output"]) == ("succeeded", 7)


async def test_the_schema_is_published(site: Site) -> None:
    found = await (await site.client("acme", "viewer")).get("/v1/schemas/definition.json")
    assert found.json()["$schema"].startswith("https://json-schema.org/")


async def test_what_is_wrong_with_a_call_is_told_when_it_is_drafted(site: Site) -> None:
    document = simple("calls", handler="http", type="external_call")
    document["steps"][0]["with"] = {"uri": "x"}
    refused = await (await site.client()).post("/v1/definitions", json=document)
    assert (refused.status_code, refused.json()["code"]) == (422, "definition_invalid")
    told = {(error["pointer"], error["code"]) for error in refused.json()["errors"]}
    assert told == {("/steps/0/with", "missing"), ("/steps/0/with/uri", "unknown_field")}


@pytest.mark.parametrize("stranger", ["acme", "default"])
async def test_another_tenants_definition_cannot_be_named(site: Site, stranger: str) -> None:
    """`other/ours` is how a definition of `other` is kept; nobody gets at it by that name."""
    other, client = await site.client("other"), await site.client(stranger)
    await publish(other, simple("ours"))
    for asked in ({"definition": "other/ours"}, {"definition": "other/ours", "version": 1}):
        refused = await client.post("/v1/executions", json=asked)
        assert (refused.status_code, refused.json()["code"]) == (404, "not_found"), refused.text
    for verb in ("", ":validate", ":publish", ":deprecate"):
        method = "POST" if verb else "GET"
        assert (await client.request(method, f"/v1/definitions/other%2Fours/1{verb}")).status_code == 404
    assert (await client.get("/v1/definitions", params={"name": "other/ours"})).json()["items"] == []
    refused = await client.post("/v1/definitions", json=simple("other/mine"))
    assert refused.status_code == 422


async def test_a_draft_for_all_is_seen_by_the_deployment_alone_until_it_is_published(site: Site) -> None:
    deployment, acme = await site.client("default"), await site.client("acme")
    at = (await deployment.post("/v1/definitions", json=simple("shared"))).headers["location"]
    assert [item["name"] for item in (await deployment.get("/v1/definitions")).json()["items"]] == ["shared"]
    assert (await acme.get("/v1/definitions")).json()["items"] == []
    assert (await acme.get("/v1/definitions", params={"status": "draft"})).json()["items"] == []
    await deployment.post(f"{at}:publish")
    assert [item["name"] for item in (await acme.get("/v1/definitions")).json()["items"]] == ["shared"]


async def test_a_schema_that_would_take_for_ever_stops_nobody(site: Site) -> None:
    client = await site.client()
    twice = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    definitions = {**twice, "d40": {"type": "string"}}
    refused = await client.post(
        "/v1/definitions", json={**simple(), "input_schema": {"$ref": "#/$defs/d0", "$defs": definitions}}
    )
    assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/input_schema")
    grows = {"allOf": [{"properties": {"in": {"$ref": "#"}}}] * 2}
    await publish(client, {**simple(), "input_schema": grows})
    value: dict[str, Any] = {}
    for _ in range(30):
        value = {"in": value}
    refused = await client.post("/v1/executions", json={"definition": "simple", "input": value})
    assert (refused.status_code, refused.json()["errors"][0]["code"]) == (422, "too_costly")


async def test_of_very_many_mistakes_some_are_told(site: Site) -> None:
    client = await site.client()
    schema = {"type": "array", "items": {"required": list("abcde")}}
    await publish(client, {**simple(), "input_schema": schema})
    refused = await client.post("/v1/executions", json={"definition": "simple", "input": [{}] * 300})
    assert (refused.status_code, len(refused.json()["errors"])) == (422, 101)
    refused = await client.post("/v1/executions", json={"definition": "simple", "input": [{}] * 9_000})
    assert [error["code"] for error in refused.json()["errors"]] == ["required", "more"]

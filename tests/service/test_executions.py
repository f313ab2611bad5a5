"""Executions over HTTP."""

import pytest

from tenuto import SagaBuilder
from tests.service.conftest import MakeSite


async def double(number: int) -> int:
    return 2 * number


DOUBLE = SagaBuilder("double", output="double").step("double", double)


async def test_the_process_says_that_it_lives_and_is_ready(make_site: MakeSite) -> None:
    client = await (await make_site()).bare()
    assert (await client.get("/healthz")).json() == {"status": "ok"}
    assert (await client.get("/readyz")).json() == {"status": "ready"}


@pytest.mark.requirement("K2")
async def test_an_execution_is_started_and_looked_at(make_site: MakeSite) -> None:
    client = await (await make_site(DOUBLE)).client()
    started = await client.post("/v1/executions", json={"definition": "double", "input": 21})
    assert started.status_code == 201, started.text
    id = started.json()["execution_id"]
    assert started.headers["location"] == f"/v1/executions/{id}"
    found = await client.get(f"/v1/executions/{id}")
    assert found.status_code == 200
    assert found.json()["tenant_id"] == "acme"


@pytest.mark.parametrize("seconds", ["0", "2e-25", "0.0004", "0.001"])
async def test_who_waits_for_almost_no_time_is_told_how_it_stands(make_site: MakeSite, seconds: str) -> None:
    client = await (await make_site(SagaBuilder("asks").approval("ok"))).client()
    id = (await client.post("/v1/executions", json={"definition": "asks"})).json()["execution_id"]
    params = {"wait": "terminal", "seconds": seconds}
    found = await client.get(f"/v1/executions/{id}", params=params)
    assert (found.status_code, found.json()["execution_id"]) == (200, id)
    assert (await client.get("/v1/executions/none", params=params)).status_code == 404


async def test_no_request_is_led_to_where_its_host_header_says(make_site: MakeSite) -> None:
    client = await (await make_site()).bare(None, Host="evil.example")
    found = await client.get("/v1/executions/")
    assert (found.status_code, found.headers.get("location")) == (404, None)


@pytest.mark.parametrize("change", [{"priority": "high"}, {"concurrency_key": "one-by-one"}])
async def test_one_key_starts_one_thing_in_one_way(make_site: MakeSite, change: dict[str, str]) -> None:
    client = await (await make_site(DOUBLE)).client()
    key, body = {"Idempotency-Key": "k-1"}, {"definition": "double", "input": 21}
    assert (await client.post("/v1/executions", json=body, headers=key)).status_code == 201
    assert (await client.post("/v1/executions", json=body, headers=key)).status_code == 200
    other = await client.post("/v1/executions", json={**body, **change}, headers=key)
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_conflict")


async def test_headers_that_carry_credentials_are_not_shown(make_site: MakeSite) -> None:
    client = await (await make_site(DOUBLE)).client()
    headers = {"Authorization": "Bearer hidden-1", "Cookie": "id=hidden-2", "X-Api-Key": "hidden-3", "X-Shop": "north"}
    started = await client.post("/v1/executions", json={"definition": "double", "input": 1, "headers": headers})
    at = f"/v1/executions/{started.json()['execution_id']}"
    recorded = await client.get(f"{at}/history", params={"view": "events"})
    shown = recorded.json()["items"][0]["data"]["headers"]
    assert (shown["Authorization"], shown["X-Shop"]) == ("[secret]", "north")
    streamed = await client.get(f"{at}/events", params={"follow": "false"})
    assert "hidden" not in started.text + recorded.text + streamed.text + (await client.get(at)).text


@pytest.mark.parametrize("correlation_id", ["注文-7", "two\nlines", "é"])
async def test_a_correlation_id_that_is_no_header_is_told_in_the_body(make_site: MakeSite, correlation_id: str) -> None:
    """Python takes any text; whoever repeats its key over HTTP gets that execution."""
    site = await make_site(SagaBuilder("asks").approval("ok"))
    started = await site.engine.start("asks", idempotency_key="k", correlation_id=correlation_id, tenant="acme")
    client = await site.client()
    found = await client.post("/v1/executions", json={"definition": "asks"}, headers={"Idempotency-Key": "k"})
    assert (found.status_code, found.json()["execution_id"]) == (200, started.id)
    assert (found.json()["correlation_id"], "x-correlation-id" in found.headers) == (correlation_id, False)

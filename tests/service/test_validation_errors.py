"""What is refused tells where: a pointer into the body or the parameters. No parameter is silently ignored."""

from typing import Any

import httpx2
import pytest
from fastapi.routing import APIRoute

from tenuto import SagaBuilder
from tenuto.service import executions
from tests.service.conftest import MakeSite, Site, until
from tests.service.documents import flow


async def double(given: int) -> int:
    return given * 2


@pytest.fixture
async def client(make_site: MakeSite) -> httpx2.AsyncClient:
    site: Site = await make_site(SagaBuilder("double").step("double", double))
    client = await site.client()
    at = (await client.post("/v1/definitions", json=flow())).headers["location"]
    assert (await client.post(f"{at}:publish")).status_code == 200
    return client


def places(refused: httpx2.Response) -> list[tuple[str, str]]:
    assert refused.status_code == 422, refused.text
    return [(each["pointer"], each["code"]) for each in refused.json()["errors"]]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"input": {"amount": "x"}}, [("/input/amount", "type")]),
        ({"input": {}}, [("/input/amount", "required")]),
        ({"input": 1}, [("/input", "type")]),
        ({"input": {"amount": 1}, "headers": {"a": 1}}, [("/headers/a", "string_type")]),
        ({"inputs": {"pay": {"value": 1}}}, [("/inputs", "by_step")]),
        ({"definition": "double", "inputs": {"no/pe": {"value": 1}}}, [("/inputs/no~1pe", "unknown_step")]),
        ({"definition": "double", "inputs": {"double": {"value": "x"}}}, [("/inputs/double/value", "type")]),
        ({"definition": "double", "inputs": {"double": {"each": [1, "x"]}}}, [("/inputs/double/each/1", "type")]),
        (
            {"definition": "double", "inputs": {"double": {"each": [1, 2], "labels": ["a", "a"]}}},
            [("/inputs/double/labels/1", "duplicate_suffix")],
        ),
    ],
)
async def test_a_pointer_points_into_the_request(
    client: httpx2.AsyncClient, body: dict[str, Any], told: list[tuple[str, str]]
) -> None:
    assert places(await client.post("/v1/executions", json={"definition": "flow", **body})) == told


async def test_a_parameter_that_is_not_there_is_named_with_those_that_are(client: httpx2.AsyncClient) -> None:
    refused = await client.get("/v1/executions?definitoin=x&status=running&odd~/=")
    assert places(refused) == [("/query/definitoin", "unknown_parameter"), ("/query/odd~0~1", "unknown_parameter")]
    assert "status, definition, target_id" in refused.json()["errors"][0]["message"]
    assert refused.json()["code"] == "request_invalid"


async def test_a_parameter_is_given_once_unless_there_may_be_many(client: httpx2.AsyncClient) -> None:
    refused = await client.get("/v1/executions?status=running&status=failed")
    assert places(refused) == [("/query/status", "repeated_parameter")]
    assert (await client.get("/v1/executions:statuses?id=a&id=b")).status_code == 200


async def test_a_hot_operation_takes_no_more_than_others(client: httpx2.AsyncClient) -> None:
    refused = await client.post("/v1/executions?wait=true", json={"definition": "flow", "input": {"amount": 1}})
    assert places(refused) == [("/query/wait", "unknown_parameter")]
    assert (await client.get("/v1/executions")).json()["items"] == []
    assert places(await client.get("/v1/executions/x?xwait=")) == [("/query/xwait", "unknown_parameter")]


@pytest.mark.parametrize(
    "route", [route for route in executions.routes() if isinstance(route, APIRoute)], ids=lambda r: r.name
)
async def test_no_operation_ignores_a_parameter(client: httpx2.AsyncClient, route: APIRoute) -> None:
    path = route.path_format.replace("{version}", "1").replace("{", "").replace("}", "")
    method = next(iter(route.methods or ()))
    body: dict[str, Any] | None = {} if method in ("POST", "PUT") else None
    assert ("/query/mistyped", "unknown_parameter") in places(
        await client.request(method, f"{path}?mistyped=1", json=body)
    )


async def test_a_stranger_is_told_nothing_of_parameters(client: httpx2.AsyncClient) -> None:
    refused = await client.get("/v1/executions?mistyped=1", headers={"Authorization": "Bearer nothing"})
    assert refused.status_code == 401


@pytest.mark.parametrize(("query", "missing"), [("n=1", "hash"), (f"hash={'0' * 64}", "n")])
async def test_a_head_that_was_kept_has_both_its_parts(client: httpx2.AsyncClient, query: str, missing: str) -> None:
    assert places(await client.get(f"/v1/audit:verify?{query}")) == [(f"/query/{missing}", "missing")]


async def test_an_empty_key_is_none(client: httpx2.AsyncClient) -> None:
    for path, body in (("/v1/executions", {"definition": "double", "input": 1}), ("/v1/definitions", flow("other"))):
        refused = await client.post(path, json=body, headers={"Idempotency-Key": '""'})
        assert places(refused) == [("/header/Idempotency-Key", "empty")]


async def test_to_make_an_effect_again_is_to_retry(client: httpx2.AsyncClient) -> None:
    id = (await client.post("/v1/executions", json={"definition": "flow", "input": {"amount": 1}})).json()[
        "execution_id"
    ]
    asking = lambda: client.get("/v1/reviews", params={"execution_id": id})  # noqa: E731  (asked again and again)
    (review,) = (await until(asking, lambda found: found.json()["items"])).json()["items"]
    refused = await client.post(f"/v1/reviews/{review['id']}:resolve", json={"resolution": "approved", "again": True})
    assert places(refused) == [("/again", "without_retry")]


async def test_a_limit_is_for_a_tenant_that_can_be(make_site: MakeSite) -> None:
    admin = await (await make_site()).client("default")
    for name in ("%20", "a%3Ab", "a%2Fb"):
        at = f"/v1/tenant-limits/{name}"
        for refused in (await admin.put(at, json={"max_in_flight": 1}), await admin.delete(at)):
            assert places(refused) == [("/path/tenant", "string_pattern_mismatch")], name


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/healthz"),
        ("GET", "/openapi.json"),
        ("GET", "/v1/executions"),
        ("POST", "/v1/executions"),
        ("POST", "/v1/executions/x:pause"),
        ("GET", "/v1/workers"),
    ],
)
async def test_an_address_ends_where_it_ends(client: httpx2.AsyncClient, method: str, path: str) -> None:
    body = {"definition": "flow", "input": {"amount": 1}} if method == "POST" else None
    answer = await client.request(method, f"{path}%0A", json=body)
    assert (answer.status_code, answer.json()["detail"]) == (404, "No resource exists at this path.")


async def test_a_name_may_end_with_a_line(make_site: MakeSite) -> None:
    admin = await (await make_site()).client("default")
    assert (await admin.put("/v1/limits/bank%0A", json={"concurrency": 1})).status_code == 204
    assert [row["name"] for row in (await admin.get("/v1/limits")).json()["items"]] == ["bank\n"]

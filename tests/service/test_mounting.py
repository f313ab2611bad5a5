"""The service within another application."""

import httpx2
import pytest
from starlette._utils import get_route_path
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Mount

from tenuto import SagaBuilder
from tenuto.service.http.paths import path_of
from tests.service.conftest import MakeSite


async def test_a_service_that_is_mounted_answers_below_its_prefix(make_site: MakeSite) -> None:
    """Also where requests take a short way."""
    site = await make_site(SagaBuilder("asks").approval("ok"))
    key = await site.engine.keys.create(tenant="acme", roles=["admin"])
    outer = Starlette(routes=[Mount("/flows", site.app)])
    options = {"base_url": "http://outer", "headers": {"Authorization": f"Bearer {key.token}"}}
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=outer), **options) as client:  # type: ignore[arg-type]  # as they are
        unknown = await client.post("/flows/v1/executions", json={"definition": "nothing"})
        assert (unknown.status_code, unknown.json()["code"]) == (404, "not_found")
        started = await client.post("/flows/v1/executions", json={"definition": "asks"})
        assert started.status_code == 201
        id = started.json()["execution_id"]
        for path, status in ((f"/flows/v1/executions/{id}", 200), (f"/v1/executions/{id}", 404)):
            assert (await client.get(path)).status_code == status
        refused = await client.delete("/flows/v1/executions")
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, POST")


async def test_what_is_added_to_the_application_stands_around_short_ways_too(make_site: MakeSite) -> None:
    site = await make_site(SagaBuilder("asks").approval("ok"))
    key = await site.engine.keys.create(tenant="acme", roles=["admin"])
    site.app.add_middleware(CORSMiddleware, allow_origins=["https://shop.example"])
    headers = {"Authorization": f"Bearer {key.token}", "Origin": "https://shop.example"}
    transport = httpx2.ASGITransport(app=site.app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://outer", headers=headers) as client:
        started = await client.post("/v1/executions", json={"definition": "asks"})
        listed = await client.get("/v1/executions")
        stranger = await client.post("/v1/executions", json={"definition": "asks"}, headers={"Authorization": ""})
    assert [each.status_code for each in (started, listed, stranger)] == [201, 200, 401]
    for answer in (started, listed, stranger):
        assert answer.headers["access-control-allow-origin"] == "https://shop.example"


@pytest.mark.parametrize(
    ("root", "path", "within"),
    [
        ("", "/v1/executions", "/v1/executions"),
        ("/api", "/api/v1/executions", "/v1/executions"),
        ("/api", "/api", ""),
        ("/api", "/api/", "/"),
        ("/api", "/apix/v1", "/apix/v1"),
        ("/api", "/v1/executions", "/v1/executions"),
        ("/v", "/v1/executions", "/v1/executions"),
    ],
)
def test_a_prefix_is_whole_parts_of_a_path(root: str, path: str, within: str) -> None:
    scope = {"path": path, "root_path": root}
    assert path_of(scope) == get_route_path(scope) == within


async def test_what_begins_like_the_prefix_is_not_below_it(make_site: MakeSite) -> None:
    site = await make_site()
    transport = httpx2.ASGITransport(app=site.app, root_path="/v")
    async with httpx2.AsyncClient(transport=transport, base_url="http://outer") as client:
        refused = await client.delete("/v1/executions")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, POST")

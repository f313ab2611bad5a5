"""What `/metrics` says of requests: each is counted once, under the template of its path, whatever became of it."""

import httpx2
import pytest

from tenuto import Engine, SagaBuilder
from tenuto.service.app import create_app
from tenuto.settings import Settings
from tenuto.telemetry import Telemetry
from tests.telemetry.figures import Figures, figures


async def double(number: int) -> int:
    return 2 * number


REQUESTS, SECONDS = "tenuto_http_requests_total", "tenuto_http_request_duration_seconds_count"
ONE = "/v1/executions/{id}"


def routes(found: Figures) -> set[str]:
    return {sample.labels["route"] for sample in found.samples if sample.name == REQUESTS}


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry(logs=False)


async def test_requests_are_counted_by_route_method_and_class_of_answer(telemetry: Telemetry) -> None:
    async with Engine(telemetry=telemetry) as engine:
        engine.register(SagaBuilder("double").step("a", double).build())
        app = create_app(engine, Settings(rate_per_second=0))
        key = (await engine.keys.create(tenant="canary", roles=["admin"])).token
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://service") as http:
            assert (await http.get("/v1/executions")).status_code == 401
            http.headers["Authorization"] = f"Bearer {key}"
            made = await http.post("/v1/executions", json={"definition": "double", "input": 1})
            id = made.json()["execution_id"]
            assert (await http.post("/v1/executions", json={"definition": "double", "inptu": 1})).status_code == 422
            assert (await http.post("/v1/executions", content=b"{")).status_code == 415
            assert (await http.get(f"/v1/executions/{id}", params={"wait": "terminal"})).status_code == 200
            assert (await http.get(f"/v1/executions/{id}")).status_code == 200
            assert (await http.get("/v1/executions/canary")).status_code == 404
            assert (await http.get(f"/v1/executions/{id}/events", params={"follow": "false"})).status_code == 200
            assert (await http.post(f"/v1/executions/{id}:pause")).status_code == 409
            for path in ("/canary", "/v1/canary/canary"):
                assert (await http.get(path)).status_code == 404
            assert (await http.request("CANARY", "/v1/executions")).status_code == 405
        found = await figures(telemetry)
    assert found[REQUESTS, "/v1/executions", "POST", "2xx"] == 1
    assert found[REQUESTS, "/v1/executions", "POST", "4xx"] == 1
    assert found[REQUESTS, "/v1/executions", "GET", "4xx"] == 1
    assert found[REQUESTS, ONE, "GET", "2xx"] == 2
    assert found[REQUESTS, ONE, "GET", "4xx"] == 1
    assert found[SECONDS, ONE, "GET"] == 2  # whoever waits, does so on purpose
    assert found[REQUESTS, f"{ONE}:pause", "POST", "4xx"] == 1
    assert found[REQUESTS, "other", "GET", "4xx"] == 2
    assert found["tenuto_http_requests_in_flight"] == 0
    assert "canary" not in found.text
    assert "CANARY" not in found.text
    known = {getattr(route, "path_format", "") for route in app.routes} | {"other"}
    assert routes(found) <= known


async def test_what_is_turned_away_is_counted_with_the_reason(telemetry: Telemetry) -> None:
    async with Engine(telemetry=telemetry) as engine:
        settings = Settings(
            max_requests=4, rate_per_second=0.001, rate_burst=2, tenant_rate_per_second=0.001, tenant_rate_burst=2
        )
        app = create_app(engine, settings)
        limiter = app.state.service.limiter
        transport = httpx2.ASGITransport(app=app)
        key, other = [(await engine.keys.create(tenant="acme", roles=["admin"])).token for _ in range(2)]
        async with httpx2.AsyncClient(transport=transport, base_url="http://service") as http:
            http.headers["Authorization"] = f"Bearer {key}"
            limiter.in_flight = 4
            assert (await http.get("/v1/executions")).status_code == 429
            limiter.in_flight = 0
            for _ in range(3):
                limiter.shares.take("acme")
            assert (await http.get("/v1/executions")).status_code == 429
            for _ in range(3):
                limiter.shares.release("acme")
            assert (await http.get("/v1/executions")).status_code == 200
            assert (await http.get("/v1/executions")).status_code == 429
            http.headers["Authorization"] = f"Bearer {other}"
            assert (await http.get("/v1/executions")).status_code == 429
        found = await figures(telemetry)
    refused = "tenuto_http_requests_refused_total"
    reasons = ("room", "share", "rate", "tenant_rate")
    assert [found[refused, reason] for reason in reasons] == [1, 1, 1, 1]


async def test_a_fault_of_ours_is_counted_as_one(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Engine(telemetry=telemetry) as engine:
        app = create_app(engine, Settings(rate_per_second=0))
        key = (await engine.keys.create(tenant="acme", roles=["admin"])).token
        transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)

        async def broken() -> None:
            raise RuntimeError("broken")

        monkeypatch.setattr(engine, "ready", broken)
        async with httpx2.AsyncClient(transport=transport, base_url="http://service") as http:
            http.headers["Authorization"] = f"Bearer {key}"
            assert (await http.get("/readyz")).status_code == 500
        assert (await figures(telemetry))[REQUESTS, "/readyz", "GET", "5xx"] == 1


async def test_a_process_that_serves_nothing_says_nothing_of_requests(telemetry: Telemetry) -> None:
    async with Engine(telemetry=telemetry):
        found = await figures(telemetry)
    assert REQUESTS not in found
    assert "tenuto_http_requests_in_flight" not in found

"""Every answer names its request. What went wrong is found in the log by that name."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from starlette.types import Receive, Scope, Send

from tenuto import SagaBuilder
from tenuto.errors import TenutoError
from tenuto.service.http.headers import ResponseHeaders
from tenuto.service.http.request_log import RequestLog
from tenuto.settings import Settings
from tenuto.telemetry import logs
from tests.service.conftest import MakeSite, Site
from tests.service.test_authentication import no_keys_to_be_had

NAME = "x-request-id"


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What `tenuto serve` would write."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    stream = io.StringIO()
    logs.configure("DEBUG", "json", stream)
    yield stream
    root.handlers[:] = before
    root.setLevel(level)


def lines(log: io.StringIO, request_id: str) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, log.getvalue().splitlines()) if line.get("request_id") == request_id]


async def site_that_fails(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch, error: Exception) -> Site:
    site = await make_site(SagaBuilder("asks").approval("ok"))

    async def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(type(site.engine), "start", broken)
    return site


async def test_every_answer_has_one_of_its_own(make_site: MakeSite) -> None:
    site = await make_site(SagaBuilder("asks").approval("ok"), settings=Settings(max_requests=4, rate_per_second=0))
    client, stranger = await site.client(), await site.bare()
    answers = [
        await client.post("/v1/executions", json={"definition": "asks"}),
        await client.post("/v1/executions", content=b"{", headers={"Content-Type": "application/json"}),
        await client.get("/v1/executions"),
        await client.get("/v1/executions/none"),
        await client.get("/nothing"),
        await client.delete("/v1/executions"),
        await stranger.get("/v1/executions"),
        await stranger.get("/healthz"),
        await client.get("/healthz", headers={NAME: "mine"}),
    ]
    site.app.state.service.limiter.in_flight = 4
    answers.append(await client.get("/v1/executions"))
    assert [answer.status_code for answer in answers] == [201, 400, 200, 404, 404, 405, 401, 200, 200, 429]
    found = [answer.headers[NAME] for answer in answers]
    assert len(set(found)) == len(answers)
    assert all(len(each) == 16 for each in found)
    assert all("request_id" not in answer.json() for answer in answers)


@pytest.mark.parametrize("error", [RuntimeError("sk_live_secret"), TenutoError("sk_live_secret")])
async def test_a_fault_of_ours_can_be_found_in_the_log(
    make_site: MakeSite, monkeypatch: pytest.MonkeyPatch, log: io.StringIO, error: Exception
) -> None:
    site = await site_that_fails(make_site, monkeypatch, error)
    client = await site.client()
    failed = await client.post("/v1/executions", json={"definition": "asks"})
    problem = failed.json()
    assert (failed.status_code, problem["code"]) == (500, "internal_error")
    assert problem["request_id"] == failed.headers[NAME]
    assert failed.headers["content-type"] == "application/problem+json"
    assert failed.headers["x-content-type-options"] == "nosniff"
    assert "sk_live_secret" not in failed.text
    (line,) = lines(log, failed.headers[NAME])
    assert (line["level"], line["action"], line["status"]) == ("error", "request_failed", 500)
    assert (line["method"], line["route"], line["code"]) == ("POST", "/v1/executions", "internal_error")
    assert type(error).__name__ in line["exception"]


async def test_a_database_that_is_away_is_logged_with_the_request(
    make_site: MakeSite, url: str, log: io.StringIO
) -> None:
    site = await make_site()
    client = await site.client()
    async with no_keys_to_be_had(url):
        failed = await client.get("/v1/executions")
    assert (failed.status_code, failed.json()["request_id"]) == (503, failed.headers[NAME])
    (line,) = lines(log, failed.headers[NAME])
    assert (line["level"], line["action"], line["status"]) == ("warning", "request_failed", 503)
    assert line["code"] == failed.json()["code"]
    again = await client.get("/v1/executions")
    (line,) = lines(log, again.headers[NAME])
    assert (line["level"], line["action"], line["status"]) == ("debug", "request_answered", 200)


async def test_an_answer_that_breaks_off_is_logged(log: io.StringIO) -> None:
    """Nothing can be told any more, so that it is broken off; whoever reads it sees that it is not whole."""

    async def half(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("half")

    transport = httpx2.ASGITransport(app=ResponseHeaders(RequestLog(half)))
    async with httpx2.AsyncClient(transport=transport, base_url="http://tenuto") as client:
        with pytest.raises(RuntimeError, match="half"):
            await client.get("/v1/executions")
    failed = [line for line in map(json.loads, log.getvalue().splitlines()) if line.get("action") == "request_failed"]
    assert [line["status"] for line in failed] == [200]

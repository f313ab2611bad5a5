"""The OpenAPI document: complete, and true. Schemathesis asks everything that it allows, and much that it does not."""

import asyncio
import base64
import hashlib
import os
import re
import sys
from typing import Any

import jsonschema_rs
import pytest

from tenuto import Engine, SagaBuilder
from tenuto.service.app import create_app
from tenuto.settings import Settings
from tenuto.telemetry import Telemetry
from tests.service.conftest import MakeSite, Site
from tests.service.test_events import listening

SAGAS = (SagaBuilder("invoice-approval").approval("approve"), SagaBuilder("asks").approval("ok"))
# `make prove` asks for more, under a seed of its own. Give both to repeat what it found.
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "5"))
SEED = os.environ.get("FUZZ_SEED", "1")
STREAMS = ("/events", "/feed")
TIMEOUT = 900 + 60 * EXAMPLES


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    found: dict[str, Any] = create_app(Engine(), Settings()).openapi()
    return found


def operations(document: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{method.upper()} {path}", operation)
        for path, item in document["paths"].items()
        for method, operation in item.items()
    ]


def test_every_operation_says_what_it_is_and_what_can_go_wrong(document: dict[str, Any]) -> None:
    ids = [operation["operationId"] for _, operation in operations(document)]
    assert len(set(ids)) == len(ids)
    for name, operation in operations(document):
        assert operation["summary"], name
        if "x-permission" not in operation:
            continue
        assert operation["security"] == [{"key": []}, {"session": []}], name
        assert {"400", "401", "403", "429", "503"} <= operation["responses"].keys(), name
        for status, response in operation["responses"].items():
            kind = "application/problem+json" if int(status) >= 400 else None
            assert kind is None or list(response["content"]) == [kind], (name, status)


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    found = set(references(document))
    assert found
    assert found <= known


def test_every_answer_and_every_problem_has_an_example_that_fits(document: dict[str, Any]) -> None:
    seen = 0
    for name, operation in operations(document):
        for status, response in operation["responses"].items():
            for kind, content in response.get("content", {}).items():
                if "x-permission" not in operation or not kind.endswith("json") or "schema" not in content:
                    continue
                if "text/event-stream" in response["content"]:
                    continue  # a stream is no JSON
                schema = {**content["schema"], "components": document["components"]}
                found = [error.message for error in jsonschema_rs.validator_for(schema).iter_errors(content["example"])]
                assert found == [], (name, status)
                assert "…" not in str(content["example"]), (name, status)
                seen += 1
    assert seen > 100


def references(node: Any) -> list[str]:
    if isinstance(node, dict):
        own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
        return own + [each for value in node.values() for each in references(value)]
    return [each for value in node for each in references(value)] if isinstance(node, list) else []


@pytest.mark.timeout(TIMEOUT)
@pytest.mark.parametrize("url", ["postgres"], indirect=True)  # the stricter of the two about what it takes
async def test_schemathesis_finds_no_server_error_and_nothing_undocumented(make_site: MakeSite) -> None:
    site = await make_site(*SAGAS, telemetry=Telemetry(logs=False))
    told = await schemathesis(site, "--phases", "examples,coverage,fuzzing", "--max-examples", str(EXAMPLES))
    tested = sum(not name.endswith(STREAMS) for name, _ in operations(site.app.openapi()))
    assert f"Tested: {tested}" in told, told[-3_000:]


@pytest.mark.timeout(TIMEOUT)
@pytest.mark.parametrize("url", ["postgres"], indirect=True)
async def test_schemathesis_goes_on_from_what_it_made(make_site: MakeSite) -> None:
    """One request follows from the answer to another; `test_walk.py` does so with a plan of its own."""
    site = await make_site(*SAGAS, telemetry=Telemetry(logs=False))
    options = ("--phases", "stateful", "--mode", "positive", "--max-examples", str(4 * EXAMPLES))
    within = ("--include-path-regex", "^/v1/executions")
    await schemathesis(site, *options, *within, SCHEMATHESIS_HOOKS="tests.service.hooks")
    assert sum((await site.engine.count()).values()) > 0, "nothing was started, so there was nothing to go on with"


async def schemathesis(site: Site, *options: str, **environment: str) -> str:
    """What it says of the whole document. Whatever it finds wrong ends the test."""
    async with listening(site) as client:
        command = [
            sys.executable, "-m", "schemathesis.cli", "run", str(client.base_url.join("/openapi.json")),
            "--header", f"Authorization: {client.headers['authorization']}",
            *options, "--seed", SEED,
            "--request-timeout", "120",
            "--exclude-path-regex", "/(events|feed)$",  # streams
            "--exclude-checks", "positive_data_acceptance",  # what a schema cannot say: cursors, definitions, keys
        ]  # fmt: skip
        process = await asyncio.create_subprocess_exec(
            *command,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **environment},
        )
        told, _ = await process.communicate()
    assert process.returncode == 0, told.decode()[-8_000:]
    return told.decode()


# -- /docs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
async def test_the_page_has_every_operation_and_loads_nothing_from_elsewhere(make_site: MakeSite) -> None:
    site = await make_site(*SAGAS)
    client = await site.bare()
    answer = await client.get("/docs")
    assert answer.headers["content-type"].startswith("text/html")
    document = (await client.get("/openapi.json")).json()
    for _, operation in operations(document):
        assert f"<details id='{operation['operationId']}'>" in answer.text
    assert re.findall(r"(?:src|href)='([^']*)'", answer.text) == ["openapi.json"]
    assert "Select a row to open it" in answer.text
    assert "details[open] > summary::before" in answer.text, "a row shows whether it is open"
    policy = answer.headers["content-security-policy"]
    for tag, kind in (("style", "style-src"), ("script", "script-src")):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", answer.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy
    assert "unsafe" not in policy

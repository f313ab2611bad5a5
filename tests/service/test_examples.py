"""The examples of the OpenAPI document are one story: each can be sent, and the service answers as the example says."""

import re
from typing import Any
from urllib.parse import quote

import httpx2
import jsonschema_rs

from tenuto import SagaBuilder
from tests.service.browser import browser
from tests.service.conftest import MakeSite

_VARYING = [
    (re.compile(r"\b[0-9a-f]{64}\b"), "<hash>"),
    (re.compile(r"\b[0-9a-f]{22}\b"), "<id>"),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"), "<time>"),
    (re.compile(r"\bkey:\w+:[\w-]+"), "<key>"),
    (re.compile(r"\binvoice-4\d\b"), "<invoice>"),
    (re.compile(r"(?<=\"due_at\":)\d+"), "<ms>"),
]
# What depends on who runs it, and on how much was done there before.
_OWN = {"worker", "build", "n", "rows", "running", "waiting", "in_flight", "executions", "duration_ms"}

DEFINED: dict[str, Any] = {"name": "invoice-approval", "version": "1"}


def steady(value: Any) -> Any:
    if isinstance(value, dict):
        return {steady(name): None if name in _OWN else steady(part) for name, part in value.items()}
    if isinstance(value, list):
        return [steady(part) for part in value]
    if isinstance(value, str):
        for pattern, word in _VARYING:
            value = pattern.sub(word, value)
    return value


class Story:
    """Sends what the document gives as examples."""

    def __init__(self, client: httpx2.AsyncClient, document: dict[str, Any]) -> None:
        self.client = client
        self.operations = {
            operation["operationId"]: (method.upper(), path, operation)
            for path, item in document["paths"].items()
            for method, operation in item.items()
        }
        self.components = document["components"]
        self.sent: set[str] = set()
        self.started = 0
        self.key = ""  # the key in the example opens nothing

    async def tell(
        self, operation_id: str, *, by: httpx2.AsyncClient | None = None, query: str = "", **names: Any
    ) -> Any:
        """The answer. It must be one of those that are documented, and no refusal."""
        method, path, operation = self.operations[operation_id]
        for name, value in names.items():
            path = path.replace(f"{{{name}}}", quote(value, safe=""))
        body = None
        if "requestBody" in operation:
            body = operation["requestBody"]["content"]["application/json"]["example"]
            self.sent.add(operation_id)
        if operation_id in ("sign_in", "reauthenticate"):
            body = {"key": self.key}
        headers = {}
        if operation_id == "start_execution":
            self.started += 1
            headers = {"X-Correlation-ID": "c-7", "Idempotency-Key": f"invoice-{41 + self.started}"}
        answer = await (by or self.client).request(method, f"{path}{query}", json=body, headers=headers)
        assert str(answer.status_code) in operation["responses"], (operation_id, answer.text)
        assert answer.status_code < 300, (operation_id, body, answer.text)
        if not answer.content:
            return None
        schema = operation["responses"][str(answer.status_code)]["content"]["application/json"]["schema"]
        flaws = jsonschema_rs.validator_for({**schema, "components": self.components}).iter_errors(answer.json())
        assert [flaw.message for flaw in flaws] == [], operation_id
        return answer.json()

    async def shown(
        self, operation_id: str, *, by: httpx2.AsyncClient | None = None, query: str = "", **names: Any
    ) -> Any:
        """The answer. It is the one that the document shows; of a list, the row is in it that the document shows."""
        found = await self.tell(operation_id, by=by, query=query, **names)
        told, example = steady(found), steady(self.example(operation_id))
        if isinstance(told, dict) and "items" in told:
            assert example["items"][0] in told["items"], (operation_id, told)
        else:
            assert told == example, operation_id
        return found

    async def told_in_part(self, operation_id: str, **names: Any) -> None:
        """A definition comes back with all that its author left out."""
        assert is_part(steady(self.example(operation_id)), steady(await self.tell(operation_id, **names))), operation_id

    async def rejected(self) -> str:
        """An execution that failed, because somebody said no."""
        id: str = (await self.tell("start_execution"))["execution_id"]
        await self.shown("reject_step", id=id, step_id="approve")
        return id

    def example(self, operation_id: str) -> Any:
        responses = self.operations[operation_id][2]["responses"]
        status = "201" if "201" in responses else "200"
        return responses[status]["content"]["application/json"]["example"]


def is_part(example: Any, told: Any) -> bool:
    if isinstance(example, dict):
        return all(name in told and is_part(part, told[name]) for name, part in example.items())
    if isinstance(example, list):
        return len(example) == len(told) and all(map(is_part, example, told))
    return bool(example == told)


async def test_each_example_can_be_sent_and_is_answered_as_it_says(make_site: MakeSite) -> None:
    site = await make_site()
    acme, deployment = await site.client("acme"), await site.client("default")
    story = Story(acme, (await acme.get("/openapi.json")).json())
    tell, shown = story.tell, story.shown

    await shown("validate_document")
    await story.told_in_part("draft_definition")
    await story.told_in_part("replace_definition", **DEFINED)
    await shown("validate_definition", **DEFINED)
    await story.told_in_part("publish_definition", **DEFINED)
    await story.told_in_part("get_definition", **DEFINED)
    await shown("list_definitions")

    id = (await shown("start_execution"))["execution_id"]
    await shown("get_execution", id=id)
    await shown("list_executions")
    await shown("list_statuses", query=f"?id={id}")
    await shown("list_steps", id=id)
    await shown("get_graph", id=id)
    (review,) = (await shown("list_reviews"))["items"]
    await shown("get_review", id=review["id"])
    stream = story.operations["stream_events"][2]["responses"]["200"]["content"]["text/event-stream"]["example"]
    assert steady(stream) in steady((await acme.get(f"/v1/executions/{id}/events?follow=false")).text)
    await shown("get_overview")
    feed = story.operations["stream_feed"][2]["responses"]["200"]["content"]["text/event-stream"]["example"]
    watched = (await acme.get(f"/v1/feed?follow=false&watch={id}:1")).text
    assert steady(feed.partition("\n\n")[0]) in steady(watched)
    await shown("pause_execution", id=id)
    await shown("resume_execution", id=id)
    await shown("send_signal", id=id, name="paid")

    first = await story.rejected()
    await shown("count_executions")
    await shown("list_dead_letters")
    await shown("get_dead_letter", id=first)
    await shown("retry_execution", id=first)

    await tell("approve_step", id=id, step_id="approve")  # what has come of it by then depends on who is quicker
    await tell("get_execution", id=id, query="?wait=terminal&seconds=60")
    await shown("get_history", id=id)
    await shown("cancel_executions")

    second = await story.rejected()
    await shown("reprocess_dead_letters")
    await tell("reject_step", id=second, step_id="approve")
    await shown("retry_executions")
    await shown("retry_step", id=await story.rejected(), step_id="approve")
    await shown("reprocess_dead_letter", id=await story.rejected())
    await shown("discard_dead_letter", id=await story.rejected())
    await shown("cancel_execution", id=(await tell("start_execution"))["execution_id"])
    await shown("resolve_review", id=(await tell("start_execution"))["blocked"]["review_id"])

    await tell("set_limit", by=deployment, name="ses")
    await shown("list_limits", by=deployment)
    await tell("set_tenant_limit", by=deployment, tenant="acme")
    await shown("list_tenant_limits")
    await shown("list_workers", by=deployment)
    for about in ("list_audit", "export_audit", "verify_audit"):
        await shown(about, query="?limit=100" if about != "verify_audit" else "")
    await story.told_in_part("deprecate_definition", **DEFINED)

    story.key = (await site.engine.keys.create(tenant="acme", roles=["approver"], name="shop")).token
    async with browser(site) as client:
        client.headers["X-Tenuto-CSRF"] = (await shown("sign_in", by=client))["csrf_token"]
        await shown("get_identity", by=client)
        await tell("list_sessions", by=client)
        await shown("reauthenticate", by=client)

    operations = {id: operation for id, (_, _, operation) in story.operations.items()}
    elsewhere = {id for id, operation in operations.items() if "commands" in operation["tags"]}  # tests/commands
    with_body = {id for id, operation in operations.items() if "requestBody" in operation} - elsewhere
    assert story.sent == with_body


async def each(n: int) -> int:
    return n


async def test_clones_of_a_fan_out_are_told_as_the_document_says(make_site: MakeSite) -> None:
    site = await make_site(SagaBuilder("fans").step("each", each, foreach="input"))
    client = await site.client()
    story = Story(client, (await client.get("/openapi.json")).json())
    started = await client.post("/v1/executions", json={"definition": "fans", "input": [1, 2]})
    id = started.json()["execution_id"]
    await story.tell("get_execution", id=id, query="?wait=terminal&seconds=60")
    clones = await story.tell("list_steps", id=id, query="?of=each")
    assert [row["step_id"] for row in clones["items"]] == ["each#0", "each#1"]
    shape = {"$ref": "#/components/schemas/CloneDocument", "components": story.components}
    assert all(jsonschema_rs.validator_for(shape).is_valid(row) for row in clones["items"])

"""`POST /v1/commands`: what is accepted, what is refused, and what a repetition gets."""

from typing import Any

import pytest

from .conftest import INGEST, MakeSite, Site, command


async def refused(site: Site, body: Any, **headers: str) -> tuple[int, str, list[tuple[str, str]]]:
    answer = await (await site.client()).post("/v1/commands", json=body, headers=headers)
    found = answer.json()
    return answer.status_code, found["code"], [(each["pointer"], each["code"]) for each in found.get("errors", ())]


@pytest.mark.requirement("F1", "F2", "A11", "A15")
async def test_a_command_is_accepted_once_its_job_is_durable(site: Site) -> None:
    client = await site.client()
    answer = await client.post("/v1/commands", json=command(idempotency_key="k"))
    id = answer.json()["jobId"]
    assert (answer.status_code, answer.json()) == (202, {"jobId": id, "status": "QUEUED", "replayed": False})
    assert answer.headers["location"] == f"/v1/jobs/{id}"
    assert (await client.get(f"/v1/executions/{id}")).json()["correlation_id"] == "case-7"


@pytest.mark.requirement("F2", "F3", "A12", "F20")
async def test_all_problems_are_reported_at_once_and_nothing_is_created(site: Site) -> None:
    body = command(
        doc_id=None,
        schema_version="v2",
        request_type="document.shred",
        input_ref="no scheme",
        output_ref="s3://docs/../etc",
        callback_urls={"completed": "https://evil.example/x", "ack": "http://acme.example/a"},
        colour="red",
    )
    status, code, problems = await refused(site, body)
    assert (status, code) == (422, "command_invalid")
    assert {
        ("/doc_id", "doc_id_missing"),
        ("/schema_version", "unknown_schema_version"),
        ("/request_type", "unknown_request_type"),
        ("/input_ref", "reference_denied"),
        ("/output_ref", "reference_denied"),
        ("/callback_urls/completed", "callback_host_denied"),
        ("/callback_urls/ack", "callback_host_denied"),
    } <= set(problems)
    assert len(problems) == 8
    assert (await (await site.client()).get("/v1/jobs")).json()["items"] == []


@pytest.mark.requirement("A12")
async def test_the_payload_of_every_step_is_checked_against_its_schema(site: Site) -> None:
    payload = {"ocr": {}, "embedding": {"model": "small"}}
    _, _, problems = await refused(site, command(payload=payload))
    assert problems == [("/payload/ocr/languages", "payload_invalid"), ("/payload/sis", "payload_invalid")]


BAD: list[tuple[Any, int, str]] = [
    ([], 422, "command_invalid"),
    ({}, 422, "command_invalid"),
    (command(mode="FAST"), 400, "unknown_mode"),
    (command(mode=1), 422, "command_invalid"),
    (command(tenant_id="globex"), 403, "tenant_mismatch"),
    (command(payload="text"), 422, "command_invalid"),
    (command(input_ref="s3://user:pw@docs/x"), 422, "command_invalid"),
    (command(input_ref="s3://docs/%2e%2e/x"), 422, "command_invalid"),
]


@pytest.mark.parametrize(("body", "status", "code"), BAD, ids=lambda part: str(part)[:20])
async def test_a_bad_command_is_refused(site: Site, body: Any, status: int, code: str) -> None:
    assert (await refused(site, body))[:2] == (status, code)


@pytest.mark.requirement("F3")
async def test_references_obey_the_policy_of_the_deployment(make_site: MakeSite) -> None:
    references = {"input": ["s3://docs/{tenant_id}/"], "output": ["s3://out/"]}
    site = await make_site({**INGEST, "references": references})
    _, _, problems = await refused(site, command(input_ref="s3://docs/globex/1", output_ref="s3://docs/acme/1"))
    assert problems == [("/input_ref", "reference_denied"), ("/output_ref", "reference_denied")]
    assert await site.send(output_ref="s3://out/1")


async def test_a_repeated_key_gets_the_same_job_and_another_body_is_refused(site: Site) -> None:
    client = await site.client()
    first = await client.post("/v1/commands", json=command(idempotency_key="k"))
    other_trace = "00-4bf92f3577b34da6a3ce929d0e0e4737-00f067aa0ba902b7-01"
    again = await client.post(
        "/v1/commands",
        json=command(traceparent=other_trace, correlation_id="case-8"),
        headers={"Idempotency-Key": "k"},
    )
    assert again.status_code == 202
    assert again.json() == {**first.json(), "replayed": True, "status": again.json()["status"]}
    assert again.headers["idempotency-replayed"] == "true"
    other = await client.post("/v1/commands", json=command(idempotency_key="k", doc_id="doc-43"))
    assert other.status_code == 422
    mismatch = await refused(site, command(idempotency_key="k"), **{"Idempotency-Key": "other"})
    assert mismatch[2] == [("/idempotency_key", "idempotency_key_mismatch")]


async def test_one_key_under_two_request_types_is_two_jobs(make_site: MakeSite) -> None:
    protocol = {**INGEST["protocols"][0], "request_types": ["document.ingest", "document.reingest"]}
    site = await make_site({**INGEST, "protocols": [protocol]})
    first = await site.send(idempotency_key="k")
    assert await site.send(idempotency_key="k", request_type="document.reingest") != first


@pytest.mark.requirement("G3", "G10")
async def test_a_command_beyond_the_tenants_limit_is_refused_and_a_repetition_is_not(site: Site) -> None:
    await site.engine.tenant_limit("acme", max_in_flight=1)
    client = await site.client()
    id = await site.send(idempotency_key="k")
    full = await client.post("/v1/commands", json=command())
    assert (full.status_code, "retry-after" in full.headers) == (429, True)
    replayed = await client.post("/v1/commands", json=command(idempotency_key="k"))
    assert (replayed.status_code, replayed.json()["jobId"]) == (202, id)
    await client.post(f"/v1/jobs/{id}:cancel")
    await site.engine.tenant_limit("acme", max_in_flight=None)


GOLDEN = [("acme", None, 14), ("globex", None, 10), ("tenant-001", None, 8), ("tenant-001", "doc-7", 11)]


@pytest.mark.requirement("F4", "F5", "F6")
@pytest.mark.parametrize(("tenant", "doc_id", "lane"), GOLDEN)
async def test_lane_and_routing_key_are_on_the_topic_the_event_the_step_and_the_attempt(
    site: Site, tenant: str, doc_id: str | None, lane: int
) -> None:
    mode = "DEFAULT" if doc_id is None else "BURST"
    body = command(tenant_id=tenant, mode=mode, doc_id=doc_id)
    client = await site.client(tenant)
    id = (await client.post("/v1/commands", json=body)).json()["jobId"]
    message = await site.next("ocr")
    assert message.raw["topic"] == f"global-bus-p{lane}"
    key = tenant + (doc_id or "")
    await message.ack()
    job = (await client.get(f"/v1/jobs/{id}")).json()
    assert {(step["lane"], step["routing_key_used"]) for step in job["steps"]} == {(lane, key)}
    (attempt,) = (await client.get(f"/v1/jobs/{id}/steps")).json()["items"]
    assert (attempt["lane"], attempt["routing_key_used"]) == (lane, key)
    while f'"lane":{lane}' not in (await client.get(f"/v1/executions/{id}/events?follow=false")).text:
        pass  # the receiver may be faster than the record of the publish
    await client.post(f"/v1/jobs/{id}:cancel")
    await message.result()

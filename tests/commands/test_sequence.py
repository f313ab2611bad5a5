"""The end-to-end sequence of a job, and the failures that it survives."""

from typing import Any

import pytest

from .conftest import Site


@pytest.mark.requirement("F1", "F4", "F5", "F6", "F7", "F8", "F9", "F17", "F18", "F22", "F23")
async def test_a_command_runs_its_steps_in_order_over_the_bus(site: Site) -> None:
    """Command, directive, ACK, RESULT, next directive: the sequence of the specification."""
    client = await site.client()
    id = await site.send(idempotency_key="ingest-42")
    first = await site.next("ocr")
    assert first.raw["topic"] == "global-bus-p8"
    assert first.raw["delivery_count"] == 1
    directive = first.directive
    token, lease, key = (directive.pop(name) for name in ("callback_token", "lease_id", "idempotency_key"))
    trace = directive.pop("traceparent")
    assert directive == {
        "jobId": id,
        "tenant_id": "acme",
        "stepId": "ocr",
        "protocol_id": "ingest",
        "step_type": "OCR",
        "attempt_no": 1,
        "input_ref": "s3://docs/acme/42.pdf",
        "workspace_ref": None,
        "output_ref": "s3://docs/acme/out/42",
        "payload": {"languages": ["en"]},
        "callback_urls": {
            "ack": "https://t.example/v1/callbacks/ack",
            "result": "https://t.example/v1/callbacks/result",
        },
        "correlation_id": "case-7",
    }
    assert first.raw["id"] == f"{id}/ocr/1/{lease}"
    assert (token.split(".")[:2], len(lease), len(key)) == (["v1", "k1"], 32, 64)
    assert trace.startswith("00-4bf92f3577b34da6a3ce929d0e0e4736-")
    assert trace != "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    directive |= {"lease_id": lease, "callback_token": token}

    await site.until(id, status="IN_PROGRESS", blocked={"reason": "callback", "waiting_for": "ocr"})
    assert await first.ack(workspace_ref="s3://docs/acme/w/1") == "applied"
    assert (await site.job(id))["steps"][0]["status"] == "PROCESSING"
    assert await first.result(result={"pages": 12}) == "applied"
    assert await first.settle("complete") == 204

    second = await site.next("embedding")
    assert second.directive["workspace_ref"] == "s3://docs/acme/w/1"
    job = await site.until(id, current_step_id="embedding", blocked={"reason": "callback", "waiting_for": "embedding"})
    expected: dict[str, Any] = {
        "job_id": id,
        "tenant_id": "acme",
        "protocol_id": "ingest",
        "status": "IN_PROGRESS",
        "current_step_id": "embedding",
    }
    assert {name: job[name] for name in expected} == expected
    of_step = ("step_id", "step_type", "status", "attempt_no", "lane", "routing_key_used", "workspace_ref")
    assert [tuple(step[name] for name in of_step) for step in job["steps"]] == [
        ("ocr", "OCR", "SUCCEEDED", 1, 8, "acmedoc-42", "s3://docs/acme/w/1"),
        ("embedding", "EMBEDDING", "INITIATED", 1, 8, "acmedoc-42", "s3://docs/acme/w/1"),
        ("sis", "SIS", "PENDING", 0, 8, "acmedoc-42", None),
    ]
    assert job["steps"][0]["lease_id"] == lease

    assert await second.result(result=None, workspace_ref="s3://docs/acme/w/2") == "applied"
    third = await site.next("sis")
    assert third.directive["workspace_ref"] == "s3://docs/acme/w/2"
    assert await third.result() == "applied"
    job = await site.until(id, status="SUCCEEDED")
    assert job["blocked"] is None
    assert [step["status"] for step in job["steps"]] == ["SUCCEEDED"] * 3
    assert await site.callbacks(id) == [
        ("ack", "ocr", "applied"),
        ("result", "ocr", "applied"),
        ("result", "embedding", "applied"),
        ("result", "sis", "applied"),
    ]
    attempts = (await client.get(f"/v1/jobs/{id}/steps")).json()["items"]
    assert [(row["step_id"], row["attempt_no"], row["status"]) for row in attempts] == [
        ("embedding", 1, "SUCCEEDED"),
        ("ocr", 1, "SUCCEEDED"),
        ("sis", 1, "SUCCEEDED"),
    ]

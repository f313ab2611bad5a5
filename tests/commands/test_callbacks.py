"""Callbacks: the verdict on each, who may send them, and what they change."""

from typing import Any

import pytest

from .conftest import INGEST, MakeSite, Message, Site


def protocol(**settings: Any) -> dict[str, Any]:
    """One step, with these settings."""
    step = {"step_id": "ocr", "step_type": "OCR", "payload": "${input.payload.ocr}", **settings}
    one = {"protocol_id": "scan", "version": 1, "request_types": ["document.ingest"], "steps": [step]}
    return {**INGEST, "protocols": [one]}


@pytest.mark.requirement("F10", "D9")
async def test_late_repeated_and_stale_callbacks_are_logged_with_their_verdict_and_change_nothing(site: Site) -> None:
    """Scenario 16.2: a callback with a stale attempt or lease."""
    id = await site.send()
    first = await site.next("ocr")
    assert await first.ack() == "applied"
    assert await first.ack() == "duplicate"
    assert await first.fail("TRANSIENT") == "applied"
    second = await site.next("ocr")
    assert second.directive["attempt_no"] == 2
    assert second.directive["idempotency_key"] == first.directive["idempotency_key"]
    before = await site.until(id, blocked={"reason": "callback", "waiting_for": "ocr"})
    assert await first.result() == "stale_attempt"
    assert await first.ack() == "stale_attempt"
    admin = await site.client()
    forged = {**second.bound, "lease_id": first.bound["lease_id"]}
    assert (await admin.post("/v1/callbacks/ack", json=forged)).json() == {"applied": False, "verdict": "stale_lease"}
    ahead = {**second.bound, "attempt_no": 3}
    assert (await admin.post("/v1/callbacks/ack", json=ahead)).json()["verdict"] in ("unknown", "stale_lease")
    assert await site.job(id) == before
    assert await second.result() == "applied"
    for service in ("embedding", "sis"):
        assert await (await site.next(service)).result() == "applied"
    await site.until(id, status="SUCCEEDED")
    assert await second.result() == "terminal"
    verdicts = [verdict for _, _, verdict in await site.callbacks(id)]
    assert verdicts == [
        "applied", "duplicate", "applied", "stale_attempt", "stale_attempt", "stale_lease", verdicts[6],
        "applied", "applied", "applied", "terminal",
    ]  # fmt: skip


CLASSES = [("TRANSIENT", 3), ("NON_RETRYABLE", 1), ("DEPENDENCY_FAILED", 1)]


@pytest.mark.requirement("F9", "F21")
@pytest.mark.parametrize(("error_class", "attempts"), CLASSES)
async def test_the_retry_matrix_decides_on_a_failure(make_site: MakeSite, error_class: str, attempts: int) -> None:
    site = await make_site(protocol(failure_policy={"DEPENDENCY_FAILED": "FAIL"}))
    id = await site.send()
    for number in range(1, attempts + 1):
        message = await site.next("ocr")
        assert message.directive["attempt_no"] == number
        assert await message.fail(error_class, "gpu_quota") == "applied"
    job = await site.until(id, status="FAILED_FINAL")
    assert job["error"] == {"class": error_class, "code": "gpu_quota", "step_id": "ocr"}
    assert [step["status"] for step in job["steps"]] == ["FAILED_FINAL"]


async def test_failed_final_is_not_retried_and_the_rest_never_starts(site: Site) -> None:
    id = await site.send()
    assert await (await site.next("ocr")).result("FAILED_FINAL") == "applied"
    job = await site.until(id, status="FAILED_FINAL")
    assert [step["status"] for step in job["steps"]] == ["FAILED_FINAL", "CANCELLED", "CANCELLED"]


async def test_a_failed_job_is_reprocessed_by_a_retry_of_its_execution(site: Site) -> None:
    id = await site.send()
    assert await (await site.next("ocr")).result("FAILED_FINAL") == "applied"
    await site.until(id, status="FAILED_FINAL")
    client = await site.client()
    assert (await client.post(f"/v1/executions/{id}:retry", json={"reason": "mended"})).status_code in (200, 202)
    assert (await site.job(id))["status"] == "IN_PROGRESS"
    for service in ("ocr", "embedding", "sis"):
        assert await (await site.next(service)).result() == "applied"
    await site.until(id, status="SUCCEEDED")


# -- Credentials -------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("F16")
async def test_only_the_directives_own_token_answers_for_it(site: Site) -> None:
    await site.send()
    message = await site.next("ocr")
    token = message.directive["callback_token"]
    version, key, claims, signature = token.split(".")
    forged = [
        f"{version}.{key}.{claims}.{'A' * 43}",
        f"{version}.k9.{claims}.{signature}",
        f"{version}.{key}.{claims[:-2]}.{signature}",
        token[:-1],
        "v1.x",
    ]
    for each in forged:
        answer = await message.post("ack", message.bound, each)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer"), each
    for name, value in (("stepId", "sis"), ("attempt_no", 2), ("lease_id", "x"), ("tenant_id", "globex")):
        answer = await message.post("ack", {**message.bound, name: value})
        assert (answer.status_code, answer.json()["code"]) == (403, "callback_mismatch"), name
    client = await site.bare(token)
    for path in ("/v1/jobs", f"/v1/executions/{message.bound['jobId']}"):
        assert (await client.get(path)).status_code == 403, path
    assert (await client.post("/v1/bus/ocr:receive", json={})).status_code == 403
    assert await message.ack() == "applied"
    await _finish(site, message)


@pytest.mark.requirement("F16")
async def test_a_key_answers_for_the_steps_of_its_service_alone(site: Site) -> None:
    await site.send()
    message = await site.next("ocr")
    body = message.bound
    for worker in (await site.client("*", "worker", service="sis"), await site.client("acme", "worker")):
        answer = await worker.post("/v1/callbacks/ack", json=body)
        assert (answer.status_code, answer.json()["code"]) == (403, "not_the_owner")
    foreign = await site.client("globex", "worker", service="ocr")
    assert (await foreign.post("/v1/callbacks/ack", json=body)).json()["code"] == "tenant_mismatch"
    viewer = await site.client("acme", "viewer")
    assert (await viewer.post("/v1/callbacks/ack", json=body)).status_code == 403
    own = await site.client("*", "worker", service="ocr")
    assert (await own.post("/v1/callbacks/ack", json=body)).json() == {"applied": True, "verdict": "applied"}
    await _finish(site, message)


async def test_an_admin_may_send_callbacks_which_is_audited(site: Site) -> None:
    await site.send()
    message = await site.next("ocr")
    admin = await site.client()
    assert (await admin.post("/v1/callbacks/ack", json=message.bound)).json()["applied"] is True
    await _finish(site, message)
    noted = [row async for row in site.engine.scoped(tenant="acme", actor="x").audit.rows(action="callback.sent")]
    assert site.engine.url == "memory://" or [row["object_id"] for row in noted] == [message.bound["jobId"]]


async def _finish(site: Site, message: Message) -> None:
    """Ends a job whose first step was received."""
    assert await message.result("FAILED_FINAL") == "applied"
    await site.until(message.bound["jobId"], status="FAILED_FINAL")


BAD: list[dict[str, Any]] = [
    {"status": "DONE"},
    {"status": "FAILED"},
    {"status": "FAILED", "error": {"class": "ODD", "code": "x"}},
    {"status": "SUCCEEDED", "extra": 1},
    {"status": "SUCCEEDED", "result": ["x" * 100_000] * 3},
]


@pytest.mark.parametrize("body", BAD, ids=lambda body: str(body)[:40])
async def test_a_bad_result_is_rejected_and_logged_and_the_attempt_stays_open(site: Site, body: dict[str, Any]) -> None:
    id = await site.send()
    message = await site.next("ocr")
    answer = await message.post("result", {**message.bound, **body})
    assert answer.status_code == 422, answer.text
    assert ("result", "ocr", "rejected") in await site.callbacks(id)
    assert (await site.job(id))["steps"][0]["status"] == "INITIATED"
    await _finish(site, message)


async def test_a_callback_to_an_unknown_job_is_told_so(site: Site) -> None:
    worker = await site.client("*", "worker", service="ocr")
    body = {"jobId": "nowhere", "stepId": "ocr", "tenant_id": "acme", "attempt_no": 1, "lease_id": "x"}
    answer = await worker.post("/v1/callbacks/ack", json=body)
    assert (answer.status_code, answer.json()) == (200, {"applied": False, "verdict": "unknown"})

"""Jobs: reads from the ledger, versions, lists, and cancel."""

import pytest

from .conftest import Site


@pytest.mark.requirement("F14", "F15", "K2")
async def test_the_version_of_a_job_is_its_etag(site: Site) -> None:
    client = await site.client()
    id = await site.send()
    message = await site.next("ocr")
    await site.until(id, status="IN_PROGRESS")
    first = await client.get(f"/v1/jobs/{id}")
    etag = first.headers["etag"]
    same = await client.get(f"/v1/jobs/{id}", headers={"If-None-Match": etag})
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", etag)
    assert await message.ack() == "applied"
    changed = await client.get(f"/v1/jobs/{id}", headers={"If-None-Match": etag})
    assert changed.status_code == 200
    assert changed.headers["etag"] != etag
    assert await message.result("FAILED_FINAL") == "applied"


async def test_jobs_of_other_tenants_are_not_found(site: Site) -> None:
    id = await site.send()
    other = await site.client("globex")
    for method, path in (("GET", ""), ("GET", "/steps"), ("GET", "/callbacks"), ("POST", ":cancel")):
        assert (await other.request(method, f"/v1/jobs/{id}{path}")).status_code == 404
    assert (await other.get("/v1/jobs")).json()["items"] == []


async def test_jobs_are_listed_newest_first_page_by_page(site: Site) -> None:
    client = await site.client()
    ids = [await site.send() for _ in range(3)]
    first = (await client.get("/v1/jobs?limit=2")).json()
    rest = (await client.get(f"/v1/jobs?limit=2&cursor={first['next_cursor']}")).json()
    assert [job["job_id"] for job in first["items"] + rest["items"]] == ids[::-1]
    assert rest["next_cursor"] is None
    await client.post(f"/v1/jobs/{ids[0]}:cancel")
    await site.until(ids[0], status="CANCELLED")
    cancelled = (await client.get("/v1/jobs?status=CANCELLED&protocol=ingest")).json()["items"]
    assert [job["job_id"] for job in cancelled] == [ids[0]]
    assert (await client.get("/v1/jobs?protocol=other")).json()["items"] == []


# -- Cancel ------------------------------------------------------------------------------------------------------------


async def test_cancelling_a_directive_that_no_worker_received_ends_the_job_at_once(site: Site) -> None:
    client = await site.client()
    id = await site.send()
    await site.until(id, status="IN_PROGRESS")
    answer = await client.post(f"/v1/jobs/{id}:cancel", json={"reason": "twice"})
    assert answer.status_code == 202
    job = await site.until(id, status="CANCELLED")
    assert [step["status"] for step in job["steps"]] == ["CANCELLED"] * 3
    assert await site.receive("ocr") == []
    again = await client.post(f"/v1/jobs/{id}:cancel")
    assert (again.status_code, again.json()["code"]) == (409, "invalid_transition")


@pytest.mark.parametrize("ending", ["SUCCEEDED", "FAILED", "FAILED_FINAL"])
async def test_a_cancelling_job_ends_with_its_current_step(site: Site, ending: str) -> None:
    client = await site.client()
    id = await site.send()
    message = await site.next("ocr")
    assert await message.ack() == "applied"
    for _ in range(2):
        assert (await client.post(f"/v1/jobs/{id}:cancel")).status_code == 202
    assert (await site.job(id))["status"] == "CANCELLING"
    error = {"error": {"class": "TRANSIENT", "code": "x"}} if ending == "FAILED" else {}
    assert await message.result(ending, **error) == "applied"
    job = await site.until(id, status="CANCELLED")
    assert [step["status"] for step in job["steps"][1:]] == ["CANCELLED", "CANCELLED"]
    assert await message.result() == "terminal"
    assert await site.job(id) == job


async def test_a_paused_job_is_in_progress_and_says_why_it_waits(site: Site) -> None:
    client = await site.client()
    id = await site.send()
    message = await site.next("ocr")
    await site.until(id, status="IN_PROGRESS")
    assert (await client.post(f"/v1/executions/{id}:pause")).status_code == 200
    job = await site.job(id)
    assert (job["status"], job["blocked"]["reason"]) == ("IN_PROGRESS", "paused")
    assert (await client.post(f"/v1/executions/{id}:resume")).status_code == 200
    assert await message.result("FAILED_FINAL") == "applied"

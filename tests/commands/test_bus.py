"""The embedded bus over HTTP: locks, redelivery, dead letters, and who may receive."""

import pytest

from .conftest import Site


@pytest.mark.requirement("F13")
async def test_a_message_is_locked_and_delivered_again_until_it_is_completed(site: Site) -> None:
    id = await site.send()
    first = await site.next("ocr")
    assert await site.receive("ocr") == []
    assert await first.settle("renew", lock_ms=60_000) == 204
    assert await first.settle("abandon") == 204
    assert await first.settle("complete") == 409, "the lock went with the message"
    second = await site.next("ocr")
    assert (second.raw["id"], second.raw["delivery_count"]) == (first.raw["id"], 2)
    assert second.raw["lock_token"] != first.raw["lock_token"]
    assert await second.settle("complete") == 204
    assert await second.settle("complete") == 409
    assert await second.result("FAILED_FINAL") == "applied"
    await site.until(id, status="FAILED_FINAL")


async def test_a_dead_letter_is_not_delivered_again_and_is_counted(site: Site) -> None:
    await site.send()
    message = await site.next("ocr")
    assert await message.settle("dead_letter", reason="unreadable") == 204
    assert await site.receive("ocr") == []
    deployment = await site.client("default")
    (topic,) = (await deployment.get("/v1/bus")).json()["topics"]
    assert (topic["topic"], topic["service"]) == ("global-bus-p8", "ocr")
    assert (topic["waiting"], topic["locked"], topic["dead_letters"]) == (0, 0, 1)
    assert (await (await site.client()).get("/v1/bus")).status_code == 403
    assert await message.result("FAILED_FINAL") == "applied"


async def test_workers_receive_what_is_for_their_service_and_tenant(site: Site) -> None:
    await site.send()
    message = await site.next("ocr")
    assert await message.settle("abandon") == 204
    own, other = await site.client("acme", "worker", service="ocr"), await site.client("acme", "worker", service="sis")
    foreign = await site.client("globex", "worker", service="ocr")
    assert (await other.post("/v1/bus/ocr:receive", json={})).json()["code"] == "not_the_owner"
    assert (await foreign.post("/v1/bus/ocr:receive", json={})).json()["messages"] == []
    (received,) = (await own.post("/v1/bus/ocr:receive", json={"max": 5})).json()["messages"]
    settle = {"lock_token": received["lock_token"]}
    path = f"/v1/bus/messages/{received['id']}:complete"
    assert (await foreign.post(path, json=settle)).status_code == 409
    assert (await own.post(path, json=settle)).status_code == 204
    assert await message.result("FAILED_FINAL") == "applied"


BAD = [{"max": 0}, {"max": 101}, {"wait_ms": 20_001}, {"lock_ms": 999}, {"lock_ms": 300_001}, {"other": 1}]


@pytest.mark.parametrize("body", BAD, ids=str)
async def test_a_receive_has_bounds(site: Site, body: dict[str, int]) -> None:
    worker = await site.client("*", "worker", service="ocr")
    assert (await worker.post("/v1/bus/ocr:receive", json=body)).status_code == 422

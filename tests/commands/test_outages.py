"""A bus that cannot be reached, a publish that is not confirmed, and a ledger without its engine."""

from collections.abc import Callable

import pytest

from tenuto.runtime.bus.embedded import EmbeddedBus
from tenuto.runtime.bus.port import BusTopologyError, BusUnreachable, PublishFailed
from tenuto.storage.bus_messages import BusMessage

from .conftest import Site


class FaultyBus(EmbeddedBus):
    """The embedded bus, unreachable or refusing for as long as a test wants."""

    def __init__(self, bus: EmbeddedBus) -> None:
        self.__dict__.update(bus.__dict__)
        self.fault: Callable[[], Exception] | None = None
        self.tried = 0

    async def publish(self, message: BusMessage) -> None:
        self.tried += 1
        if self.fault is not None:
            raise self.fault()
        await super().publish(message)

    async def check(self, services: object) -> None:
        if self.fault is not None:
            raise self.fault()


@pytest.fixture
def faulty(site: Site) -> FaultyBus:
    directives = site.engine.directives
    assert directives is not None
    assert isinstance(directives.bus, EmbeddedBus)
    bus = directives.bus = FaultyBus(directives.bus)
    return bus


async def events(site: Site, id: str) -> int:
    document = (await (await site.client()).get(f"/v1/executions/{id}/events?follow=false")).text
    return document.count("\nevent: ") + document.startswith("event: ")


@pytest.mark.requirement("F12")
async def test_an_unreachable_bus_costs_no_attempt_and_records_nothing(site: Site, faulty: FaultyBus) -> None:
    """Directives leave in order once the bus is back."""
    faulty.fault = lambda: BusUnreachable("no connection")
    ids = [await site.send() for _ in range(3)]
    while not faulty.tried:
        await site.job(ids[0])
    for id in ids:
        job = await site.job(id)
        assert (job["status"], job["blocked"]) == ("QUEUED", {"reason": "bus", "waiting_for": "ocr"})
        assert job["steps"][0]["attempt_no"] == 1
    document = (await (await site.client()).get(f"/v1/executions/{ids[-1]}")).json()
    assert document["blocked"]["reason"] == "bus"
    faulty.fault = None
    received = [await site.next("ocr") for _ in ids]
    assert [message.directive["attempt_no"] for message in received] == [1, 1, 1]
    for message in received:
        assert await message.result("FAILED_FINAL") == "applied"


@pytest.mark.requirement("F7", "F12")
async def test_an_unconfirmed_publish_is_a_new_attempt_with_a_new_lease(site: Site, faulty: FaultyBus) -> None:
    """Scenario 16.1: a publish failure."""
    faulty.fault = lambda: PublishFailed("not confirmed", code="unconfirmed")
    id = await site.send()
    while not faulty.tried:
        await site.job(id)
    faulty.fault = None
    message = await site.next("ocr")
    assert message.directive["attempt_no"] > 1
    attempts = (await (await site.client()).get(f"/v1/jobs/{id}/steps")).json()["items"]
    assert attempts[0]["status"] == "UNPUBLISHED"
    assert len({row["lease_id"] for row in attempts}) == len(attempts)
    assert await message.result("FAILED_FINAL") == "applied"


async def test_a_missing_topic_fails_the_step_and_opens_a_review(site: Site, faulty: FaultyBus) -> None:
    faulty.fault = lambda: BusTopologyError("there is no topic", code="bus_topology")
    id = await site.send()
    job = await site.until(id, status="FAILED_FINAL")
    assert job["error"]["code"] == "bus_topology"
    reviews = (await (await site.client()).get("/v1/dlq")).json()["items"]
    assert [row["execution_id"] for row in reviews] == [id]

"""The order service over HTTP, with everything that it calls in one process."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from examples.orders.orders import Order
from examples.orders.saga import OrderSaga
from tenuto.errors import IdempotencyConflict
from tenuto.telemetry import Telemetry
from tenuto.telemetry.traces import Tracing

from .shop import CONSUMER, INVENTORY, Shop
from .verdict import wrong


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    async with Shop() as shop:
        yield shop


async def seen(shop: Shop) -> dict[str, list[str]]:
    """What the consumer knows."""
    found: dict[str, list[str]] = (await shop.client.get(f"{CONSUMER}/orders")).json()
    return found


@pytest.mark.requirement("E15")
async def test_an_order_is_pending_when_it_is_accepted_and_confirmed_in_the_end(shop: Shop) -> None:
    response = await shop.api.post("/orders", json={"id": "a", "item": "tea", "quantity": 2, "cents": 500})
    assert (response.status_code, response.json()["status"]) == (201, "pending")
    assert await shop.finished("a") == "confirmed"
    assert (await shop.api.get("/orders/a")).json() == {
        "id": "a", "item": "tea", "quantity": 2, "cents": 500, "status": "confirmed", "version": 4, "closing": False
    }  # fmt: skip
    assert await seen(shop) == {"a": ["pending", "reserved", "paid", "confirmed"]}
    assert await wrong(shop, ["a"]) == []


async def test_an_order_that_is_sent_twice_is_accepted_once(shop: Shop) -> None:
    order = {"id": "a", "item": "tea", "cents": 500}
    assert [(await shop.api.post("/orders", json=order)).status_code for _ in range(2)] == [201, 200]
    assert await shop.finished("a") == "confirmed"
    assert (await shop.api.post("/orders", json=order)).json()["status"] == "confirmed"
    assert await shop.service.engine.count() == {"succeeded": 1}


async def test_another_order_under_the_same_id_is_refused(shop: Shop) -> None:
    await shop.order("a", cents=500)
    response = await shop.api.post("/orders", json={"id": "a", "item": "tea", "quantity": 2, "cents": 501})
    assert (response.status_code, response.json()["detail"].partition(".")[0]) == (409, "There is another order 'a'")
    assert (await shop.stored("a")).cents == 500


async def test_an_unknown_order_is_not_found(shop: Shop) -> None:
    assert (await shop.api.get("/orders/b")).status_code == 404
    assert await shop.cancel("b") == 404


async def test_a_confirmed_order_cannot_be_canceled(shop: Shop) -> None:
    await shop.order("a")
    await shop.finished("a")
    response = await shop.api.post("/orders/a:cancel")
    assert (response.status_code, response.json()["detail"]) == (409, "Order 'a' is confirmed, and cannot be canceled.")


async def test_a_refused_order_leaves_nothing_for_a_person(shop: Shop) -> None:
    await shop.fault("pay", "refuse", "a")
    await shop.order("a")
    assert await shop.finished("a") == "canceled"
    assert await seen(shop) == {"a": ["pending", "reserved", "canceled"]}
    assert await wrong(shop, ["a"]) == []


async def test_an_order_whose_saga_is_canceled_before_its_first_step_is_canceled(shop: Shop) -> None:
    held = await shop.service.engine.start(OrderSaga, Order("a", "tea", 1, 1_000_000))
    await held.result()  # has the key of the order, and waits
    await shop.order("a")
    second = await shop.service.engine.get((await shop.service.orders.get("a")).execution).status()
    assert second["blocked"] is not None
    await shop.service.engine.get(second["execution_id"]).cancel("compensate")
    assert await shop.finished("a") == "canceled"


@pytest.mark.requirement("D5")
async def test_an_order_is_not_written_if_its_saga_cannot_be_started(tmp_path: Path) -> None:
    async with Shop.on_files(tmp_path) as shop:
        await shop.service.engine.start(OrderSaga, Order("b", "tea", 1, 1), idempotency_key="order-a")
        with pytest.raises(IdempotencyConflict):
            await shop.api.post("/orders", json={"id": "a", "item": "tea", "cents": 500})
        assert (await shop.api.get("/orders/a")).status_code == 404


async def test_messages_of_a_saga_without_an_order_are_passed_over(shop: Shop) -> None:
    handle = await shop.service.engine.start(OrderSaga, Order("no-such-order", "tea", 1, 500))
    await handle.result()
    await shop.order("a")
    assert await shop.finished("a") == "confirmed"
    async with asyncio.timeout(60):
        while (await shop.service.engine.outbox()).waiting:
            await asyncio.to_thread(lambda: None)


async def test_a_fault_of_an_operation_that_a_service_does_not_have_is_refused(shop: Shop) -> None:
    response = await shop.client.post(f"{INVENTORY}/faults", json={"operation": "pay", "kind": "error"})
    assert (response.status_code, response.json()["detail"]) == (
        422, "There is no operation 'pay'. Use reserve, release."
    )  # fmt: skip


# -- Events ------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("D6")
@pytest.mark.parametrize("kind", ["error", "reset", "duplicate", "refuse", "pending"])
async def test_an_event_is_counted_once_however_often_it_is_sent(kind: str, shop: Shop) -> None:
    await shop.fault("receive", kind, "a", times=2)
    await shop.order("a")
    assert await shop.finished("a") == "confirmed"
    assert await wrong(shop, ["a"]) == []


@pytest.mark.requirement("D6")
async def test_an_event_that_is_sent_again_later_changes_nothing(tmp_path: Path) -> None:
    async with Shop.on_files(tmp_path) as shop:
        await shop.order("a")
        await shop.finished("a")
        event = {"id": "a/2", "order_id": "a", "version": 2, "status": "reserved"}
        assert (await shop.client.post(f"{CONSUMER}/events", json=event)).status_code == 204
        assert await wrong(shop, ["a"]) == []


# -- Observability -----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("J2")
async def test_metrics_have_the_names_of_the_design(shop: Shop) -> None:
    await shop.fault("reserve", "error", "a")
    await shop.order("a")
    await shop.finished("a")
    lines = (await shop.api.get("/metrics")).text.splitlines()
    assert 'saga_step_duration_seconds_count{saga="order",step="reserve"} 2.0' in lines
    assert 'saga_flow_transitions_total{saga="order",step="reserve",to="succeeded"} 1.0' in lines
    assert 'saga_flow_transitions_total{saga="order",step="",to="succeeded"} 1.0' in lines
    assert 'order_e2e_latency_seconds_count{status="succeeded"} 1.0' in lines


@pytest.mark.requirement("J3")
async def test_each_step_has_a_span_with_the_names_of_the_design() -> None:
    exporter = InMemorySpanExporter()
    telemetry = Telemetry(logs=False, traces=Tracing(SimpleSpanProcessor(exporter)))
    async with Shop(telemetry=telemetry) as shop:
        await shop.fault("reserve", "error", "a")
        await shop.order("a")
        await shop.finished("a")
    names = ("order.id", "saga.step", "retry.attempt", "dep.name")
    spans = [span.attributes for span in exporter.get_finished_spans() if span.attributes is not None]
    found = [tuple(span[name] for name in names) for span in spans if "saga.step" in span]
    assert found == [
        ("a", "create", 1, "order.create"),
        ("a", "reserve", 1, "inventory"),
        ("a", "reserve", 2, "inventory"),
        ("a", "pay", 1, "payment"),
        ("a", "confirm", 1, "order.confirm"),
    ]


@pytest.mark.requirement("J3")
async def test_each_compensation_has_such_a_span() -> None:
    exporter = InMemorySpanExporter()
    telemetry = Telemetry(logs=False, traces=Tracing(SimpleSpanProcessor(exporter)))
    async with Shop(telemetry=telemetry) as shop:
        await shop.fault("pay", "refuse", "a")
        await shop.order("a")
        await shop.finished("a")
    spans = [span.attributes for span in exporter.get_finished_spans() if span.attributes is not None]
    found = [(span["order.id"], span["saga.step"], span["dep.name"]) for span in spans if "saga.step" in span]
    assert found[-2:] == [("a", "reserve", "inventory"), ("a", "create", "order.create")]

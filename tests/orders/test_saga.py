"""The saga in virtual time, with the real services: limits, refusals, unknown payments, cancels and crashes."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, Literal, Self

import httpx2
import pytest

from examples.orders import inventory, payment
from examples.orders.clients import InventoryClient, PaymentClient
from examples.orders.database import Database, connect
from examples.orders.orders import SCHEMA, Order, Orders
from examples.orders.saga import OrderSaga
from tenuto import Handle, SagaResult
from tenuto.errors import TransientError
from tenuto.testing import Harness

from .shop import INVENTORY, PAYMENT, SERVICE_OF, Network
from .test_orders import Contended

ORDER = Order("a", "tea", 2, 500)
LARGE = Order("a", "tea", 2, 100_001)


class Setting:
    """The saga in a harness, and the services that it calls."""

    def __init__(self, orders: Orders, database: Database) -> None:
        self.orders = orders
        self.database = database
        self.apps = {INVENTORY: inventory.create_app("memory://"), PAYMENT: payment.create_app("memory://")}
        self.client = httpx2.AsyncClient(transport=Network(self.apps), timeout=None)
        clients = InventoryClient(INVENTORY, self.client), PaymentClient(PAYMENT, self.client)
        self.harness = Harness(OrderSaga(orders, *clients))
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        for app in self.apps.values():
            await self._stack.enter_async_context(app.router.lifespan_context(app))
        await self._stack.enter_async_context(self.harness)
        self._stack.push_async_callback(self.database.close)
        await self.client.put(f"{INVENTORY}/stock/tea", params={"available": 10})
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def fault(self, operation: str, kind: str, **options: Any) -> None:
        given = {"operation": operation, "kind": kind, **options}
        assert (await self.client.post(f"{SERVICE_OF[operation]}/faults", json=given)).status_code == 201

    async def start(self, order: Order = ORDER) -> Handle[Any]:
        async with self.database.transaction() as transaction:
            await self.orders.insert(transaction, order)
        return await self.harness.start(OrderSaga, order)

    async def run(self, order: Order = ORDER) -> SagaResult[Any]:
        return await (await self.start(order)).result()

    async def ends(self, status: str, *, charges: int, refunds: int, held: int) -> None:
        """The order, the money and the stock are as they should be."""
        ledger = (await self.client.get(f"{PAYMENT}/ledger")).json()
        kinds = [line["kind"] for line in ledger]
        stock = (await self.client.get(f"{INVENTORY}/stock")).json()["tea"]
        assert (await self.orders.get("a")).status == status
        assert (kinds.count("charge"), kinds.count("refund")) == (charges, refunds)
        assert stock == {"available": 10 - held, "held": held}


@pytest.fixture
async def shop() -> AsyncIterator[Setting]:
    database = connect("memory://", *SCHEMA)
    async with Setting(Orders(database), database) as setting:
        yield setting


async def test_the_limits_are_those_of_the_design(shop: Setting) -> None:
    (document,) = [found["definition"] async for found in shop.harness.definitions(name="order")]
    steps = {step["step_id"]: step for step in document["steps"]}
    limits = {
        id: (step["retry_policy"]["timeout_ms"], step["retry_policy"]["max_attempts"])
        for id, step in steps.items()
        if id in ("reserve", "pay")
    }
    assert limits == {"reserve": (3_000, 3), "pay": (10_000, 4)}
    undo = {
        (step["compensation_timeout_ms"], step["compensation_max_attempts"])
        for step in steps.values()
        if step["compensation_handler"]
    }
    assert undo == {(5_000, 5)}
    assert steps["pay"]["timeout_ms"] == 900_000
    assert document["policies"]["compensation"] == "STRICT_SEQUENTIAL"


async def test_an_order_is_reserved_paid_and_confirmed(shop: Setting) -> None:
    result = await shop.run()
    assert result.succeeded
    await shop.ends("confirmed", charges=1, refunds=0, held=2)


# -- Refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("C12")
async def test_an_order_without_stock_is_canceled_at_once(shop: Setting) -> None:
    await shop.fault("reserve", "refuse")
    result = await shop.run()
    assert result.steps["reserve"].error_code == "out_of_stock"
    assert shop.harness.calls(OrderSaga.reserve) == 1
    await shop.ends("canceled", charges=0, refunds=0, held=0)


@pytest.mark.requirement("C12")
async def test_a_declined_payment_releases_the_stock_at_once(shop: Setting) -> None:
    await shop.fault("pay", "refuse")
    result = await shop.run()
    assert result.steps["pay"].error_code == "card_declined"
    assert shop.harness.calls(OrderSaga.pay) == 1
    assert result.compensated_steps == ["reserve", "create"]
    await shop.ends("canceled", charges=0, refunds=0, held=0)


@pytest.mark.requirement("I9")
async def test_a_forbidden_transition_fails_the_step_that_asked_for_it(shop: Setting) -> None:
    handle = await shop.start()
    await shop.orders.move("a", "canceled")
    result = await handle.result()
    assert result.steps["create"].error_class == "NON_RETRYABLE"
    assert shop.harness.calls(OrderSaga.create) == 1
    await shop.ends("canceled", charges=0, refunds=0, held=0)


# -- Retries -----------------------------------------------------------------------------------------------------------


async def test_reserve_is_tried_three_times_and_what_it_may_have_left_is_released(shop: Setting) -> None:
    await shop.fault("reserve", "reset", times=2)
    await shop.fault("reserve", "error")
    result = await shop.run()
    assert not result.succeeded
    assert shop.harness.calls(OrderSaga.reserve) == 3
    await shop.ends("canceled", charges=0, refunds=0, held=0)


@pytest.mark.requirement("C13")
async def test_a_reservation_that_is_pending_is_asked_for_again(shop: Setting) -> None:
    await shop.fault("reserve", "pending", times=2)
    assert (await shop.run()).succeeded
    assert shop.harness.calls(OrderSaga.reserve) == 3
    await shop.ends("confirmed", charges=1, refunds=0, held=2)


async def test_a_refund_that_is_pending_is_asked_for_again(shop: Setting) -> None:
    shop.harness.script(OrderSaga.confirm, *[TransientError("the database is down")] * 5)
    await shop.fault("refund", "pending", times=2)
    await shop.run()
    assert shop.harness.calls(OrderSaga.refund) == 3
    await shop.ends("refunded", charges=1, refunds=1, held=0)


async def test_a_reservation_that_arrives_after_its_release_is_refused(shop: Setting) -> None:
    await shop.fault("reserve", "refuse")
    await shop.run()
    late = await shop.client.put(f"{INVENTORY}/reservations/a", json={"item": "tea", "quantity": 2})
    assert late.status_code == 410
    await shop.ends("canceled", charges=0, refunds=0, held=0)


@pytest.mark.requirement("C22")
async def test_conflicts_of_versions_are_retried() -> None:
    database = connect("memory://", *SCHEMA)
    orders = Contended(database, times=0)
    async with Setting(orders, database) as shop:
        handle = await shop.start()
        orders.times = 5
        assert (await handle.result()).succeeded
        await shop.ends("confirmed", charges=1, refunds=0, held=2)


@pytest.mark.requirement("C22")
async def test_an_order_has_one_saga_at_a_time(shop: Setting) -> None:
    first = await shop.start(LARGE)
    await first.result()  # waits for its approval
    second = await shop.harness.start(OrderSaga, LARGE)
    blocked = (await second.status())["blocked"]
    assert blocked is not None
    assert blocked["reason"] == "concurrency_key"


# -- Payments without an answer ----------------------------------------------------------------------------------------


@pytest.mark.requirement("C11")
@pytest.mark.parametrize("kind", ["reset", "duplicate", "error"])
async def test_a_payment_without_an_answer_is_looked_up_before_it_is_tried_again(kind: str, shop: Setting) -> None:
    await shop.fault("pay", kind)
    assert (await shop.run()).succeeded
    assert shop.harness.calls(OrderSaga.pay) == (2 if kind == "error" else 1)
    await shop.ends("confirmed", charges=1, refunds=0, held=2)


@pytest.mark.requirement("C11")
async def test_a_payment_that_was_not_made_is_voided_before_it_is_tried_again(shop: Setting) -> None:
    await shop.fault("pay", "error", times=3)
    assert (await shop.run()).succeeded
    assert (await shop.orders.get("a")).payment_id == "a-4"
    delayed = await shop.client.put(f"{PAYMENT}/payments/a-1", json={"order_id": "a", "cents": 500})
    assert delayed.status_code == 409
    await shop.ends("confirmed", charges=1, refunds=0, held=2)


async def test_a_payment_that_fails_four_times_cancels_the_order(shop: Setting) -> None:
    await shop.fault("pay", "error", times=4)
    result = await shop.run()
    assert shop.harness.calls(OrderSaga.pay) == 4
    assert result.compensated_steps == ["reserve", "create"]
    await shop.ends("canceled", charges=0, refunds=0, held=0)


@pytest.mark.requirement("C13")
async def test_a_pending_payment_is_polled_and_only_a_paid_one_confirms(shop: Setting) -> None:
    await shop.fault("pay", "pending", polls=5)
    assert (await shop.run()).succeeded
    assert shop.harness.calls(OrderSaga.find_payment) == 5
    assert shop.harness.elapsed.total_seconds() >= 8
    await shop.ends("confirmed", charges=1, refunds=0, held=2)


@pytest.mark.requirement("C13")
async def test_a_pending_payment_that_is_declined_cancels_the_order(shop: Setting) -> None:
    await shop.fault("pay", "pending", polls=3, final="declined")
    result = await shop.run()
    assert result.steps["pay"].error_code == "card_declined"
    await shop.ends("canceled", charges=0, refunds=0, held=0)


async def test_a_payment_that_stays_pending_goes_to_a_person(shop: Setting) -> None:
    await shop.fault("pay", "pending", polls=10_000)
    result = await shop.run()
    assert result.blocked is not None
    assert shop.harness.elapsed.total_seconds() == pytest.approx(900, abs=1)
    (review,) = [review async for review in shop.harness.reviews()]
    assert (review["kind"], review["step_id"]) == ("indeterminate", "pay")


# -- Cancels -----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("C11")
async def test_a_cancel_waits_until_the_payment_is_known_and_then_refunds_it(shop: Setting) -> None:
    await shop.fault("pay", "pending", polls=3)
    handle = await shop.start()
    while (await shop.orders.get("a")).status != "reserved":
        await shop.harness.advance("1ms")
    await shop.orders.request_cancel("a")
    await handle.cancel("compensate")
    result = await handle.result()
    assert result.compensated_steps == ["pay", "reserve", "create"]
    await shop.ends("refunded", charges=1, refunds=1, held=0)


async def test_a_confirm_that_fails_for_good_refunds_and_releases(shop: Setting) -> None:
    shop.harness.script(OrderSaga.confirm, *[TransientError("the database is down")] * 5)
    result = await shop.run()
    assert result.compensated_steps == ["pay", "reserve", "create"]
    await shop.ends("refunded", charges=1, refunds=1, held=0)


@pytest.mark.parametrize(("approved", "status", "charges"), [(True, "confirmed", 1), (False, "canceled", 0)])
async def test_a_large_order_waits_for_approval(approved: bool, status: str, charges: int, shop: Setting) -> None:
    handle = await shop.start(LARGE)
    assert (await handle.result()).status == "waiting_approval"
    assert (await shop.orders.get("a")).status == "reserved"
    await (handle.approve("approve") if approved else handle.reject("approve"))
    await handle.result()
    await shop.ends(status, charges=charges, refunds=0, held=2 * charges)


# -- Compensations that fail -------------------------------------------------------------------------------------------


@pytest.mark.requirement("E9", "E10")
async def test_a_refund_that_fails_five_times_is_a_persons_and_nothing_is_released_before(shop: Setting) -> None:
    shop.harness.script(OrderSaga.confirm, *[TransientError("the database is down")] * 5)
    await shop.fault("refund", "error", times=5)
    handle = await shop.start()
    result = await handle.result()
    assert result.status == "waiting_approval"
    assert shop.harness.calls(OrderSaga.refund) == 5
    await shop.ends("paid", charges=1, refunds=0, held=2)

    (review,) = [review async for review in shop.harness.reviews()]
    assert (review["kind"], review["step_id"]) == ("compensation_failed", "pay")
    await shop.harness.resolve(review["id"], "retry", reason="the payment service is back")
    result = await handle.result()
    assert result.compensated_steps == ["pay", "reserve", "create"]
    await shop.ends("refunded", charges=1, refunds=1, held=0)


# -- Workers that die --------------------------------------------------------------------------------------------------

FORWARD = ("create", "reserve", "pay", "confirm")
UNDO = ("refund", "release", "cancel")


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("handler", [*FORWARD, "find_payment"])
async def test_a_worker_that_dies_on_the_way_costs_nothing(
    handler: str, when: Literal["before", "after"], shop: Setting
) -> None:
    if handler == "find_payment":
        await shop.fault("pay", "reset")
    shop.harness.crash(getattr(OrderSaga, handler), when=when)
    assert (await shop.run()).succeeded
    await shop.ends("confirmed", charges=1, refunds=0, held=2)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("handler", UNDO)
async def test_a_worker_that_dies_on_the_way_back_costs_nothing(
    handler: str, when: Literal["before", "after"], shop: Setting
) -> None:
    shop.harness.script(OrderSaga.confirm, *[TransientError("the database is down")] * 5)
    shop.harness.crash(getattr(OrderSaga, handler), when=when)
    await shop.run()
    await shop.ends("refunded", charges=1, refunds=1, held=0)

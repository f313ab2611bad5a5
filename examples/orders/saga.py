"""The saga of an order: Create → Reserve → Pay → Confirm. If it cannot be confirmed: Refund → Release → Cancel."""

from dataclasses import dataclass

from tenuto import Done, NotDone, Outcome, Pending, Saga, SagaContext, approval, saga, step
from tenuto.errors import IndeterminateError

from . import config
from .clients import InventoryClient, PaymentClient
from .orders import ForbiddenTransition, Order, Orders, VersionConflict


@dataclass(frozen=True)
class Payment:
    id: str


@saga(
    "order",
    output="pay",
    concurrency_key="input.id",
    compensation="strict_sequential",
    classify={ForbiddenTransition: "NON_RETRYABLE", VersionConflict: "RETRYABLE"},
)
class OrderSaga(Saga[Order, Payment]):
    """Each handler compares with the order's status first, so it can run again after a crash at any moment."""

    def __init__(self, orders: Orders, inventory: InventoryClient, payments: PaymentClient) -> None:
        self.orders = orders
        self.inventory = inventory
        self.payments = payments

    # -- Compensations, in the order in which they run -----------------------------------------------------------------

    async def refund(self, order: Order, ctx: SagaContext) -> None:
        stored = await self.orders.close(order.id)
        if await self.payments.refund(stored, ctx) == "refunded":
            await self.orders.move(order.id, "paid", "refunded")

    async def release(self, order: Order, ctx: SagaContext) -> None:
        await self.inventory.release(order.id, ctx)

    async def cancel(self, order: Order) -> None:
        if (await self.orders.get(order.id)).status != "refunded":
            await self.orders.move(order.id, "canceled")

    # -- Steps ---------------------------------------------------------------------------------------------------------

    @step(
        timeout=config.UPDATE.timeout,
        retry=config.UPDATE.retry,
        compensate=cancel,
        compensation_timeout=config.COMPENSATE.timeout,
        compensation_retry=config.COMPENSATE.retry,
        partial_effect=True,  # the order exists before this step runs
    )
    async def create(self, order: Order) -> None:
        await self.orders.get_open(order.id)

    @step(
        depends_on=[create],
        timeout=config.RESERVE.timeout,
        retry=config.RESERVE.retry,
        compensate=release,
        compensation_timeout=config.COMPENSATE.timeout,
        compensation_retry=config.COMPENSATE.retry,
        partial_effect=True,  # an attempt without an answer may have reserved
    )
    async def reserve(self, order: Order, ctx: SagaContext) -> None:
        await self.orders.get_open(order.id)
        await self.inventory.reserve(order, ctx)
        await self.orders.move(order.id, "reserved")

    approve = approval(depends_on=[reserve], when=f"input.cents > {config.APPROVAL_CENTS}", deadline="24h")

    async def find_payment(self, order: Order, ctx: SagaContext) -> Outcome[Payment]:
        """What became of a payment without an answer."""
        stored = await self.orders.get(order.id)
        status = await self.payments.find(stored, ctx) or await self.payments.void(stored, ctx)
        match status:
            case "paid":
                await self.orders.move(order.id, "paid")
                return Done(Payment(stored.payment_id))
            case "pending":
                return Pending(retry_after=config.PAY_POLL)
            case "voided":
                await self.orders.next_payment(stored)
                return NotDone()
            case "declined" | "refunded":
                return NotDone()  # if the step is tried again, it gets the same refusal

    @step(
        depends_on=[approve],
        timeout=config.PAY.timeout,
        retry=config.PAY.retry,
        deadline=config.PAY_DEADLINE,
        safety="not_safe_to_retry",
        reconcile=find_payment,
        classify={ForbiddenTransition: "NON_RETRYABLE", Exception: "INDETERMINATE"},  # the payment may have been made
        compensate=refund,
        compensation_timeout=config.COMPENSATE.timeout,
        compensation_retry=config.COMPENSATE.retry,
    )
    async def pay(self, order: Order, ctx: SagaContext) -> Payment:
        stored = await self.orders.get_open(order.id)
        if await self.payments.pay(stored, ctx) == "pending":
            raise IndeterminateError("The payment is pending.", code="payment_pending")
        await self.orders.move(order.id, "paid")
        return Payment(stored.payment_id)

    @step(depends_on=[pay], timeout=config.UPDATE.timeout, retry=config.UPDATE.retry)
    async def confirm(self, order: Order) -> None:
        await self.orders.move(order.id, "paid", "confirmed")

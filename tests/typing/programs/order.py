"""An order is paid: looked up when nobody knows, one at a time, started with the order's own row."""

from dataclasses import dataclass
from typing import Annotated, Any, Protocol, assert_type

from tenuto import (
    Done,
    Engine,
    FromStep,
    Handle,
    NotDone,
    Outcome,
    Pending,
    Retry,
    Saga,
    SagaContext,
    approval,
    group,
    saga,
    signal,
    step,
    wait,
)


@dataclass
class Order:
    id: str
    cents: int


@dataclass
class Payment:
    id: str
    status: str


class CardDeclined(Exception): ...


class Payments(Protocol):
    async def capture(self, order_id: str, cents: int, *, key: str) -> Payment: ...
    async def find(self, *, key: str) -> Payment | None: ...
    async def refund(self, order_id: str, *, key: str) -> None: ...


@saga(
    "order", output="confirm", concurrency_key="input.id", on_conflict="queue", classify={CardDeclined: "NON_RETRYABLE"}
)
class OrderSaga(Saga[Order, str]):
    def __init__(self, payments: Payments, pool: Any) -> None:
        self.payments = payments
        self.pool = pool

    async def release(self, order: Order) -> None: ...

    async def refund(self, order: Order, ctx: SagaContext) -> None:
        await self.payments.refund(order.id, key=ctx.idempotency_key)

    async def payment_status(self, order: Order, ctx: SagaContext) -> Outcome[Payment]:
        found = await self.payments.find(key=ctx.forward_key)
        if found is None:
            return NotDone()
        return Pending(retry_after="5s") if found.status == "processing" else Done(found)

    @step(timeout="3s", retry=Retry(max_attempts=3, jitter=0.2), compensate=release)
    async def reserve(self, order: Order) -> str:
        return order.id

    ok = approval(deadline="24h", depends_on=[reserve])
    shipped = signal("shipped", Payment)
    cool_down = wait("10m")
    around = group(cool_down, mode="sequence")

    @step(
        depends_on=[ok],
        timeout="10s",
        deadline="15m",
        safety="not_safe_to_retry",
        reconcile=payment_status,
        compensate=refund,
    )
    async def pay(self, order: Order, ctx: SagaContext) -> Payment:
        return await self.payments.capture(order.id, order.cents, key=ctx.idempotency_key)

    @step
    async def confirm(self, order: Order, payment: Annotated[Payment, FromStep(pay)], ctx: SagaContext) -> str:
        async with self.pool.connection() as connection, connection.transaction(), ctx.once(connection) as first:
            assert_type(first, bool)
        return payment.id


async def place(engine: Engine, pool: Any, order: Order) -> Handle[str]:
    async with pool.connection() as connection, connection.transaction():
        return await engine.start(OrderSaga, order, idempotency_key=f"order-{order.id}", connection=connection)


async def look(engine: Engine, order: Order, payments: Payments) -> None:
    engine.register(OrderSaga(payments, None))
    result = await engine.execute(OrderSaga, order)
    assert_type(result.result_of(OrderSaga.pay), Payment)
    assert_type(result.result_of(OrderSaga.shipped), Payment)
    await engine.get("1").approve(OrderSaga.ok, comment="ok")

"""Sagas that several tests run."""

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

from tenuto import (
    Done,
    FromStep,
    NotDone,
    Outcome,
    Pending,
    Result,
    Retry,
    Saga,
    SagaBuilder,
    SagaContext,
    saga,
    step,
)
from tenuto.errors import NonRetryableError

from .doubles import Stage

FAST = Retry(3, initial="1ms", jitter=0)  # as often as by default, without the wait


# -- A trip ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Trip:
    city: str
    cents: int = 0


@dataclass(frozen=True)
class Flight:
    pnr: str


@dataclass(frozen=True)
class Hotel:
    booking: str


@dataclass(frozen=True)
class Charge:
    id: str
    cents: int


@saga("book-trip", output="charge")
class BookTrip(Saga[Trip, Charge]):
    """Two bookings side by side, and a charge when both are made. A trip to nowhere is refused when it is charged."""

    def __init__(self) -> None:
        self.log: list[str] = []

    async def cancel_flight(self, flight: Annotated[Flight, Result]) -> str:
        self.log.append(f"cancel {flight.pnr}")
        return f"canceled {flight.pnr}"

    async def cancel_hotel(self, hotel: Annotated[Hotel, Result]) -> None:
        self.log.append(f"cancel {hotel.booking}")

    @step(compensate=cancel_flight, timeout="5s", retry=FAST)
    async def flight(self, trip: Trip) -> Flight:
        self.log.append("flight")
        return Flight(f"F-{trip.city}")

    @step(compensate=cancel_hotel)
    def hotel(self, trip: Trip) -> Hotel:
        self.log.append("hotel")
        return Hotel(f"H-{trip.city}")

    @step(depends_on=[flight, hotel])
    async def charge(self, trip: Trip, flight: Annotated[Flight, FromStep(flight)], ctx: SagaContext) -> Charge:
        self.log.append("charge")
        if trip.city == "nowhere":
            raise NonRetryableError("there is no such place", code="no_such_place")
        return Charge(f"{flight.pnr}/{ctx.step_id}", trip.cents)


# -- An order ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Order:
    id: str
    cents: int = 100


@dataclass(frozen=True)
class Payment:
    id: str


class Shop:
    """The services around an order: stock and a payment provider that keeps payments by idempotency key."""

    def __init__(self) -> None:
        self.orders: dict[str, list[str]] = {}
        self.payments: dict[str, Payment] = {}
        self.refunds: list[str] = []
        self.out_of_stock: set[str] = set()
        self.answers: list[Exception] = []  # what the next payments come to; a payment that raises may be made
        self.processing = False  # the provider does not know yet what became of payments
        self.asked = asyncio.Event()

    def reaches(self, order: Order, state: str) -> None:
        self.orders.setdefault(order.id, ["pending"]).append(state)


class CardDeclined(Exception):
    """The provider says no."""


@saga(
    "order",
    output="confirm",
    concurrency_key="input.id",
    on_conflict="queue",
    classify={CardDeclined: "NON_RETRYABLE"},
)
class OrderSaga(Saga[Order, str]):
    """pending, reserved, paid, confirmed; and back: refunded if it was paid, else canceled."""

    def __init__(self, shop: Shop) -> None:
        self.shop = shop

    async def release(self, order: Order) -> None:
        if self.shop.orders[order.id][-1] != "refunded":
            self.shop.reaches(order, "canceled")

    async def refund(self, order: Order, ctx: SagaContext) -> None:
        self.shop.refunds.append(ctx.forward_key)
        self.shop.reaches(order, "refunded")

    async def payment_status(self, ctx: SagaContext) -> Outcome[Payment]:
        self.shop.asked.set()
        if self.shop.processing:
            return Pending(retry_after="1ms")
        found = self.shop.payments.get(ctx.forward_key)
        return NotDone() if found is None else Done(found)

    @step(timeout="3s", retry=FAST, compensate=release)
    async def reserve(self, order: Order) -> str:
        if order.id in self.shop.out_of_stock:
            raise NonRetryableError("out of stock")
        self.shop.reaches(order, "reserved")
        return order.id

    @step(
        depends_on=[reserve],
        timeout="10s",
        deadline="15m",
        safety="not_safe_to_retry",
        reconcile=payment_status,
        compensate=refund,
    )
    async def pay(self, order: Order, ctx: SagaContext) -> Payment:
        answer = self.shop.answers.pop(0) if self.shop.answers else None
        if isinstance(answer, CardDeclined):
            raise answer
        self.shop.payments[ctx.idempotency_key] = Payment(f"pay-{order.id}")
        if answer is not None:
            raise answer
        return self.shop.payments[ctx.idempotency_key]

    @step
    async def confirm(self, order: Order, payment: Annotated[Payment, FromStep(pay)]) -> str:
        self.shop.reaches(order, "paid")
        if order.cents == 0:
            raise NonRetryableError("nothing to confirm")
        self.shop.reaches(order, "confirmed")
        return payment.id


# -- Made as a test needs them -----------------------------------------------------------------------------------------


def chain(name: str, stage: Stage, *ids: str, fails: Exception | None = None, **options: Any) -> SagaBuilder:
    """Steps one after another, each with its undo. With `fails` a last step `broken` fails so, once all are done."""
    builder = SagaBuilder(name, **options)
    before: list[str] = []
    for id in ids:
        builder.step(id, stage.does(id), depends_on=before, compensate=stage.does(f"undo {id}"))
        before = [id]
    if fails is not None:
        builder.step("broken", stage.fails("broken", fails), depends_on=before, retry=0)
    return builder


def one_step(name: str, function: Any, **options: Any) -> SagaBuilder:
    """A saga of one step, called `work`, whose result is the output."""
    return SagaBuilder(name, output="work").step("work", function, **options)

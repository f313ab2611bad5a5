"""A flight, a hotel and a payment; if that fails, the bookings are cancelled. `python examples/trip.py`"""

import asyncio
from dataclasses import dataclass
from typing import Annotated

from tenuto import Done, Engine, FromStep, NotDone, Outcome, Retry, Saga, SagaContext, saga, step
from tenuto.errors import NonRetryableError


@dataclass
class Trip:
    city: str
    cents: int


@dataclass
class Booking:
    number: str


@dataclass
class Payment:
    id: str
    cents: int


class Bank:
    """Stands for somebody else's service: it remembers payments by the key they were made with."""

    def __init__(self) -> None:
        self.payments: dict[str, Payment] = {}

    def pay(self, cents: int, key: str) -> Payment:
        if cents > 1_000_00:
            raise NonRetryableError("the card is refused for more than 1,000", code="card_refused")
        return self.payments.setdefault(key, Payment(f"p-{len(self.payments) + 1}", cents))


@saga("book-trip", output="pay")
class BookTrip(Saga[Trip, Payment]):
    def __init__(self, bank: Bank) -> None:
        self.bank = bank
        self.cancelled: list[str] = []

    async def cancel(self, booking: Booking) -> None:
        self.cancelled.append(booking.number)

    async def find_payment(self, ctx: SagaContext) -> Outcome[Payment]:
        payment = self.bank.payments.get(ctx.forward_key)
        return NotDone() if payment is None else Done(payment)

    @step(compensate=cancel, timeout="5s", retry=Retry(max_attempts=3, initial="200ms"))
    async def flight(self, trip: Trip) -> Booking:
        return Booking(f"flight to {trip.city}")

    @step(compensate=cancel)
    def hotel(self, trip: Trip) -> Booking:  # a plain function: it runs in a thread
        return Booking(f"hotel in {trip.city}")

    @step(depends_on=[hotel], safety="not_safe_to_retry", reconcile=find_payment, compensation_policy="manual")
    async def pay(self, trip: Trip, flight: Annotated[Booking, FromStep(flight)], ctx: SagaContext) -> Payment:
        return self.bank.pay(trip.cents, ctx.idempotency_key)


async def main() -> None:
    trips = BookTrip(Bank())
    async with Engine("memory://") as engine:
        engine.register(trips)
        result = await engine.execute(BookTrip, Trip("Oslo", 250_00))
        print(result.output.id, "for", result.result_of(BookTrip.flight).number)

        result = await engine.execute(BookTrip, Trip("Tokyo", 2_500_00))
        print(result.report())
        print("cancelled:", ", ".join(trips.cancelled))


if __name__ == "__main__":
    asyncio.run(main())

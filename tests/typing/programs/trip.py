"""A trip is booked: what is booked is canceled when a later step fails."""

from dataclasses import dataclass
from typing import Annotated, assert_type

from tenuto import Done, Engine, FromStep, Handle, NotDone, Outcome, Retry, Saga, SagaContext, SagaResult, saga, step


@dataclass
class Trip:
    city: str
    cents: int


@dataclass
class Flight:
    pnr: str


@dataclass
class Hotel:
    booking: str


@dataclass
class Charge:
    id: str


CHARGES: dict[str, Charge] = {}


@saga("book-trip", output="charge")
class BookTrip(Saga[Trip, Charge]):
    async def cancel_flight(self, flight: Flight) -> None: ...

    async def cancel_hotel(self, hotel: Hotel) -> None: ...

    async def refund(self, charge: Charge | None, ctx: SagaContext) -> None:
        CHARGES.pop(ctx.forward_key, None)

    async def find_charge(self, ctx: SagaContext) -> Outcome[Charge]:
        found = CHARGES.get(ctx.forward_key)
        return Done(found) if found else NotDone()

    @step(compensate=cancel_flight, timeout="5s", retry=Retry(max_attempts=3, initial="200ms"))
    async def flight(self, trip: Trip) -> Flight:
        return Flight(trip.city)

    @step(compensate=cancel_hotel)
    def hotel(self, trip: Trip) -> Hotel:
        return Hotel(trip.city)

    @step(depends_on=[hotel], safety="not_safe_to_retry", reconcile=find_charge, compensate=refund)
    async def charge(self, trip: Trip, flight: Annotated[Flight, FromStep(flight)], ctx: SagaContext) -> Charge:
        return CHARGES.setdefault(ctx.idempotency_key, Charge(flight.pnr))


async def main() -> None:
    async with Engine("memory://") as engine:
        engine.register(BookTrip())
        result = await engine.execute(BookTrip, Trip("Oslo", 90_00))
        assert_type(result, SagaResult[Charge])
        assert_type(result.output, Charge)
        assert_type(result.result_of(BookTrip.flight), Flight)
        assert_type(result.result_of(BookTrip.hotel), Hotel)
        assert_type(result.raise_for_status(), SagaResult[Charge])
        handle = await engine.start(BookTrip, Trip("Oslo", 90_00), idempotency_key="trip-42")
        assert_type(handle, Handle[Charge])
        assert_type(await handle.output(), Charge)
        await engine.execute(BookTrip, "Oslo")  # type: ignore[misc]  # pyright: ignore[reportCallIssue, reportArgumentType]

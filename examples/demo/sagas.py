"""What the demo runs. How long work takes is in DEMO_PACE: a reader wants to follow, a test not to wait."""

import asyncio
import os
from dataclasses import dataclass
from typing import Annotated

from tenuto import Result, Retry, Saga, SagaContext, approval, saga, step
from tenuto.errors import DependencyFailedError, NonRetryableError, TransientError

PACE = float(os.environ.get("DEMO_PACE", "0.8"))
DOOMED = "DEMO_DOOMED" in os.environ  # this process will be killed


async def work() -> None:
    await asyncio.sleep(PACE)


@dataclass
class Trip:
    city: str
    card: str = "good"


@saga("book-trip", output="pay")
class BookTrip(Saga[Trip, str]):
    """The line to the hotel is busy at first. If the card is refused, what was booked is cancelled, the last first."""

    async def cancel(self, booking: Annotated[str, Result]) -> None:
        await work()

    @step(compensate=cancel)
    async def flight(self, trip: Trip) -> str:
        await work()
        return f"flight to {trip.city}"

    @step(depends_on=[flight], compensate=cancel, retry=Retry(max_attempts=5, initial="300ms"))
    async def hotel(self, trip: Trip, ctx: SagaContext) -> str:
        await work()
        if ctx.attempt == 1 and trip.card == "good":
            raise TransientError("the line is busy")
        return f"hotel in {trip.city}"

    @step(depends_on=[hotel])
    async def pay(self, trip: Trip) -> str:
        await work()
        if trip.card != "good":
            raise NonRetryableError("the card was refused", code="card_refused")
        return f"paid for {trip.city}"


@saga("refund", output="send")
class Refund(Saga[int, str]):
    """The bank does not answer, however often it is asked. What failed for good is kept for somebody to look at."""

    @step
    async def check(self, euros: int) -> int:
        await work()
        return euros

    @step(depends_on=[check], retry=Retry(max_attempts=2, initial="200ms"))
    async def send(self, euros: int) -> str:
        await work()
        raise DependencyFailedError("the bank does not answer")


@saga("expenses", output="pay")
class Expenses(Saga[int, str]):
    """Somebody has to say yes before money is paid out. While nobody does, the execution is a row in a database."""

    @step
    async def check(self, euros: int) -> int:
        await work()
        return euros

    consent = approval(depends_on=[check], deadline="24h")

    @step(depends_on=[consent])
    async def pay(self, euros: int) -> str:
        await work()
        return f"{euros} paid out"


@saga("parcel", output="ship")
class Parcel(Saga[str, str]):
    """The process that packs is killed, and another one goes on."""

    @step
    async def pick(self, item: str) -> str:
        await work()
        return item

    @step(depends_on=[pick])
    async def pack(self, item: str) -> str:
        if DOOMED:
            await asyncio.Event().wait()  # for the end, which comes from outside: the demo does not race against it
        await work()
        return f"{item}, packed"

    @step(depends_on=[pack])
    async def ship(self, packed: str) -> str:
        await work()
        return f"{packed} and shipped"

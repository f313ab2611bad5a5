"""What the demo runs. Each saga is told how long its work takes: a reader wants to follow, a test not to wait."""

import asyncio
from dataclasses import dataclass
from typing import Annotated

from tenuto import Result, Retry, Saga, SagaContext, approval, saga, step
from tenuto.errors import NonRetryableError, TransientError


@dataclass
class Trip:
    city: str
    card: str = "good"


@saga("book-trip", output="pay")
class BookTrip(Saga[Trip, str]):
    """The line to the hotel is busy at first. If the card is refused, what was booked is cancelled, the last first."""

    def __init__(self, pace: float) -> None:
        self.pace = pace

    async def cancel(self, booking: Annotated[str, Result]) -> None:
        await asyncio.sleep(self.pace)

    @step(compensate=cancel)
    async def flight(self, trip: Trip) -> str:
        await asyncio.sleep(self.pace)
        return f"flight to {trip.city}"

    @step(depends_on=[flight], compensate=cancel, retry=Retry(max_attempts=5, initial="300ms"))
    async def hotel(self, trip: Trip, ctx: SagaContext) -> str:
        await asyncio.sleep(self.pace)
        if ctx.attempt == 1 and trip.card == "good":
            raise TransientError("the line is busy")
        return f"hotel in {trip.city}"

    @step(depends_on=[hotel])
    async def pay(self, trip: Trip) -> str:
        await asyncio.sleep(self.pace)
        if trip.card != "good":
            raise NonRetryableError("the card was refused", code="card_refused")
        return f"paid for {trip.city}"


@saga("expenses", output="pay")
class Expenses(Saga[int, str]):
    """Somebody has to say yes before money is paid out. While nobody does, the execution is a row in a database."""

    def __init__(self, pace: float) -> None:
        self.pace = pace

    @step
    async def check(self, euros: int) -> int:
        await asyncio.sleep(self.pace)
        return euros

    consent = approval(depends_on=[check], deadline="24h")

    @step(depends_on=[consent])
    async def pay(self, euros: int) -> str:
        await asyncio.sleep(self.pace)
        return f"{euros} paid out"


@saga("parcel", output="ship")
class Parcel(Saga[str, str]):
    """The process that packs is killed, and another one goes on."""

    def __init__(self, pace: float, *, doomed: bool = False) -> None:
        self.pace = pace
        self.doomed = doomed

    @step
    async def pick(self, item: str) -> str:
        await asyncio.sleep(self.pace)
        return item

    @step(depends_on=[pick])
    async def pack(self, item: str) -> str:
        if self.doomed:
            await asyncio.Event().wait()  # for the end, which comes from outside: the demo does not race against it
        await asyncio.sleep(self.pace)
        return f"{item}, packed"

    @step(depends_on=[pack])
    async def ship(self, packed: str) -> str:
        await asyncio.sleep(self.pace)
        return f"{packed} and shipped"

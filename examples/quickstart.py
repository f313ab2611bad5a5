"""A trip: booked step by step, and cancelled again if it cannot be paid. `python examples/quickstart.py Oslo`

Kill it at any moment and run it again: it goes on where it was.
"""

import asyncio
import os
import sys
from typing import Annotated

from tenuto import Engine, Result, Saga, saga, step
from tenuto.errors import NonRetryableError


@saga("book-trip", output="pay")
class BookTrip(Saga[str, str]):
    async def cancel(self, booking: Annotated[str, Result]) -> None:
        print(f"cancelled: {booking}")

    @step(compensate=cancel)
    async def flight(self, city: str) -> str:
        return await book(f"flight to {city}")

    @step(depends_on=[flight], compensate=cancel)
    async def hotel(self, city: str) -> str:
        return await book(f"hotel in {city}")

    @step(depends_on=[hotel])
    async def pay(self, city: str) -> str:
        if city == "Atlantis":
            raise NonRetryableError("the card was refused", code="card_refused")
        return f"paid for {city}"


async def book(what: str) -> str:
    print(f"booking: {what} …")
    await asyncio.sleep(2)
    print(f"booked: {what}")
    return what


async def main(city: str) -> None:
    url = os.environ.get("TENUTO_URL", "sqlite:///trips.db")
    async with Engine(url, lease="2s") as engine:
        engine.register(BookTrip())
        result = await engine.execute(BookTrip, city, idempotency_key=f"trip to {city}")
        print(result.report())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

"""Sagas for the tests of the command line; also an app that `tenuto worker --app tests.cli.shop` loads."""

from typing import Annotated, Any

from tenuto import Result, Retry, Saga, SagaContext, approval, handler, saga, signal, step
from tenuto.errors import CompensationRequiredError, NonRetryableError, TransientError


@saga("book-trip", output="pay")
class BookTrip(Saga[str, str]):
    """The line to the hotel is busy at first, and nobody can pay for a trip to Atlantis."""

    async def cancel(self, booking: Annotated[str, Result]) -> None: ...

    @step(compensate=cancel)
    async def flight(self, city: str) -> str:
        return f"flight to {city}"

    @step(depends_on=[flight], compensate=cancel, retry=Retry(max_attempts=2, initial="1ms", jitter=0))
    async def hotel(self, city: str, ctx: SagaContext) -> str:
        if ctx.attempt == 1:
            raise TransientError("the line is busy")
        return f"hotel in {city}"

    @step(depends_on=[hotel])
    async def pay(self, city: str) -> str:
        if city == "Atlantis":
            raise NonRetryableError("the card was refused", code="card_refused")
        return f"paid for {city}"


@saga("expenses", output="pay")
class Expenses(Saga[int, str]):
    @step
    async def check(self, euros: int) -> int:
        return euros

    consent = approval(depends_on=[check])

    @step(depends_on=[consent])
    async def pay(self, euros: int) -> str:
        return f"{euros} paid out"


@saga("invoice", output="paid")
class Invoice(Saga[Any, int]):
    paid = signal("paid", int)


@saga("refund")
class Refund(Saga[Any, Any]):
    @step(safety="not_safe_to_retry", compensate="undo", compensation_policy="manual")
    async def transfer(self, euros: int) -> str:
        raise CompensationRequiredError("sent to the wrong account")

    async def undo(self, sent: Annotated[str | None, Result]) -> None: ...


@handler("greet")
async def greet(name: str) -> str:
    return f"hello {name}"


ALL = [BookTrip(), Expenses(), Invoice(), Refund()]

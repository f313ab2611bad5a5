"""Steps and compensations of sagas, declared outside of their classes."""

from typing import Annotated

from tenuto.authoring.decorators import compensation_step, external_step, handler
from tenuto.authoring.markers import FromStep, Result


@external_step(saga="trip", id="insure", depends_on=["flight"], timeout="5s", compensate="uninsure")
async def insure_trip(city: str) -> int:
    return len(city)


@external_step(saga="trip")
def postcard(pnr: Annotated[str, FromStep("flight")]) -> str:
    return pnr


@compensation_step(saga="trip", for_step="flight")
def cancel_flight(pnr: Annotated[str, Result]) -> str:
    return "outside"


@external_step(saga="other", id="else")
def something_else() -> None: ...


@handler("greet")
@handler("welcome")
def greet(name: str) -> str:
    return f"hello {name}"

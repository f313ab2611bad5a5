"""What type checkers know of sagas. Read by mypy and pyright; the functions here are never called.

Each ignore is an assertion too: both checkers are told to complain of one that hides nothing.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, TypeVar, assert_type, overload

from tenuto.authoring.builder import SagaBuilder
from tenuto.authoring.context import SagaContext
from tenuto.authoring.decorators import (
    Saga,
    approval,
    compensation_step,
    external_step,
    group,
    handler,
    saga,
    signal,
    step,
    wait,
)
from tenuto.authoring.markers import ExpandEach, FromStep, Input, Result, StepInputs
from tenuto.authoring.outcome import Done, NotDone, Outcome, Pending, Unknown
from tenuto.authoring.program import Program
from tenuto.authoring.settings import Retry

I = TypeVar("I")  # noqa: E741  (as in the surface)
O = TypeVar("O")  # noqa: E741
R = TypeVar("R")


# As in `SagaResult` and `Engine`, whose types depend on what decorators leave of a function's.
@overload
def result_of(step: Callable[..., Awaitable[R]]) -> R: ...
@overload
def result_of(step: Callable[..., R]) -> R: ...
@overload
def result_of(step: str) -> Any: ...
def result_of(step: Any) -> Any: ...


@overload
def results_of(step: Callable[..., Awaitable[R]]) -> Sequence[R | None]: ...
@overload
def results_of(step: Callable[..., R]) -> Sequence[R | None]: ...
def results_of(step: Any) -> Any: ...


def execute(saga: type[Saga[I, O]], input: I | StepInputs) -> O: ...  # type: ignore[empty-body]


@dataclass
class Trip:
    city: str


@dataclass
class Flight:
    pnr: str


@dataclass
class Charge:
    id: str


@dataclass
class Payment:
    amount: int


class CardDeclined(Exception): ...


@saga("book-trip", output="charge", compensation="strict_sequential", layer_concurrency=4, timeout=timedelta(hours=1))
class BookTrip(Saga[Trip, Charge]):
    def __init__(self, fee: int = 0) -> None:
        self.fee = fee

    async def cancel_flight(self, flight: Annotated[Flight, Result]) -> None: ...

    async def find_charge(self, ctx: SagaContext) -> Outcome[Charge]:
        if ctx.attempt > 3:
            return Unknown("no answer")
        if ctx.attempt > 2:
            return Pending(retry_after="5s")
        return Done(Charge(ctx.forward_key)) if ctx.attempt else NotDone()

    @step(compensate=cancel_flight, timeout="5s", retry=Retry(max_attempts=3, backoff="exponential", initial="200ms"))
    async def flight(self, trip: Trip) -> Flight:
        return Flight(trip.city)

    @step
    def hotel(self, trip: Trip) -> str:
        return trip.city

    paid = signal("paid", Payment, deadline="1h", depends_on=[flight, hotel])
    ping = signal("ping")
    ok = approval(deadline="24h", data=Payment, depends_on=[paid])
    seen = approval()
    cool_down = wait("10m", depends_on=[ok, "hotel"])

    @step(
        depends_on=[cool_down],
        safety="not_safe_to_retry",
        reconcile=find_charge,
        retry=0,
        classify={CardDeclined: "NON_RETRYABLE"},
    )
    async def charge(self, trip: Trip, flight: Annotated[Flight, FromStep(flight)], ctx: SagaContext) -> Charge:
        return Charge(flight.pnr)

    @step(foreach=ExpandEach.from_step(flight, "result.people"), suffix="item.email", failure_mode="continue")
    async def notify(self, person: Annotated[str, Input]) -> int:
        return len(person)

    work = group(charge, notify, mode="parallel", depends_on=[cool_down])


async def steps_keep_their_types(trip: BookTrip) -> None:
    assert_type(BookTrip.hotel(trip, Trip("Oslo")), str)
    assert_type(await trip.flight(Trip("Oslo")), Flight)
    assert_type(trip.fee, int)
    assert_type(BookTrip(3), BookTrip)
    BookTrip.hotel(trip, "Oslo")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def results_have_their_steps_types() -> None:
    assert_type(result_of(BookTrip.flight), Flight)
    assert_type(result_of(BookTrip.hotel), str)
    assert_type(result_of(BookTrip.charge), Charge)
    assert_type(result_of(BookTrip.paid), Payment)
    assert_type(result_of(BookTrip.ok), Payment)
    assert_type(result_of(BookTrip.cool_down), None)
    assert_type(result_of("flight"), Any)
    assert_type(results_of(BookTrip.notify), Sequence[int | None])


def sagas_have_their_inputs_and_outputs_types() -> None:
    assert_type(execute(BookTrip, Trip("Oslo")), Charge)
    assert_type(execute(BookTrip, StepInputs({"flight": Trip("Oslo"), BookTrip.notify: ExpandEach(["a"])})), Charge)
    execute(BookTrip, "Oslo")  # type: ignore[misc]  # pyright: ignore[reportArgumentType]


def inputs_by_step_are_checked() -> None:
    people: dict[str, Trip] = {"flight": Trip("Oslo")}
    StepInputs(people)
    StepInputs({"flight": Trip("Oslo"), BookTrip.notify: ExpandEach(["a"], suffix=lambda email: email.upper())})
    StepInputs().set(BookTrip.flight, Trip("Oslo")).set(BookTrip.notify, ExpandEach(["a"]))
    StepInputs().set(BookTrip.flight, ExpandEach([Trip("Oslo")]))


def keywords_are_checked() -> None:
    step(timeot="5s")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    step(safety="dangerous")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    saga("s", compensation="x")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Retry(on=["WRONG"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    Retry(3, "fixed")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def book(trip: Trip) -> Flight:
    return Flight(trip.city)


@external_step(saga=BookTrip, id="insure", depends_on=[BookTrip.flight], timeout="5s")
async def insure(trip: Trip) -> int:
    return 1


@compensation_step(saga="book-trip", for_step=BookTrip.flight)
def cancel(flight: Flight) -> None: ...


@handler("greet")
def greet(name: str) -> str:
    return name


async def functions_elsewhere_keep_their_types() -> None:
    assert_type(await insure(Trip("Oslo")), int)
    assert_type(greet("ann"), str)
    assert_type(cancel(Flight("X")), None)


def builders_take_the_same_keywords() -> None:
    builder = SagaBuilder("s", output="b", scheduling="eager").step("a", book, timeout="5s", retry=3).wait("w", "1s")
    assert_type(builder, SagaBuilder)
    assert_type(builder.step("b", greet, depends_on=["a", book]).build(), Program)
    builder.step("c", book, timeot="5s")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]

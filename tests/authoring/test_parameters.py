"""What handlers' parameters are filled with, and which ones are refused when a saga is registered."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import pytest
from msgspec import Raw

from tenuto.authoring.builder import SagaBuilder
from tenuto.authoring.context import SagaContext
from tenuto.authoring.markers import (
    FromCompensationError,
    FromCompensationResult,
    FromStep,
    Header,
    Headers,
    Input,
    Required,
    Result,
    Variable,
    Variables,
)
from tenuto.authoring.programs import bind_handler
from tenuto.errors import DefinitionError, NonRetryableError, PayloadError, RateLimitedError, StepError
from tenuto.kernel.events import Failure

from .calls import call, context, raw, run


@dataclass
class Trip:
    city: str
    cents: int = 0


@dataclass
class Flight:
    pnr: str


def bound(function: Any, **fields: Any) -> Any:
    """What a function gets: it returns what the test looks at."""
    return call(bind_handler("h", function), **fields)


# -- What each parameter is --------------------------------------------------------------------------------------------


def test_one_unmarked_parameter_is_the_input() -> None:
    def handler(trip: Trip) -> Any:
        return trip

    assert bound(handler, input=raw({"city": "Oslo"})) == Trip("Oslo")


def test_an_async_handler_gets_the_same() -> None:
    async def handler(trip: Trip) -> Any:
        return trip

    assert bind_handler("h", handler).is_async
    assert bound(handler, input=raw({"city": "Oslo"})) == Trip("Oslo")


def test_without_an_annotation_the_input_is_plain_json() -> None:
    def handler(trip):  # type: ignore[no-untyped-def]
        return trip

    assert bound(handler, input=raw({"city": "Oslo"})) == {"city": "Oslo"}


def test_the_input_can_be_marked() -> None:
    def handler(trip: Annotated[Trip, Input], other: Annotated[Trip, Input()]) -> Any:
        return trip, other

    assert bound(handler, input=raw({"city": "Oslo"})) == (Trip("Oslo"), Trip("Oslo"))


def test_a_key_of_the_input() -> None:
    def handler(city: Annotated[str, Input("city")], no: Annotated[int | None, Input("no")]) -> Any:
        return city, no

    assert bound(handler, input=raw({"city": "Oslo"})) == ("Oslo", None)
    assert bound(handler, input=None) == (None, None)


def test_a_key_of_what_is_no_object_is_a_final_failure() -> None:
    def handler(city: Annotated[str, Input("city")]) -> Any:
        return city

    with pytest.raises(
        NonRetryableError, match="parameter 'city' reads the key 'city' of the input, but the input is not"
    ):
        bound(handler, input=raw([1]))


def test_the_result_of_another_step() -> None:
    def handler(flight: Annotated[Flight, FromStep("flight")]) -> Any:
        return flight

    assert bind_handler("h", handler).needs.results == ("flight",)
    assert bound(handler, results={"flight": raw({"pnr": "X"})}) == Flight("X")


def test_a_step_that_was_skipped_gives_none() -> None:
    def handler(flight: Annotated[Flight | None, FromStep("flight")]) -> Any:
        return flight

    assert bound(handler) is None
    assert bound(handler, results={"flight": raw(None)}) is None


def test_a_marker_inside_an_optional() -> None:
    def handler(flight: Annotated[Flight, FromStep("flight")] | None) -> Any:
        return flight

    assert bound(handler, results={"flight": raw({"pnr": "X"})}) == Flight("X")
    assert bound(handler) is None


def test_a_fan_out_gives_a_list_in_item_order() -> None:
    def handler(flights: Annotated[list[Flight | None], FromStep("flight")]) -> Any:
        return flights

    results: list[Raw | None] = [raw({"pnr": "0"}), None, raw({"pnr": "2"})]
    assert bound(handler, results={"flight": results}) == [Flight("0"), None, Flight("2")]
    assert bound(handler, results={"flight": []}) == []


def test_one_clone_of_a_fan_out() -> None:
    def handler(third: Annotated[Flight, FromStep("flight#3")]) -> Any:
        return third

    assert bind_handler("h", handler).needs.results == ("flight#3",)
    assert bound(handler, results={"flight#3": raw({"pnr": "3"})}) == Flight("3")


def test_a_header_whatever_its_case() -> None:
    def handler(user: Annotated[str | None, Header("X-User")], none: Annotated[str | None, Header("X-No")]) -> Any:
        return user, none

    assert bound(handler, headers={"X-User": "ann"}) == ("ann", None)
    assert bound(handler, headers={"x-user": "ann"}) == ("ann", None)


def test_all_headers() -> None:
    def handler(headers: Annotated[Mapping[str, str], Headers]) -> Any:
        return headers

    assert bound(handler, headers={"a": "b"}) == {"a": "b"}


def test_a_variable_as_its_type() -> None:
    def handler(trip: Annotated[Trip | None, Variable("trip")], none: Annotated[int | None, Variable("no")]) -> Any:
        return trip, none

    assert bound(handler, variables={"trip": raw({"city": "Oslo"})}) == (Trip("Oslo"), None)


def test_all_variables() -> None:
    def handler(variables: Annotated[dict[str, Any], Variables]) -> Any:
        return variables

    assert bound(handler, variables={"a": raw([1])}) == {"a": [1]}


def test_the_context_by_its_type() -> None:
    def handler(ctx: SagaContext, trip: Trip, maybe: SagaContext | None) -> Any:
        return ctx.execution_id, trip.city, maybe is ctx

    assert bound(handler, input=raw({"city": "Oslo"}), context=context(execution_id="e9")) == ("e9", "Oslo", True)


def test_a_compensations_own_result_and_what_other_compensations_left() -> None:
    def handler(
        flight: Annotated[Flight, Result],
        refund: Annotated[int | None, FromCompensationResult("pay")],
        error: Annotated[StepError | None, FromCompensationError("pay")],
    ) -> Any:
        return flight, refund, error

    needs = bind_handler("h", handler).needs
    assert (needs.own_result, needs.compensation_results, needs.compensation_errors) == (True, ("pay",), ("pay",))
    assert bound(handler, own_result=raw({"pnr": "X"}), undone={"pay": raw(5)}) == (Flight("X"), 5, None)
    failure = Failure("RATE_LIMITED", "too_many", "slow down")
    _, _, error = bound(handler, undo_errors={"pay": failure})
    assert isinstance(error, RateLimitedError)
    assert (error.message, error.code) == ("slow down", "too_many")


def test_keyword_only_and_positional_only_parameters() -> None:
    def handler(trip: Trip, /, ctx: SagaContext, *, user: Annotated[str | None, Header("user")]) -> Any:
        return trip.city, ctx.tenant, user

    assert bound(handler, input=raw({"city": "Oslo"}), headers={"user": "ann"}) == ("Oslo", "t", "ann")


def test_no_parameters() -> None:
    assert bound(lambda: 5) == 5
    assert not bind_handler("h", lambda: 5).needs.input


def test_what_is_not_read_is_not_needed() -> None:
    def handler(user: Annotated[str | None, Header("user")]) -> None: ...

    needs = bind_handler("h", handler).needs
    assert (needs.input, needs.own_result, needs.results) == (False, False, ())


class Callee:
    def __init__(self, city: str) -> None:
        self.city = city

    async def __call__(self, trip: Trip) -> Any:
        return self.city, trip.city

    def method(self, trip: Trip) -> Any:
        return self.city, trip.city


def test_methods_partials_and_callable_objects() -> None:
    def handler(tag: str, trip: Trip) -> Any:
        return tag, trip.city

    given = raw({"city": "Oslo"})
    assert bound(Callee("Rome").method, input=given) == ("Rome", "Oslo")
    assert bound(Callee("Rome"), input=given) == ("Rome", "Oslo")
    assert bind_handler("h", Callee("Rome")).is_async
    assert bound(partial(handler, "x"), input=given) == ("x", "Oslo")


# -- Defaults and Required ---------------------------------------------------------------------------------------------


def test_a_default_stands_for_what_is_not_there() -> None:
    def handler(
        user: Annotated[str, Header("user")] = "nobody",
        city: Annotated[str, Input("city")] = "Oslo",
        flight: Annotated[Flight, FromStep("flight")] = Flight("none"),  # noqa: B008
    ) -> Any:
        return user, city, flight

    assert bound(handler) == ("nobody", "Oslo", Flight("none"))
    assert bound(handler, headers={"user": "ann"}) == ("ann", "Oslo", Flight("none"))


def test_what_is_required_and_not_there_is_a_final_failure() -> None:
    def handler(user: Annotated[str, Header("user"), Required]) -> Any:
        return user

    assert bound(handler, headers={"user": "ann"}) == "ann"
    with pytest.raises(NonRetryableError, match="handler 'h', parameter 'user' is required, but has no value"):
        bound(handler)


def test_required_alone_is_a_required_input() -> None:
    def book(trip: Annotated[Trip | None, Required()]) -> Any:
        return trip

    program = SagaBuilder("s").step("book", book).build()
    assert run(program, "book", input=raw({"city": "Oslo"})) == Trip("Oslo")
    with pytest.raises(NonRetryableError, match="step 'book', parameter 'trip' is required"):
        run(program, "book", input=raw(None))


def test_a_stored_value_that_no_longer_fits_is_incompatible() -> None:
    def handler(trip: Trip) -> Any:
        return trip

    with pytest.raises(PayloadError, match=r"handler 'h', parameter 'trip'\.city: Expected `str`") as refused:
        bound(handler, input=raw({"city": 5}))
    assert refused.value.code == "incompatible"


# -- What is refused ---------------------------------------------------------------------------------------------------


def problems_of(function: Any) -> list[tuple[str, str]]:
    with pytest.raises(DefinitionError) as refused:
        bind_handler("h", function)
    return [(problem.path, problem.code) for problem in refused.value.problems]


def told(function: Any) -> str:
    with pytest.raises(DefinitionError) as refused:
        bind_handler("h", function)
    return str(refused.value)


class Opaque: ...


def test_two_unmarked_parameters_are_named() -> None:
    def handler(trip: Trip, flight: Flight, ctx: SagaContext) -> None: ...

    assert problems_of(handler) == [("handler 'h'", "ambiguous_parameters")]
    assert "parameters 'trip', 'flight' have no marker" in told(handler)


def test_two_markers_on_one_parameter() -> None:
    def handler(trip: Annotated[Trip, Input, FromStep("a")]) -> None: ...

    assert problems_of(handler) == [("handler 'h', parameter 'trip'", "two_markers")]


def test_variadic_parameters() -> None:
    def handler(*args: Any, **keywords: Any) -> None: ...

    assert problems_of(handler) == [
        ("handler 'h', parameter 'args'", "variadic"),
        ("handler 'h', parameter 'keywords'", "variadic"),
    ]


def test_generators() -> None:
    def handler() -> Iterator[int]:
        yield 1

    assert ("handler 'h'", "generator") in problems_of(handler)


def test_what_has_no_signature() -> None:
    assert problems_of(min) == [("handler 'h'", "signature")]


def test_types_that_cannot_be_stored() -> None:
    def handler(trip: Opaque) -> list[Opaque]:
        return []

    assert problems_of(handler) == [("handler 'h', parameter 'trip'", "type"), ("handler 'h'", "type")]
    assert "its result cannot be stored: Opaque has no JSON form" in told(handler)


@pytest.mark.parametrize(
    ("annotation", "why"),
    [
        (Annotated[int, Header("x")], "a header is a string: annotate it `str | None`"),
        (Annotated[list[str], Headers], "headers map names to strings"),
        (Annotated[int, Variables], "variables map names to values"),
        (Annotated[str, FromCompensationError("a")], "annotate it `StepError | None`"),
        (Annotated[RateLimitedError, FromCompensationError("a")], "annotate it `StepError | None`"),
    ],
)
def test_what_a_marker_gives_must_fit(annotation: Any, why: str) -> None:
    def handler(x: Any) -> None: ...

    handler.__annotations__["x"] = annotation
    assert why in told(handler)


@pytest.mark.parametrize(
    "annotation",
    [
        Annotated[str, Header("x")],
        Annotated[Any, Header("x")],
        Annotated[Mapping[str, str], Headers()],
        Annotated[Exception | None, FromCompensationError("a")],
        Annotated[object, FromCompensationError("a")],
    ],
)
def test_what_fits_is_taken(annotation: Any) -> None:
    def handler(x: Any) -> None: ...

    handler.__annotations__["x"] = annotation
    assert bind_handler("h", handler).name == "h"


def test_an_annotation_that_cannot_be_read_is_named() -> None:
    def handler(x: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert problems_of(handler) == [("handler 'h', parameter 'x'", "annotation")]
    assert "'Nowhere' cannot be resolved (name 'Nowhere' is not defined)" in told(handler)


def test_all_problems_of_a_function_are_told_at_once() -> None:
    def handler(a: Opaque, b: "Nowhere", *rest: int) -> Opaque:  # type: ignore[name-defined]  # noqa: F821
        return a

    assert [code for _, code in problems_of(handler)] == [
        "annotation", "variadic", "ambiguous_parameters", "type", "type",
    ]  # fmt: skip


# -- In steps ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("marker", [Result, FromCompensationResult("b"), FromCompensationError("b")])
def test_what_only_compensations_have_is_refused_in_steps(marker: Any) -> None:
    def step(x: Any) -> None: ...

    step.__annotations__["x"] = Annotated[Any, marker]
    builder = SagaBuilder("s").step("b", lambda: 1, compensate=lambda: 1).step("a", step)
    with pytest.raises(DefinitionError, match="is allowed in compensations only"):
        builder.build()


def test_results_are_encoded_and_none_is_nothing() -> None:
    def handler() -> Flight | None: ...

    bound_handler = bind_handler("h", handler)
    assert bytes(bound_handler.encode(Flight("X")) or b"") == b'{"pnr":"X"}'
    assert bound_handler.encode(None) is None
    with pytest.raises(PayloadError, match=r"result of handler 'h'\.a: NaN"):
        bound_handler.encode({"a": float("nan")})

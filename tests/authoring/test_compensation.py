"""What a compensation's argument is: the input, the result, or nothing; and when the author must say which."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest

from tenuto.authoring.builder import SagaBuilder
from tenuto.authoring.context import SagaContext
from tenuto.authoring.markers import FromCompensationError, FromCompensationResult, FromStep, Input, Result
from tenuto.authoring.program import Program
from tenuto.errors import DefinitionError, StepError

from .calls import raw, run


@dataclass
class Trip:
    city: str


@dataclass
class Flight:
    pnr: str


@dataclass
class Ticket(Flight):
    seat: str = ""


def book(trip: Trip) -> Flight:
    return Flight(trip.city)


def saga(compensate: Any, step: Any = book, **options: Any) -> Program:
    return SagaBuilder("s").step("a", step, compensate=compensate, **options).build()


def undo(compensate: Any, step: Any = book, **options: Any) -> Any:
    program = saga(compensate, step, **options)
    return run(program, "a.compensate", input=raw({"city": "Oslo"}), own_result=raw({"pnr": "X"}))


def refused(compensate: Any, step: Any = book, **options: Any) -> tuple[str, str]:
    with pytest.raises(DefinitionError) as error:
        saga(compensate, step, **options)
    (problem,) = error.value.problems
    assert problem.path == "step 'a', compensation, parameter 'x'"
    return problem.code, problem.message


# -- The rule ----------------------------------------------------------------------------------------------------------


def test_the_inputs_type_gets_the_input() -> None:
    def cancel(x: Trip) -> Any:
        return x

    assert undo(cancel) == Trip("Oslo")


def test_the_results_type_gets_the_result() -> None:
    def cancel(x: Flight, ctx: SagaContext) -> Any:
        return x, ctx.tenant

    assert undo(cancel) == (Flight("X"), "t")


def test_optional_counts_as_its_type() -> None:
    def cancel(x: Flight | None) -> Any:
        return x

    assert undo(cancel) == Flight("X")


def test_a_base_class_counts() -> None:
    def buy(trip: Trip) -> Ticket:
        return Ticket(trip.city)

    def cancel(x: Flight) -> Any:
        return x

    assert undo(cancel, buy) == Flight("X")


def test_neither_is_none_where_none_is_allowed() -> None:
    def cancel(x: int | None, ctx: SagaContext) -> Any:
        return x

    def cancel_by_default(x: int = 7) -> Any:
        return x

    assert undo(cancel) is None
    assert undo(cancel_by_default) == 7


def test_neither_is_refused_where_a_value_is_required() -> None:
    def cancel(x: int) -> None: ...

    code, message = refused(cancel)
    assert code == "unresolved"
    assert "its type int is neither the step's input (Trip) nor its result (Flight)" in message


def test_both_fit_and_the_author_must_say_which() -> None:
    def rename(name: str) -> str:
        return name

    def cancel(x: str) -> None: ...

    assert refused(cancel, rename)[0] == "ambiguous"


def test_marked_ones_are_what_they_say() -> None:
    def rename(name: str) -> str:
        return name

    def cancel(old: Annotated[str, Input], new: Annotated[str, Result]) -> Any:
        return old, new

    program = saga(cancel, rename)
    assert run(program, "a.compensate", input=raw("old"), own_result=raw("new")) == ("old", "new")


def test_without_an_annotation_the_author_must_say_which() -> None:
    def cancel(x):  # type: ignore[no-untyped-def]
        return x

    code, message = refused(cancel)
    assert code == "ambiguous"
    assert "Annotated[T, Input] or Annotated[T, Result]" in message


def test_of_a_step_without_a_result_it_can_only_be_the_input() -> None:
    def send(trip: Trip) -> None: ...

    def cancel(x):  # type: ignore[no-untyped-def]
        return x

    assert undo(cancel, send) == {"city": "Oslo"}


def test_two_unmarked_are_refused() -> None:
    def cancel(a: Trip, b: Flight) -> None: ...

    with pytest.raises(DefinitionError, match="parameters 'a', 'b' have no marker"):
        saga(cancel)


def test_a_step_that_takes_no_input_has_the_sagas() -> None:
    from tenuto.authoring.decorators import Saga, step
    from tenuto.authoring.decorators import saga as saga_class
    from tenuto.authoring.programs import compile_saga

    @saga_class("s")
    class Trips(Saga[Trip, Flight]):
        @step(compensate="cancel")
        def a(self, ctx: SagaContext) -> Flight:
            return Flight("X")

        def cancel(self, x: Trip) -> Any:
            return x

    program = compile_saga(Trips())
    assert run(program, "a.compensate", input=raw({"city": "Oslo"})) == Trip("Oslo")


# -- Types that are declared -------------------------------------------------------------------------------------------


def test_a_marked_input_must_be_of_the_inputs_type() -> None:
    def cancel(x: Annotated[Flight, Input]) -> None: ...

    assert refused(cancel) == ("type", "the step's input is Trip, but the parameter is annotated Flight")


def test_a_marked_result_must_be_of_the_results_type() -> None:
    def cancel(x: Annotated[Trip, Result]) -> None: ...

    assert refused(cancel) == ("type", "the step's result is Flight, but the parameter is annotated Trip")


@pytest.mark.parametrize("options", [{"partial_effect": True}, {"safety": "not_safe_to_retry"}])
@pytest.mark.parametrize("marked", [True, False])
def test_where_there_may_be_no_result_it_must_be_optional(options: Any, marked: bool) -> None:
    def cancel(x: Any) -> None: ...

    def cancel_maybe(x: Flight | None) -> None: ...

    cancel.__annotations__["x"] = Annotated[Flight, Result] if marked else Flight
    code, message = refused(cancel, **options)
    assert code == "optional"
    assert "annotate the parameter `… | None`" in message
    assert saga(cancel_maybe, **options).handlers


# -- Of other compensations --------------------------------------------------------------------------------------------


def test_what_other_compensations_left_can_be_read() -> None:
    def refund(x: Flight) -> int:
        return 5

    def cancel(
        amount: Annotated[int | None, FromCompensationResult("pay")],
        error: Annotated[StepError | None, FromCompensationError("pay")],
        flight: Annotated[Flight | None, FromStep("pay")],
    ) -> Any:
        return amount, error, flight

    builder = SagaBuilder("s").step("pay", book, compensate=refund).step("a", book, compensate=cancel)
    program = builder.build()
    assert run(program, "a.compensate", undone={"pay": raw(5)}, results={"pay": raw({"pnr": "Y"})}) == (
        5,
        None,
        Flight("Y"),
    )
    assert program.plan.definition.steps[1].depends_on == ()  # an undo takes what there is by then
    assert program.decode_compensation["pay"](raw(5)) == 5


def test_a_step_without_compensation_leaves_nothing() -> None:
    def cancel(x: Annotated[Any, FromCompensationResult("pay")]) -> None: ...

    builder = SagaBuilder("s").step("pay", book).step("a", book, compensate=cancel)
    with pytest.raises(DefinitionError, match="step 'pay': it has no compensation to read from"):
        builder.build()


def test_the_type_of_another_compensation_is_compared() -> None:
    def refund(x: Flight) -> int:
        return 5

    def cancel(x: Annotated[str, FromCompensationResult("pay")]) -> None: ...

    builder = SagaBuilder("s").step("pay", book, compensate=refund).step("a", book, compensate=cancel)
    with pytest.raises(DefinitionError, match="its compensation returns int, but the parameter is annotated str"):
        builder.build()


def test_a_compensation_that_cannot_be_found() -> None:
    with pytest.raises(DefinitionError, match="step 'a', compensate: the builder has no method 'cancel'"):
        saga("cancel")


Policy = Literal["auto", "manual"]


@pytest.mark.parametrize("policy", ["auto", "manual"])
def test_policies_are_kept(policy: Policy) -> None:
    def cancel(x: Trip) -> None: ...

    (step,) = saga(cancel, compensation_policy=policy).plan.definition.steps
    assert not isinstance(step, str)
    assert getattr(step, "compensation_policy", None) == policy

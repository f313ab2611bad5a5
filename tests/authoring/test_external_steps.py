"""Steps and compensations outside of the class of their saga."""

from __future__ import annotations

from typing import Annotated, Any

import pytest

from tenuto.authoring.builder import SagaBuilder
from tenuto.authoring.decorators import Saga, compensation_step, external_step, saga, step
from tenuto.authoring.markers import FromStep
from tenuto.authoring.programs import bind_handler, compile_saga, compile_sagas, handlers_in
from tenuto.errors import DefinitionError
from tenuto.kernel.definition import Step

from . import external_steps
from .calls import call, raw, run


@saga("trip")
class Trip(Saga[str, str]):
    @step(compensate="cancel")
    def flight(self, city: str) -> str:
        return city

    # With annotations left as text, `flight` here is a name of the class body.
    @step
    def meal(self, pnr: Annotated[str, FromStep(flight)]) -> str:
        return pnr

    def cancel(self, city: Annotated[str, "x"]) -> str:
        return "inside"

    def uninsure(self, result: int) -> None: ...


@saga("plain")
class Plain:
    @step(compensate="cancel")
    def flight(self, city: str) -> int:
        return 1

    def cancel(self, city: str) -> str:
        return "inside"


def problems(*given: Any) -> list[tuple[str, str]]:
    with pytest.raises(DefinitionError) as refused:
        compile_saga(*given)
    return [(problem.path, problem.code) for problem in refused.value.problems]


def external(saga: Any = "plain", **options: Any) -> Any:
    @external_step(saga=saga, **options)
    def extra(city: str) -> None: ...

    return extra


def test_annotations_as_text_know_the_class_body() -> None:
    program = SagaBuilder("x").step("a", lambda: 1).build()
    assert program.handlers
    found = compile_saga(Trip(), external_steps.cancel_flight).plan.definition
    assert [node.depends_on for node in found.steps] == [(), ("flight",)]


def test_steps_from_elsewhere_come_last() -> None:
    program = compile_saga(Trip(), external_steps)
    assert [node.id for node in program.plan.definition.steps] == ["flight", "meal", "insure", "postcard"]
    insure = program.plan.definition.steps[2]
    assert isinstance(insure, Step)
    assert (insure.handler, insure.depends_on) == ("trip.insure", ("flight",))
    assert insure.retry_policy.timeout_ms == 5_000
    assert insure.compensation_handler == "trip.insure.compensate"
    assert run(program, "insure", input=raw("Oslo")) == 4
    assert run(program, "postcard", results={"flight": raw("X")}) == "X"


def test_a_compensation_from_elsewhere_wins() -> None:
    assert run(compile_saga(Plain()), "flight.compensate", input=raw("Oslo")) == "inside"

    @compensation_step(saga=Plain, for_step=Plain.flight)
    def cancel(city: str) -> str:
        return "outside"

    assert run(compile_saga(Plain(), cancel), "flight.compensate", input=raw("Oslo")) == "outside"


def test_a_module_may_hold_things_of_other_sagas() -> None:
    assert [node.id for node in compile_saga(Plain(), external_steps).plan.definition.steps] == ["flight"]


def test_a_builder_takes_them_along_too() -> None:
    builder = SagaBuilder("plain").step("flight", lambda city: 1)
    program = compile_saga(builder, external(id="more", depends_on=["flight"]))
    assert [node.id for node in program.plan.definition.steps] == ["flight", "more"]
    with pytest.raises(DefinitionError, match="it is already built"):
        compile_saga(builder.build(), external())


def test_one_function_may_serve_several_sagas() -> None:
    extra = external_step(saga=Trip, id="extra")(external())
    programs = compile_sagas(Plain(), Trip(), extra, external_steps)
    assert [[node.id for node in program.plan.definition.steps] for program in programs] == [
        ["flight", "extra"],
        ["flight", "meal", "extra", "insure", "postcard"],
    ]


def test_two_steps_with_one_id_are_refused() -> None:
    assert problems(Plain(), external(id="flight")) == [("step 'flight'", "duplicate_id")]


def test_a_saga_that_is_not_there_is_refused() -> None:
    ((path, code),) = problems(Plain(), external("nowhere"))
    assert path.endswith("extra'")
    assert code == "unknown_saga"
    with pytest.raises(
        DefinitionError, match="it belongs to saga 'nowhere', which is not registered with it; registered: plain"
    ):
        compile_sagas(Plain(), external("nowhere"))


def test_a_step_that_is_not_there_is_refused() -> None:
    @compensation_step(saga="plain", for_step="nothing")
    def undo() -> None: ...

    assert problems(Plain(), undo) == [("", "unknown_step")]


def test_two_compensations_from_elsewhere_are_refused() -> None:
    @compensation_step(saga="plain", for_step="flight")
    def one(city: str) -> None: ...

    @compensation_step(saga="plain", for_step="flight")
    def two(city: str) -> None: ...

    assert [code for _, code in problems(Plain(), one, two)] == ["two_compensations"]


def test_a_function_that_is_neither_is_refused() -> None:
    assert [code for _, code in problems(Plain(), lambda: 1)] == ["not_a_step"]


def test_named_handlers_of_a_module() -> None:
    found = {named.name: named.function for named in handlers_in(external_steps)}
    assert sorted(found) == ["greet", "welcome"]
    bound = bind_handler("greet", found["greet"])
    assert (bound.name, bound.kind) == ("greet", "step")
    assert call(bound, input=raw("ann")) == "hello ann"


def test_a_saga_may_consist_of_external_steps_alone() -> None:
    @saga("assembled")
    class Assembled(Saga[str, str]): ...

    @external_step(saga=Assembled)
    def greet(name: str) -> str:
        return f"hello {name}"

    (program,) = compile_sagas(Assembled(), greet)
    assert [node.id for node in program.plan.root.walk() if not node.is_scope] == ["greet"]
    assert ("", "empty") in problems(Assembled())

"""Sagas made at run time."""

from typing import Annotated, Any

import pytest

from tenuto.authoring.builder import SagaBuilder
from tenuto.authoring.markers import FromStep
from tenuto.authoring.programs import compile_saga, compile_sagas
from tenuto.authoring.saga_source import saga_name
from tenuto.errors import DefinitionError

from .calls import raw, run


def test_a_builder_builds_a_program() -> None:
    program = SagaBuilder("s").step("a", lambda: 1).step("b", lambda: 2, depends_on=["a"]).build()
    assert program.name == "s"
    assert run(program, "b") == 2


def test_register_takes_builders_and_what_they_built() -> None:
    builder = SagaBuilder("s").step("a", lambda: 1)
    assert compile_saga(builder).plan.hash == builder.build().plan.hash
    program = builder.build()
    assert compile_saga(program) is program
    assert compile_sagas(program) == (program,)
    assert saga_name(builder) == saga_name(program) == "s"


def test_steps_are_named_by_their_functions() -> None:
    def prepare() -> int:
        return 1

    def use(n: Annotated[int, FromStep(prepare)]) -> int:
        return n

    program = SagaBuilder("s", output=use).step("first", prepare).step("second", use).build()
    assert program.plan.definition.steps[1].depends_on == ("first",)
    assert run(program, "second", results={"first": raw(5)}) == 5


def test_a_function_of_two_steps_names_neither() -> None:
    def work() -> int:
        return 1

    builder = SagaBuilder("s").step("a", work).step("b", work).step("c", lambda: 1, depends_on=[work])
    with pytest.raises(DefinitionError, match="several steps run that function: name the step by its id"):
        builder.build()


def test_methods_of_any_object_are_steps() -> None:
    class Service:
        def __init__(self, name: str) -> None:
            self.name = name

        def work(self) -> str:
            return self.name

    one, two = Service("one"), Service("two")
    program = SagaBuilder("s").step("a", one.work).step("b", two.work, depends_on=[one.work]).build()
    assert (run(program, "a"), run(program, "b")) == ("one", "two")
    assert program.plan.definition.steps[1].depends_on == ("a",)


def test_a_definition_can_be_made_in_a_loop() -> None:
    builder = SagaBuilder("s")
    for n in range(50):
        builder.step(f"s{n}", lambda: None, depends_on=[f"s{n - 1}"] if n else [])
    assert len(builder.build().plan.definition.steps) == 50


def test_a_builder_can_go_on_after_it_built() -> None:
    builder = SagaBuilder("s").step("a", lambda: 1)
    first = builder.build()
    second = builder.step("b", lambda: 1).build()
    assert (len(first.plan.definition.steps), len(second.plan.definition.steps)) == (1, 2)


@pytest.mark.parametrize(
    ("builder", "why"),
    [
        (SagaBuilder("s"), "there are no steps"),
        (SagaBuilder("s").step("a", lambda: 1).step("a", lambda: 1), "two steps have this id"),
        (SagaBuilder("s").step("a b", lambda: 1), "'a b' is not an id"),
        (SagaBuilder("s").step("a", lambda: 1, guard="ask"), "the builder has no method 'ask'"),
    ],
)
def test_what_is_wrong_is_told(builder: SagaBuilder, why: str) -> None:
    with pytest.raises(DefinitionError) as refused:
        builder.build()
    assert why in str(refused.value)


def test_same_keywords_as_the_decorators() -> None:
    keywords: Any = {"no_such_keyword": 1}
    with pytest.raises(DefinitionError, match="no_such_keyword"):
        SagaBuilder("s").step("a", lambda: 1, **keywords)
    with pytest.raises(DefinitionError, match="no_such_keyword"):
        SagaBuilder("s", **keywords)

"""Definitions: versioned, immutable once known, refused as a whole with everything that is wrong with them."""

import sys
from types import ModuleType
from typing import Annotated, Any

import pytest

from tenuto import (
    Engine,
    FromStep,
    Result,
    Retry,
    Saga,
    SagaBuilder,
    compensation_step,
    external_step,
    group,
    saga,
    step,
)
from tenuto.errors import DefinitionError, InvalidInput, NonRetryableError, NotFound

from .conftest import MakeEngine, MakeHarness
from .doubles import Stage
from .sagas import BookTrip, Charge, Flight, Trip, chain, one_step


async def definitions(engine: Engine, name: str) -> dict[int, Any]:
    return {found["version"]: found async for found in engine.definitions(name=name)}


# -- Versions ----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("A1")
async def test_a_definition_has_a_name_a_version_steps_and_policies(engine: Engine) -> None:
    engine.register(BookTrip())
    await engine.execute(BookTrip, Trip("Oslo"))

    found = (await definitions(engine, "book-trip"))[1]
    document = found["definition"]

    assert (found["name"], found["version"], len(found["hash"])) == ("book-trip", 1, 64)
    assert [each["step_id"] for each in document["steps"]] == ["flight", "hotel", "charge"]
    assert document["policies"]["compensation"] == "STRICT_SEQUENTIAL"


@pytest.mark.requirement("A2")
async def test_what_is_applied_is_published(engine: Engine) -> None:
    engine.handler("greet", Stage().does("greet"))
    await engine.apply(_document(steps=[_task("greet")]))

    assert (await definitions(engine, "doc"))[1]["status"] == "published"


@pytest.mark.requirement("A3")
async def test_a_published_version_never_changes(engine: Engine) -> None:
    engine.handler("greet", Stage().does("greet"))
    await engine.apply(_document(steps=[_task("greet")]))
    await engine.apply(_document(steps=[_task("greet")]))  # the same plan is the same definition
    before = (await definitions(engine, "doc"))[1]

    with pytest.raises(DefinitionError) as refused:
        await engine.apply(_document(steps=[_task("greet"), _task("part")], mode="sequence"))

    assert refused.value.code == "definition_changed"
    assert "part" in str(refused.value), "it says what differs"
    assert (await definitions(engine, "doc"))[1] == before


@pytest.mark.requirement("A3")
async def test_a_saga_edited_under_its_version_is_refused_and_its_handlers_may_change(engine: Engine) -> None:
    stage = Stage()
    engine.register(chain("s", stage, "a").build())
    await engine.execute("s")
    engine.register(SagaBuilder("s").step("a", stage.does("other code"), compensate=stage.does("other undo")).build())
    await engine.execute("s")
    assert stage.log == ["a", "other code"]

    async def edited() -> None:
        engine.register(chain("s", stage, "a", "b").build())
        await engine.start("s")

    with pytest.raises(DefinitionError) as refused:
        await edited()
    assert refused.value.code == "definition_changed"


@pytest.mark.requirement("A4")
async def test_an_execution_is_pinned_to_its_version(engine: Engine) -> None:
    stage = Stage()
    gate = stage.gate("first of 1")
    old = SagaBuilder("s", version=1).step("first", gate.pass_through)
    engine.register(old.step("second", stage.does("second of 1"), depends_on=["first"]).build())
    pinned = await engine.start("s")
    await gate.reached.wait()

    engine.register(SagaBuilder("s", version=2).step("only", stage.does("only of 2")).build())
    newest = await engine.execute("s")
    gate.open()

    assert (await pinned.result()).succeeded
    assert stage.log == ["only of 2", "first of 1", "second of 1"]
    assert (await pinned.status())["definition_version"] == 1
    assert (await engine.get(newest.execution_id).status())["definition_version"] == 2


@pytest.mark.requirement("A4")
async def test_a_version_can_be_asked_for(engine: Engine) -> None:
    stage = Stage()
    for version in (1, 2):
        engine.register(SagaBuilder("s", version=version).step("a", stage.does(f"a of {version}")).build())

    await engine.execute("s", version=1)
    assert stage.log == ["a of 1"]
    with pytest.raises(NotFound, match="version 3"):
        await engine.execute("s", version=3)


# -- Schemas -----------------------------------------------------------------------------------------------------------


SCHEMA = {"type": "object", "required": ["amount"], "properties": {"amount": {"type": "number"}}}


@pytest.mark.requirement("A5")
@pytest.mark.parametrize("given", [{}, {"amount": "much"}, [1], None])
async def test_input_that_does_not_fit_its_schema_becomes_no_execution(engine: Engine, given: object) -> None:
    engine.handler("greet", Stage().does("greet"))
    await engine.apply(_document(steps=[_task("greet")], input_schema=SCHEMA))

    with pytest.raises(InvalidInput) as refused:
        await engine.start("doc", given)

    assert refused.value.problems
    assert await engine.count() == {}
    assert (await engine.execute("doc", {"amount": 3})).succeeded


@pytest.mark.requirement("A5")
async def test_all_that_is_wrong_with_an_input_is_told_at_once(engine: Engine) -> None:
    engine.handler("greet", Stage().does("greet"))
    schema = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "string"}}}
    await engine.apply(_document(steps=[_task("greet")], input_schema=schema))

    with pytest.raises(InvalidInput) as refused:
        await engine.start("doc", {"a": "x", "b": 1})

    assert sorted(problem.path for problem in refused.value.problems) == ["/input/a", "/input/b"]


@pytest.mark.requirement("A5")
async def test_schemas_of_input_and_output_are_part_of_the_definition(engine: Engine) -> None:
    engine.handler("greet", Stage().does("greet"))
    await engine.apply(_document(steps=[_task("greet")], input_schema=SCHEMA, output_schema={"type": "string"}))
    kept = (await definitions(engine, "doc"))[1]["definition"]
    assert (kept["input_schema"], kept["output_schema"]) == (SCHEMA, {"type": "string"})

    with pytest.raises(DefinitionError) as refused:
        await engine.apply(_document(steps=[_task("greet")], version=2, output_schema={"type": "strang"}))
    assert [problem.path for problem in refused.value.problems] == ["/output_schema"]


@pytest.mark.requirement("A5")
@pytest.mark.parametrize("template", [None, "${steps.count.result}", {"n": "${steps.count.result}"}])
async def test_an_output_that_does_not_fit_its_schema_is_a_failure_and_undone(engine: Engine, template: object) -> None:
    stage = Stage()
    engine.handler("book", stage.does("book"))
    engine.handler("cancel", stage.does("cancel"))
    engine.handler("count", stage.does("count", "top secret", 3))
    schema = {"type": ["object", "integer"], "properties": {"n": {"type": "integer"}}}
    steps = [_task("book", handler="book", compensation_handler="cancel"), _task("count", handler="count")]
    await engine.apply(_document(steps=steps, mode="sequence", output=template, output_schema=schema))

    refused = await engine.execute("doc", {})
    assert (refused.status, stage.log) == ("failed", ["book", "count", "cancel"])
    assert refused.error is not None
    assert (refused.error["error_class"], refused.error["code"]) == ("NON_RETRYABLE", "invalid_output")
    assert "integer" in refused.error["summary"]
    assert "top secret" not in refused.error["summary"]
    assert [letter["execution_id"] async for letter in engine.dlq()] == [refused.execution_id]

    handle = engine.get((await engine.execute("doc", {})).execution_id)
    assert (await handle.status())["output"] == (3 if not isinstance(template, dict) else {"n": 3})


@pytest.mark.requirement("A5")
async def test_a_typed_input_is_checked_when_it_is_given(engine: Engine) -> None:
    engine.register(BookTrip())
    with pytest.raises(InvalidInput):
        await engine.start("book-trip", {"town": "Oslo"})
    assert (await engine.execute("book-trip", {"city": "Oslo", "cents": 5})).output == Charge("F-Oslo/charge", 5)


# -- Policies of the whole ---------------------------------------------------------------------------------------------


@pytest.mark.requirement("A6")
async def test_a_timeout_of_the_definition_ends_the_execution(make_harness: MakeHarness) -> None:
    builder = SagaBuilder("s", timeout="1h").signal("never", "never")
    t = await make_harness(builder.build())

    result = await t.execute("s")

    assert (result.status, result.error and result.error["code"]) == ("failed", "deadline")
    assert t.elapsed.total_seconds() == 3600


@pytest.mark.requirement("A6")
async def test_a_classification_of_the_definition_holds_for_all_its_steps(engine: Engine) -> None:
    stage = Stage()

    class Declined(Exception): ...

    builder = SagaBuilder("s", classify={Declined: "NON_RETRYABLE"})
    engine.register(builder.step("a", stage.fails("a", Declined()), retry=Retry(3, initial="1ms")).build())

    result = await engine.execute("s")

    assert result.steps["a"].error_class == "NON_RETRYABLE"
    assert stage.log == ["a"]


@pytest.mark.requirement("A6")
@pytest.mark.parametrize(("limit", "most"), [(0, 4), (2, 2)])
async def test_a_definition_bounds_how_many_steps_run_at_once(engine: Engine, limit: int, most: int) -> None:
    stage = Stage()
    gates = [stage.gate(str(n)) for n in range(4)]
    builder = SagaBuilder("s", layer_concurrency=limit)
    for n, gate in enumerate(gates):
        builder.step(f"s{n}", gate.pass_through)
    engine.register(builder.build())

    handle = await engine.start("s")
    for gate in gates[:most]:
        await gate.reached.wait()
    running = [each for each in (await handle.status())["steps"] if each["status"] == "running"]
    assert len(running) == most

    for gate in gates:
        gate.open()
    assert (await handle.result()).succeeded


# -- Steps and how they depend on one another --------------------------------------------------------------------------


@pytest.mark.requirement("A7")
async def test_a_step_has_one_id_everywhere(engine: Engine) -> None:
    engine.register(BookTrip())
    result = await engine.execute(BookTrip, Trip("Oslo"))
    handle = engine.get(result.execution_id)

    assert list(result.steps) == ["flight", "hotel", "charge"]
    assert [each["step_id"] for each in (await handle.status())["steps"]] == ["flight", "hotel", "charge"]
    assert {row["step_id"] for row in await handle.history()} == {"flight", "hotel", "charge"}
    assert result.result_of("flight") == result.result_of(BookTrip.flight) == Flight("F-Oslo")
    with pytest.raises(NotFound, match="flight, hotel, charge"):
        result.result_of("train")


@pytest.mark.requirement("A7")
async def test_two_steps_with_one_id_are_refused(engine: Engine) -> None:
    stage = Stage()
    with pytest.raises(DefinitionError) as refused:
        engine.register(SagaBuilder("s").step("a", stage.does("a")).step("a", stage.does("b")))
    assert [problem.code for problem in refused.value.problems] == ["duplicate_id"]


@pytest.mark.requirement("A10")
async def test_steps_run_by_layers(engine: Engine) -> None:
    """a → c and b → d: while b runs, c waits, because it is of the next layer."""
    stage = Stage()
    slow = stage.gate("b")
    engine.register(_two_lines("s", stage, slow.pass_through, "layered"))
    handle = await engine.start("s")
    await slow.reached.wait()
    slow.open()

    assert (await handle.result()).succeeded
    assert stage.log[:2] == ["a", "b"]
    assert sorted(stage.log[2:]) == ["c", "d"]


@pytest.mark.requirement("A10")
async def test_eager_steps_start_when_their_own_dependencies_are_done(engine: Engine) -> None:
    stage = Stage()
    slow, third = stage.gate("b"), stage.gate("c")
    third.open()
    engine.register(_two_lines("s", stage, slow.pass_through, "eager", third.pass_through))
    handle = await engine.start("s")
    await third.reached.wait()  # although b has not ended
    slow.open()

    assert (await handle.result()).succeeded
    assert stage.log == ["a", "c", "b", "d"]


def _two_lines(name: str, stage: Stage, b: Any, scheduling: Any, c: Any = None) -> object:
    builder = SagaBuilder(name, scheduling=scheduling).step("a", stage.does("a")).step("b", b)
    builder.step("c", c or stage.does("c"), depends_on=["a"])
    return builder.step("d", stage.does("d"), depends_on=["b"]).build()


@pytest.mark.requirement("A10")
async def test_a_diamond_waits_for_both_of_its_sides(engine: Engine) -> None:
    stage = Stage()
    builder = SagaBuilder("s").step("init", stage.does("init"))
    for side in ("funds", "stock"):
        builder.step(side, stage.does(side), depends_on=["init"])
    builder.step("order", stage.does("order"), depends_on=["funds", "stock"])
    engine.register(builder.build())

    await engine.execute("s")

    assert (stage.log[0], sorted(stage.log[1:3]), stage.log[3]) == ("init", ["funds", "stock"], "order")


BAD_GRAPHS: dict[str, dict[str, list[str]]] = {
    "cycle": {"a": ["b"], "b": ["a"]},
    "unknown_step": {"a": ["nobody"]},
}


@pytest.mark.requirement("A10")
@pytest.mark.parametrize("code", BAD_GRAPHS)
async def test_a_graph_that_cannot_run_is_refused(engine: Engine, code: str) -> None:
    builder = SagaBuilder("s")
    for id, depends_on in BAD_GRAPHS[code].items():
        builder.step(id, Stage().does(id), depends_on=depends_on)
    with pytest.raises(DefinitionError) as refused:
        engine.register(builder)
    assert code in [problem.code for problem in refused.value.problems]


async def test_a_bad_definition_is_refused_with_all_its_problems(engine: Engine) -> None:
    """Each with the step or the parameter that it concerns, and what to do about it."""
    stage = Stage()

    async def two(a: int, b: int) -> None: ...

    async def reads(other: Annotated[int, FromStep("nobody")]) -> None: ...

    builder = (
        SagaBuilder("s", timeout="soon")
        .step("unsafe", stage.does("x"), safety="not_safe_to_retry")
        .step("two", two)
        .step("reads", reads, depends_on=["reads"], retry=Retry(3, on=["NON_RETRYABLE"]))
        .step("when", stage.does("x"), when="input.")
    )
    with pytest.raises(DefinitionError) as refused:
        engine.register(builder)

    found = {(problem.path, problem.code) for problem in refused.value.problems}
    assert found >= {
        ("saga 's', timeout", "bad_duration"),
        ("step 'unsafe', safety", "unsafe"),
        ("step 'two'", "ambiguous_parameters"),
        ("step 'reads', parameter 'other'", "unknown_step"),
        ("step 'reads', depends_on", "cycle"),
        ("step 'reads', retry, on", "forbidden_class"),
        ("step 'when', when", "expression"),
    }
    assert all(problem.message for problem in refused.value.problems)
    assert all(str(problem) in str(refused.value) for problem in refused.value.problems)


# -- Ways of writing them ----------------------------------------------------------------------------------------------


@pytest.mark.requirement("A13")
async def test_decorators_and_builder_give_the_same_definition(make_engine: MakeEngine) -> None:
    trip = BookTrip()
    builder = (
        SagaBuilder("book-trip", output="charge")
        .step(
            "flight", trip.flight, compensate=trip.cancel_flight, timeout="5s", retry=Retry(3, initial=0.001, jitter=0)
        )
        .step("hotel", trip.hotel, compensate=trip.cancel_hotel)
        .step("charge", trip.charge, depends_on=["flight", "hotel"])
    )
    engine = await make_engine(trip)
    engine.register(builder.build())  # another plan under the same version would be refused

    result = await engine.execute("book-trip", Trip("Oslo"))
    assert result.output == Charge("F-Oslo/charge", 0)


@pytest.mark.requirement("A13")
async def test_a_definition_can_be_made_at_run_time(engine: Engine) -> None:
    stage = Stage()
    names = ["fetch", "check", "store"]
    engine.register(chain("made", stage, *names).build())
    assert (await engine.execute("made")).succeeded
    assert stage.log == names


@pytest.mark.requirement("A13")
async def test_a_subclass_doubles_a_handler(engine: Engine) -> None:
    class Double(BookTrip):
        async def flight(self, trip: Trip) -> Flight:
            return Flight("double")

    engine.register(Double())
    assert (await engine.execute("book-trip", Trip("Oslo"))).result_of("flight") == Flight("double")


@saga("shop", output="pack")
class ShopSaga(Saga[str, str]):
    def __init__(self) -> None:
        self.log: list[str] = []

    async def undo_inside(self) -> None:
        self.log.append("inside")

    @step(compensate=undo_inside)
    async def pick(self, item: str) -> str:
        return item

    @step(depends_on=[pick])
    async def pack(self, item: str) -> str:
        if item == "broken":
            raise NonRetryableError("cannot be packed")
        return f"{item} in a box"


OUTSIDE: list[str] = []


@external_step(saga=ShopSaga, id="stamp", depends_on=[ShopSaga.pick])
async def put_stamp(picked: Annotated[str, FromStep(ShopSaga.pick)]) -> str:
    return f"stamp on {picked}"


@compensation_step(saga="shop", for_step=ShopSaga.pick)
async def undo_outside(item: Annotated[str, Result]) -> None:
    OUTSIDE.append(item)


@pytest.mark.requirement("A14")
async def test_a_step_can_be_declared_outside_of_its_class(engine: Engine) -> None:
    engine.register(ShopSaga(), put_stamp)
    result = await engine.execute(ShopSaga, "book")
    assert result.steps["stamp"].result == "stamp on book"


@pytest.mark.requirement("A14")
async def test_a_compensation_outside_wins_over_the_one_inside(make_engine: MakeEngine) -> None:
    OUTSIDE.clear()
    inside = ShopSaga()
    engine = await make_engine(inside, undo_outside)
    result = await engine.execute(ShopSaga, "broken")
    assert result.compensated_steps == ["pick"]
    assert (OUTSIDE, inside.log) == (["broken"], [])


@pytest.mark.requirement("A14")
async def test_a_module_brings_all_that_it_declares(engine: Engine) -> None:
    OUTSIDE.clear()
    module: ModuleType = sys.modules[__name__]
    engine.register(ShopSaga(), module)
    result = await engine.execute(ShopSaga, "broken")
    assert "stamp" in result.steps
    assert OUTSIDE == ["broken"]


@pytest.mark.requirement("A14")
async def test_what_belongs_to_no_saga_beside_it_is_refused(engine: Engine) -> None:
    @external_step(saga="elsewhere")
    async def lost() -> None: ...

    @external_step(saga="shop", id="pack")
    async def twice() -> None: ...

    with pytest.raises(DefinitionError, match="elsewhere"):
        engine.register(ShopSaga(), lost)
    with pytest.raises(DefinitionError, match="two steps have this id"):
        engine.register(ShopSaga(), twice)


@pytest.mark.requirement("A20")
async def test_a_handler_is_addressed_by_its_name(engine: Engine) -> None:
    async def greet(given: dict[str, str]) -> str:
        return f"hello {given['name']}"

    engine.handler("greetings.hello", greet)
    await engine.apply(_document(steps=[_task("say", handler="greetings.hello", **{"with": {"name": "${input.who}"}})]))
    assert (await engine.execute("doc", {"who": "Ann"})).output == "hello Ann"


async def test_a_group_nests_steps_in_a_scope_of_their_own(engine: Engine) -> None:
    """What stands in no group runs beside it; the steps of a sequence follow one another without being told to."""
    stage = Stage()

    @saga("grouped")
    class Grouped(Saga[None, None]):
        @step
        async def one(self) -> None:
            stage.log.append("one")

        @step
        async def two(self) -> None:
            stage.log.append("two")

        work = group(one, two)

        @step(depends_on=[work])
        async def after(self) -> None:
            stage.log.append("after")

    engine.register(Grouped())
    assert (await engine.execute(Grouped, None)).succeeded
    assert stage.log == ["one", "two", "after"]


async def test_an_unknown_saga_is_not_found(engine: Engine) -> None:
    engine.register(one_step("known", Stage().does("x")).build())
    with pytest.raises(NotFound, match="There is no definition named 'nothing'") as unknown:
        await engine.start("nothing")
    assert unknown.value.hint == "register or apply it first; registered: known"


async def test_a_misspelled_saga_is_not_found_and_the_nearest_name_is_suggested(engine: Engine) -> None:
    engine.register(one_step("onboarding", Stage().does("x")).build(), one_step("billing", Stage().does("x")).build())
    with pytest.raises(NotFound) as unknown:
        await engine.start("onbording")
    assert unknown.value.hint == (
        "did you mean 'onboarding'? If not, register or apply it first; registered: billing, onboarding"
    )


async def test_an_unknown_version_is_not_found_and_the_known_ones_are_named(engine: Engine) -> None:
    engine.register(one_step("known", Stage().does("x")).build())
    with pytest.raises(NotFound, match="There is no definition 'known' in version 7") as unknown:
        await engine.start("known", version=7)
    assert unknown.value.hint == "its versions are: 1"


def _document(**fields: Any) -> dict[str, Any]:
    return {"name": "doc", "version": 1, **fields}


def _task(id: str, **fields: Any) -> dict[str, Any]:
    task = {"step_id": id, "type": "task", "handler": "greet", "idempotency_strategy": "SAFE_TO_RETRY"}
    return {**task, **fields}

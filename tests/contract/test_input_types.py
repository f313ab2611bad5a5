"""A wrong input is refused before anything is stored, with the place and the type that is expected there."""

from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from tenuto import Engine, ExpandEach, FromStep, Input, Required, Saga, SagaBuilder, StepInputs, saga, step
from tenuto.errors import InvalidInput

from .conftest import MakeEngine
from .doubles import until_blocked


@dataclass
class Line:
    sku: str
    quantity: int = 1


@dataclass
class Order:
    lines: list[Line]
    note: str | None = None


async def takes_order(order: Order) -> str:
    return order.lines[0].sku


async def takes_keys(sku: Annotated[str, Input("sku"), Required], quantity: Annotated[int, Input("quantity")]) -> str:
    return f"{sku} {quantity}"


async def takes_text(text: str) -> str:
    return text


async def refused(engine: Engine, given: object) -> dict[str, str]:
    with pytest.raises(InvalidInput) as error:
        await engine.start("s", given)
    assert await engine.count() == {}, "nothing was stored"
    return {problem.path: problem.message for problem in error.value.problems}


@pytest.mark.parametrize(
    ("given", "problems"),
    [
        ({"lines": [{"sku": 7}]}, {"/input/lines/0/sku": "expected `str`, got int"}),
        ({"lines": [{}]}, {"/input/lines/0/sku": "is missing: expected `str`"}),
        ({"lines": "none"}, {"/input/lines": "expected `list[Line]`, got str"}),
        ({"lines": [], "note": 1}, {"/input/note": "expected `str | None`, got int"}),
        (Order([Line(7)]), {"/input/lines/0/sku": "expected `str`, got int"}),  # type: ignore[arg-type]
    ],
)
async def test_the_place_and_the_expected_type_are_told(
    engine: Engine, given: object, problems: dict[str, str]
) -> None:
    engine.register(SagaBuilder("s").step("ship", takes_order).build())
    assert await refused(engine, given) == problems


async def test_everything_that_is_wrong_is_told_at_once(engine: Engine) -> None:
    engine.register(SagaBuilder("s").step("ship", takes_order).build())
    assert list(await refused(engine, {"lines": [{"sku": 7}, {"quantity": "x"}], "note": 3})) == [
        "/input/lines/0/sku",
        "/input/lines/1/sku",
        "/input/lines/1/quantity",
        "/input/note",
    ]


@pytest.mark.parametrize("given", ["an order", None, 3])
async def test_another_type_altogether_is_told_with_the_parameter_and_the_fields(engine: Engine, given: object) -> None:
    engine.register(SagaBuilder("s").step("ship", takes_order).build())
    (told,) = (await refused(engine, given)).values()
    assert told.startswith(
        "expected `Order` (an object with the fields lines (list[Line]), note (str | None, optional))"
    )
    assert told.endswith("it is read by step 'ship', parameter 'order'")


@pytest.mark.parametrize(
    ("given", "problems"),
    [
        ({"sku": 1, "quantity": 2}, {"/input/sku": "expected `str`, got int"}),
        ({"quantity": 2}, {"/input/sku": "is missing: expected `str`"}),
        ({"sku": "a", "quantity": "2"}, {"/input/quantity": "expected `int`, got str"}),
    ],
)
async def test_the_keys_that_parameters_read_are_checked(engine: Engine, given: object, problems: Any) -> None:
    engine.register(SagaBuilder("s", output="pack").step("pack", takes_keys).build())
    assert await refused(engine, given) == problems


async def test_a_key_that_is_not_required_may_be_missing(engine: Engine) -> None:
    engine.register(SagaBuilder("s", output="pack").step("pack", takes_keys).build())
    assert (await engine.execute("s", {"sku": "a"})).output == "a None"


async def test_an_input_must_fit_all_steps_that_read_it(engine: Engine) -> None:
    engine.register(SagaBuilder("s").step("ship", takes_order).step("print", takes_text).build())
    assert await refused(engine, {"lines": []}) == {
        "/input": "expected `Order & str` (an object with the fields lines (list[Line]), note (str | None, optional)), "
        "got object; it is read by step 'ship', parameter 'order'"
    }


async def test_a_step_with_a_condition_does_not_restrict_the_input(engine: Engine) -> None:
    builder = SagaBuilder("s", output="print").step("print", takes_text)
    engine.register(builder.step("ship", takes_order, when="input != 'text'").build())
    assert (await engine.execute("s", "text")).output == "text"


async def test_a_step_of_a_group_with_a_condition_does_not_restrict_the_input(engine: Engine) -> None:
    builder = SagaBuilder("s", output="print").step("print", takes_text).step("ship", takes_order)
    engine.register(builder.group("orders", "ship", when="input != 'text'").build())
    assert (await engine.execute("s", "text")).output == "text"


async def test_a_fan_out_reads_its_items_and_not_the_input(engine: Engine) -> None:
    engine.register(SagaBuilder("s", output="each").step("each", takes_text, foreach="input").build())
    assert (await engine.execute("s", ["a", "b"])).output == ["a", "b"]


async def test_a_default_stands_for_no_input(engine: Engine) -> None:
    async def greet(name: str = "world") -> str:
        return f"hello {name}"

    engine.register(SagaBuilder("s", output="greet").step("greet", greet).build())
    assert (await engine.execute("s")).output == "hello world"
    assert (await engine.execute("s", "ada")).output == "hello ada"


async def test_inputs_by_step_are_checked(engine: Engine) -> None:
    engine.register(SagaBuilder("s").step("ship", takes_order).step("print", takes_text).build())
    assert await refused(engine, StepInputs({"ship": {"lines": [{"sku": 7}]}})) == {
        "/inputs/ship/value/lines/0/sku": "expected `str`, got int"
    }
    assert await refused(engine, StepInputs({"print": ExpandEach(["a", 7])})) == {
        "/inputs/print/each/1": "expected `str`, got int"
    }


@saga("by-step")
class ByStep(Saga[StepInputs, Any]):
    @step
    async def ship(self, order: Order) -> str:
        return order.lines[0].sku

    @step
    async def tell(self, text: str) -> str:
        return text


async def test_a_saga_may_declare_that_each_step_has_its_own_input(make_engine: MakeEngine) -> None:
    engine = await make_engine(ByStep())
    result = await engine.execute(ByStep, StepInputs({ByStep.ship: Order([Line("a")]), ByStep.tell: "b"}))
    assert (result.result_of(ByStep.ship), result.result_of(ByStep.tell)) == ("a", "b")
    with pytest.raises(InvalidInput, match="this saga takes inputs by step"):
        await engine.start("by-step", {"lines": []})


async def test_a_stored_input_that_the_code_cannot_read_blocks_with_its_type_and_place(engine: Engine) -> None:
    """The code was changed after the execution was started."""

    async def before(order: Order) -> str:
        return order.lines[0].sku

    @dataclass
    class NewLine:
        sku: int

    @dataclass
    class NewOrder:
        lines: list[NewLine]

    async def after(order: NewOrder) -> str:
        return str(order.lines[0].sku)

    def made(ship: Any) -> object:
        return SagaBuilder("s").signal("go", "go").step("ship", ship, depends_on=["go"]).build()

    engine.register(made(before))
    handle = await engine.start("s", Order([Line("a")]))
    await until_blocked(handle, "signal")
    engine.register(made(after))
    await handle.signal("go")
    blocked = await until_blocked(handle, "incompatible")
    told = "step 'ship', parameter 'order'.lines[0].sku: Expected `int`, got `str` (reading "
    assert blocked["waiting_for"].startswith(told)
    assert "NewOrder" in blocked["waiting_for"]
    engine.register(made(before))
    assert (await handle.result()).succeeded


async def test_a_stored_result_of_another_type_is_told_with_the_fields_of_the_expected_one(engine: Engine) -> None:
    async def reads(found: Annotated[Line, FromStep("find")]) -> str:
        return found.sku

    async def text() -> str:
        return "a"

    async def line() -> Line:
        return Line("a")

    async def use(found: Annotated[str, FromStep("find")]) -> str:
        return found

    def made(find: Any, use: Any) -> object:
        builder = SagaBuilder("s").step("find", find).signal("go", "go", depends_on=["find"])
        return builder.step("use", use, depends_on=["go"]).build()

    engine.register(made(text, use))
    handle = await engine.start("s")
    await until_blocked(handle, "signal")
    engine.register(made(line, reads))
    await handle.signal("go")
    blocked = await until_blocked(handle, "incompatible")
    assert blocked["waiting_for"] == (
        "step 'use', parameter 'found': Expected `Line`, an object with the fields sku, quantity; got `str`"
    )

"""What an execution is started with."""

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from tenuto.authoring.builder import SagaBuilder
from tenuto.authoring.decorators import Saga, saga, step
from tenuto.authoring.document import read_document
from tenuto.authoring.inputs import encode_inputs
from tenuto.authoring.markers import ExpandEach, StepInputs
from tenuto.authoring.program import Program
from tenuto.authoring.programs import compile_document, compile_saga
from tenuto.errors import InvalidInput, PayloadError
from tenuto.kernel.definition import FAN_OUT_LIMIT


@dataclass
class Trip:
    city: str
    cents: int = 0


@dataclass
class Person:
    email: str


@saga("trip")
class BookTrip(Saga[Trip, str]):
    @step
    def flight(self, trip: Trip) -> str:
        return trip.city

    @step
    def end(self) -> None: ...


@saga("trip")
class BookByStep(Saga[StepInputs, str]):
    @step
    def flight(self, trip: Trip) -> str:
        return trip.city

    @step
    def notify(self, person: Person) -> str:
        return person.email

    @step
    def end(self) -> None: ...


@pytest.fixture(scope="module")
def program() -> Program:
    return compile_saga(BookTrip())


@pytest.fixture(scope="module")
def by_step() -> Program:
    return compile_saga(BookByStep())


def decoded(started: Any) -> Any:
    return msgspec.json.decode(started.input)


def refused(program: Program, value: object) -> list[tuple[str, str]]:
    with pytest.raises(InvalidInput) as error:
        encode_inputs(program, value)
    return [(problem.path, problem.code) for problem in error.value.problems]


# -- One value ---------------------------------------------------------------------------------------------------------


def test_a_value_is_the_input_of_all(program: Program) -> None:
    started = encode_inputs(program, Trip("Oslo", 5))
    assert (decoded(started), started.by_step, started.each) == ({"city": "Oslo", "cents": 5}, False, {})


def test_plain_json_will_do(program: Program) -> None:
    assert decoded(encode_inputs(program, {"city": "Oslo"})) == {"city": "Oslo"}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"town": "Oslo"}, ("/input/city", "missing")),
        ({"city": 5}, ("/input/city", "type")),
        ("Oslo", ("/input", "type")),
        (None, ("/input", "type")),
        (Person("a"), ("/input/city", "missing")),
        (Trip(5), ("/input/city", "type")),  # type: ignore[arg-type]
    ],
)
def test_what_is_not_the_declared_type_is_refused(program: Program, value: object, problem: tuple[str, str]) -> None:
    assert refused(program, value) == [problem]


def test_what_has_no_json_is_refused(program: Program) -> None:
    with pytest.raises(PayloadError, match=r"input\.cents: NaN"):
        encode_inputs(program, Trip("Oslo", float("nan")))  # type: ignore[arg-type]


def test_without_a_declared_type_anything_goes() -> None:
    program = SagaBuilder("s").step("a", lambda: 1).build()
    assert decoded(encode_inputs(program, [1, {"a": None}])) == [1, {"a": None}]
    assert decoded(encode_inputs(program, None)) is None


# -- By step -----------------------------------------------------------------------------------------------------------


def test_inputs_by_step(by_step: Program) -> None:
    started = encode_inputs(by_step, StepInputs({"flight": Trip("Oslo"), BookByStep.notify: Person("a@b")}))
    assert decoded(started) == {"flight": {"city": "Oslo", "cents": 0}, "notify": {"email": "a@b"}}
    assert (started.by_step, started.each) == (True, {})


def test_inputs_one_by_one_are_typed(by_step: Program) -> None:
    inputs = StepInputs().set(BookByStep.flight, Trip("Oslo")).set(BookByStep.notify, ExpandEach([Person("a")]))
    assert decoded(encode_inputs(by_step, inputs))["flight"] == {"city": "Oslo", "cents": 0}


def test_items_are_numbered(by_step: Program) -> None:
    started = encode_inputs(by_step, StepInputs({"notify": ExpandEach(Person(name) for name in "abc")}))
    assert decoded(started) == {
        "notify": {"items": [{"email": "a"}, {"email": "b"}, {"email": "c"}], "labels": ["0", "1", "2"]}
    }
    assert started.each == {"notify": 3}


def test_items_are_named_by_their_suffix(by_step: Program) -> None:
    each = ExpandEach([Person("a@b"), Person("c@d")], suffix=lambda person: person.email)
    assert decoded(encode_inputs(by_step, StepInputs({"notify": each})))["notify"]["labels"] == ["a@b", "c@d"]


def test_no_items_are_no_clones(by_step: Program) -> None:
    started = encode_inputs(by_step, StepInputs({"notify": ExpandEach([])}))
    assert started.each == {"notify": 0}


@pytest.mark.parametrize(
    ("inputs", "wrong"),
    [
        ({"nothing": 1}, ("/inputs/nothing", "unknown_step")),
        ({"flight": {"town": 1}}, ("/inputs/flight/value/city", "missing")),
        ({"notify": ExpandEach([Person("a"), {"x": 1}])}, ("/inputs/notify/each/1/email", "missing")),
        (
            {"notify": ExpandEach([Person("a")], suffix=lambda p: " ")},
            ("/inputs/notify/labels/0", "blank_suffix"),
        ),
        (
            {"notify": ExpandEach([Person("a"), Person("a")], suffix=lambda p: p.email)},
            ("/inputs/notify/labels/1", "duplicate_suffix"),
        ),
        ({"notify": ExpandEach.from_step("flight")}, ("/inputs/notify/each", "misplaced")),
        ({"notify": ExpandEach(range(FAN_OUT_LIMIT + 1))}, ("/inputs/notify/each", "fan_out_limit")),
    ],
)
def test_what_is_wrong_with_inputs_by_step(by_step: Program, inputs: Any, wrong: tuple[str, str]) -> None:
    assert refused(by_step, StepInputs(inputs)) == [wrong]


def test_one_step_has_one_input() -> None:
    with pytest.raises(ValueError, match="step 'flight' is given two inputs"):
        StepInputs({"flight": 1, BookByStep.flight: 2})


def test_many_items_may_be_larger_than_one_value(by_step: Program) -> None:
    people = [Person("x" * 100) for _ in range(5_000)]
    assert encode_inputs(by_step, StepInputs({"notify": ExpandEach(people)})).each == {"notify": 5_000}
    with pytest.raises(PayloadError, match="exceed the limit of 4,194,304"):
        encode_inputs(by_step, StepInputs({"notify": ExpandEach(people * 10)}))
    with pytest.raises(PayloadError, match="input of step 'notify', item 0: "):
        encode_inputs(by_step, StepInputs({"notify": ExpandEach([Person("x" * 300_000)])}))


# -- Documents ---------------------------------------------------------------------------------------------------------


def document(**fields: Any) -> Program:
    step = {"step_id": "a", "handler": "log", "idempotency_strategy": "SAFE_TO_RETRY"}
    return compile_document(read_document({"name": "d", "steps": [step], **fields}), {})


SCHEMA = {"type": "object", "required": ["amount"], "properties": {"amount": {"type": "number", "minimum": 1}}}


def test_the_input_schema_is_enforced() -> None:
    program = document(input_schema=SCHEMA)
    assert decoded(encode_inputs(program, {"amount": 5})) == {"amount": 5}
    assert refused(program, {}) == [("/input/amount", "required")]
    assert refused(program, {"amount": 0}) == [("/input/amount", "minimum")]


def test_schema_errors_do_not_show_the_value() -> None:
    with pytest.raises(InvalidInput) as error:
        encode_inputs(document(input_schema=SCHEMA), {"amount": "hunter2"})
    assert "hunter2" not in str(error.value)
    assert error.value.problems[0].path == "/input/amount"


def test_a_schema_is_for_one_input() -> None:
    assert refused(document(input_schema=SCHEMA), StepInputs({"a": 1})) == [("/inputs", "by_step")]
    assert encode_inputs(document(), StepInputs({"a": 1})).by_step

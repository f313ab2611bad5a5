"""Schemas that are derived from types: what they refuse, no reader accepts."""

from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any

import msgspec
import pydantic
import pytest
from msgspec import Raw

from tenuto.authoring.decorators import Saga, saga, step
from tenuto.authoring.input_schemas import InputReader, InputSchemas, decode_input_schemas, derive_input_schemas
from tenuto.authoring.markers import FromStep, Input
from tenuto.authoring.programs import compile_saga
from tenuto.errors import DefinitionError, PayloadError
from tenuto.values.codec import decoder, encode

from .test_values import ROUND_TRIPS, Box, Card, Line, Options, Payment, Person, Point, StrictModel


class Lax(pydantic.BaseModel):
    number: int
    flag: bool = False
    price: Decimal = Decimal(0)


class Before(pydantic.BaseModel):
    tags: list[str]

    @pydantic.field_validator("tags", mode="before")
    @classmethod
    def split(cls, value: object) -> object:
        return value.split(",") if isinstance(value, str) else value


ANNOTATIONS = {repr(annotation): annotation for annotation, _ in ROUND_TRIPS} | {"Lax": Lax, "Before": Before}
TEXTS = [
    *(bytes(encode(value, annotation)).decode() for annotation, value in ROUND_TRIPS),
    "null", "true", "0", "-1", "1.0", "1.5", '""', '"1"', '"x"', "[]", "[1,1]", "[null]", "{}", '{"a":null}', '{"1":2}',
    '"2026-01-31"', '"2026-01-31 12:30:15"', '"2026-01-31T12:30:15"', '"PT1.5H"', '"10.10"', "10.10", '"nothing"',
    '"00000000000000000000000000000005"', '{"number":"7","flag":"yes","price":1.5}', '{"number":1,"flag":1}',
    '{"tags":"a,b"}', '{"x":1,"z":2}', '{"at":1769862615,"id":"00000000-0000-0000-0000-000000000001"}',
]  # fmt: skip


def schemas_of(annotation: Any) -> InputSchemas | None:
    return derive_input_schemas([InputReader("s", annotation)], {})


@pytest.mark.parametrize("annotation", ANNOTATIONS.values(), ids=list(ANNOTATIONS))
def test_what_can_be_read_is_never_refused(annotation: Any) -> None:
    schemas, decode = schemas_of(annotation), decoder(annotation)
    for text in TEXTS:
        raw = Raw(text.encode())
        try:
            decode(raw)
        except PayloadError:
            continue
        assert schemas is None or schemas.problems_of(raw) == [], text


@pytest.mark.parametrize(
    ("annotation", "text", "path", "told"),
    [
        (int, '"x"', "", "expected `int`, got str; it is read by s"),
        (int, "null", "", "expected `int`, got None; it is read by s"),
        (Point, '{"x":"1"}', "/x", "expected `int`, got str"),
        (Point, "{}", "/x", "is missing: expected `int`"),
        (Line, '{"name":"n","points":[{"x":1},{"y":2}]}', "/points/1/x", "is missing: expected `int`"),
        (Line, '{"name":"n","parent":{"name":3}}', "/parent/name", "expected `str`, got int"),
        (list[int], '[1,"2"]', "/1", "expected `int`, got str"),
        (tuple[int, str], "[1,2]", "/1", "expected `str`, got int"),
        (dict[str, Point], '{"a":3}', "/a", "expected `Point` (an object with the fields x (int), y (int, optional))"),
        (dict[str, list[bool]], '{"a":[1]}', "/a/0", "expected `bool`, got int"),
        (Person, '{"name":"n","born":"x"}', "/born", "expected `str (date) | None`, got str"),
        (Payment, '{"by":{"number":3}}', "/by/number", "expected `str`, got int"),
        (Card | None, '{"number":3}', "/number", "expected `str`, got int"),
        (StrictModel, "3", "", "expected `StrictModel` (an object with the fields at (str), id (str)), got int; "),
        (StrictModel, '{"at":1,"id":"x","more":1}', "", "Additional properties are not allowed ('more' "),
        (list[StrictModel], '[{"at":1}]', "/0/id", "is missing: expected `str`"),
        (Lax, '{"number":{}}', "/number", "expected `int`, got object"),
        (Box, '{"size":"x"}', "/size", "expected `int`, got str"),
        (Options, '{"depth":"x"}', "/depth", "expected `int`, got str"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_its_place(annotation: Any, text: str, path: str, told: str) -> None:
    raw = Raw(text.encode())
    with pytest.raises(PayloadError):
        decoder(annotation)(raw)
    schemas = schemas_of(annotation)
    assert schemas is not None
    (problem,) = schemas.problems_of(raw)
    assert problem.path == path
    assert problem.message.startswith(told)


def test_code_that_sees_a_value_before_its_type_is_not_anticipated() -> None:
    assert schemas_of(Before) is None


def test_a_type_without_a_schema_leaves_the_others_as_they_are() -> None:
    readers = [InputReader("a", Before), InputReader("b", int), InputReader("c", Any)]
    schemas = derive_input_schemas(readers, {"b": int, "c": Any})
    assert schemas is not None
    assert (schemas.input, list(schemas.steps)) == ({"type": "integer"}, ["b"])


def test_classes_of_one_name_are_kept_apart() -> None:
    def other() -> Any:
        @dataclass
        class Point:
            z: str

        return Point

    schemas = derive_input_schemas([InputReader("a", list[Point], "a"), InputReader("b", list[other()], "b")], {})  # type: ignore[misc]
    assert schemas is not None
    problems = schemas.problems_of(Raw(b'{"a":[{"x":"1"}],"b":[{"z":1}]}'))
    assert [problem.path for problem in problems] == ["/a/0/x", "/b/0/z"]


def test_they_are_the_same_when_they_come_from_storage() -> None:
    schemas = derive_input_schemas([InputReader("a", Line)], {"s": Payment})
    assert schemas is not None
    assert decode_input_schemas(schemas.encoded) == schemas
    assert decode_input_schemas(None) is None


def test_a_value_that_would_take_too_long_to_check_is_left_to_its_reader() -> None:
    schemas = schemas_of(list[Any] | dict[str, list[Card]])
    assert schemas is not None
    assert schemas.problems_of(Raw(msgspec.json.encode([{} for _ in range(80_000)]))) == []


# -- What the saga declares, and what its steps take -------------------------------------------------------------------


def test_a_step_that_takes_another_input_than_the_saga_declares_is_refused() -> None:
    @saga("ship")
    class Ship(Saga[Point, str]):
        @step
        def pack(self, x: str) -> str:
            return x

    with pytest.raises(DefinitionError) as refused:
        compile_saga(Ship())
    (problem,) = refused.value.problems
    assert (problem.path, problem.code) == ("step 'pack', parameter 'x'", "type")
    assert problem.message.startswith("the input of the saga is Point, but the parameter is annotated str")


def test_a_step_that_takes_the_declared_input_a_part_of_it_or_none_is_accepted() -> None:
    @saga("ship")
    class Ship(Saga[Point, str]):
        @step
        def whole(self, point: Point) -> str:
            return str(point)

        @step
        def as_json(self, point: dict[str, Any]) -> str:
            return str(point)

        @step
        def key(self, x: Annotated[int, Input("x")]) -> str:
            return str(x)

        @step
        def other(self, text: Annotated[str, FromStep(whole)]) -> str:
            return text

        @step(foreach="[1, 2]")
        def each(self, number: int) -> int:
            return number

        @step
        def none(self) -> str:
            return ""

    schemas = compile_saga(Ship()).encode_input.schemas
    assert schemas is not None
    assert schemas.problems_of(Raw(b'{"x":1}')) == []
    assert [problem.path for problem in schemas.problems_of(Raw(b'{"x":"1"}'))] == ["/x"]

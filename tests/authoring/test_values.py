"""Values across the durable boundary: what comes back is what went in, and what cannot go is refused unseen."""

import enum
import math
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NoReturn, TypedDict, TypeVar
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from tenuto.errors import PayloadError
from tenuto.values.codec import DEFAULT_LIMIT, MAX_DEPTH, can_serialise, decoder, encode, encoder


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclass
class Point:
    x: int
    y: int = 0


@dataclass
class Line:
    name: str
    points: list[Point] = field(default_factory=list)
    parent: "Line | None" = None


class Person(msgspec.Struct):
    name: str
    born: date | None = None


class Model(pydantic.BaseModel):
    at: datetime
    price: Decimal = Decimal("1.50")
    name: str = pydantic.Field(default="n", alias="fullName")

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def shout(self) -> str:
        return self.name.upper()


class StrictModel(pydantic.BaseModel, strict=True, extra="forbid"):
    at: datetime
    id: UUID


@attrs.define
class Box:
    size: int = attrs.field(validator=attrs.validators.ge(0))
    tags: list[str] = attrs.field(factory=list)


class Pair(NamedTuple):
    left: int
    right: str


class Options(TypedDict, total=False):
    depth: int


class Email(str): ...


class Cents(int): ...


class Ratio(float): ...


T = TypeVar("T")


@dataclass
class Page(Generic[T]):
    items: list[T]


@dataclass
class Card:
    number: str


@dataclass
class Bank:
    iban: str
    bic: str = ""


@dataclass
class Payment:
    by: Card | Bank
    also: list[Card | Bank] = field(default_factory=list)


@attrs.define
class Parcel:
    by: Card | Bank


@dataclass
class Holder:
    model: Model
    maybe: Model | None = None
    either: Model | int = 3


Id = NewType("Id", str)
MOMENT = datetime(2026, 1, 31, 12, 30, 15, 250_000, tzinfo=UTC)

ROUND_TRIPS: list[tuple[Any, Any]] = [
    (Any, {"a": [1, 2.5, "x", None, True]}),
    (object, [1, "x"]),
    (str, "grüße 🎼"),
    (int, 10**30),
    (float, 1.5),
    (bool, True),
    (type(None), None),
    (int | None, None),
    (int | None, 3),
    (int | str, "x"),
    (list[int], [1, 2]),
    (Sequence[Point], [Point(1)]),
    (dict[str, Point], {"a": Point(1, 2)}),
    (Mapping[str, int], {"a": 1}),
    (dict[int, str], {1: "x"}),
    (tuple[int, str], (1, "x")),
    (tuple[int, ...], (1, 2, 3)),
    (set[int], {1, 2}),
    (frozenset[int], frozenset({1})),
    (Literal["a", "b"], "a"),
    (Colour, Colour.RED),
    (Level, Level.HIGH),
    (datetime, MOMENT),
    (date, date(2026, 1, 31)),
    (time, time(12, 30)),
    (timedelta, timedelta(days=2, microseconds=5)),
    (Decimal, Decimal("10.10")),
    (UUID, UUID(int=5)),
    (bytes, b"\x00\xff"),
    (Point, Point(1, 2)),
    (Line, Line("a", [Point(1)], Line("b"))),
    (Person, Person("Ann", date(1990, 1, 1))),
    (Model, Model(at=MOMENT, fullName="Ann")),
    (StrictModel, StrictModel(at=MOMENT, id=UUID(int=1))),
    (list[Model], [Model(at=MOMENT)]),
    (dict[str, StrictModel | None], {"a": StrictModel(at=MOMENT, id=UUID(int=1)), "b": None}),
    (Holder, Holder(Model(at=MOMENT), None, 4)),
    (Holder, Holder(Model(at=MOMENT), Model(at=MOMENT), Model(at=MOMENT))),
    (Box, Box(3, ["a"])),
    (list[Box], [Box(3)]),
    (Pair, Pair(1, "x")),
    (Options, {"depth": 3}),
    (Page[Point], Page([Point(1)])),
    (Id, "x"),
    (Annotated[int, "anything"], 3),
    (Email, Email("a@b")),
    (Cents, Cents(5)),
    (Ratio, Ratio(0.5)),
    (Card | Bank, Bank("DE1")),
    (Bank | Card, Card("1")),
    (Card | Bank | None, None),
    (Card | int, 5),
    (list[Card | Bank], [Card("1"), Bank("DE1", "X")]),
    (dict[str, list[Card | Bank]], {"a": [Card("1"), Bank("DE1")]}),
    (Annotated[Card | Bank, "x"], Card("1")),
    (set[str] | list[int], [1]),
    (Payment, Payment(Bank("DE1"), [Card("1"), Bank("DE2")])),
    (Parcel, Parcel(Card("1"))),
    (NoReturn, None),
]


@pytest.mark.parametrize(("annotation", "value"), ROUND_TRIPS, ids=str)
def test_what_goes_in_comes_out(annotation: Any, value: Any) -> None:
    assert can_serialise(annotation) is None
    back = decoder(annotation)(encode(value, annotation))
    assert back == value
    assert type(back) is type(value)


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=30,
)


@given(json_values)
def test_any_json_survives(value: Any) -> None:
    assert decoder()(encode(value)) == value


def test_nothing_is_read_as_none() -> None:
    assert decoder(Point)(None) is None


def test_order_is_kept_and_text_is_compact() -> None:
    assert bytes(encode({"b": 1, "a": [1, 2]})) == b'{"b":1,"a":[1,2]}'


def test_what_is_written_is_raw() -> None:
    assert isinstance(encode(1), Raw)
    assert bytes(encode(Raw(b'{"a": 1}'))) == b'{"a":1}'


def test_sets_have_one_order_in_every_process() -> None:
    program = (
        "from tenuto.values.codec import encode\n"
        "print(bytes(encode({'x', 'abc', 'zz', 'q', 'mm'}, set[str])), bytes(encode({'x', 'abc', 'zz', 'q', 'mm'})))"
    )

    def answer(seed: int) -> bytes:
        environment = {"PYTHONHASHSEED": str(seed)}
        return subprocess.run([sys.executable, "-c", program], env=environment, stdout=-1, check=True).stdout

    assert len({answer(seed) for seed in range(1, 6)}) == 1


# -- What is refused, and how ------------------------------------------------------------------------------------------

SECRET = "hunter2"


@dataclass
class Priced:
    name: str
    price: float | None = None


class Opaque: ...


class Stubborn(pydantic.BaseModel):
    @pydantic.model_serializer
    def refuse(self) -> str:
        raise RuntimeError(SECRET)


def deep(levels: int, inner: Any = None) -> Any:
    for _ in range(levels):
        inner = [inner]
    return inner


def endless() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


REFUSED: list[tuple[Any, str]] = [
    (math.nan, "result: NaN and Infinity have no JSON form"),
    (math.inf, "result: NaN and Infinity"),
    ({"items": [1, {"price": -math.inf}]}, "result.items[1].price: NaN and Infinity"),
    (Priced(SECRET, math.nan), "result.price: NaN and Infinity"),
    ([Priced("a"), Priced("b", math.nan)], "result[1].price: NaN and Infinity"),
    (Ratio("nan"), "result: NaN and Infinity"),
    ({"model": [10**30, math.nan]}, "result.model[1]: NaN and Infinity"),
    ("a\ud800" + SECRET, "result: text with a lone surrogate"),
    ({"a": ["\ud800"]}, "result.a[0]: text with a lone surrogate"),
    ("a\0" + SECRET, "result: text with a NUL character"),
    ({"a": {SECRET + "\0": 1}}, "result.a[key 0] (the key): text with a NUL"),
    ({SECRET + " @": math.nan}, "result[key 0]: NaN and Infinity"),
    ({(1, 2): 3}, "result[key 0] (the key): keys are text or numbers"),
    ({None: 3}, "result[key 0] (the key): keys are text or numbers"),
    (deep(MAX_DEPTH + 1), "nested deeper than 100 levels"),
    (deep(MAX_DEPTH, {}), "nested deeper than 100 levels"),
    (["]" * 300, deep(MAX_DEPTH + 1)], "nested deeper than 100 levels"),
    (['"' + "]" * 300 + "\\", deep(MAX_DEPTH + 1)], "nested deeper than 100 levels"),
    (deep(5_000), "nested deeper than 100 levels"),
    (endless(), "or it contains itself"),
    (Opaque(), "result: a Opaque has no JSON form; use a dataclass"),
    ({"a": [Opaque]}, "result.a[0]: a type has no JSON form"),
    (Exception(SECRET), "result: a Exception has no JSON form"),
    (iter([1]), "has no JSON form"),
    (1j, "result: a complex has no JSON form"),
    ([Stubborn()], "result[0]: Stubborn refuses to be written (PydanticSerializationError)"),
    (Raw(b"{"), "result: a Raw value that is not valid JSON"),
    (Raw(b'["\\u0000"]'), "result[0]: text with a NUL character"),
    (Raw(b'["' + b"x" * DEFAULT_LIMIT + b'"]'), "result: 262,148 bytes of JSON"),
    ("x" * DEFAULT_LIMIT, "result: 262,146 bytes of JSON exceed the limit of 262,144"),
]


@pytest.mark.parametrize(("value", "why"), REFUSED, ids=[why[:40] for _, why in REFUSED])
def test_what_has_no_json_is_refused_without_being_shown(value: Any, why: str) -> None:
    with pytest.raises(PayloadError) as refused:
        encode(value, where="result")
    assert why in str(refused.value)
    assert SECRET not in str(refused.value)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_a_coroutine_is_explained() -> None:
    async def work() -> int:
        return 1

    coroutine = work()
    with pytest.raises(PayloadError, match="declare the handler `async def`"):
        encode(coroutine)
    coroutine.close()


ACCEPTED: list[Any] = [
    "\\u0000",
    ["\\u0000", None],
    [None, 1.5],
    {"null": None, "n": "null"},
    Priced("a"),
    deep(MAX_DEPTH),
    deep(MAX_DEPTH - 1, {"a": "]]]"}),
    [[[["[" * 500, "{" * 500, '"' * 10, "\\" * 11]]], [{}] * 500],
    [None, 10**30],
    b"\xcb\x7f\xff",
    ["\x7f\xff\xcb\x7f\xf0", None],
]


@pytest.mark.parametrize("value", ACCEPTED, ids=range(len(ACCEPTED)))
def test_what_only_looks_wrong_is_accepted(value: Any) -> None:
    assert encode(value)


def test_the_limit_can_be_set_and_has_a_code() -> None:
    assert encode("x" * 8, limit=10)
    with pytest.raises(PayloadError) as refused:
        encode("x" * 9, limit=10)
    assert refused.value.code == "payload_too_large"
    assert "reference" in (refused.value.hint or "")


def test_an_annotation_that_cannot_be_hashed_will_do() -> None:
    assert bytes(encoder(Annotated[int, []])(3)) == b"3"


# -- Keys that are one in JSON -----------------------------------------------------------------------------------------


class Number(enum.Enum):
    ONE = 1
    UNO = "1"


class Same(enum.StrEnum):
    RED = "red"


class Prices(msgspec.Struct):
    by: Any


class Open(pydantic.BaseModel):
    by: dict[int | str, Any]


class Closed(pydantic.BaseModel):
    by: dict[int, str]
    next: "Closed | None" = None
    open: list[Open] = []


class Extra(pydantic.BaseModel, extra="allow"): ...


class Root(pydantic.RootModel[dict[Any, int]]): ...


class OneAlias(pydantic.BaseModel):
    first: int = pydantic.Field(default=1, alias="number")
    second: int = pydantic.Field(default=2, alias="number")


class NarrowMapping(Mapping[Any, Any]):
    def __getitem__(self, key: Any) -> Any:
        return {1: 2, "1": 3}[key]

    def __iter__(self) -> Iterator[Any]:
        return iter([1, "1"])

    def __len__(self) -> int:
        return 2


@attrs.define
class Crate:
    by: Any


SAME: dict[Any, int] = {1: 1, "1": 2}

REPEATED: list[tuple[Any, str]] = [
    (SAME, "result[key 1]"),
    ({"1": 1, "x": 3, 1: 2}, "result[key 2]"),
    ({True: 1, "1": 2}, "result[key 1]"),
    ({Level.HIGH: 1, "3": 2}, "result[key 1]"),
    ({Cents(3): 1, "3": 2}, "result[key 1]"),
    ({1.5: 1, "1.5": 2}, "result[key 1]"),
    ({Decimal("1.50"): 1, "1.50": 2}, "result[key 1]"),
    ({Decimal(2): 1, 2.5: 0, "2": 2}, "result[key 2]"),
    ({UUID(int=5): 1, str(UUID(int=5)): 2}, "result[key 1]"),
    ({MOMENT: 1, "2026-01-31T12:30:15.250000Z": 2}, "result[key 1]"),
    ({date(2026, 1, 31): 1, "2026-01-31": 2}, "result[key 1]"),
    ({time(12, 30): 1, "12:30:00": 2}, "result[key 1]"),
    ({timedelta(days=2): 1, "P2D": 2}, "result.P2D"),
    ({b"abc": 1, "YWJj": 2}, "result.YWJj"),
    ({Colour.RED: 1, "red": 2}, "result.red"),
    ({Colour.RED: 1, Same.RED: 2}, "result.red"),
    ({Number.ONE: 1, Number.UNO: 2}, "result[key 1]"),
    ({math.nan: 1, "nan": 2}, "result.nan"),
    ({10**30: 1, str(10**30): 2}, "result[key 1]"),
    ({SECRET: {"a": [0, {f"{SECRET}!": 1, 1: 2, "1": [3]}]}}, "result.hunter2.a[1][key 2]"),
    ([Point(1), SAME], "result[1][key 1]"),
    ((1, {"a": SAME}), "result[1].a[key 1]"),
    (Page([SAME]), "result.items[0][key 1]"),
    (Prices(SAME), "result.by[key 1]"),
    (Crate([SAME]), "result.by[0][key 1]"),
    (NarrowMapping(), "result[key 1]"),
    ({"a": NarrowMapping()}, "result.a[key 1]"),
    (Open(by=SAME), "result.by[key 1]"),
    (Open(by={"a": [SAME]}), "result.by.a[0][key 1]"),
    ([{"a": Open(by=SAME)}], "result[0].a.by[key 1]"),
    (Closed(by={}, open=[Open(by={}), Open(by=SAME)]), "result.open[1].by[key 1]"),
    (Closed(by={}, next=Closed(by={}, open=[Open(by=SAME)])), "result.next.open[0].by[key 1]"),
    (Extra.model_validate({"more": SAME}), "result.more[key 1]"),
    (Root(SAME), "result[key 1]"),
    (OneAlias(), "result.number"),
    (Raw(b'{"a": 1, "b": {"c": 1, "d": 2, "c": 3}}'), "result.b.c"),
    ({"x": SAME, "long": "x" * 1000}, "result.x[key 1]"),
    ({"x": SAME, "none": [None, "\\"]}, "result.x[key 1]"),
]


@pytest.mark.parametrize(("value", "place"), REPEATED, ids=[place for _, place in REPEATED])
def test_a_key_that_would_be_there_twice_is_refused(value: Any, place: str) -> None:
    with pytest.raises(PayloadError) as refused:
        encode(value, where="result")
    assert refused.value.code == "payload_invalid"
    assert str(refused.value).startswith(f"{place} (the key): duplicate key")


def test_it_is_refused_whatever_is_annotated() -> None:
    for annotation in (dict[int, int], dict[str, int], Any, object, None, set[int], Point):
        with pytest.raises(PayloadError):
            encode(SAME, annotation)


DISTINCT: list[Any] = [
    {1: 1, 2: {"1": 3, "2": 4}},
    {1: {1: 1}, "x": {1: 1}, "y": [{1: 2}, {"1": 3}]},
    {1: '":', "2": '"a":"a":', '"3":': "\\"},
    {Colour.RED: 1, Level.HIGH: 2, UUID(int=5): MOMENT, Decimal(1): 10**30},
    {Same.RED: 1, Email("a"): 2},
    [Person("a"), Person("b"), Point(1), Point(2)],
    Open(by={1: '":', "2": {3: {}}}),
    {1: Raw(b'{"a" : {"a":[ ]} }')},
    Closed(by={1: "a"}, next=Closed(by={1: "a"})),
    Raw(b'{"a" : 1, "b":{"a":"\\u0022:"}}'),
]


@pytest.mark.parametrize("value", DISTINCT, ids=range(len(DISTINCT)))
def test_keys_that_are_not_text_are_accepted(value: Any) -> None:
    assert encode(value)


def test_a_part_that_is_no_json_is_found_when_keys_are_compared() -> None:
    with pytest.raises(PayloadError, match="not valid JSON"):
        encode({1: Raw(b"{")})


some_keys = st.integers(-3, 12) | st.sampled_from(
    ["1", "2", "-1", "1.0", "red", "x", 1.5, "1.5", Colour.RED, Level.HIGH]
)
keyed_values = st.recursive(
    st.none() | st.integers() | st.sampled_from(['":', "\\", "a"]),
    lambda inner: (
        st.lists(inner) | st.dictionaries(some_keys, inner) | st.builds(Prices, inner) | st.builds(Crate, inner)
    ),
    max_leaves=30,
)


def count_keys(value: Any) -> int:
    if isinstance(value, Prices | Crate):
        return 1 + count_keys(value.by)
    if isinstance(value, dict):
        return len(value) + sum(map(count_keys, value.values()))
    return sum(map(count_keys, value)) if isinstance(value, list) else 0


@given(keyed_values)
def test_no_key_is_ever_lost(value: Any) -> None:
    loses = count_keys(msgspec.json.decode(msgspec.json.encode(value))) < count_keys(value)
    if loses:
        with pytest.raises(PayloadError, match="duplicate key"):
            encode(value)
    else:
        assert count_keys(decoder()(encode(value))) == count_keys(value)


# -- What no longer fits -----------------------------------------------------------------------------------------------


class Checked(pydantic.BaseModel):
    age: int

    @pydantic.field_validator("age")
    @classmethod
    def check(cls, age: int) -> int:
        if age > 100:
            raise ValueError(f"{SECRET} {age}")
        return age


@dataclass
class Moody:
    x: int

    def __post_init__(self) -> None:
        raise KeyError(SECRET)


INCOMPATIBLE: list[tuple[Any, str, str]] = [
    (Moody, '{"x":1}', "value: refused by the type's own checks (KeyError)"),
    (Point, '{"x":"hunter2"}', "value.x: Expected `int`, got `str`"),
    (Line, '{"name":"n","points":[{"x":1},{"y":2}]}', "value.points[1]: Object missing required field `x`"),
    (Colour, '"hunter2"', "value: not one of the values allowed"),
    (list[Literal["a"]], '["hunter2"]', "value[0]: not one of the values allowed"),
    (int, "null", "value: Expected `int`, got `null`"),
    (datetime, '"hunter2"', "value: Invalid RFC3339 encoded datetime"),
    (Model, '{"at":"hunter2"}', "value.at: Input should be a valid datetime"),
    (list[Model], '[{"at":"hunter2"}]', "value[0].at: Input should be a valid datetime"),
    (Checked, '{"age":101}', "value.age: refused by a validator"),
    (list[Checked], '[{"age":101}]', "value[0].age: refused by a validator"),
    (Box, '{"size":-1}', "value: refused by the type's own checks (ValueError)"),
    (Card | Bank, '"hunter2"', "value: Expected `Card | Bank`"),
    (list[Card | Bank], '[{"x":"hunter2"}]', "value[0]: Expected `Card | Bank`"),
    (Payment, '{"by":3}', "value: Expected `Card | Bank`"),
    (Payment, "3", "value: Expected `Payment`, an object with the fields by, also; got `int`"),
    (Payment, "{}", "value: refused by the type's own checks (TypeError)"),
    (Email, "3", "value: Expected `Email`"),
    (int, "[", "value: Expected `int`, got `array`"),
    (list[int], "[", "value: Input data was truncated"),
]


@pytest.mark.parametrize(("annotation", "text", "why"), INCOMPATIBLE, ids=[why for _, _, why in INCOMPATIBLE])
def test_what_no_longer_fits_is_told_apart(annotation: Any, text: str, why: str) -> None:
    with pytest.raises(PayloadError) as refused:
        decoder(annotation)(Raw(text.encode()))
    assert refused.value.code == "incompatible"
    assert str(refused.value).startswith(why)
    assert SECRET not in str(refused.value)


def test_a_new_field_does_not_change_which_class_it_was() -> None:
    assert decoder(Card | Bank)(Raw(b'{"iban":"DE1"}')) == Bank("DE1")


def test_the_place_can_be_named() -> None:
    with pytest.raises(PayloadError, match=r"step 'a', parameter 'p'\.x: Expected"):
        decoder(Point, where="step 'a', parameter 'p'")(Raw(b'{"x":"1"}'))


# -- What annotations promise ------------------------------------------------------------------------------------------


@dataclass
class Hidden:
    _secret: int = 0


@attrs.define
class HiddenToo:
    _secret: int = 0


@dataclass
class Holds:
    opaque: Opaque


@dataclass
class HoldsEither:
    either: Card | Bank
    opaque: Opaque | None = None


@dataclass
class Cash:
    number: str


class TaggedA(msgspec.Struct):
    x: int


class TaggedB(msgspec.Struct):
    y: int


class HoldsStructs(msgspec.Struct):
    either: TaggedA | TaggedB


UNFIT: list[tuple[Any, str]] = [
    (Opaque, "Opaque has no JSON form; use a dataclass"),
    (list[Opaque], "Opaque has no JSON form"),
    (dict[str, tuple[Opaque, ...]], "Opaque has no JSON form"),
    (Holds, "Opaque has no JSON form"),
    (HoldsEither, "Opaque has no JSON form"),
    (Card | Opaque, "Opaque has no JSON form"),
    (Callable[[], int], "has no JSON form"),
    (Iterator[int], "has no JSON form"),
    (Iterable[int], "has no JSON form"),
    (complex, "complex has no JSON form"),
    (Exception, "Exception has no JSON form"),
    (Hidden, "Hidden._secret is private and would be lost"),
    (list[HiddenToo], "HiddenToo._secret is private and would be lost"),
    (Card | Cash, "Card and Cash have the same fields"),
    (HoldsStructs, "cannot be read back from JSON"),
    ("Nowhere", "cannot be read back from JSON"),
]


@pytest.mark.parametrize(("annotation", "why"), UNFIT, ids=[str(annotation) for annotation, _ in UNFIT])
def test_what_cannot_cross_is_told_beforehand(annotation: Any, why: str) -> None:
    assert why in (can_serialise(annotation) or "")


def test_a_name_that_cannot_be_found_is_told() -> None:
    @dataclass
    class Local:
        next: "list[Local]"

    assert "names `Local`, which cannot be found" in (can_serialise(Local) or "")


def test_a_decoder_of_what_cannot_be_read_is_refused() -> None:
    with pytest.raises(PayloadError, match="cannot be read back from JSON"):
        decoder(HoldsStructs)

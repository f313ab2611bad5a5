"""Schemas that a stranger wrote: how often they look at a value is bound, and so is what is told."""

from typing import Any

import msgspec
import pytest

from benchmarks import bounds
from tenuto.values.schema import MAX_REPORTED, Schema, schema_problem
from tenuto.values.schema.cost import Cost, Numbers, weight

DEEP = 40


def doubling(levels: int) -> dict[str, Any]:
    """Each level refers to the next one twice."""
    twice = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$defs": {**twice, f"d{levels}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def codes(schema: dict[str, Any], value: object, *, is_made: bool = False) -> list[str]:
    raw = msgspec.Raw(msgspec.json.encode(value))
    return [problem.code for problem in Schema(schema).problems_of(raw, is_made=is_made)]


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"in": value}
    return value


@pytest.mark.parametrize("value", ["right", 1])
def test_what_would_take_for_ever_is_refused(value: object) -> None:
    assert codes(doubling(DEEP), value) == ["too_costly"]
    assert "too long" in (schema_problem(doubling(DEEP)) or "")


def test_what_is_made_is_taken_as_it_is_rather_than_undone() -> None:
    assert codes(doubling(DEEP), 1, is_made=True) == []
    assert Schema(doubling(DEEP)).summary(1) is None


def test_a_recursion_that_doubles_with_depth_is_refused_where_it_is_deep() -> None:
    again = {"properties": {"in": {"$ref": "#"}}}
    schema: dict[str, Any] = {"allOf": [again, again]}
    assert schema_problem(schema) is None
    assert codes(schema, nested(DEEP)) == ["too_costly"]
    assert codes(schema, nested(5)) == []
    assert codes(again, nested(100)) == []


@pytest.mark.parametrize(
    "hidden",
    [
        {"$ref": "#/default/d0", "default": doubling(DEEP)["$defs"]},
        {"properties": {"a": {"$ref": "#/x"}}, "x": doubling(DEEP)["$defs"]["d0"], "$defs": doubling(DEEP)["$defs"]},
        {"$ref": "#/$defs/a%20b", "$defs": {"a b": {"allOf": [{"$ref": "#/$defs/d1"}] * 2}, **doubling(DEEP)["$defs"]}},
    ],
)
def test_it_is_found_wherever_it_is_referred_to(hidden: dict[str, Any]) -> None:
    text = msgspec.json.encode(hidden).replace(b"#/$defs/", b"#/default/") if "default" in hidden else None
    schema = hidden if text is None else msgspec.json.decode(text)
    assert schema_problem(schema) or codes(schema, {"a": 1}) == ["too_costly"]


@pytest.mark.parametrize("schema", [{"$ref": "#"}, {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}])
def test_a_schema_that_leads_to_itself_is_refused(schema: dict[str, Any]) -> None:
    assert "leads back to itself" in (schema_problem(schema) or "")


def test_references_may_be_chained() -> None:
    chain: dict[str, Any] = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(3_000)}
    schema: dict[str, Any] = {"$defs": {**chain, "d3000": {"type": "string"}}, "$ref": "#/$defs/d0"}
    assert schema_problem(schema) is None
    assert codes(schema, "text") == []
    assert codes(schema, 1)[0] == "type"


def test_what_covers_the_rest_counts_what_it_covers_again() -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(DEEP):
        schema = {"allOf": [schema], "unevaluatedProperties": False}
    assert codes(schema, {"a": 1}) == ["too_costly"]


def test_of_ten_thousand_flaws_some_are_told() -> None:
    schema = {"items": {"required": list("abcde")}}
    assert codes(schema, [{}] * 400_000) == ["invalid"]
    assert codes(schema, [{}] * 10_000) == ["required", "more"]
    assert codes(schema, [{}] * 100) == ["required"] * MAX_REPORTED + ["more"]
    assert codes(schema, [{}] * 3) == ["required"] * 15


def test_what_people_write_is_checked() -> None:
    row = {"type": "object", "properties": {"id": {"type": "integer"}, "of": {"enum": [str(n) for n in range(200)]}}}
    assert codes({"items": row}, [{"id": n, "of": "7"} for n in range(10_000)]) == []
    assert codes({"$defs": {"row": row}, "items": {"$ref": "#/$defs/row"}}, [{"id": 1, "of": "7"}] * 10_000) == []
    tree: dict[str, Any] = {"properties": {"of": {"type": "integer"}, "left": {"$ref": "#"}, "right": {"$ref": "#"}}}
    assert Cost(tree).most.flaws == 2


def test_a_union_of_many_kinds_is_checked() -> None:
    kinds: dict[str, Any] = {
        f"k{n}": {
            "properties": {"kind": {"const": f"k{n}"}, **{f"{at}{n}": {"type": "string"} for at in "abcdef"}},
            "required": ["kind"],
        }
        for n in range(20)
    }
    schema: dict[str, Any] = {"$defs": kinds, "items": {"oneOf": [{"$ref": f"#/$defs/{name}"} for name in kinds]}}
    assert schema_problem(schema) is None
    assert codes(schema, [{"kind": f"k{n % 20}", f"a{n % 20}": "some text"} for n in range(10_000)]) == []


def test_a_language_of_its_own_is_checked_as_deep_as_people_write_it() -> None:
    terms = [
        {"type": "object", "properties": {"op": {"const": op}, "of": {"items": {"$ref": "#"}}}}
        for op in ("and", "or", "not")
    ]
    schema: dict[str, Any] = {"oneOf": [*terms, {"type": "string"}]}
    value: Any = "x"
    for _ in range(4):
        value = {"op": "and", "of": [value]}
    assert schema_problem(schema) is None
    assert codes(schema, value) == []


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, "$ref"),
        ({"$ref": "#/$defs/none"}, ""),
        ({"$ref": "#k", "$defs": {"k": {"$anchor": "k"}}}, "$ref"),
        ({"properties": {"a": {"$dynamicRef": "#a"}}, "$defs": {"a": {"$dynamicAnchor": "a"}}}, "$dynamicRef"),
        ({"properties": {"a": {"$id": "https://a.example/", "type": "string"}}}, "$id"),
    ],
)
def test_what_cannot_be_counted_is_refused_when_it_is_published(schema: dict[str, Any], said: str) -> None:
    assert said in (schema_problem(schema) or pytest.fail("it was taken"))


def test_a_promise_that_nothing_keeps_is_refused() -> None:
    schema: dict[str, Any] = {"properties": {"card": {"type": "string", "x-sensitive": True}}}
    assert "x-sensitive" in (schema_problem(schema) or "")
    assert schema_problem({"properties": {"x-sensitive": {"type": "string"}}}) is None


def test_names_may_look_like_keywords() -> None:
    named = {"$id": {"type": "string"}, "$ref": {"type": "string"}, "$dynamicRef": {"type": "integer"}}
    schema: dict[str, Any] = {
        "$id": "https://a.example/a",
        "properties": named,
        "$defs": {"$ref": {"const": {"$ref": 1}}},
    }
    assert schema_problem(schema) is None
    assert codes(schema, {"$id": "a", "$ref": "b", "$dynamicRef": 1}) == []


# -- Weights of keywords -----------------------------------------------------------------------------------------------

# Every keyword of the drafts that are supported which checks something.
KEYWORDS = {
    "type", "enum", "const", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "uniqueItems",
    "maxItems", "minItems", "contains", "prefixItems", "required", "dependentRequired", "properties",
    "additionalProperties", "patternProperties", "propertyNames", "maxProperties", "unevaluatedProperties", "maxLength",
    "minLength", "pattern", "format", "contentMediaType", "allOf", "anyOf", "oneOf", "if", "dependentSchemas",
}  # fmt: skip


def test_every_keyword_is_measured() -> None:
    assert {name.partition(",")[0] for name in bounds.CASES} == KEYWORDS


@pytest.mark.parametrize("name", bounds.CASES)
def test_an_estimate_grows_with_the_value(name: str) -> None:
    document, make = bounds.CASES[name]
    schema = Schema(document)
    few, many = (bounds.estimate_ns(schema, make(count)) for count in (20, 2_000))
    assert many > 3 * few


def test_a_few_kilobytes_that_would_take_seconds_are_refused() -> None:
    fractions = [number + 0.5 for number in range(600)]
    assert codes({"items": {"not": {"enum": fractions}}}, [0.25] * 600) == ["too_costly"]
    assert codes({"items": {"not": {"enum": list(range(600))}}}, [0.25] * 600) == ["too_costly"]
    assert codes({"items": {"not": {"const": fractions}}}, [fractions] * 10) == ["too_costly"]
    assert codes({"items": {"multipleOf": 1e-300}}, [1.5e300] * 1_000) == ["too_costly"]
    assert codes({"items": {"minimum": 0}}, [10**4000] * 50) == ["too_costly"]
    assert codes({"uniqueItems": True}, [2**63 + number for number in range(3_000)]) == ["too_costly"]
    assert codes({"items": {"uniqueItems": True}}, [fractions[:14]] * 1_000) == ["too_costly"]
    assert codes({"items": {"pattern": ".*a.{100}[xc]y"}}, ["ab" * 500] * 100) == ["too_costly"]
    assert codes({"items": {"pattern": r"(?!x)(\w+)+\1y"}}, ["a" * 30] * 3_000) == ["too_costly"]


def test_numbers_that_people_write_are_checked() -> None:
    prices = [{"price": number / 100, "count": number, "rate": 0.5} for number in range(3_000)]
    row = {"price": {"multipleOf": 0.01, "minimum": 0}, "count": {"minimum": 0}, "rate": {"maximum": 1}}
    assert codes({"items": {"properties": {**row}}}, prices) == []
    assert codes({"items": {"enum": [200, 201, 204, 400, 404, 409, 500]}}, [204] * 20_000) == []
    assert codes({"items": {"pattern": r"^[A-Z]{2}[0-9]{2}[A-Z0-9]{1,30}$"}}, ["DE89370400440532013000"] * 5_000) == []
    assert codes({"items": {"pattern": r"^[^@\s]+@[^@\s]+\.[a-z]{2,10}$"}}, ["someone@example.org"] * 5_000) == []
    assert codes({"uniqueItems": True}, [str(number) for number in range(10_000)]) == []


def test_a_schema_that_is_too_costly_for_any_value_is_refused_when_it_is_published() -> None:
    assert "too long" in (schema_problem({"enum": [number + 0.5 for number in range(10_000)]}) or "")
    assert schema_problem({"enum": [number + 0.5 for number in range(100)]}) is None


@pytest.mark.parametrize(
    ("schema", "more"),
    [
        ({"enum": [0.5]}, {"enum": [0.5, 1.5]}),
        ({"enum": [0.5]}, {"enum": [1e-300]}),
        ({"enum": [10**5]}, {"enum": [10**50]}),
        ({"enum": [{}]}, {"enum": [{"a": 1}]}),
        ({"enum": [["a"]]}, {"enum": [["a" * 100]]}),
        ({"const": [1]}, {"const": [1, 2]}),
        ({"multipleOf": 2}, {"multipleOf": 0.5}),
        ({"multipleOf": 0.5}, {"multipleOf": 0.12345}),
        ({"multipleOf": 0.5}, {"multipleOf": 1e300}),
        ({"minimum": 1}, {"minimum": 0.5}),
        ({}, {"dependencies": {"a": ["b"]}}),
        ({"format": "email"}, {"format": "idn-email"}),
        ({"pattern": "a"}, {"pattern": r"(a)\1"}),
        ({"pattern": "^[ab]{30}$"}, {"pattern": "[ab]{30}$"}),
        ({"pattern": "^[ab]{30}$"}, {"pattern": "^[ab]{30,}$"}),
        ({"pattern": "^([ab]{4}x){3}c?$"}, {"pattern": "^([ab]{4}x){4}c*$"}),
    ],
)
def test_a_keyword_that_does_more_weighs_more(schema: dict[str, Any], more: dict[str, Any]) -> None:
    light, heavy = weight(schema), weight(more)
    assert sum(heavy[1:]) > sum(light[1:])
    assert all(one <= other for one, other in zip(light, heavy, strict=True))


def test_numbers_are_told_from_digits_in_texts() -> None:
    assert Numbers.of(b'{"id":"2f4e5.10e3","n":12,"x\\"1.5":[]}') == Numbers(None, False)
    assert Numbers.of(b"[1,-0.5]") == Numbers(1, False)
    assert Numbers.of(b"[1e3]") == Numbers(16, False)
    assert Numbers.of(b"[12345678901234567]") == Numbers(1, True)
    assert Numbers.of(b"[" + b"1" * 4_096 + b"]") == Numbers(4_096, True)

"""Schemas that a stranger wrote: what they cost is bounded, and so is what is told."""

from typing import Any

import msgspec
import pytest

from tenuto.schema import MOST_TOLD, Schema, schema_problem
from tenuto.schema.cost import Costs

DEEP = 40


def doubling(levels: int) -> dict[str, Any]:
    """Each level refers to the next one twice."""
    twice = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$defs": {**twice, f"d{levels}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def codes(schema: dict[str, Any], value: object) -> list[str]:
    return [problem.code for problem in Schema(schema).problems_of(msgspec.Raw(msgspec.json.encode(value)))]


@pytest.mark.parametrize("value", ["right", 1])
def test_what_would_take_for_ever_is_refused(value: object) -> None:
    assert codes(doubling(DEEP), value) == ["too_costly"]


def test_a_recursion_that_doubles_with_depth_is_refused_too() -> None:
    again = {"properties": {"in": {"$ref": "#"}}}
    value: dict[str, Any] = {}
    for _ in range(DEEP):
        value = {"in": value}
    assert codes({"allOf": [again, again]}, value) == ["too_costly"]
    assert codes(again, value) == []


@pytest.mark.parametrize("schema", [{"$ref": "#"}, {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}])
def test_a_schema_that_leads_to_itself_ends(schema: dict[str, Any]) -> None:
    assert codes(schema, 1) == ["too_costly"]


def test_references_may_be_chained() -> None:
    chain: dict[str, Any] = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(3_000)}
    schema: dict[str, Any] = {"$defs": {**chain, "d3000": {"type": "string"}}, "$ref": "#/$defs/d0"}
    assert schema_problem(schema) is None
    assert codes(schema, "text") == []
    assert codes(schema, 1) == ["type"]


def test_what_covers_the_rest_counts_what_it_covers_again() -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(DEEP):
        schema = {"allOf": [schema], "unevaluatedProperties": False}
    assert codes(schema, {"a": 1}) == ["too_costly"]


def test_of_ten_thousand_flaws_some_are_told() -> None:
    schema = {"items": {"required": list("abcde")}}
    assert codes(schema, [{}] * 10_000) == ["required", "more"]
    assert codes(schema, [{}] * 100) == ["required"] * MOST_TOLD + ["more"]
    assert codes(schema, [{}] * 3) == ["required"] * 15


def test_a_long_list_that_fits_fits() -> None:
    row = {"type": "object", "properties": {"id": {"type": "integer"}, "of": {"enum": [str(n) for n in range(200)]}}}
    assert codes({"items": row}, [{"id": n, "of": "7"} for n in range(10_000)]) == []
    assert codes({"$defs": {"row": row}, "items": {"$ref": "#/$defs/row"}}, [{"id": 1, "of": "7"}] * 10_000) == []


def test_a_pattern_that_is_matched_by_trying_costs_more_than_one_that_is_not() -> None:
    tried, plain = Costs({"pattern": r"(?=a)(a+)+\1$"}), Costs({"pattern": "^a+$"})
    assert (tried.of("a", 1_000) or 0) > (plain.of("a", 1_000) or 0)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"$ref": "https://json-schema.org/draft/2020-12/schema"}, "$ref"),
        ({"$ref": "#/$defs/none"}, ""),
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

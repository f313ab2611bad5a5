"""Measures the estimates that bound work on the event loop: `python -m benchmarks.bounds [schemas | expressions]`.

`schemas`: for each keyword of a JSON Schema, how long the worst value that we know takes to check, and what
`tenuto.values.schema.cost` estimates for it. An estimate below the measurement is marked, and the exit code is 1.

`expressions`: for each operation, how long a unit of work takes, and so how long a whole budget does.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from tenuto.kernel.definition import JSON
from tenuto.kernel.expression import MAX_WORK, Budget, compile_expression, evaluate
from tenuto.values.schema import Schema

Case = tuple[dict[str, Any], Callable[[int], JSON]]  # a schema, and a value of so many items that fits it


def _each(schema: dict[str, Any]) -> dict[str, Any]:
    """Every item is looked at to the end, whether it fits or not."""
    return {"items": {"anyOf": [{"not": schema}, schema]}}


def _items(item: JSON) -> Callable[[int], JSON]:
    return lambda count: [item] * count


def _counted(make: Callable[[int], JSON]) -> Callable[[int], JSON]:
    return lambda count: [make(number) for number in range(count)]


_NAMES = [f"k{number}" for number in range(20)]
_OBJECT: dict[str, JSON] = dict.fromkeys(_NAMES, 1)
_ROW: list[JSON] = [1.5] * 20
_LONG_ROW: list[JSON] = [1.5] * 200
_FRACTIONS: list[JSON] = [number + 0.5 for number in range(14)]
_WORDS = "some words and more of them "

CASES: dict[str, Case] = {
    "type": (_each({"type": "integer"}), _items(1)),
    "enum": (_each({"enum": list(range(100))}), _items(5_000)),
    "enum, integers and a fraction": (_each({"enum": list(range(100))}), _items(0.25)),
    "enum, fractions": (_each({"enum": [number + 0.5 for number in range(100)]}), _items(0.25)),
    "enum, fractions and an integer": (_each({"enum": [number + 0.5 for number in range(100)]}), _items(500)),
    "enum, exponents": (_each({"enum": [1e-300 + number * 1e-310 for number in range(100)]}), _items(1.5e-300)),
    "enum, many digits": (_each({"enum": [10**300 + number for number in range(100)]}), _items(10**300 - 1)),
    "enum, texts": (_each({"enum": [str(number) for number in range(100)]}), _items("none")),
    "enum, texts and others": (_each({"enum": [[], *(str(number) for number in range(100))]}), _items("none")),
    "enum, lists": (_each({"enum": [[*_ROW, number] for number in range(20)]}), _items([*_ROW, -1])),
    "enum, objects": (
        _each({"enum": [{"z": number, **_OBJECT} for number in range(20)]}),
        _items({"z": -1, **_OBJECT}),
    ),
    "const": (_each({"const": [*_LONG_ROW, 1]}), _items([*_LONG_ROW, 2])),
    "multipleOf": (_each({"multipleOf": 3}), _items(7)),
    "multipleOf, fraction": (_each({"multipleOf": 0.01}), _items(12.34)),
    "multipleOf, long fraction": (_each({"multipleOf": 0.1234567890123456}), _items(0.9876543210123456)),
    "multipleOf, exponent": (_each({"multipleOf": 1e-300}), _items(1.5e300)),
    "multipleOf, many digits": (_each({"multipleOf": 0.1}), _items(10**1000 + 1)),
    "minimum": (_each({"minimum": 2}), _items(5)),
    "maximum": (_each({"maximum": 0.1234567890123456}), _items(0.9876543210123456)),
    "exclusiveMinimum": (_each({"exclusiveMinimum": 0.5}), _items(1.5e300)),
    "exclusiveMaximum": (_each({"exclusiveMaximum": 2}), _items(10**1000 + 1)),
    "uniqueItems": ({"uniqueItems": True}, _counted(lambda number: number)),
    "uniqueItems, fractions": ({"items": {"uniqueItems": True}}, _items(_FRACTIONS)),
    "uniqueItems, many digits": ({"uniqueItems": True}, _counted(lambda number: 2**63 + number)),
    "maxItems": (_each({"maxItems": 3}), _items([1, 2])),
    "minItems": (_each({"minItems": 3}), _items([1, 2])),
    "contains": (_each({"contains": {"type": "string"}, "minContains": 2, "maxContains": 9}), _items([1, 2, 3])),
    "prefixItems": (_each({"prefixItems": [{"type": "string"}, {"type": "integer"}]}), _items(["a", 1])),
    "required": (_each({"required": _NAMES}), _items(_OBJECT)),
    "dependentRequired": (_each({"dependentRequired": dict.fromkeys(_NAMES, _NAMES)}), _items(_OBJECT)),
    "properties": (_each({"properties": {name: {"type": "integer"} for name in _NAMES}}), _items(_OBJECT)),
    "additionalProperties": (
        _each({"properties": {"k0": {}}, "additionalProperties": {"type": "integer"}}),
        _items(_OBJECT),
    ),
    "patternProperties": (_each({"patternProperties": {f"x.*[a-z]+{n}": {} for n in range(20)}}), _items(_OBJECT)),
    "propertyNames": (_each({"propertyNames": {"pattern": "^[a-z]+[0-9]*$"}}), _items(_OBJECT)),
    "maxProperties": (_each({"maxProperties": 30}), _items(_OBJECT)),
    "unevaluatedProperties": (
        _each({"allOf": [{"properties": {name: {} for name in _NAMES}}], "unevaluatedProperties": False}),
        _items(_OBJECT),
    ),
    "maxLength": (_each({"maxLength": 5_000}), _items("é" * 500)),
    "minLength": (_each({"minLength": 5_000}), _items("é" * 500)),
    "pattern": (_each({"pattern": "^[a-z ]+$"}), _items(_WORDS)),
    "pattern, ambiguous": (
        _each({"pattern": "[ab]*a[ab]{30}[xc]y"}),
        _counted(lambda number: f"{number * 2**64 // 7919:b}".replace("0", "a").replace("1", "b") + "x"),
    ),
    "pattern, backtracking": (_each({"pattern": r"(?!x)(\w+)+\1y"}), _items("a" * 30)),
    "format": (_each({"format": "email"}), _items("someone@mail.example.org")),
    "format, international": (_each({"format": "idn-hostname"}), _items("é.ü.example")),
    "contentMediaType": (
        {"$schema": "http://json-schema.org/draft-07/schema#", **_each({"contentMediaType": "application/json"})},
        _items("[" * 100 + "]" * 100),
    ),
    "allOf": (_each({"allOf": [{"type": "integer"}] * 20}), _items(1)),
    "anyOf": (_each({"anyOf": [*[{"type": "string"}] * 20, {"type": "integer"}]}), _items(1)),
    "oneOf": (_each({"oneOf": [*[{"type": "string"}] * 20, {"type": "integer"}]}), _items(1)),
    "if": (_each({"if": {"type": "string"}, "then": False, "else": {"type": "integer"}}), _items(1)),
    "dependentSchemas": (
        _each({"dependentSchemas": {name: {"maxProperties": 30} for name in _NAMES}}),
        _items(_OBJECT),
    ),
}


def estimate_ns(schema: Schema, value: JSON) -> int:
    return schema.estimate_ns(value, msgspec.json.encode(value))


def measure_ns(schema: Schema, value: JSON) -> int:
    best = sys.maxsize
    for _ in range(3):
        began = time.thread_time_ns()
        schema.fits(value)
        best = min(best, time.thread_time_ns() - began)
    return best


# -- Expressions -------------------------------------------------------------------------------------------------------

_TEXT = "ab" * 1_000
_ROWS: list[JSON] = [{"id": number, "name": "ada", "active": True, "of": [1, 2, 3]} for number in range(1_000)]
_MAP: JSON = {str(number): number for number in range(1_000)}

EXPRESSIONS: dict[str, JSON] = {  # and the input of each
    "input.map(x, 1)": _ROWS,
    "input.filter(x, x.active)": _ROWS,
    "input.filter(x, x.active).map(x, x.id)": _ROWS,
    "input.all(x, has(x.name))": _ROWS,
    "input.exists(x, x == '')": _MAP,
    "input.map(x, x.of[x.of[0]])": _ROWS,
    "input.map(x, x.id + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1 + 1)": _ROWS,
    "input.map(x, 7 / 2 % 3 * -1.5)": _ROWS,
    "input.map(x, x.name + 'a' + 'b' + 'c')": _ROWS,
    "input.map(x, size([x] + [x] + [x]))": _ROWS,
    "input.all(x, x == 1 || x == 2 || x == 3 || x != 4)": [9] * 1_000,
    "input.all(x, x > 1 && x >= 1 && x < 100)": [9] * 1_000,
    "input.all(x, !x ? true : true)": [True] * 1_000,
    "input.map(x, [1, 2, 3, 4, 5, 6, 7, 8])": _ROWS,
    "input.map(x, {'a': 1, 'b': 2, 'c': 3})": _ROWS,
    "input.all(x, input.list == input.list)": {"list": [1] * 1_000, "a": 1, "b": 1},
    "input.all(x, input.list == input.list) ": {"list": [{"a": [1]}] * 500, "a": 1, "b": 1},
    "input.all(x, !('z' in ['a', 'b', 'c']))": [1] * 1_000,
    "input.all(x, !(x in input))": [0.1],
    "input.map(x, x == x)": [_TEXT] * 1_000,
    "input.map(x, x + x == '')": [_TEXT] * 1_000,
    "input.map(x, x.contains('z'))": [_TEXT] * 1_000,
    "input.map(x, x.startsWith(x))": [_TEXT] * 1_000,
    "input.map(x, size(x))": _ROWS,
    "input.map(x, type(x))": _ROWS,
    "input.map(x, string(x))": [123] * 1_000,
    "input.map(x, string(x)) ": [0.5] * 1_000,
    "input.map(x, int(x))": ["123"] * 1_000,
    "input.map(x, double(x))": ["1.5"] * 1_000,
    "input.map(x, double(x)) ": ["1" * 300] * 1_000,
    "input.map(x, x - x)": [10**4000] * 100,
    "input.map(x, x % x)": [10**4000] * 100,
    "input.map(x, timestamp(x).getHours())": ["2026-01-31T12:00:00Z"] * 100,
    "input.map(x, timestamp(x) + duration('1h'))": ["2026-01-31T12:00:00Z"] * 100,
    "input.map(x, x.matches('^a'))": ["abc"] * 100,
    "input.map(x, x.matches('^[^@]+@[^@]+[.][a-z]{2,10}$'))": ["abc"] * 100,
    r"input.map(x, x.matches('\\w+'))": ["abc"] * 20,
    r"input.map(x, x.matches('^\\w{20}'))": ["abc"],
    r"input.map(x, x.matches('\\d{50}'))": ["abc"] * 20,
    "input.map(x, x.matches('[ab]{1000}'))": ["abc"] * 20,
    "input.map(x, x.matches('z'))": [_TEXT] * 100,
    "input.map(x, x.matches('[ab]*a[ab]{16}[xc]y'))": [_TEXT] * 2,
    "input.map(x, x.matches('.*a.{100}[ab]y'))": [_TEXT] * 2,
}


def work_of(source: str, input: JSON) -> int:
    budget = Budget()
    evaluate(compile_expression(source.strip()), {"input": input}, budget)
    return MAX_WORK - budget.left


def expressions() -> int:
    print(f"| expression | units | measured, µs | ns for a unit | {MAX_WORK:,} units, ms |\n|---|---:|---:|---:|---:|")
    for source, value in EXPRESSIONS.items():
        expression = compile_expression(source.strip())
        best = sys.maxsize
        for _ in range(5):
            began = time.thread_time_ns()
            evaluate(expression, {"input": value})
            best = min(best, time.thread_time_ns() - began)
        work = work_of(source, value)
        ns = best / work
        shown = source.strip().replace("|", "\\|")
        print(f"| `{shown}` | {work:,} | {best / 1_000:,.0f} | {ns:,.0f} | {ns * MAX_WORK / 1e6:,.0f} |")
    return 0


def schemas(count: int = 200) -> int:
    low = False
    print(f"| keyword ({count} items) | measured, µs | estimated, µs |\n|---|---:|---:|")
    for name, (document, make) in CASES.items():
        schema, value = Schema(document), make(count)
        measured, estimated = measure_ns(schema, value), estimate_ns(schema, value)
        is_low = estimated < measured
        low = low or is_low
        print(f"| {name} | {measured / 1_000:,.0f} | {estimated / 1_000:,.0f}{' (too low)' if is_low else ''} |")
    return 1 if low else 0


if __name__ == "__main__":
    parts = {"schemas": schemas, "expressions": expressions}
    sys.exit(max(parts[name]() for name in sys.argv[1:] or parts))

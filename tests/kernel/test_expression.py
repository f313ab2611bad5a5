"""Expressions and templates: what they mean (the `cel` library is the oracle), what they refuse, what they hide."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NoReturn

import cel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenuto.errors import ExpressionError
from tenuto.kernel.definition import JSON
from tenuto.kernel.expression import (
    MAX_DEPTH,
    MAX_SOURCE,
    MAX_WORK,
    ROOTS,
    compile_expression,
    compile_template,
    evaluate,
    evaluate_bool,
    evaluate_key,
    evaluate_list,
    library,
    template_problems,
)

SECRET = "hunter2"
BIG = 2**70
SCOPE: dict[str, JSON] = {
    "input": {
        "n": 5,
        "amount": 1000.5,
        "s": "abc",
        "secret": SECRET,
        "yes": True,
        "none": None,
        "big": BIG,
        "list": [1, 2, 3],
        "map": {"b": 1, "a": 2},
        "people": [{"name": "Ann", "age": 30}, {"name": "Bob", "age": 20}],
    },
    "steps": {"plan": {"result": {"x": [10, 20]}}, "book-hotel": {"result": "H1"}},
    "variables": {},
    "context": {"tenant": "t1"},
}


def value_of(source: str, scope: Mapping[str, JSON] = SCOPE) -> JSON:
    return evaluate(compile_expression(source), scope)


def failure_of(source: str, scope: Mapping[str, JSON] = SCOPE) -> ExpressionError:
    with pytest.raises(ExpressionError) as caught:
        value_of(source, scope)
    return caught.value


def refusal_of(source: str, allowed: frozenset[str] = ROOTS) -> ExpressionError:
    with pytest.raises(ExpressionError) as caught:
        compile_expression(source, allowed)
    return caught.value


# -- Meaning: where CEL and we agree -----------------------------------------------------------------------------------

AGREED: list[tuple[str, JSON]] = [
    ("1 + 2 * 3 - 4", 3),
    ("(1 + 2) * 3", 9),
    ("7 / 2", 3),
    ("-7 / 2", -3),
    ("7 % 3", 1),
    ("-7 % 2", -1),
    ("7.0 / 2.0", 3.5),
    ("1 - 1 - 1", -1),
    ("--1", 1),
    ("-input.n", -5),
    ("9223372036854775807", 2**63 - 1),
    ("-9223372036854775808", -(2**63)),
    ("0x1F", 31),
    ("0xFFu", 255),
    ("007", 7),
    (".5 + 1e3 + 1.5e-3", 1000.5015),
    ("18446744073709551615u", 2**64 - 1),
    ("1 < 2 && 2 <= 2 && 3 > 2 && 2 >= 2", True),
    ('"a" < "b"', True),
    ("false < true", True),
    ("1 == 1 == true", True),
    ("1 != 2", True),
    ("1 == 1.0", True),
    ("1 == true", False),
    ('1 == "1"', False),
    ("null == null", True),
    ("1 == null", False),
    ("[1, [2.0]] == [1.0, [2]]", True),
    ("[1] == [1, 2]", False),
    ("[1] == [2]", False),
    ('{"a": 1} == {"a": 1.0}', True),
    ('{"a": 1} == {"b": 1}', False),
    ('{"a": 1} == {"a": 1, "b": 2}', False),
    ('{"a": 1} == {"a": 2}', False),
    ("[1] == {}", False),
    ("[true] == [1]", False),
    ("!true || !!true", True),
    ("!true == false", True),
    ("true ? 1 : false ? 2 : 3", 1),
    ("false ? 1 : false ? 2 : 3", 3),
    ("true || input.missing", True),
    ("input.missing || true", True),
    ("false && input.missing", False),
    ("input.missing && false", False),
    ("input.s || true", True),
    ("input.s && false", False),
    ("true ? 1 : input.missing", 1),
    ("1 in [1, 2]", True),
    ("1.0 in [1]", True),
    ("true in [1]", False),
    ('"a" in input.map', True),
    ('"z" in input.map', False),
    ("1 in input.map", False),
    ("has(input.n)", True),
    ("has(input.zzz)", False),
    ("has(input.map.a) && !has(input.map.z)", True),
    ('has(input["map"].a)', True),
    ("has(input.people[0].age)", True),
    ("input.people.filter(p, has(p.age)).size()", 2),
    ("input.list[2]", 3),
    ("input.list[input.list[0]]", 2),
    ('input["map"]["b"]', 1),
    ('input[input.s == "abc" ? "n" : "s"]', 5),
    ('{"a": {"b": [1, 2]}}.a.b[1]', 2),
    ("[1, 2,]", [1, 2]),
    ('{"a": 1, "b": [null],}', {"a": 1, "b": [None]}),
    ("{}", {}),
    ("[]", []),
    ('{"a": 1, "a": 2}', {"a": 2}),
    ("input.list.map(x, x * 2)", [2, 4, 6]),
    ("input.list.map(x, x > 1, x * 2)", [4, 6]),
    ("input.list.filter(x, x > 1)", [2, 3]),
    ("input.list.all(x, x > 0)", True),
    ("input.list.all(x, x > 1)", False),
    ("[].all(x, x > 1)", True),
    ("input.list.exists(x, x == 3)", True),
    ("input.list.exists(x, x == 9)", False),
    ("input.list.exists_one(x, x == 3)", True),
    ("input.list.exists_one(x, x > 1)", False),
    ("input.list.map(x, input.list.map(y, x * y))", [[1, 2, 3], [2, 4, 6], [3, 6, 9]]),
    ("input.list.map(x, [x].map(x, x + 1)[0] + x)", [3, 5, 7]),
    ("input.list.filter(x, x > 1).map(x, x + 1)", [3, 4]),
    ("input.people.exists(input, input.age == 20) && input.n == 5", True),
    ("input.people.map(p, p.name)", ["Ann", "Bob"]),
    ("input.map.all(k, input.map[k] > 0)", True),
    ('"a" + "b" + input.s', "ababc"),
    ("[1] + [2] + []", [1, 2]),
    ('"abc".contains("b") && "abc".startsWith("a") && "abc".endsWith("c")', True),
    ('input.s.matches("^[a-c]+$")', True),
    ('input.s.matches("^x")', False),
    ('size("abc") + "abc".size() + size([1]) + {"a": 1}.size()', 8),
    ("type(1) == int && type(1.5) == double && type(null) == null_type", True),
    ('type("a") == string && type([]) == list && type({}) == map && type(true) == bool', True),
    ('int("42") + int(1.9) + int(7)', 50),
    ('double("1.5") + double(1) + double(2.5)', 5.0),
    ('string(1) + string(1.5) + string(2.0) + string("x")', "11.52x"),
    ("dyn(1)", 1),
    ("1 // one\n + 1", 2),
    ("'a' == \"a\"", True),
    (r'"\"\\\n\t\x41\u00e9\U0001F600\101"', '"\\\n\tAé😀A'),
    (r"'\'\`\?'", "'`?"),
    (r'r"\d" + R"\"', "\\d\\"),
    ('"""a"b\nc""" + \'\'\'d\'\'\'', 'a"b\ncd'),
    ("r\"\"\"\\\"\"\" + r'''x'''", "\\x"),
    ('"}" + "//" + "steps.plan"', "}//steps.plan"),
    ('timestamp("2026-01-31T12:00:00Z").getHours()', 12),
    ('timestamp("2026-01-31T12:00:00Z") < timestamp("2026-01-31T12:00:01Z")', True),
    ('timestamp("2026-01-31T13:00:00+01:00") == timestamp("2026-01-31T12:00:00Z")', True),
    ('timestamp("2026-01-31T12:00:00Z") - timestamp("2026-01-31T11:00:00Z") == duration("1h")', True),
    ('timestamp("2026-01-31T12:00:00Z") - duration("12h") == timestamp("2026-01-31T00:00:00Z")', True),
    ('duration("90m").getMinutes() + duration("-30m").getMinutes()', 60),
    ('duration("90m") - duration("1h") < duration("1h")', True),
    ('string(duration("1h30m"))', "1h30m0s"),
]


@pytest.mark.parametrize(("source", "expected"), AGREED, ids=[source for source, _ in AGREED])
def test_means_what_it_means_in_cel(source: str, expected: JSON) -> None:
    found = value_of(source)
    assert (found, type(found)) == (expected, type(expected))
    assert cel.evaluate(source, {"input": SCOPE["input"]}) == expected


def test_agrees_with_cel_that_this_fails() -> None:
    for source in ("1 / 0", "1 % 0", "9223372036854775807 + 1", "1 + null", "input.n ? 1 : 2", "null < 1", "[1] < [2]"):
        failure_of(source)
        with pytest.raises((TypeError, ZeroDivisionError, OverflowError)):
            cel.evaluate(source, {"input": SCOPE["input"]})


def _combined(
    ints: st.SearchStrategy[str],
    bools: st.SearchStrategy[str],
    lists: st.SearchStrategy[str],
    texts: st.SearchStrategy[str],
) -> tuple[st.SearchStrategy[str], st.SearchStrategy[str], st.SearchStrategy[str], st.SearchStrategy[str]]:
    signs = st.sampled_from(["+", "-", "*", "/", "%"])
    orders = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
    loops = st.sampled_from(["all", "exists", "exists_one"])
    return (
        st.one_of(
            ints,
            st.builds("({} {} {})".format, ints, signs, ints),
            st.builds("{} {} {}".format, ints, signs, ints),
            st.builds("({} ? {} : {})".format, bools, ints, ints),
            st.builds("size({})".format, lists),
            st.builds("{}.size()".format, texts),
            st.builds("{}[{}]".format, lists, ints),
        ),
        st.one_of(
            bools,
            st.builds("({} {} {})".format, ints, orders, ints),
            st.builds("({} {} {})".format, texts, orders, texts),
            st.builds("{} && {}".format, bools, bools),
            st.builds("({} || {})".format, bools, bools),
            st.builds("!{}".format, bools),
            st.builds("({} in {})".format, ints, lists),
            st.builds("({} == {})".format, lists, lists),
            st.builds("{}.{}(x, x > {})".format, lists, loops, st.integers(-3, 3)),
        ),
        st.one_of(
            lists,
            st.builds("[{}, {}]".format, ints, ints),
            st.builds("({} + {})".format, lists, lists),
            st.builds("{}.filter(x, x != {})".format, lists, st.integers(0, 3)),
            st.builds("{}.map(y, y + {})".format, lists, st.integers(0, 3)),
        ),
        st.one_of(texts, st.builds("({} + {})".format, texts, texts), st.builds("string({})".format, ints)),
    )


def _sources() -> st.SearchStrategy[str]:
    ints: st.SearchStrategy[str] = st.sampled_from(["0", "1", "2", "3", "input.n", "4611686018427387904"])
    bools: st.SearchStrategy[str] = st.sampled_from(["true", "false", "input.yes", "input.missing"])
    lists: st.SearchStrategy[str] = st.sampled_from(["[]", "[1]", "input.list"])
    texts: st.SearchStrategy[str] = st.sampled_from(['""', '"a"', "input.s"])
    for _ in range(3):
        ints, bools, lists, texts = _combined(ints, bools, lists, texts)
    return st.one_of(ints, bools, lists, texts)


@given(source=_sources())
@settings(max_examples=400, deadline=None)
def test_agrees_with_cel_on_what_nobody_thought_of(source: str) -> None:
    try:
        expected = cel.evaluate(source, {"input": SCOPE["input"]})
    except (TypeError, ArithmeticError, LookupError):
        failure_of(source)
    else:
        found = value_of(source)
        assert (found, type(found)) == (expected, type(expected))


# -- Meaning: where JSON, replay or the specification ask for more than the library does -------------------------------

OURS: list[tuple[str, JSON]] = [
    ("input.amount * 2", 2001.0),
    ("2 * input.amount", 2001.0),
    ("input.n * 2", 10),
    ("input.n * 1.5", 7.5),
    ("input.n + input.amount", 1005.5),
    ("input.amount > 1000", True),
    ("7 / 2.0", 3.5),
    ("-input.amount", -1000.5),
    ("1u + 1", 2),
    ("input.big", BIG),
    ("[input.big, -input.n]", [BIG, -5]),
    ("input.big > 18446744073709551615", True),
    ("input.big == input.big", True),
    ("[input.big].map(x, x)", [BIG]),
    ('size("é😀")', 2),
    ('string(true) + string(false) + "!"', "truefalse!"),
    ("string(1e30)", "1e+30"),
    ("type(input)", "map"),
    ("input.map", {"b": 1, "a": 2}),
    ("input.map.map(k, k)", ["a", "b"]),
    ('{"z": 1, "a": 2, "m": 3}.filter(k, true)', ["a", "m", "z"]),
    ("[{}, {'a': 2}].exists(x, x.a == 2)", True),
    ("[{}, {'a': 2}].all(x, x.a == 1)", False),
    ('duration("1h") + timestamp("2026-01-31T12:00:00Z")', "2026-01-31T13:00:00Z"),
    ('timestamp("2026-01-31T13:00:00.25+01:00")', "2026-01-31T12:00:00.250Z"),
    ('timestamp("2026-01-31T00:30:00+01:00").getHours()', 23),
    ('timestamp(timestamp("2026-01-31T12:00:00Z")).getDate()', 31),
    ('duration(duration("90s"))', "1m30s"),
    ('[duration("1.5s"), {"at": timestamp("2026-01-31T12:00:00Z")}]', ["1.5s", {"at": "2026-01-31T12:00:00Z"}]),
    ('string(timestamp("2026-01-31T12:00:00Z"))', "2026-01-31T12:00:00Z"),
    ('type(duration("1s"))', "duration"),
    ("steps.size()", 2),
    ("steps", SCOPE["steps"]),
]


@pytest.mark.parametrize(("source", "expected"), OURS, ids=[source for source, _ in OURS])
def test_means_what_json_needs(source: str, expected: JSON) -> None:
    found = value_of(source)
    assert (found, type(found)) == (expected, type(expected))


def test_steps_may_be_a_view_that_is_not_a_dict() -> None:
    class View(Mapping[str, JSON]):
        def __getitem__(self, key: str) -> JSON:
            return {"result": key.upper()}

        def __iter__(self) -> Iterator[str]:
            return iter(["b", "a"])

        def __len__(self) -> int:
            return 2

        def __contains__(self, key: object) -> bool:
            return key in ("a", "b")

    scope: dict[str, Mapping[str, JSON]] = {"steps": View()}
    results = {"a": {"result": "A"}, "b": {"result": "B"}}
    for source, expected in {
        "steps.a.result": "A",
        "has(steps.c)": False,
        '"a" in steps': True,
        "steps.map(s, steps[s].result)": ["A", "B"],
        "[steps]": [results],
        "steps == {'a': {'result': 'A'}, 'b': {'result': 'B'}}": True,
    }.items():
        assert evaluate(compile_expression(source), scope) == expected  # type: ignore[arg-type]


def test_values_are_passed_on_without_a_copy() -> None:
    people = SCOPE["input"]["people"]  # type: ignore[index, call-overload]
    assert value_of("input.people") is people


# -- Failures ----------------------------------------------------------------------------------------------------------

FAILURES: list[tuple[str, str]] = [
    ("input.missing", "'missing' is missing"),
    ('input["missing"].x', "'missing' is missing"),
    ("input.map[input.secret]", "that key is missing"),
    ("input.list[9]", "9 is outside of the list"),
    ("input.list[input.n]", "that index is outside of the list"),
    ("input.list[-1]", "that index is outside of the list"),
    ("input.list[input.yes]", "a list has nothing at that index"),
    ("input.map[input.n]", "a map has nothing at that key"),
    ("input.secret.x", "a string has nothing at 'x'"),
    ("input.none.x", "null has nothing at 'x'"),
    ("input.secret[0]", "a string has nothing at 0"),
    ("item.x", "there is no 'item' here"),
    ("has(input.secret.x)", "a map is needed, not a string"),
    ("input.secret ? 1 : 2", "true or false is needed, not a string"),
    ("!input.n", "true or false is needed, not an int"),
    ("input.secret || false", "true or false is needed, not a string"),
    ("input.missing && input.other", "'missing' is missing"),
    ("-input.secret", "'-' does not apply to an int and a string"),
    ("input.secret + 1", "'+' does not apply to a string and an int"),
    ("input.secret - input.secret", "'-' does not apply to a string and a string"),
    ("input.secret * 2", "'*' does not apply to a string and an int"),
    ("input.yes + input.yes", "'+' does not apply to a bool and a bool"),
    ("1.5 % 1.0", "'%' does not apply to a double and a double"),
    ("input.secret < 1", "'<' does not apply to a string and an int"),
    ("input.map < input.map", "'<' does not apply to a map and a map"),
    ("1 / 0", "division by zero"),
    ("input.n % 0", "division by zero"),
    ("1.0 / 0.0", "division by zero"),
    ("9223372036854775807 + 1", "the result of '+' is out of range"),
    ("-9223372036854775808 / -1", "the result of '/' is out of range"),
    ("-(-9223372036854775808)", "out of range"),
    ("input.big + 1", "the result of '+' is out of range"),
    ("1e308 * 10", "the result of '*' is out of range"),
    ("input.huge * 1.5", "the result of '*' is out of range"),
    ('timestamp("9999-12-31T00:00:00Z") + duration("48h")', "the result of '+' is out of range"),
    ("1 in input.secret", "a list or a map is needed, not a string"),
    ("input.secret.map(x, x)", "a list or a map is needed, not a string"),
    ("input.list.filter(x, x)", "true or false is needed, not an int"),
    ("input.list.exists(x, x / 0 == 1)", "division by zero"),
    ("input.list.exists_one(x, x / 0 == 1)", "division by zero"),
    ("{input.n: 1}", "a string is needed, not an int"),
    ("size(input.n)", "a string, a list or a map is needed, not an int"),
    ("input.n.contains(input.secret)", "a string is needed, not an int"),
    ("input.secret.startsWith(input.n)", "a string is needed, not an int"),
    ("input.n.matches('a')", "a string is needed, not an int"),
    ("int(input.secret)", "int() does not accept this string"),
    ("int(1e300)", "int() does not accept this int"),
    ('int("99999999999999999999")', "int() does not accept this string"),
    ("int(input.yes)", "int() does not accept this bool"),
    ("double(input.secret)", "double() does not accept this string"),
    ('double("1.2.3")', "double() does not accept this string"),
    ('double("1e999")', "double() does not accept this string"),
    ("double(input.huge)", "double() does not accept this int"),
    ("double(input.yes)", "double() does not accept this bool"),
    ("string(input.none)", "string() does not accept null"),
    ("string(input.list)", "string() does not accept a list"),
    ("timestamp(input.secret)", "timestamp() does not accept this string"),
    ('timestamp("2026-02-30T00:00:00Z")', "timestamp() does not accept this value"),
    ('timestamp("2016-12-31T23:59:60Z")', "timestamp() does not accept this string"),
    ("timestamp(input.n)", "timestamp() does not accept this int"),
    ("duration(input.secret)", "duration() does not accept this string"),
    ('duration("")', "duration() does not accept this string"),
    ('duration("2562048h")', "duration() does not accept this string"),
    ("duration(input.n)", "duration() does not accept this int"),
    ("input.secret.getHours()", "getHours() does not apply to a string"),
]


@pytest.mark.parametrize(("source", "reason"), FAILURES, ids=[source for source, _ in FAILURES])
def test_a_failure_says_what_and_hides_the_values(source: str, reason: str) -> None:
    inputs = SCOPE["input"]
    assert isinstance(inputs, dict)
    error: BaseException | None = failure_of(source, {**SCOPE, "input": {**inputs, "huge": 10**400}})
    assert isinstance(error, ExpressionError)
    assert error.code == "expression_failed"
    assert error.message.startswith(f"The expression {source!r} failed: ")
    assert reason in error.message
    while error is not None:
        assert SECRET not in f"{error!r} {error}"
        error = error.__cause__ or error.__context__


def test_a_payload_that_is_too_deep_is_a_failure() -> None:
    def deep() -> JSON:
        value: JSON = []
        for _ in range(100_000):
            value = [value]
        return value

    assert "nested too deeply" in failure_of("input.a == input.b", {"input": {"a": deep(), "b": deep()}}).message


class Panicking:
    """Stands in for the library, which panics in ways nobody has found yet."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __call__(self, call: str) -> "Panicking":
        return self

    def execute(self, values: object) -> NoReturn:
        raise self.error


def test_a_panic_of_the_library_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):  # pyo3's; it cannot be imported
        pass

    monkeypatch.setattr(library, "load", Panicking(PanicException(SECRET)))
    assert "duration() does not accept this value" in failure_of('duration("1s")').message


def test_an_interruption_is_not_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "load", Panicking(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        value_of('duration("1s")')


# -- Results of a wanted type ------------------------------------------------------------------------------------------


def test_a_condition_is_a_bool() -> None:
    assert evaluate_bool(compile_expression("input.n > 1"), SCOPE) is True
    with pytest.raises(ExpressionError, match="it must give true or false, not an int") as caught:
        evaluate_bool(compile_expression("input.n"), SCOPE)
    assert caught.value.code == "expression_failed"


def test_a_fan_out_is_over_a_list() -> None:
    assert evaluate_list(compile_expression("steps.plan.result.x"), SCOPE) == [10, 20]
    with pytest.raises(ExpressionError, match="it must give a list, not a map"):
        evaluate_list(compile_expression("steps.plan.result"), SCOPE)


@pytest.mark.parametrize(
    ("source", "key"),
    [("input.s", "abc"), ("input.n", "5"), ("input.yes", "true"), ('" x"', " x"), ("input.big", str(BIG))],
)
def test_a_key_is_a_name(source: str, key: str) -> None:
    assert evaluate_key(compile_expression(source), SCOPE) == key


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ('""', "a blank one"),
        ('" "', "a blank one"),
        ("null", "null"),
        ("1.5", "a double"),
        ("[]", "a list"),
        ("{}", "a map"),
    ],
)
def test_a_key_is_never_blank_or_structured(source: str, what: str) -> None:
    with pytest.raises(ExpressionError, match=f"not of {what}"):
        evaluate_key(compile_expression(source), SCOPE)


# -- What an expression reads ------------------------------------------------------------------------------------------

READS: list[tuple[str, tuple[str, ...], tuple[str, ...], bool]] = [
    ("1 + 1", (), (), False),
    ("input.amount > variables.limit", ("input", "variables"), (), False),
    ("steps.plan.result", ("steps",), ("plan",), False),
    ('steps["book-hotel"].result', ("steps",), ("book-hotel",), False),
    ("steps['plan']", ("steps",), ("plan",), False),
    (r'steps["\u0070lan"]', ("steps",), ("plan",), False),
    ('steps["a.b"].result + steps.a.result', ("steps",), ("a", "a.b"), False),
    ("has(steps.plan.result)", ("steps",), ("plan",), False),
    ("has(steps.plan)", ("steps",), ("plan",), False),
    ("steps.b.result == steps.a.result", ("steps",), ("a", "b"), False),
    ("steps[input.which].result", ("input", "steps"), (), True),
    ('steps["a" + "b"]', ("steps",), (), True),
    ("steps", ("steps",), (), True),
    ("(steps).plan", ("steps",), (), True),
    ("size(steps) + steps.plan.result", ("steps",), ("plan",), True),
    ("steps[0]", ("steps",), (), True),
    ("steps.map(s, s)", ("steps",), (), True),
    ("input.l.map(steps, steps.plan)", ("input",), (), False),
    ("input.l.map(x, x.steps.plan)", ("input",), (), False),
    ('input.steps.plan + "steps.plan" // steps.plan', ("input",), (), False),
    ('{"steps": 1}.steps', (), (), False),
    ("item.email + string(index) + context.id", ("context", "index", "item"), (), False),
]


@pytest.mark.parametrize(("source", "roots", "steps", "all_steps"), READS, ids=[row[0] for row in READS])
def test_what_it_reads_is_known_beforehand(
    source: str, roots: tuple[str, ...], steps: tuple[str, ...], all_steps: bool
) -> None:
    expression = compile_expression(source)
    assert (expression.roots, expression.steps, expression.reads_all_steps) == (roots, steps, all_steps)
    template = compile_template(["${" + source + "\n}"])
    assert (template.roots, template.steps, template.reads_all_steps) == (roots, steps, all_steps)


def test_it_is_compiled_once() -> None:
    assert compile_expression("input.x") is compile_expression("input.x")
    assert repr(compile_expression("input.x")).startswith("Expression(source='input.x', roots=('input',)")


def test_only_allowed_names_are_known() -> None:
    node = frozenset({"input", "steps"})
    assert compile_expression("input.list.map(item, item)", node).roots == ("input",)
    message = refusal_of("input.n > item.n", node).message
    assert "'item' at character 11 is not known here; an expression here may read input, steps" in message
    assert "may read nothing" in refusal_of("input", frozenset()).message


# -- Refusals ----------------------------------------------------------------------------------------------------------

REFUSALS: list[tuple[str, str]] = [
    ("", "a value is expected at character 1, where the expression ends"),
    ("  ", "a value is expected at character 3, where the expression ends"),
    ("1 +", "a value is expected at character 4, where the expression ends"),
    ("1 +* 2", "a value is expected at character 4, where there is '*'"),
    ("input.", "a name is expected at character 7"),
    ("input.in", "a name is expected at character 7, where there is 'in'"),
    ("input.true", "a name is expected at character 7, where there is 'true'"),
    ("input b", "an operator or the end is expected at character 7, where there is 'b'"),
    ("a.1", "'a' at character 1 is not known here"),
    ("input.1", "an operator or the end is expected at character 6"),
    ("in", "a value is expected at character 1, where there is 'in'"),
    ("input = 1", "there is '=', which means nothing, at character 7"),
    ("${input}", "there is '$', which means nothing, at character 1"),
    ("input & 1", "there is '&', which means nothing"),
    ("é", "there is 'é', which means nothing"),
    ('"abc', "there is a string that never ends at character 1"),
    ("'a\nb'", "a string that never ends"),
    ('"""abc"', "is expected at character 3"),
    ('rb"x"', "'rb' at character 1 is not known here"),
    ('b"x"', "there are bytes at character 1, and JSON has none"),
    (r'"\q"', r"\q stands for no character"),
    (r'"\xg1"', r"\x stands for no character"),
    (r'"\ud800"', r"\ud800 stands for no character"),
    (r'"\U00110000"', r"\U00110000 stands for no character"),
    (r'"\400"', r"\4 stands for no character"),
    ("99999999999999999999", "the number at character 1 is too large"),
    ("9" * 4000, "the number at character 1 is too large"),
    ("1e400", "the number at character 1 is too large"),
    ("(1", "')' is expected at character 3, where the expression ends"),
    ("[1", "']' is expected at character 3"),
    ("[1 2]", "']' is expected at character 4, where there is '2'"),
    ("[,]", "a value is expected at character 2"),
    ('{"a"}', "':' is expected at character 5, where there is '}'"),
    ('{"a": 1', "'}' is expected"),
    ("true ? 1", "':' is expected"),
    ("input.list[1", "']' is expected"),
    ("size(1, 2)", "size() has the wrong number of arguments"),
    ("input.s.contains()", "contains() has the wrong number of arguments"),
    ("size(1", "')' is expected"),
    ('input.s.matches("(")', "the pattern at character 17 is no regular expression, or too large"),
    (r"input.s.matches(r'\w{1000}')", "is no regular expression, or too large"),
    ("input.s.matches(input.s)", "matches() takes one literal string, as in input.name.matches('^A')"),
    ("input.s.matches('a' + 'b')", "matches() takes one literal string"),
    ("input.s.matches()", "matches() takes one literal string"),
    ("foo(1)", "there is no function foo(); there are double, duration, dyn, int, size, string, timestamp, type"),
    ("input.foo(1)", "there is no method foo(); there are contains, endsWith, matches, size, startsWith, getDate"),
    ("map(x, 1)", "there is no function map()"),
    ("Msg{a: 1}", "'Msg' at character 1 is not known here"),
    ("optional.of(1)", "'optional' at character 1 is not known here"),
    ("x", "may read context, index, input, item, steps, variables"),
    ("has(input)", "has() takes a field, as in has(input.discount)"),
    ('has(input["a"])', "has() takes a field"),
    ("has(size(input))", "has() takes a field"),
    ("has(input.a + 1)", "')' is expected"),
    ("input.list.map(1, 2)", "the name of a loop variable is expected at character 16"),
    ("input.list.map(x.y, 2)", "',' is expected at character 17, where there is '.'"),
    ("input.list.map(x)", "',' is expected"),
    ("input.list.all(x, x, x)", "')' is expected"),
    ("input.list.map(x, x) + x", "'x' at character 24 is not known here"),
    ("now()", "now() would answer otherwise when the execution is replayed"),
    ("input.at < now()", "pass such values as input"),
    ("random() > 0.5", "random() would answer otherwise"),
    ('env("HOME")', "env() would answer otherwise"),
    ("input.uuid()", "uuid() would answer otherwise"),
    ("input.l.map(a, a.map(b, b.filter(c, c.all(d, d))))", "more than 3 loops (all, exists, exists_one, filter, map)"),
    ("1" + " " * MAX_SOURCE, f"it is longer than {MAX_SOURCE} characters"),
]


@pytest.mark.parametrize(("source", "reason"), REFUSALS, ids=[source[:40] for source, _ in REFUSALS])
def test_a_refusal_says_what_and_where(source: str, reason: str) -> None:
    error = refusal_of(source)
    assert error.code == "expression_invalid"
    assert reason in error.message
    assert repr(source[:150])[:-1] in error.message
    assert len(error.message) < 600


DEEP = {
    "parentheses": ("(", "1", ")"),
    "lists": ("[", "1", "]"),
    "maps": ('{"a":', "1", "}"),
    "calls": ("size(", "input", ")"),
    "not": ("!", "true", ""),
    "minus": ("-", "1", ""),
    "choices": ("true ? 1 : ", "1", ""),
    "indexes": ("", "input", "[input.n]"),
    "methods": ("", "input", ".size()"),
}


@pytest.mark.parametrize("shape", DEEP)
def test_nesting_is_bounded(shape: str) -> None:
    before, core, after = DEEP[shape]
    compile_expression(before * (MAX_DEPTH - 2) + core + after * (MAX_DEPTH - 2))
    for depth in (MAX_DEPTH, 300):
        error = refusal_of(before * depth + core + after * depth)
        assert f"nested more than {MAX_DEPTH} levels deep" in error.message


@pytest.mark.parametrize("sign", ["+", "-", "*", "==", "&&", "||"])
def test_chains_are_not_nesting(sign: str) -> None:
    operand = "true" if sign in ("&&", "||", "==") else "1"
    assert value_of(sign.join([operand] * 600)) == {"+": 600, "-": -598, "*": 1}.get(sign, True)
    assert value_of("input" + ".a" * 1000, {"input": _nested("a", 1000)}) == 1


def _nested(key: str, depth: int) -> JSON:
    value: JSON = 1
    for _ in range(depth):
        value = {key: value}
    return value


WORK: list[tuple[str, JSON]] = [
    ("input.map(x, input.map(y, 1))", [1] * 1000),
    ("input.exists(x, input.exists(y, y == 2)) || true", [1] * 1000),
    ("input.all(x, x in input)", list(range(1000))),
    ("input.all(x, input == input)", [1] * 1000),
    ("input.all(x, [{'a': input}] == [{'a': input}])", [1] * 1000),
    ("input.all(x, size(input + input) > 0)", [1] * 1000),
    ("input.all(x, x + x + x != '')", ["x" * 50_000] * 300),
    ("input.all(x, !x.contains('y'))", ["x" * 1_000_000] * 100),
    ("input.all(x, !x.matches('y'))", ["x" * 10] * 10_000),
]


@pytest.mark.parametrize(("source", "value"), WORK, ids=[source for source, _ in WORK])
def test_work_is_bounded_and_nothing_absorbs_that(source: str, value: JSON) -> None:
    with pytest.raises(ExpressionError) as caught:
        value_of(source, {"input": value})
    assert caught.value.code == "expression_too_costly"
    assert f"takes more than {MAX_WORK:,} units of work" in caught.value.message
    assert repr(source) in caught.value.message


def test_a_large_fan_out_is_cheap() -> None:
    people: JSON = [{"id": index, "active": index % 2 == 0} for index in range(100_000)]
    assert len(evaluate_list(compile_expression("input.filter(p, p.active).map(p, p.id)"), {"input": people})) == 50_000


WORDS = ["input", "steps", "item", "x", "true", "null", "in", "1", "2.5", "0x", "1e999", "'a'", '"b"', r"r'\'", "é"]
CALLS = [".n", ".map(x,", ".filter(", ".size()", "has(", "size(", "int(", "timestamp(", "duration("]
SIGNS = [*"()[]{},:?!-+*/%<.$'\"\\\n", "==", "&&", "||", "${", "$${", "//"]


@given(pieces=st.lists(st.sampled_from(WORDS + CALLS + SIGNS), max_size=12), gap=st.sampled_from(["", " "]))
@settings(max_examples=1000, deadline=None)
def test_any_text_is_an_expression_or_an_expression_error(pieces: list[str], gap: str) -> None:
    source = gap.join(pieces)
    for use in (value_of, lambda text: compile_template(text).render(SCOPE)):
        with suppress(ExpressionError):
            json.dumps(use(source), allow_nan=False)


# -- The same everywhere -----------------------------------------------------------------------------------------------

PROGRAM = """
import json, sys
from tenuto.kernel.expression import compile_expression, compile_template, evaluate

keys = [f"k{n}" for n in range(40)]
assert "cel" not in sys.modules and "asyncio" not in sys.modules
answers = []
for order in (keys, keys[::-1]):
    scope = {"input": {"map": {key: {"n": len(key), "key": key} for key in order}}, "steps": {}}
    for source in (
        "input.map.map(k, k)",
        "input.map.filter(k, k.endsWith('1'))",
        "input.map.map(k, input.map[k].n)",
        "input.map.exists(k, input.map[k].nope)",
        "{'z': 1, 'y': 2, 'x': {'b': 1, 'a': 2}}",
        "{'z': 1, 'y': 2}.map(k, k)",
        "input.zzz || input.yyy",
        "foo(input)",
        "nothing.at.all",
    ):
        try:
            answers.append(json.dumps(evaluate(compile_expression(source), scope)))
        except Exception as error:
            answers.append(str(error))
    template = compile_template("${input.map} ${steps.b} ${steps.a} ${variables} ${context}")
    answers.append([template.roots, template.steps])
    answers.append(compile_template("${input.map}!").render(scope))
assert answers[: len(answers) // 2] == answers[len(answers) // 2 :]
assert "cel" not in sys.modules and "asyncio" not in sys.modules
print(json.dumps(answers))
"""


def test_every_process_gives_the_same_answers() -> None:
    answers = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in (0, 1, 2, 3)
    }
    assert len(answers) == 1
    assert json.dumps(sorted(f"k{n}" for n in range(40))) in json.loads(answers.pop())


# -- Templates ---------------------------------------------------------------------------------------------------------

TEMPLATES: list[tuple[JSON, JSON]] = [
    ("${input.n}", 5),
    ("${ input.n }", 5),
    ("${input.none}", None),
    ("${input.list}", [1, 2, 3]),
    ("${input.big}", BIG),
    ("n=${input.n}", "n=5"),
    ("${input.s}${input.s}", "abcabc"),
    (" ${input.n}", " 5"),
    ("${input.none}|${input.yes}|${input.amount}|${2.0}", "|true|1000.5|2.0"),
    ("${input.map} and ${input.list}", '{"a":2,"b":1} and [1,2,3]'),
    ("é ${'é'} ${['é']}", 'é é ["é"]'),
    ("$${input.n}", "${input.n}"),
    ("$${input.n} ${input.n}", "${input.n} 5"),
    ("$$${input.n}", "$${input.n}"),
    ("${input.n}$${x}${input.n}", "5${x}5"),
    ("$${${input.n}", "${5"),
    ("$${", "${"),
    ('${"$"}${input.n}', "$5"),
    ("$5 {not} } $", "$5 {not} } $"),
    ('${{"a": {"b": input.n}}}', {"a": {"b": 5}}),
    ('${{"a": {}}}!', '{"a":{}}!'),
    ("${'}'}${\"}{\"}${r'\\'}", "}}{\\"),
    ("${input.n // the } of a comment\n}", 5),
    ('${"""}"""}', "}"),
    (
        {"a": ["${input.n}", 1, {"b": "${input.s}!"}], "${input.n}": None},
        {"a": [5, 1, {"b": "abc!"}], "${input.n}": None},
    ),
]


@pytest.mark.parametrize(("template", "expected"), TEMPLATES, ids=[json.dumps(template) for template, _ in TEMPLATES])
def test_a_template_renders(template: JSON, expected: JSON) -> None:
    rendered = compile_template(template).render(SCOPE)
    assert (rendered, type(rendered)) == (expected, type(expected))


@pytest.mark.parametrize("value", [None, 1, "text", "$ {x}", [], {}, {"a": ["b", {"c": None}], "${input}": 1}])
def test_a_constant_template_gives_the_value_itself(value: JSON) -> None:
    template = compile_template(value)
    assert template.constant
    assert template.render({}) is value
    assert (template.roots, template.steps, template.reads_all_steps) == ((), (), False)


def test_a_template_adds_up_what_it_reads() -> None:
    template = compile_template({"a": "${steps.b.result} ${input.x}", "c": ["${steps['a-1']}", "${steps[context.id]}"]})
    assert not template.constant
    assert template.roots == ("context", "input", "steps")
    assert template.steps == ("a-1", "b")
    assert template.reads_all_steps


def test_all_problems_of_a_template_are_told_with_their_places() -> None:
    template: JSON = {
        "url": "${input.base}/${oops}",
        "json": {"amount": "${1 +}", "a/b~c": ["fine", "${"]},
        "text": "${'}",
        "ok": "${input.n}",
        "open": 'x ${{"a": 1}',
    }
    problems = template_problems(template, frozenset({"input"}))
    assert [pointer for pointer, _ in problems] == ["/url", "/json/amount", "/json/a~1b~0c/1", "/text", "/open"]
    messages = dict(problems)
    assert "'oops' at character 1 is not known here; an expression here may read input" in messages["/url"]
    assert "a value is expected at character 4, where the expression ends" in messages["/json/amount"]
    assert (
        "The '${' at character 1 of '${' does not enclose an expression: it is never closed"
        in messages["/json/a~1b~0c/1"]
    )
    assert "there is a string that never ends at character 3" in messages["/text"]
    assert "The '${' at character 3 of" in messages["/open"]
    with pytest.raises(ExpressionError) as caught:
        compile_template(template, frozenset({"input"}))
    assert caught.value.code == "expression_invalid"
    assert caught.value.message.splitlines() == [f"At {pointer}: {message}" for pointer, message in problems]


def test_a_template_without_problems_has_none() -> None:
    assert template_problems({"a": "${input.n} $${", "b": 1}) == []


def test_a_text_that_is_the_whole_template_needs_no_pointer() -> None:
    with pytest.raises(ExpressionError, match=r"^The expression '1 \+' is not valid"):
        compile_template("${1 +}")
    with pytest.raises(ExpressionError, match=r"^The expression 'input.nope' failed"):
        compile_template("${input.nope}").render(SCOPE)


@pytest.mark.parametrize("text", ["${input.secret.x}", "a ${input.secret.x} b"])
def test_a_template_that_fails_says_where_and_hides_the_values(text: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        compile_template({"json": {"amount": text}}).render(SCOPE)
    assert caught.value.code == "expression_failed"
    assert caught.value.message.startswith("At /json/amount: The expression 'input.secret.x' failed: ")
    assert SECRET not in caught.value.message

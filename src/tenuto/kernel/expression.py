"""Expressions: a closed and pure part of CEL, compiled with the plan, and `${…}` templates made of them.

Laws
  1. Same source, same scope, same answer: in every process, release and store. So no clock, chance or environment is
     in reach, and a map is walked in the order of its keys, whatever order it arrived in.
  2. Work is bounded: length, nesting and nested loops when compiled, list elements visited when evaluated.
  3. An error names the expression and the kind of failure; of the payload, not one value.

Syntax and meaning are CEL's (github.com/google/cel-spec), the types are JSON's. Where the two differ:
  - a number is a number: `input.amount * 2` works for 10 and for 10.5, and is a double if either side is. Integers
    divide as in CEL: `7 / 2 == 3`. Results are 64-bit integers or finite doubles; larger integers of the payload can
    be passed on and compared, exactly.
  - keys of maps are strings, and there are no bytes; `1u` is 1; `type(x)` is the name of a type; `matches` takes its
    pattern as a literal.
  - a result is JSON: a timestamp becomes "2026-01-31T12:00:00Z", a duration "1h30m0s", both to the microsecond.

The library `cel` reads times and regular expressions; it does not evaluate, though it could. Version 0.10 walks maps
in random order, is quadratic in `map` and `filter` (10,000 objects take a minute), refuses `10.5 * 2`, rounds large
integers, puts values into messages, and overflows small stacks. The tests use it as the oracle of what CEL means.
"""

import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf, isfinite
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeAlias, TypeVar, cast

from tenuto.errors import ExpressionError

from .definition import JSON

if TYPE_CHECKING:
    import cel

T = TypeVar("T")

ROOTS = frozenset({"input", "steps", "variables", "context", "item", "index"})

MAX_SOURCE = 4096
MAX_DEPTH = 32
MAX_LOOPS = 3  # inside one another: each multiplies
MAX_WORK = 250_000  # list elements that one evaluation may visit: about a second


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Expression:
    """`roots` and `steps` are what it reads, sorted; `reads_all_steps` means that which ones only a run can tell."""

    source: str
    roots: tuple[str, ...]
    steps: tuple[str, ...]
    reads_all_steps: bool
    compute: "Compute" = field(repr=False)
    is_json: bool = field(repr=False)  # by construction: the result needs no conversion


def compile_expression(source: str, allowed: frozenset[str] = ROOTS) -> Expression:
    """Compiles, once per source, or raises `expression_invalid`. `allowed` are the roots that it may read."""
    return _compile(source, allowed)


def evaluate(expression: Expression, scope: Mapping[str, JSON]) -> JSON:
    """The value as JSON, or `expression_failed`. It may share parts with the scope, so neither is to be changed."""
    try:
        value = expression.compute(_Run(scope))
        return cast(JSON, value) if expression.is_json else _to_json(value)
    except (_Failure, _Exhausted) as failure:
        reason = str(failure)
    except RecursionError:
        reason = "a value is nested too deeply"
    raise _failed(expression, reason)  # out here, so that no exception it is chained to shows a value


def evaluate_bool(expression: Expression, scope: Mapping[str, JSON]) -> bool:
    value = evaluate(expression, scope)
    if isinstance(value, bool):
        return value
    raise _failed(expression, f"it must give true or false, not {_a(value)}")


def evaluate_list(expression: Expression, scope: Mapping[str, JSON]) -> list[JSON]:
    value = evaluate(expression, scope)
    if isinstance(value, list):
        return value
    raise _failed(expression, f"it must give a list, not {_a(value)}")


def evaluate_key(expression: Expression, scope: Mapping[str, JSON]) -> str:
    """A name made of a string, an integer or a bool, for concurrency keys and suffixes of clones. Never blank."""
    value = evaluate(expression, scope)
    if isinstance(value, bool | int | str) and (key := _to_text(value)).strip():
        return key
    what = "a blank one" if isinstance(value, str) else _a(value)
    raise _failed(expression, f"a key is made of a string, an integer or a bool, not of {what}")


def _failed(expression: Expression, reason: str) -> ExpressionError:
    return ExpressionError(f"The expression {_quote(expression.source)} failed: {reason}.", code="expression_failed")


@lru_cache(maxsize=4096)
def _compile(source: str, allowed: frozenset[str]) -> Expression:
    try:
        if len(source) > MAX_SOURCE:
            raise _Invalid(f"it is longer than {MAX_SOURCE} characters")
        parser = _Parser(source, allowed)
        compute = parser.parse()
    except _Invalid as problem:
        message = f"The expression {_quote(source)} is not valid: {problem}."
        raise ExpressionError(message, code="expression_invalid") from None
    return Expression(
        source=source,
        roots=tuple(sorted(parser.roots)),
        steps=tuple(sorted(parser.steps)),
        reads_all_steps=parser.reads_all_steps,
        compute=compute,
        is_json=not (parser.uses_time or parser.reads_all_steps),
    )


def _quote(source: str) -> str:
    return repr(source if len(source) <= 200 else f"{source[:199]}…")


# -- Templates ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Template:
    """A JSON value with `${expression}` in its strings, at any depth; keys are left alone.

    A string that is one expression becomes its value, of whatever type. Inside text, strings appear as they are, null
    as nothing, everything else as compact JSON with sorted keys. `$${` stands for a literal `${`.
    """

    value: JSON
    constant: bool  # nothing to render: `render` gives the value itself
    roots: tuple[str, ...]
    steps: tuple[str, ...]
    reads_all_steps: bool
    renderer: "Render | None" = field(repr=False)

    def render(self, scope: Mapping[str, JSON]) -> JSON:
        """Raises `expression_failed`, saying where in the template."""
        return self.value if self.renderer is None else self.renderer(scope)


def compile_template(value: JSON, allowed: frozenset[str] = ROOTS) -> Template:
    """Compiles, or raises `expression_invalid` with all the problems, each with its JSON pointer."""
    survey = _Survey(allowed)
    renderer = survey.visit(value, "")
    if survey.problems:
        raise ExpressionError("\n".join(_located(*problem) for problem in survey.problems), code="expression_invalid")
    return Template(
        value=value,
        constant=renderer is None,
        roots=tuple(sorted({root for expression in survey.found for root in expression.roots})),
        steps=tuple(sorted({step for expression in survey.found for step in expression.steps})),
        reads_all_steps=any(expression.reads_all_steps for expression in survey.found),
        renderer=renderer,
    )


def template_problems(value: JSON, allowed: frozenset[str] = ROOTS) -> list[tuple[str, str]]:
    """Everything that is wrong with a template: (JSON pointer, message)."""
    survey = _Survey(allowed)
    survey.visit(value, "")
    return survey.problems


Render: TypeAlias = Callable[[Mapping[str, JSON]], JSON]


class _Survey:
    """One walk through a template: its expressions, its problems, and a renderer for each part that is not constant."""

    def __init__(self, allowed: frozenset[str]) -> None:
        self.allowed = allowed
        self.found: list[Expression] = []
        self.problems: list[tuple[str, str]] = []

    def visit(self, value: JSON, pointer: str) -> Render | None:
        if isinstance(value, str):
            return self.text(value, pointer) if "${" in value else None
        if isinstance(value, list):
            items = [(each, self.visit(each, f"{pointer}/{index}")) for index, each in enumerate(value)]
            if any(render for _, render in items):
                return lambda scope: [render(scope) if render else each for each, render in items]
        if isinstance(value, dict):
            fields = {key: (each, self.visit(each, f"{pointer}/{_escape(key)}")) for key, each in value.items()}
            if any(render for _, render in fields.values()):
                return lambda scope: {k: render(scope) if render else each for k, (each, render) in fields.items()}
        return None

    def text(self, text: str, pointer: str) -> Render | None:
        try:
            parts = list(_parts(text, self.allowed))
        except ExpressionError as error:
            self.problems.append((pointer, error.message))
            return None
        self.found.extend(part for part in parts if isinstance(part, Expression))
        if len(parts) == 1 and isinstance(alone := parts[0], Expression):
            return lambda scope: _value_at(pointer, alone, scope)
        return lambda scope: "".join(p if isinstance(p, str) else _to_text(_value_at(pointer, p, scope)) for p in parts)


def _value_at(pointer: str, expression: Expression, scope: Mapping[str, JSON]) -> JSON:
    try:
        return evaluate(expression, scope)
    except ExpressionError as error:
        raise ExpressionError(_located(pointer, error.message), code=error.code) from None


def _parts(text: str, allowed: frozenset[str]) -> Iterator[str | Expression]:
    at = 0
    while (opening := text.find("${", at)) >= 0:
        if text[at:opening].endswith("$"):
            yield f"{text[at : opening - 1]}${{"
            at = opening + 2
            continue
        if opening > at:
            yield text[at:opening]
        closing = _closing_brace(text, opening + 2)
        yield compile_expression(text[opening + 2 : closing].strip(), allowed)
        at = closing + 1
    if at < len(text):
        yield text[at:]


def _closing_brace(text: str, start: int) -> int:
    depth = 0
    try:
        for token in _tokens(text, start):
            if token.text == "}" and depth == 0:
                return token.start
            depth += (token.text == "{") - (token.text == "}")
        reason = "it is never closed"
    except _Invalid as problem:
        reason = str(problem)
    message = f"The '${{' at character {start - 1} of {_quote(text)} does not enclose an expression: {reason}."
    raise ExpressionError(f"{message} ('$${{' stands for a literal '${{'.)", code="expression_invalid")


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _located(pointer: str, message: str) -> str:
    return f"At {pointer}: {message}" if pointer else message


# -- Reading: tokens, then one pass that checks names and leaves closures ----------------------------------------------


class _Invalid(Exception):
    """Refused when compiled."""


class _Token(NamedTuple):
    kind: str
    text: str
    start: int


_TOKEN = re.compile(
    r"""
      (?P<blank>  \s+ | //[^\n]* )
    | (?P<string> [bB]? [rR] (?: \"{3}.*?\"{3} | '{3}.*?'{3} | "[^"\r\n]*" | '[^'\r\n]*' )
                | [bB]? (?: \"{3}(?:\\.|[^\\])*?\"{3} | '{3}(?:\\.|[^\\])*?'{3}
                          | "(?:\\.|[^"\\\r\n])*" | '(?:\\.|[^'\\\r\n])*' ) )
    | (?P<double> \d*\.\d+ (?:[eE][+-]?\d+)? | \d+[eE][+-]?\d+ )
    | (?P<int>    (?: 0[xX][0-9a-fA-F]+ | \d+ ) [uU]? )
    | (?P<name>   [A-Za-z_]\w* )
    | (?P<sign>   && | \|\| | [=!<>]= | [-+*/%<>!?:.,()\[\]{}] )
    """,
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_ESCAPE = re.compile(r"\\(?:[xX]([\da-fA-F]{2})|u([\da-fA-F]{4})|U([\da-fA-F]{8})|([0-3][0-7]{2})|(.))", re.DOTALL)
_ESCAPED = dict(zip("abfnrtv\\'\"`?", "\a\b\f\n\r\t\v\\'\"`?", strict=True))
_WORDS = {"true": True, "false": False, "null": None}


def _tokens(source: str, at: int = 0) -> Iterator[_Token]:
    while at < len(source):
        match = _TOKEN.match(source, at)
        if match is None:
            what = "a string that never ends" if source[at] in "\"'" else f"{source[at]!r}, which means nothing,"
            raise _Invalid(f"there is {what} at character {at + 1}")
        if (kind := match.lastgroup or "") != "blank":
            yield _Token(kind, match.group(), at)
        at = match.end()
    yield _Token("end", "", at)


class _Parser:
    """CEL's grammar, by recursive descent. MAX_DEPTH bounds the recursion; chains of operators are loops."""

    def __init__(self, source: str, allowed: frozenset[str]) -> None:
        self.tokens = list(_tokens(source))
        self.at = 0
        self.depth = 0
        self.allowed = allowed
        self.loops: list[str] = []  # the variables of the loops around this place
        self.roots: set[str] = set()
        self.steps: set[str] = set()
        self.reads_all_steps = False
        self.uses_time = False

    def parse(self) -> "Compute":
        compute = self.choice()
        if self.tokens[self.at].kind != "end":
            self.refuse("an operator or the end")
        return compute

    def choice(self) -> "Compute":
        self.deeper()
        compute = self.logic("||")
        if self.take("?"):
            then = self.logic("||")
            self.expect(":")
            compute = _choice(compute, then, self.choice())
        self.depth -= 1
        return compute

    def logic(self, sign: str) -> "Compute":
        def operand() -> Compute:
            return self.logic("&&") if sign == "||" else self.binary(0)

        operands = [operand()]
        while self.take(sign):
            operands.append(operand())
        return operands[0] if len(operands) == 1 else lambda run: _decide(run, operands, decisive=sign == "||")

    def binary(self, level: int) -> "Compute":
        if level == len(_OPERATORS):
            return self.unary()
        first = self.binary(level + 1)
        rest: list[tuple[Operator, Compute]] = []
        while operation := _OPERATORS[level].get(self.tokens[self.at].text):
            self.at += 1
            rest.append((operation, self.binary(level + 1)))
        return _chain(first, rest) if rest else first

    def unary(self) -> "Compute":
        for sign, operation in (("!", _not), ("-", _negative)):
            if self.take(sign):
                self.deeper()
                operand = self.unary()
                self.depth -= 1
                return lambda run: operation(run, operand(run))
        return self.settle(*self.member())

    def member(self) -> tuple["Compute", str | None, list[str | int]]:
        """A value, the root it is (if any), and the constant keys that follow: so what is read is known beforehand."""
        depth = self.depth
        value, root = self.primary()
        keys: list[str | int] = []
        while True:
            if self.take("."):
                name = self.name()
                if self.take("("):
                    self.deeper()
                    value, root, keys = self.method(name, self.settle(value, root, keys)), None, []
                else:
                    keys.append(name)
            elif self.take("["):
                token = self.tokens[self.at]
                if token.kind in ("string", "int") and self.tokens[self.at + 1].text == "]":
                    self.at += 1
                    keys.append(cast("str | int", self.literal(token)))
                else:
                    self.deeper()
                    value, root, keys = _chain(self.settle(value, root, keys), [(_index, self.choice())]), None, []
                self.expect("]")
            else:
                self.depth = depth
                return value, root, keys

    def settle(self, value: "Compute", root: str | None, keys: list[str | int]) -> "Compute":
        if root == "steps" and keys and isinstance(keys[0], str):
            self.steps.add(keys[0])
        elif root == "steps":
            self.reads_all_steps = True
        return _path(value, keys) if keys else value

    def primary(self) -> tuple["Compute", str | None]:
        token = self.tokens[self.at]
        self.at += 1
        if token.kind in ("string", "int", "double"):
            return _constant(self.literal(token)), None
        if token.text in _WORDS:
            return _constant(_WORDS[token.text]), None
        if token.text == "(":
            value = self.choice()
            self.expect(")")
            return value, None
        if token.text == "[":
            items = self.several("]", self.choice)
            return lambda run: [item(run) for item in items], None
        if token.text == "{":
            entries = self.several("}", self.entry)
            return lambda run: {_string(key(run)): value(run) for key, value in entries}, None
        self.at -= 1
        name = self.name("a value")
        if self.take("("):
            return (self.has() if name == "has" else self.call(name, _FUNCTIONS)), None
        return self.variable(name, token.start)

    def variable(self, name: str, start: int) -> tuple["Compute", str | None]:
        if name in self.loops:
            slot = len(self.loops) - 1 - self.loops[::-1].index(name)  # the innermost of that name
            return lambda run: run.slots[slot], None
        if name in self.allowed:
            self.roots.add(name)
            return _root(name), name
        if name in _TYPES:
            return _constant(name), None
        known = ", ".join(sorted(self.allowed)) or "nothing"
        raise _Invalid(f"{name!r} at character {start + 1} is not known here; an expression here may read {known}")

    def method(self, name: str, value: "Compute") -> "Compute":
        if name == "matches":
            self.check_pattern()
        if name not in _LOOPS:
            return self.call(name, _METHODS, value)
        if len(self.loops) == MAX_LOOPS:
            raise _Invalid(f"more than {MAX_LOOPS} loops ({', '.join(_LOOPS)}) are inside one another")
        variable = self.name("the name of a loop variable")
        self.expect(",")
        self.loops.append(variable)
        body = self.choice()
        mapped = self.choice() if name == "map" and self.take(",") else None
        self.loops.pop()
        self.expect(")")
        return _loop(_LOOPS[name], value, len(self.loops), body, mapped)

    def call(self, name: str, functions: "dict[str, Function]", value: "Compute | None" = None) -> "Compute":
        if name in _IMPURE:
            raise _Invalid(f"{name}() would answer otherwise when the execution is replayed; pass such values as input")
        if name not in functions:
            kind = "method" if value else "function"
            raise _Invalid(f"there is no {kind} {name}(); there are {', '.join(functions)}")
        arity, function = functions[name]
        operands = [value] if value else []
        operands += self.several(")", self.choice)
        if len(operands) != arity:
            raise _Invalid(f"{name}() has the wrong number of arguments")
        if name in ("timestamp", "duration"):
            self.uses_time = True
            _program("duration(a)")  # so that the library is loaded now, and not by the first execution that asks
        first, second = operands[0], operands[1] if arity == 2 else _constant(None)
        return lambda run: function(run, first(run), second(run))

    def check_pattern(self) -> None:
        # Rust's expressions match in linear time, but a hostile one takes long to compile: a payload may not choose it.
        token = self.tokens[self.at]
        if token.kind != "string" or self.tokens[self.at + 1].text != ")":
            raise _Invalid("matches() takes one literal string, as in input.name.matches('^A')")
        try:
            _ask("matches", "a.matches(b)", "", _unquoted(token))
        except _Failure:
            raise _Invalid(
                f"the pattern at character {token.start + 1} is no regular expression, or too large"
            ) from None

    def has(self) -> "Compute":
        value, root, keys = self.member()
        if not keys or self.tokens[self.at - 1].kind != "name":
            raise _Invalid("has() takes a field, as in has(input.discount)")
        self.expect(")")
        self.settle(value, root, keys)
        holder, last = _path(value, keys[:-1]), keys[-1]
        return lambda run: last in _map(holder(run))

    def several(self, closing: str, read: Callable[[], T]) -> list[T]:
        found: list[T] = []
        while not self.take(closing):
            found.append(read())
            if not self.take(","):
                self.expect(closing)
                break
        return found

    def entry(self) -> tuple["Compute", "Compute"]:
        key = self.choice()
        self.expect(":")
        return key, self.choice()

    def literal(self, token: _Token) -> str | int | float:
        if token.kind == "string":
            return _unquoted(token)
        digits = token.text.rstrip("uU")
        if token.kind == "int":
            value: float = int(digits, 16 if digits[:2] in ("0x", "0X") else 10)
        else:
            value = float(digits)
        if value >= (1 << 64 if token.kind == "int" else inf):
            raise _Invalid(f"the number at character {token.start + 1} is too large")
        return value

    def name(self, wanted: str = "a name") -> str:
        token = self.tokens[self.at]
        if token.kind != "name" or token.text in _WORDS or token.text == "in":
            self.refuse(wanted)
        self.at += 1
        return token.text

    def take(self, text: str) -> bool:
        found = self.tokens[self.at].text == text
        self.at += found
        return found

    def expect(self, text: str) -> None:
        if not self.take(text):
            self.refuse(repr(text))

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _Invalid(f"it is nested more than {MAX_DEPTH} levels deep")

    def refuse(self, wanted: str) -> NoReturn:
        token = self.tokens[self.at]
        found = f"there is {token.text!r}" if token.text else "the expression ends"
        raise _Invalid(f"{wanted} is expected at character {token.start + 1}, where {found}")


def _unquoted(token: _Token) -> str:
    if token.text[0] in "bB":
        raise _Invalid(f"there are bytes at character {token.start + 1}, and JSON has none")
    body = token.text.lstrip("rR")
    width = 3 if len(body) >= 6 and body[:3] in ('"""', "'''") else 1
    inner = body[width:-width]
    return inner if token.text[0] in "rR" else _ESCAPE.sub(_unescaped, inner)


def _unescaped(match: re.Match[str]) -> str:
    *hexadecimal, octal, other = match.groups()
    if other in _ESCAPED:
        return _ESCAPED[other]
    point = -1 if other else int(octal, 8) if octal else int("".join(filter(None, hexadecimal)), 16)
    if not 0 <= point <= 0x10FFFF or 0xD800 <= point < 0xE000:
        raise _Invalid(f"{match.group()} stands for no character")
    return chr(point)


# -- Evaluating --------------------------------------------------------------------------------------------------------


class _Failure(Exception):
    """What CEL calls an error: `false && error` is false."""


class _Exhausted(Exception):
    """Too much work. Not a `_Failure`, because nothing may absorb it."""


class _Run:
    """One evaluation: the scope, the variables of the loops, and the work that is left."""

    __slots__ = ("scope", "slots", "work")

    def __init__(self, scope: Mapping[str, JSON]) -> None:
        self.scope = scope
        self.slots: list[object] = [None] * MAX_LOOPS
        self.work = MAX_WORK

    def spend(self, work: int) -> None:
        self.work -= work
        if self.work < 0:
            raise _Exhausted(f"it takes more than {MAX_WORK:,} steps")


Compute: TypeAlias = Callable[[_Run], object]
Operator: TypeAlias = Callable[[_Run, object, object], object]
Function: TypeAlias = tuple[int, Operator]  # how many operands it has: one or two
Loop: TypeAlias = Callable[[_Run, Iterable[object], Compute, Compute | None], object]


def _constant(value: object) -> Compute:
    return lambda run: value


def _root(name: str) -> Compute:
    def root(run: _Run) -> object:
        if name in run.scope:
            return run.scope[name]
        raise _Failure(f"there is no {name!r} here")

    return root


def _path(value: Compute, keys: list[str | int]) -> Compute:
    named = [(key, repr(key)) for key in keys]  # they stand in the source, so a message may name them

    def path(run: _Run) -> object:
        current = value(run)
        for key, name in named:
            current = _at(current, key, name)
        return current

    return path


def _index(run: _Run, value: object, key: object) -> object:
    return _at(value, key, f"that {'index' if isinstance(value, list) else 'key'}")


def _at(value: object, key: object, named: str) -> object:
    if isinstance(value, _MAPS) and isinstance(key, str):
        if key in value:
            return value[key]
        raise _Failure(f"{named} is missing")
    if isinstance(value, list) and isinstance(key, int) and not isinstance(key, bool):
        if 0 <= key < len(value):
            return value[key]
        raise _Failure(f"{named} is outside of the list")
    raise _Failure(f"{_a(value)} has nothing at {named}")


def _choice(condition: Compute, then: Compute, otherwise: Compute) -> Compute:
    return lambda run: then(run) if _bool(condition(run)) else otherwise(run)


def _chain(first: Compute, rest: list[tuple[Operator, Compute]]) -> Compute:
    def chain(run: _Run) -> object:
        value = first(run)
        for operation, operand in rest:
            value = operation(run, value, operand(run))
        return value

    return chain


def _decide(run: _Run, operands: Iterable[Compute], *, decisive: bool) -> bool:
    """`||` and `exists` (true decides), `&&` and `all` (false does). As in CEL, a decisive operand outweighs errors."""
    failure: _Failure | None = None
    for operand in operands:
        try:
            if _bool(operand(run)) is decisive:
                return decisive
        except _Failure as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return not decisive


def _loop(loop: Loop, items: Compute, slot: int, body: Compute, mapped: Compute | None) -> Compute:
    def turns(run: _Run) -> Iterator[object]:
        found = items(run)
        if not isinstance(found, list):
            found = sorted(_map(found, "a list or a map"))
        run.spend(len(found))
        for item in found:
            run.slots[slot] = item
            yield item

    return lambda run: loop(run, turns(run), body, mapped)


def _map_loop(run: _Run, turns: Iterable[object], body: Compute, mapped: Compute | None) -> list[object]:
    return [body(run) for _ in turns] if mapped is None else [mapped(run) for _ in turns if _bool(body(run))]


_LOOPS: dict[str, Loop] = {
    "all": lambda run, turns, body, _: _decide(run, (body for _ in turns), decisive=False),
    "exists": lambda run, turns, body, _: _decide(run, (body for _ in turns), decisive=True),
    "exists_one": lambda run, turns, body, _: sum(_bool(body(run)) for _ in turns) == 1,
    "filter": lambda run, turns, body, _: [item for item in turns if _bool(body(run))],
    "map": _map_loop,
}


# -- Operators and functions -------------------------------------------------------------------------------------------


def _not(run: _Run, value: object) -> bool:
    return not _bool(value)


def _negative(run: _Run, value: object) -> object:
    return _minus(run, 0, value)


def _equal(run: _Run, left: object, right: object) -> bool:
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right  # to Python, True == 1
    if isinstance(left, list) and isinstance(right, list):
        run.spend(len(left))
        return len(left) == len(right) and all(_equal(run, a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, _MAPS) and isinstance(right, _MAPS):
        run.spend(len(left))
        return len(left) == len(right) and all(k in right and _equal(run, v, right[k]) for k, v in left.items())
    return left == right


def _within(run: _Run, item: object, container: object) -> bool:
    if isinstance(container, list):
        run.spend(len(container))
        return any(_equal(run, item, each) for each in container)
    found = _map(container, "a list or a map")
    return isinstance(item, str) and item in found


def _ordered(sign: str, compare: Callable[[float, float], bool]) -> Operator:
    def ordered(run: _Run, left: object, right: object) -> bool:
        kinds = _kind(left), _kind(right)
        if _NUMBERS.issuperset(kinds) or (kinds[0] == kinds[1] and kinds[0] in _ORDERED):
            return compare(cast(float, left), cast(float, right))
        raise _Failure(f"{sign!r} does not apply to {_a(left)} and {_a(right)}")

    return ordered


def _arithmetic(sign: str, calculate: Callable[[float, float], float]) -> Operator:
    def arithmetic(run: _Run, left: object, right: object) -> object:
        kinds = _kind(left), _kind(right)
        numbers = _NUMBERS.issuperset(kinds) and (sign != "%" or "double" not in kinds)
        if not numbers and not _JOINED.fullmatch(f"{kinds[0]}{sign}{kinds[1]}"):
            raise _Failure(f"{sign!r} does not apply to {_a(left)} and {_a(right)}")
        if sign in "/%" and right == 0:
            raise _Failure("division by zero")
        if isinstance(left, list | str) and isinstance(right, list | str):
            run.spend((len(left) + len(right)) // (64 if isinstance(left, str) else 1))
        try:
            result = calculate(cast(float, left), cast(float, right))
        except OverflowError:  # an integer beyond all doubles, or a time
            numbers, result = True, inf
        if not numbers or (isfinite(result) if "double" in kinds else _fits(result)):
            return result
        raise _Failure(f"the result of {sign!r} is out of range")

    return arithmetic


def _fits(number: float) -> bool:
    return -(1 << 63) <= number < 1 << 63


def _quotient(left: float, right: float) -> float:
    if isinstance(left, int) and isinstance(right, int):
        return abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)  # towards zero; Python's goes down
    return left / right


_minus = _arithmetic("-", operator.sub)
_OPERATORS: tuple[dict[str, Operator], ...] = (  # weakest first
    {
        "==": _equal,
        "!=": lambda run, left, right: not _equal(run, left, right),
        "<": _ordered("<", operator.lt),
        "<=": _ordered("<=", operator.le),
        ">": _ordered(">", operator.gt),
        ">=": _ordered(">=", operator.ge),
        "in": _within,
    },
    {"+": _arithmetic("+", operator.add), "-": _minus},
    {
        "*": _arithmetic("*", operator.mul),
        "/": _arithmetic("/", _quotient),
        "%": _arithmetic("%", lambda left, right: left - right * _quotient(left, right)),
    },
)


def _size(run: _Run, value: object, _: object) -> int:
    return len(value) if isinstance(value, str | list) else len(_map(value, "a string, a list or a map"))


def _int(run: _Run, value: object, _: object) -> object:
    if isinstance(value, float) or (isinstance(value, str) and re.fullmatch(r"[+-]?[0-9]{1,19}", value)):
        value = int(value)
    if _kind(value) == "int" and _fits(cast(int, value)):
        return value
    raise _Failure(f"int() does not accept this {_kind(value)}")


def _double(run: _Run, value: object, _: object) -> object:
    if _kind(value) in _NUMBERS or (isinstance(value, str) and re.fullmatch(r"[0-9.eE+-]+", value)):
        with suppress(OverflowError, ValueError):
            if isfinite(number := float(cast(float, value))):
                return number
    raise _Failure(f"double() does not accept this {_kind(value)}")


def _text_of(run: _Run, value: object, _: object) -> str:
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    if _kind(value) in ("null_type", "list", "map"):
        raise _Failure(f"string() does not accept {_a(value)}")
    return _to_text(_to_json(value))


def _timestamp(run: _Run, value: object, _: object) -> object:
    if isinstance(value, str) and _TIMESTAMP.fullmatch(value):
        # By way of the epoch, because the library keeps the offset, and getHours() is to answer in UTC.
        epoch = 'timestamp("1970-01-01T00:00:00Z")'
        return _ask("timestamp", f"{epoch} + (timestamp(a) - {epoch})", value)
    if _kind(value) == "timestamp":
        return value
    raise _Failure(f"timestamp() does not accept this {_kind(value)}")


def _duration(run: _Run, value: object, _: object) -> object:
    if isinstance(value, str) and _DURATION.fullmatch(value):
        return _ask("duration", "duration(a)", value)
    if _kind(value) == "duration":
        return value
    raise _Failure(f"duration() does not accept this {_kind(value)}")


def _contains(run: _Run, text: object, part: object) -> bool:
    run.spend(len(_string(text)) // 64)
    return _string(part) in _string(text)


def _matches(run: _Run, text: object, pattern: object) -> object:
    run.spend(50 + len(_string(text)) // 64)  # the library compiles the pattern every time
    return _ask("matches", "a.matches(b)", text, pattern)


def _part_of_time(name: str) -> Operator:
    def part(run: _Run, value: object, _: object) -> object:
        if _kind(value) in ("timestamp", "duration"):
            return _ask(name, f"a.{name}()", value)
        raise _Failure(f"{name}() does not apply to {_a(value)}")

    return part


def _ask(name: str, call: str, a: object, b: object = None) -> object:
    program = _program(call)
    try:
        return program.execute({"a": a, "b": b})
    except BaseException as error:  # a panic in Rust is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
    raise _Failure(f"{name}() does not accept this value")  # the library's own words would quote it


@lru_cache
def _program(call: str) -> "cel.Program":
    import cel  # here, because it brings a command line and asyncio along, and few expressions need it

    return cel.compile(call)


_TIMESTAMP = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})"
)
# So many digits, because the library quietly stops at 292 years.
_DURATION = re.compile(
    r"-?(?=[0-9])"
    + "".join(rf"([0-9]{{1,{n}}}(\.[0-9]+)?{unit})?" for n, unit in ((6, "h"), (7, "m"), (9, "s"), (12, "ms")))
)
_FUNCTIONS: dict[str, Function] = {
    "double": (1, _double),
    "duration": (1, _duration),
    "dyn": (1, lambda run, value, _: value),
    "int": (1, _int),
    "size": (1, _size),
    "string": (1, _text_of),
    "timestamp": (1, _timestamp),
    "type": (1, lambda run, value, _: _kind(value)),
}
_METHODS: dict[str, Function] = {
    "contains": (2, _contains),
    "endsWith": (2, lambda run, text, part: _string(text).endswith(_string(part))),
    "matches": (2, _matches),
    "size": (1, _size),
    "startsWith": (2, lambda run, text, part: _string(text).startswith(_string(part))),
}
for _name in (
    "getDate",
    "getDayOfWeek",
    "getFullYear",
    "getHours",
    "getMilliseconds",
    "getMinutes",
    "getMonth",
    "getSeconds",
):
    _METHODS[_name] = (1, _part_of_time(_name))
_IMPURE = ("now", "today", "random", "rand", "uuid", "env", "getenv")


# -- Types -------------------------------------------------------------------------------------------------------------

_MAPS = (dict, Mapping)
_KINDS = {
    "NoneType": "null_type",
    "float": "double",
    "str": "string",
    "bool": "bool",
    "int": "int",
    "list": "list",
    "datetime": "timestamp",  # by name, because the kernel may not import a clock
    "timedelta": "duration",
}
_TYPES = ("bool", "double", "int", "list", "map", "null_type", "string")
_NUMBERS = frozenset({"int", "double"})
_ORDERED = frozenset({"bool", "string", "timestamp", "duration"})
_JOINED = re.compile(
    r"(string|list|duration)\+\1|timestamp[+-]duration|duration(\+timestamp|-duration)|timestamp-timestamp"
)


def _kind(value: object) -> str:
    return _KINDS.get(type(value).__name__, "map")


def _a(value: object) -> str:
    return {"null_type": "null", "int": "an int"}.get(kind := _kind(value), f"a {kind}")


def _bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise _Failure(f"true or false is needed, not {_a(value)}")


def _string(value: object) -> str:
    if isinstance(value, str):
        return value
    raise _Failure(f"a string is needed, not {_a(value)}")


def _map(value: object, wanted: str = "a map") -> Mapping[str, object]:
    if isinstance(value, _MAPS):
        return value
    raise _Failure(f"{wanted} is needed, not {_a(value)}")


def _to_json(value: object) -> JSON:
    if isinstance(value, list):
        return [_to_json(each) for each in value]
    if isinstance(value, _MAPS):
        return {key: _to_json(each) for key, each in value.items()}
    if _kind(value) in ("timestamp", "duration"):
        return str(_ask("string", "string(a)", value)).replace("+00:00", "Z")
    return cast(JSON, value)


def _to_text(value: JSON) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)

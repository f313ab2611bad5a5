"""Estimates how long a schema may take to check a value.

The schema library checks a value in one uninterruptible call on the event loop, and holds the GIL meanwhile. A schema
of a few lines can make that call take minutes: for example, if each definition refers to the next one twice, or if an
`enum` of a thousand fractions is compared with a thousand numbers. Every keyword therefore has a weight in nanoseconds,
measured with `python -m benchmarks.bounds`. Compiling a schema adds up the weights that apply to one part of a value,
at each depth. Weights are upper bounds.

There are four weights, because each is multiplied by a different count: `part` by the parts of the value, `text` by its
bytes, `small` by its numbers if all are integers of up to 15 digits, and `number` if some are not. Numbers with an
exponent or very many digits cost a multiple of that (`Numbers`).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote

from tenuto.kernel.definition import JSON
from tenuto.kernel.expression import pattern_of

BEYOND = 1_000_000_000_000  # larger weights are not distinguished
DEEPEST = 64  # a schema whose weight still grows at this depth is unbounded

_HERE_LISTS = ("allOf", "anyOf", "oneOf")
_HERE = ("not", "if", "then", "else")
_HERE_BY_NAME = ("dependentSchemas", "dependencies")
_ANYWHERE = (
    "items", "additionalItems", "contains", "unevaluatedItems", "additionalProperties", "unevaluatedProperties",
    "propertyNames",
)  # fmt: skip
# these evaluate the schemas that apply to the same value a second time
_AGAIN = ("unevaluatedItems", "unevaluatedProperties")
_ELSEWHERE = ("$dynamicRef", "$recursiveRef")


class Uncountable(ValueError):
    """The cost of the schema has no bound, or a reference cannot be resolved."""


# -- Weights of keywords -----------------------------------------------------------------------------------------------


class Weight(NamedTuple):
    """`flaws` is the number of errors that one part of a value can produce. The other fields are nanoseconds."""

    flaws: int = 0
    part: int = 0
    text: int = 0
    small: int = 0
    number: int = 0


_NODE = 15  # applying one schema to one part, before any keyword
_NAME = 14  # looking up one name in an object
_NAMES_PER_FLAW = 8
_COMPARED = 300  # comparing one part of a value with one part of an `enum` or `const`
_COMPARED_TEXT = 15
_COMPARED_INT, _COMPARED_NUMBER, _COMPARED_EXTREME = 2_000, 5_000, 40_000
_HASHED = 60
_PAIRWISE = 12_000  # `uniqueItems` compares up to 14 numbers pairwise
_ORDERED, _ORDERED_FRACTION = 20, 1_800
_DIVIDED, _DIVIDED_FRACTION, _DIVIDED_DIGIT = 1_000, 2_000, 400
_TEXT, _TEXT_IDN, _TEXT_JSON = 15, 150, 40
_PATTERN, _PATTERN_BACKTRACKING, _PATTERN_AMBIGUOUS = 10, 2_000, 4_000
_PATTERN_NAME = 60
_SMALL_INT = 10**15

_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")


def weight(schema: dict[str, JSON]) -> Weight:
    """Returns the weight of a schema for one part of a value, without its subschemas."""
    required = len(_list(schema.get("required")))
    names = required
    for word in ("dependentRequired", "dependencies"):
        names += sum(len(_list(each)) for each in _dict(schema.get(word)).values())
    part, text, small, number = _NODE + _NAME * names, 0, 0, 0
    choices = [*_list(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]
    if choices:
        compared = _compared(choices)
        part, small, number = part + compared.part, small + compared.small, number + compared.number
    for word in _BOUNDS:
        if _is_number(bound := schema.get(word)):
            is_int = isinstance(bound, int)
            extra = _extreme(bound)
            small += extra or (_ORDERED if is_int else _ORDERED_FRACTION)
            number += extra or _ORDERED_FRACTION
    if _is_number(divisor := schema.get("multipleOf")):
        fraction = _DIVIDED_FRACTION + _DIVIDED_DIGIT * len(repr(divisor))
        extra = _extreme(divisor)
        small += extra or (_ORDERED if isinstance(divisor, int) else fraction)
        number += extra or (_DIVIDED if isinstance(divisor, int) else fraction)
    if schema.get("uniqueItems") is True:
        part, number = part + _HASHED, number + _PAIRWISE
    text += _text_weight(schema)
    patterns = _dict(schema.get("patternProperties"))
    part += _PATTERN_NAME * len(patterns)
    text += sum(map(_pattern_weight, patterns))
    return Weight(1 + required // _NAMES_PER_FLAW, part, text, small, number)


def _compared(choices: list[JSON]) -> Weight:
    """Returns the weight of comparing a value with all choices. Strings and small integers are looked up by hash."""
    if all(isinstance(each, str | bool | None) for each in choices):
        return Weight(part=_HASHED)
    is_small = all(type(each) is int and abs(each) < _SMALL_INT for each in choices)
    part, small, number = 0, _HASHED, 0
    rest = list(choices)
    for each in rest:  # `rest` grows during the loop
        if isinstance(each, str):
            part += _COMPARED_TEXT + len(each) // 16
        elif _is_number(each):
            extra = _extreme(each)
            small += 0 if is_small else extra or _COMPARED_INT
            number += extra or _COMPARED_NUMBER
        else:
            part += _COMPARED
            if isinstance(each, dict):
                part += sum(_COMPARED_TEXT + len(key) // 16 for key in each)
                rest += each.values()
            elif isinstance(each, list):
                rest += each
    return Weight(part=part, small=small, number=number)


def _extreme(number: JSON) -> int:
    """Returns the weight of a number with a large exponent or many digits, which slow arithmetic down; 0 for others."""
    if isinstance(number, float):
        return 0 if number == 0 or 1e-20 < abs(number) < 1e20 else _COMPARED_EXTREME
    assert isinstance(number, int)
    digits = number.bit_length() * 3 // 10
    return 0 if digits < 20 else _COMPARED_EXTREME + digits * digits // 10


def _is_number(value: JSON) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text_weight(schema: dict[str, JSON]) -> int:
    found = 0
    if isinstance(pattern := schema.get("pattern"), str):
        found += _pattern_weight(pattern)
    if "format" in schema:
        found += _TEXT_IDN if str(schema["format"]).startswith("idn-") else _TEXT
    if "contentMediaType" in schema or "contentEncoding" in schema:
        found += _TEXT_JSON
    return found


_BACKTRACKS = re.compile(r"\(\?<?[=!]|\\[1-9]|\\k")


def _pattern_weight(pattern: str) -> int:
    """Returns the weight of a pattern for one byte of text.

    The library matches in linear time while the automaton of the pattern is small. The automaton is large if a match
    may begin anywhere and many successive positions accept a set of characters.
    """
    if _BACKTRACKS.search(pattern):
        return _PATTERN_BACKTRACKING
    return _PATTERN_AMBIGUOUS if pattern_of(pattern).is_ambiguous else _PATTERN


# -- Numbers in a value ------------------------------------------------------------------------------------------------

_TEXTS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_FRACTION = re.compile(rb"[.eE]")
_LONG = re.compile(rb"[0-9]{16,}")
_EXPONENT = 16  # multiplies the weight of a plain number
_DIGITS = 20
_PAIRS = 14


@dataclass(frozen=True, slots=True)
class Numbers:
    """How the numbers of a value change the weight of a number. `times` is None for integers of up to 15 digits."""

    times: int | None
    is_long: bool  # `uniqueItems` compares such integers with all others

    @classmethod
    def of(cls, text: bytes) -> "Numbers":
        rest = _TEXTS.sub(b"", text)
        longest = max(map(len, _LONG.findall(rest)), default=0)
        if not longest and not _FRACTION.search(rest):
            return cls(None, False)
        times = _EXPONENT if longest >= _DIGITS or b"e" in rest or b"E" in rest else 1
        return cls(max(times, longest * longest // 4096), longest > 0)


# -- Schemas -----------------------------------------------------------------------------------------------------------


class Cost:
    """The weight of a schema for one part of a value: the maximum, and by depth."""

    def __init__(self, schema: JSON) -> None:
        self._root = schema
        self._is_old = isinstance(schema, dict) and "draft-04" in str(schema.get("$schema"))
        self._nodes: list[_Node] = []
        self._known: dict[int, _Node] = {}  # by `id()` of the subschema, which the root schema keeps alive
        root = self._node(schema)
        for node in self._nodes:  # `_nodes` grows during the loop
            self._connect(node)
        order = _inner_first(self._nodes)
        self._by_depth = [_by_depth(root, order, index) for index in range(len(Weight._fields))]
        self._compares_items = self.has("uniqueItems")
        self.most = Weight(*(found[-1] for found in self._by_depth))
        self.depends_on_numbers = self.most.number > 0

    def at(self, depth: int) -> Weight:
        return Weight(*(found[min(depth, len(found) - 1)] for found in self._by_depth))

    def estimate(self, each: Weight, parts: int, size: int, numbers: Numbers) -> int:
        """Returns the nanoseconds for a value with this many parts and bytes."""
        times = each.small
        if numbers.times is not None:
            times = each.number * numbers.times
            if numbers.is_long and self._compares_items:
                times *= parts // _PAIRS + 1
        return parts * (each.part + times) + size * each.text

    def has(self, word: str) -> bool:
        return any(word in node.schema for node in self._nodes)

    def _node(self, schema: JSON) -> "_Node":
        found = self._known.get(id(schema))
        if found is None:
            found = _Node(schema if isinstance(schema, dict) else {})
            self._known[id(schema)] = found
            self._nodes.append(found)
        return found

    def _connect(self, node: "_Node") -> None:
        schema = node.schema
        if schema is not self._root and ("$id" in schema or (self._is_old and "id" in schema)):
            raise Uncountable("only the outermost schema has an `$id`")
        for word in _ELSEWHERE:
            if word in schema:
                raise Uncountable(f"`{word}` is not supported: use `$ref`")
        times = 2 if any(word in schema for word in _AGAIN) else 1
        node.here = [self._node(part) for part in self._same_value(schema)] * times
        items = schema.get("items")
        node.single = [self._node(part) for part in _dict(schema.get("properties")).values()]
        node.single += [self._node(part) for part in (*_list(schema.get("prefixItems")), *_list(items))]
        anywhere = [schema[word] for word in _ANYWHERE if word in schema and not isinstance(schema[word], list)]
        node.wide = [self._node(part) for part in (*anywhere, *_dict(schema.get("patternProperties")).values())]

    def _same_value(self, schema: dict[str, JSON]) -> Iterator[JSON]:
        for word in _HERE_LISTS:
            yield from _list(schema.get(word))
        for word in _HERE_BY_NAME:
            yield from (part for part in _dict(schema.get(word)).values() if not isinstance(part, list))
        yield from (schema[word] for word in _HERE if word in schema)
        if "$ref" in schema:
            yield _resolved(self._root, schema["$ref"])


class _Node:
    """A subschema and the subschemas that it applies."""

    __slots__ = ("here", "own", "schema", "single", "wide")

    def __init__(self, schema: dict[str, JSON]) -> None:
        self.schema = schema
        self.own = weight(schema)
        self.here: list[_Node] = []  # applied to the same value
        self.single: list[_Node] = []  # applied to one named or indexed part each
        self.wide: list[_Node] = []  # may all apply to the same part


def _inner_first(nodes: list[_Node]) -> list[_Node]:
    """Sorts nodes so that each follows those it applies to the same value.

    Iterative, because `$ref` chains may be long.
    """
    waiting_for = {node: len(node.here) for node in nodes}
    users: dict[_Node, list[_Node]] = {node: [] for node in nodes}
    for node in nodes:
        for inner in node.here:
            users[inner].append(node)
    order = [node for node in nodes if not node.here]
    for node in order:  # `order` grows during the loop
        for user in users[node]:
            waiting_for[user] -= 1
            if not waiting_for[user]:
                order.append(user)
    if len(order) < len(nodes):
        raise Uncountable("a `$ref` leads back to itself without looking at a part of the value")
    return order


def _by_depth(root: _Node, order: list[_Node], kind: int) -> list[int]:
    """Returns one kind of weight for a part at each depth; the last item applies to all greater depths."""
    here: dict[_Node, int] = {}
    for node in order:
        here[node] = min(BEYOND, node.own[kind] + sum(here[inner] for inner in node.here))
    most = here
    found = [most[root]]
    while len(found) <= DEEPEST and found[-1] < BEYOND:
        inside: dict[_Node, int] = {}
        for node in order:
            below = sum(most[part] for part in node.wide) + max((most[part] for part in node.single), default=0)
            inside[node] = min(BEYOND, below + sum(inside[inner] for inner in node.here))
        deeper = {node: max(here[node], inside[node]) for node in order}
        if deeper == most:
            return found
        most = deeper
        found.append(most[root])
    return [*found, BEYOND]


def _resolved(root: JSON, target: JSON) -> JSON:
    """Resolves a `$ref` to a place in the same schema."""
    part = root
    words = unquote(target).split("/") if isinstance(target, str) else [""]
    for word in words[1:]:
        word = word.replace("~1", "/").replace("~0", "~")
        if isinstance(part, dict) and word in part:
            part = part[word]
        elif isinstance(part, list) and word.isdecimal() and int(word) < len(part):
            part = part[int(word)]
        else:
            words = [""]
    if words[0] != "#":
        raise Uncountable("a `$ref` names a place in the schema itself: `#`, or `#/$defs/name`")
    return part


def _list(value: JSON) -> list[JSON]:
    return value if isinstance(value, list) else []


def _dict(value: JSON) -> dict[str, JSON]:
    return value if isinstance(value, dict) else {}

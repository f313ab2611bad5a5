"""What it costs to check a value by a schema that a stranger wrote.

A schema of a few lines can ask for a value to be looked at 2^40 times: each definition refers to the next one twice.
The library would do so, in one call that nothing interrupts. So the looks are counted first, and the count gives up at
a limit. It is never too low: where a keyword may apply, it is counted as if it did.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice

import jsonschema_rs
from jsonschema_rs import RegexOptions

from tenuto.kernel.definition import JSON

__all__ = ["Costs", "uncountable", "words"]

_HERE_LISTS = ("allOf", "anyOf", "oneOf")
_HERE = ("not", "if", "then", "else")
_HERE_BY_NAME = ("dependentSchemas", "dependencies")
_ELEMENTS = ("items", "additionalItems", "contains", "unevaluatedItems")
_MEMBERS = ("additionalProperties", "unevaluatedProperties")
_AGAIN = (
    "unevaluatedItems",
    "unevaluatedProperties",
)  # what applies here is evaluated once more, to see what it covers
_DEFINED = ("$defs", "definitions", "properties", "patternProperties", *_HERE_BY_NAME)

_BACKTRACKING = 50  # what a pattern costs that the library can match only by trying, in looks
_WORDS = 16  # so many words of an `enum` are compared in the time of one look


class _Node:
    """One schema, as far as it decides what looks at what; made once, because values are counted again and again."""

    __slots__ = ("elements", "here", "members", "named", "names", "own", "places", "wide")

    def __init__(self, schema: JSON) -> None:
        self.own = _own(schema)
        self.here: list[_Node] = []  # look at the very same value
        self.named: dict[str, _Node] = {}  # at what has this name in it
        self.members: list[_Node] = []  # at what has another name
        self.wide: list[_Node] = []  # at what has some name that matches
        self.names: list[_Node] = []  # at the names themselves
        self.places: list[list[_Node]] = []  # at what is in this place
        self.elements: list[_Node] = []  # at what is in any

    def inside(self, value: JSON) -> Iterator[tuple["_Node", JSON]]:
        """What looks at the parts of a value."""
        if isinstance(value, dict):
            for key, part in value.items():
                found = self.named.get(key)
                looking = self.members if found is None else [found]
                yield from ((each, part) for each in (*looking, *self.wide))
                yield from ((each, key) for each in self.names)
        elif isinstance(value, list) and (self.elements or self.places):
            for at in self.places:
                yield from zip(at, value, strict=False)
            yield from ((each, part) for each in self.elements for part in value)


class Costs:
    """Counts the looks that a value takes, by one schema."""

    def __init__(self, schema: JSON) -> None:
        self._schema = schema
        self._nodes: dict[int, _Node] = {}  # by the identity of what they were made of, which is in the schema
        self._unconnected: list[tuple[_Node, dict[str, JSON]]] = []
        self._root = self._node(schema)
        while self._unconnected:  # not from within one another: references may be chained by the thousand
            self._connect(*self._unconnected.pop())
        # Without references a value is looked at once by each part of the schema, at most.
        self.most: int | None = None if _repeats(schema) else sum(node.own for node in self._nodes.values())

    def of(self, value: JSON, limit: int) -> int | None:
        """How many looks, or None if there are more than `limit`."""
        spent = 0
        open: list[tuple[_Node, JSON]] = [(self._root, value)]
        while open:
            node, part = open.pop()
            spent += node.own
            if spent + len(open) > limit:
                return None
            open += [(each, part) for each in node.here]
            if part and isinstance(part, dict | list):
                open += islice(node.inside(part), limit + 1 - spent)
        return spent

    def _node(self, schema: JSON) -> _Node:
        if not isinstance(schema, dict):
            return _ANY
        known = self._nodes.get(id(schema))
        if known is None:
            known = self._nodes[id(schema)] = _Node(schema)
            self._unconnected.append((known, schema))
        return known

    def _connect(self, node: _Node, schema: dict[str, JSON]) -> None:
        times = 2 if any(word in schema for word in _AGAIN) else 1
        node.here = [self._node(part) for part in _here(schema, self._schema)] * times
        node.named = {name: self._node(part) for name, part in _dict(schema.get("properties")).items()}
        node.members = [self._node(schema[word]) for word in _MEMBERS if word in schema]
        node.wide = [self._node(part) for part in _dict(schema.get("patternProperties")).values()]
        node.names = [self._node(schema["propertyNames"])] if "propertyNames" in schema else []
        places = [_list(schema.get(word)) for word in ("prefixItems", "items")]
        node.places = [[self._node(part) for part in each] for each in places if each]
        node.elements = [self._node(schema[word]) for word in _ELEMENTS if isinstance(schema.get(word), dict)]


def _here(schema: dict[str, JSON], root: JSON) -> Iterator[JSON]:
    """The schemas that look at the very same value."""
    for word in _HERE_LISTS:
        yield from _list(schema.get(word))
    for word in _HERE_BY_NAME:
        yield from _dict(schema.get(word)).values()
    yield from (schema[word] for word in _HERE if word in schema)
    if isinstance(target := schema.get("$ref"), str):
        yield _resolved(root, target)


def _own(schema: JSON) -> int:
    """What a schema looks at itself: as many things can be wrong by it, at most."""
    if not isinstance(schema, dict):
        return 1
    looks = 1 + len(schema) + len(_list(schema.get("required"))) + len(_list(schema.get("enum"))) // _WORDS
    for word in ("dependentRequired", "dependencies"):
        looks += sum(len(_list(names)) for names in _dict(schema.get(word)).values())
    patterns = [schema.get("pattern"), *_dict(schema.get("patternProperties"))]
    return looks + sum(_BACKTRACKING for pattern in patterns if isinstance(pattern, str) and _backtracks(pattern))


@lru_cache(maxsize=1024)
def _backtracks(pattern: str) -> bool:
    try:
        jsonschema_rs.validator_for({"pattern": pattern}, offline=True, pattern_options=RegexOptions())
    except (jsonschema_rs.ValidationError, ValueError):
        return True
    return False


def uncountable(schema: JSON) -> str | None:
    """Why the looks of a schema cannot be counted; None if they can."""
    is_old = isinstance(schema, dict) and "draft-04" in str(schema.get("$schema"))
    for part in _subschemas(schema):
        for word in ("$dynamicRef", "$recursiveRef"):
            if word in part:
                return f"`{word}` is not supported: use `$ref`"
        if part is not schema and ("$id" in part or (is_old and "id" in part)):
            return "only the outermost schema has an `$id`"
        target = part.get("$ref")
        if target is not None and (not isinstance(target, str) or _resolved(schema, target) is None):
            return "a `$ref` names a place in the schema itself: `#`, or `#/$defs/name`"
    return None


def words(schema: JSON) -> set[str]:
    """The keywords that it uses, anywhere."""
    return {word for part in _subschemas(schema) for word in part}


def _subschemas(schema: JSON) -> Iterator[dict[str, JSON]]:
    """Every object in it that is a schema, or could be taken for one by a reference."""
    open = [schema]
    while open:
        part = open.pop()
        if isinstance(part, list):
            open += part
        elif isinstance(part, dict):
            yield part
            for word, inner in part.items():
                if word in ("const", "enum", "default", "examples"):
                    continue
                # The keys of these are names that somebody gave, and may look like keywords.
                open += _dict(inner).values() if word in _DEFINED else [inner]


def _repeats(schema: JSON) -> bool:
    return any("$ref" in part or any(word in part for word in _AGAIN) for part in _subschemas(schema))


def _resolved(root: JSON, target: str) -> JSON:
    """What a reference names, or None if it is nothing in this schema."""
    if target == "#":
        return root
    if not target.startswith("#/") or "%" in target:
        return None
    part = root
    for word in target[2:].split("/"):
        word = word.replace("~1", "/").replace("~0", "~")
        if isinstance(part, dict):
            part = part.get(word)
        elif isinstance(part, list) and word.isdecimal() and int(word) < len(part):
            part = part[int(word)]
        else:
            return None
    return part


def _list(value: JSON) -> list[JSON]:
    return value if isinstance(value, list) else []


def _dict(value: JSON) -> dict[str, JSON]:
    return value if isinstance(value, dict) else {}


_ANY = _Node(True)

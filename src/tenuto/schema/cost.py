"""How often a schema that a stranger wrote may look at one part of a value.

A schema of a few lines can ask for a value to be looked at 2^40 times: each definition refers to the next one twice.
The library would do so, in one call that nothing interrupts. So it is found out once, when the schema is compiled, how
many of its parts may look at one and the same part of a value, at most: at any depth where that does not grow without
end, else for each depth. Values are not walked for it. What is found is never too low; nor is it far too high, because
what cannot look at the same part is not added up.
"""

from collections.abc import Iterator
from urllib.parse import unquote

from tenuto.kernel.definition import JSON

BEYOND = 1_000_000_000  # whatever is more is not counted on
DEEPEST = 64  # what is nested deeper, and looked at more often the deeper it is, is looked at too often
NAMES = 8  # so many that are required are looked for in the time of one look
WEIGHT_OF_PATTERN = 20  # tried at every place of a text, if it comes to the worst

_HERE_LISTS = ("allOf", "anyOf", "oneOf")
_HERE = ("not", "if", "then", "else")
_HERE_BY_NAME = ("dependentSchemas", "dependencies")
_ANYWHERE = (
    "items", "additionalItems", "contains", "unevaluatedItems", "additionalProperties", "unevaluatedProperties",
    "propertyNames",
)  # fmt: skip
_AGAIN = ("unevaluatedItems", "unevaluatedProperties")  # what applies here is evaluated twice, to see what it covers
_ELSEWHERE = ("$dynamicRef", "$recursiveRef")


class Uncountable(ValueError):
    """It cannot be told what the schema refers to, or it never ends."""


class Looks:
    """How many parts of the schema may look at one part of a value: `most`, and at one that is nested so deep."""

    def __init__(self, schema: JSON) -> None:
        self._root = schema
        self._is_old = isinstance(schema, dict) and "draft-04" in str(schema.get("$schema"))
        self._nodes: list[_Node] = []
        self._known: dict[int, _Node] = {}  # by the identity of what they were made of, which is in the schema
        root = self._node(schema)
        for node in self._nodes:  # grows while it is walked
            self._connect(node)
        self._by_depth = _by_depth(root, _inner_first(self._nodes))
        self.most = self._by_depth[-1]

    def at(self, depth: int) -> int:
        return self._by_depth[min(depth, len(self._by_depth) - 1)]

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
    """One part of a schema, and what looks where with it."""

    __slots__ = ("here", "own", "schema", "single", "wide")

    def __init__(self, schema: dict[str, JSON]) -> None:
        self.schema = schema
        self.own = WEIGHT_OF_PATTERN if "pattern" in schema or "patternProperties" in schema else 1
        self.own += len(_list(schema.get("required"))) // NAMES
        self.here: list[_Node] = []  # look at the very same value
        self.single: list[_Node] = []  # each looks at a part of it that has a name or a place of its own
        self.wide: list[_Node] = []  # all may look at the same part


def _inner_first(nodes: list[_Node]) -> list[_Node]:
    """Each after those that look at the same value for it. Not by recursion: references are chained by the thousand."""
    waiting_for = {node: len(node.here) for node in nodes}
    users: dict[_Node, list[_Node]] = {node: [] for node in nodes}
    for node in nodes:
        for inner in node.here:
            users[inner].append(node)
    order = [node for node in nodes if not node.here]
    for node in order:  # grows while it is walked
        for user in users[node]:
            waiting_for[user] -= 1
            if not waiting_for[user]:
                order.append(user)
    if len(order) < len(nodes):
        raise Uncountable("a `$ref` leads back to itself without looking at a part of the value")
    return order


def _by_depth(root: _Node, order: list[_Node]) -> list[int]:
    """How many look at one part of a value that is nested so deep; the last is for all that are deeper."""
    here: dict[_Node, int] = {}
    for node in order:
        here[node] = min(BEYOND, node.own + sum(here[inner] for inner in node.here))
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
    """What a reference names: a place in this schema, by its path."""
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

"""Compiles the JSON Schemas of definitions and reports the problems of values.

This is the only module that imports the schema library. Schemas are compiled offline: a `$ref` to another host is never
followed, neither when a definition is published nor when a value is checked. Messages say what was expected and where.
They never contain the value, because payloads must not reach logs.

One tenant writes a schema, but the process that evaluates it serves all tenants, and a check blocks the event loop. A
check that could take longer than `MOST_NS` is therefore not made (see `cost`).
"""

from collections.abc import Callable, Mapping

import jsonschema_rs
import msgspec
from jsonschema_rs import FancyRegexOptions
from jsonschema_rs import ValidationError as Flaw
from jsonschema_rs import ValidationErrorKind as Kind
from msgspec import Raw

from tenuto.errors import Problem
from tenuto.kernel.definition import JSON

from .cost import Cost, Numbers, Weight

__all__ = ["Flaw", "Kind", "Schema", "pointer", "schema_problem"]


MOST_NS = 100_000_000  # per check; an upper bound, estimated from the weights of the keywords
MOST_NS_OF_ONE = MOST_NS // 10  # for a value without parts; publishing rejects a schema that exceeds this
MAX_REPORTED = 100
# The library collects all errors before it returns the first, at about 30 microseconds each. `validate` returns only
# the first error, but still collects all errors in the branches of a union.
MAX_COLLECTED = 2_000
MAX_VALIDATED = 300_000
# Patterns that need backtracking stop early. All others take time in proportion to the text.
_PATTERNS = FancyRegexOptions(backtrack_limit=1_000, size_limit=1_000_000, dfa_size_limit=1_000_000)

_TOO_COSTLY = Problem("", "too_costly", "its schema would take too long to check it: make it smaller, or less deep")
_NO_NUMBERS = Numbers(None, False)
_TOO_MANY = Problem("", "invalid", "it does not match its schema and has too many problems to list")
_MORE = Problem("", "more", "there may be more problems: only the first ones are listed")


class Schema:
    """A compiled schema.

    `formats` replaces formats of the same name; `tell` converts an error of the library to a `Problem`.
    """

    __slots__ = ("_cost", "_tell", "_validator")

    def __init__(
        self,
        schema: JSON,
        *,
        formats: Mapping[str, Callable[[str], bool]] | None = None,
        tell: Callable[[Flaw], Problem] | None = None,
    ) -> None:
        assert isinstance(schema, dict | bool)
        self._validator = jsonschema_rs.validator_for(
            schema,
            formats=None if formats is None else dict(formats),
            offline=True,
            mask="the value",
            validate_formats=True,
            pattern_options=_PATTERNS,
        )
        self._cost = Cost(schema)
        self._tell = tell or _problem_of

    def flaws(self, value: JSON) -> list[Flaw]:
        """Returns all errors, however many there are. Use it only for Tenuto's own schemas."""
        return list(self._validator.iter_errors(value))

    def problems(self, value: JSON, text: bytes, *, is_made: bool = False) -> list[Problem]:
        """Returns the first hundred problems of a value; `text` is its JSON.

        If `is_made` is true, the value is the result of completed work, which must not be lost. If the check would take
        too long, the value is accepted.
        """
        if self.estimate_ns(value, text) > MOST_NS:
            return [] if is_made else [_TOO_COSTLY]
        if self.fits(value):
            return []
        parts, depth = _measured(value)
        flaws_at_most = parts * self._cost.at(depth).flaws
        if flaws_at_most > MAX_COLLECTED:
            return [_TOO_MANY] if flaws_at_most > MAX_VALIDATED else [*map(self._tell, self._first(value)), _MORE]
        flaws = self.flaws(value)
        return [*map(self._tell, flaws[:MAX_REPORTED]), *([_MORE] if len(flaws) > MAX_REPORTED else [])]

    def fits(self, value: JSON) -> bool:
        """Returns whether a value is valid, however long the check takes. Use it only for Tenuto's own schemas."""
        return self._validator.is_valid(value)

    def estimate_ns(self, value: JSON, text: bytes) -> int:
        """Returns an upper bound for the duration of a check.

        Walks the value only if the bound by size is over the limit.
        """
        cost, size = self._cost, len(text)
        numbers = Numbers.of(text) if cost.depends_on_numbers else _NO_NUMBERS
        at_most = cost.estimate(cost.most, size // 2 + 1, size, numbers)  # each part takes at least two bytes
        if at_most <= MOST_NS:
            return at_most
        parts, depth = _measured(value)
        return cost.estimate(cost.at(depth), parts, size, numbers)

    def _first(self, value: JSON) -> list[Flaw]:
        try:
            self._validator.validate(value)
        except Flaw as flaw:
            return [flaw]
        return []

    def problems_of(self, raw: Raw | None, *, is_made: bool = False) -> list[Problem]:
        encoded = b"null" if raw is None else bytes(raw)
        return self.problems(msgspec.json.decode(encoded), encoded, is_made=is_made)

    def summary(self, output: JSON) -> str | None:
        """Returns the problems of an output, one per line; None if it is valid."""
        problems = self.problems(output, msgspec.json.encode(output), is_made=True)
        return "\n".join(map(str, problems)) if problems else None


def schema_problem(schema: JSON) -> str | None:
    """Returns why a user's schema cannot be used; None if it can."""
    if not isinstance(schema, dict | bool):
        return "a schema must be an object, true or false"
    try:
        cost = Schema(schema)._cost
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        return getattr(error, "message", None) or str(error).splitlines()[0]
    if _ns_of_one(cost.at(1)) > MOST_NS_OF_ONE:
        return (
            "it would take too long to check even one small value: a definition that refers to the next one twice"
            " doubles that each time, and an `enum` is compared item by item"
        )
    return "`x-sensitive` is not supported, and nothing would be masked by it" if cost.has("x-sensitive") else None


def _ns_of_one(each: Weight) -> int:
    return each.part + each.text + max(each.small, each.number)


def _measured(value: JSON) -> tuple[int, int]:
    """Returns the number of parts of a value and its depth."""
    parts, depth = 0, -1
    level: list[JSON] = [value]
    while level:
        parts += len(level)
        depth += 1
        level = [
            inner
            for part in level
            if isinstance(part, dict | list)
            for inner in (part.values() if isinstance(part, dict) else part)
        ]
    return parts, depth


def _problem_of(flaw: Flaw) -> Problem:
    at = list(flaw.instance_path)
    if isinstance(flaw.kind, Kind.Required):  # a missing property is reported at its own path
        at.append(flaw.kind.property)
    return Problem(pointer(at), flaw.kind.name, flaw.message)


def pointer(path: list[str | int]) -> str:
    """Formats a path as a JSON Pointer (RFC 6901)."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)

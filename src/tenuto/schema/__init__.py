"""JSON Schemas that definitions bring along: one way to compile them, and to say what does not fit.

The only place that knows the schema library. A schema is compiled offline: a `$ref` to another host is never followed,
neither when a definition is published nor when a value is checked. Messages say what was expected and where, and never
what was found: payloads hold what logs must not.

A schema is written by one tenant and evaluated in a process that serves all: how often it may look at a value is bound
(`cost`).
"""

import jsonschema_rs
import msgspec
from jsonschema_rs import FancyRegexOptions
from jsonschema_rs import ValidationError as Flaw
from jsonschema_rs import ValidationErrorKind as Kind
from msgspec import Raw

from tenuto.errors import Problem
from tenuto.kernel.definition import JSON

from .cost import Looks

__all__ = ["Flaw", "Kind", "Schema", "pointer", "schema_problem"]


MOST_LOOKS = 30_000_000  # at bytes of a value, in one check: seconds, if it comes to the worst
MOST_TOLD = 100
# The library gathers all that is wrong before it tells the first, at some 30 microseconds each; if only the first is
# asked for, all that is wrong with the branches of a union.
MOST_GATHERED = 2_000
MOST_TRIED = 300_000
# A pattern that can be matched by trying alone gives up soon; the others take time in proportion to the text.
_PATTERNS = FancyRegexOptions(backtrack_limit=1_000, size_limit=1_000_000, dfa_size_limit=1_000_000)

_TOO_COSTLY = Problem("", "too_costly", "its schema would look at it too often: make it smaller, or less deep")
_UNTOLD = Problem("", "invalid", "it does not fit its schema, and is too large to tell what is wrong with it")
_MORE = Problem("", "more", "there may be more that does not fit: not all of it is told at once")


class Schema:
    """A compiled schema."""

    __slots__ = ("_looks", "_validator")

    def __init__(self, schema: JSON) -> None:
        assert isinstance(schema, dict | bool)
        self._validator = jsonschema_rs.validator_for(
            schema, offline=True, mask="the value", validate_formats=True, pattern_options=_PATTERNS
        )
        self._looks = Looks(schema)

    def flaws(self, value: JSON) -> list[Flaw]:
        """All that is wrong, however much it is: for schemas of our own."""
        return list(self._validator.iter_errors(value))

    def problems(self, value: JSON, size: int, *, is_made: bool = False) -> list[Problem]:
        """What is wrong with a value of so many bytes: the first hundred things.

        `is_made`: it came of something that is done. What would cost too much to look at is then taken as it is.
        """
        if not self._is_affordable(value, size):
            return [] if is_made else [_TOO_COSTLY]
        if self._validator.is_valid(value):
            return []
        parts, depth = _measured(value)
        looks = parts * self._looks.at(depth)
        if looks > MOST_GATHERED:
            return [_UNTOLD] if looks > MOST_TRIED else [*map(_told, self._first(value)), _MORE]
        flaws = self.flaws(value)
        return [*map(_told, flaws[:MOST_TOLD]), *([_MORE] if len(flaws) > MOST_TOLD else [])]

    def _is_affordable(self, value: JSON, size: int) -> bool:
        most = MOST_LOOKS // size
        return self._looks.most <= most or self._looks.at(_measured(value)[1]) <= most

    def _first(self, value: JSON) -> list[Flaw]:
        try:
            self._validator.validate(value)
        except Flaw as flaw:
            return [flaw]
        return []

    def problems_of(self, raw: Raw | None, *, is_made: bool = False) -> list[Problem]:
        encoded = b"null" if raw is None else bytes(raw)
        return self.problems(msgspec.json.decode(encoded), len(encoded), is_made=is_made)

    def summary(self, output: JSON) -> str | None:
        """What is wrong with an output, in a line for each thing; None if it fits."""
        problems = self.problems(output, len(msgspec.json.encode(output)), is_made=True)
        return "\n".join(map(str, problems)) if problems else None


def schema_problem(schema: JSON) -> str | None:
    """What is wrong with a schema that somebody wrote; None if it can be used."""
    if not isinstance(schema, dict | bool):
        return "it is an object, or true or false"
    try:
        looks = Schema(schema)._looks
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        return getattr(error, "message", None) or str(error).splitlines()[0]
    if looks.at(1) > MOST_LOOKS // 1_000:
        return "it looks at one value too often: a definition that refers to the next one twice doubles that each time"
    return "`x-sensitive` is not supported, and nothing would be masked by it" if looks.has("x-sensitive") else None


def _measured(value: JSON) -> tuple[int, int]:
    """How many parts it has, and how deep they are nested."""
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


def _told(flaw: Flaw) -> Problem:
    at = list(flaw.instance_path)
    if isinstance(flaw.kind, Kind.Required):  # what is missing is told where it should be
        at.append(flaw.kind.property)
    return Problem(pointer(at), flaw.kind.name, flaw.message)


def pointer(path: list[str | int]) -> str:
    """RFC 6901."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)

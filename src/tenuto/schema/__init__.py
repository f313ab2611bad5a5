"""JSON Schemas that definitions bring along: one way to compile them, and to say what does not fit.

The only place that knows the schema library. A schema is compiled offline: a `$ref` to another host is never followed,
neither when a definition is published nor when a value is checked. Messages say what was expected and where, and never
what was found: payloads hold what logs must not.

A schema is written by one tenant and evaluated in a process that serves all: what it costs is counted first (`cost`),
and what would cost too much is refused as if it did not fit.
"""

import jsonschema_rs
import msgspec
from jsonschema_rs import FancyRegexOptions
from jsonschema_rs import ValidationError as Flaw
from jsonschema_rs import ValidationErrorKind as Kind
from msgspec import Raw

from tenuto.errors import Problem
from tenuto.kernel.definition import JSON

from .cost import Costs, uncountable, words

__all__ = ["Flaw", "Kind", "Schema", "pointer", "schema_problem"]


MOST_LOOKS = 100_000  # and one more for each byte: a value may cost what it is long
MOST_TOLD = 100
# The library gathers all that is wrong before it tells the first, at some 30 microseconds each.
MOST_GATHERED = 10_000
# A pattern that can be matched by trying alone gives up soon; the others take time in proportion to the text.
_PATTERNS = FancyRegexOptions(backtrack_limit=10_000, size_limit=1_000_000, dfa_size_limit=1_000_000)

_TOO_COSTLY = Problem("", "too_costly", "to check it by its schema takes more steps than are allowed: simplify either")
_MORE = Problem("", "more", "there may be more that does not fit: not all of it is told at once")


class Schema:
    """A compiled schema."""

    __slots__ = ("_costs", "_validator")

    def __init__(self, schema: JSON) -> None:
        assert isinstance(schema, dict | bool)
        self._validator = jsonschema_rs.validator_for(
            schema, offline=True, mask="the value", validate_formats=True, pattern_options=_PATTERNS
        )
        self._costs = Costs(schema)

    def flaws(self, value: JSON) -> list[Flaw]:
        """All that is wrong, however much it is: for schemas of our own."""
        return list(self._validator.iter_errors(value))

    def problems(self, value: JSON, size: int = 0) -> list[Problem]:
        """What is wrong with a value, which took so many bytes: the first hundred things."""
        if not self._is_affordable(value, size):
            return [_TOO_COSTLY]
        if self._validator.is_valid(value):
            return []
        if self._costs.of(value, MOST_GATHERED) is None:
            return [*map(_told, self._first(value)), _MORE]
        flaws = self.flaws(value)
        return [*map(_told, flaws[:MOST_TOLD]), *([_MORE] if len(flaws) > MOST_TOLD else [])]

    def _is_affordable(self, value: JSON, size: int) -> bool:
        limit = MOST_LOOKS + size
        most = self._costs.most
        # A value has no more parts than half its bytes and one: no need to count, nearly always.
        if most is not None and size and most * (size // 2 + 1) <= limit:
            return True
        return self._costs.of(value, limit) is not None

    def _first(self, value: JSON) -> list[Flaw]:
        try:
            self._validator.validate(value)
        except Flaw as flaw:
            return [flaw]
        return []

    def problems_of(self, raw: Raw | None) -> list[Problem]:
        return self.problems(None) if raw is None else self.problems(msgspec.json.decode(raw), len(bytes(raw)))

    def summary(self, value: JSON) -> str | None:
        """What is wrong with a value, in a line for each thing; None if it fits."""
        problems = self.problems(value)
        return "\n".join(map(str, problems)) if problems else None


def schema_problem(schema: JSON) -> str | None:
    """What is wrong with a schema that somebody wrote; None if it can be used."""
    if not isinstance(schema, dict | bool):
        return "it is an object, or true or false"
    try:
        Schema(schema)
        return _unkept(schema) or uncountable(schema)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        return getattr(error, "message", None) or str(error).splitlines()[0]


def _unkept(schema: JSON) -> str | None:
    """A promise in a schema that nothing keeps is worse than none: whoever wrote it would rely on it."""
    if "x-sensitive" in words(schema):
        return (
            "`x-sensitive` is not supported, and nothing would be masked by it: keep secrets out of inputs and results"
        )
    return None


def _told(flaw: Flaw) -> Problem:
    at = list(flaw.instance_path)
    if isinstance(flaw.kind, Kind.Required):  # what is missing is told where it should be
        at.append(flaw.kind.property)
    return Problem(pointer(at), flaw.kind.name, flaw.message)


def pointer(path: list[str | int]) -> str:
    """RFC 6901."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)

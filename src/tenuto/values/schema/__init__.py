"""JSON Schemas that definitions bring along: one way to compile them, and to say what does not fit.

The only place that knows the schema library. A schema is compiled offline: a `$ref` to another host is never followed,
neither when a definition is published nor when a value is checked. Messages say what was expected and where, and never
what was found: payloads hold what logs must not.

A schema is written by one tenant and evaluated in a process that serves all, and nothing else runs meanwhile. So a
check that may take longer than `MOST_NS` is not made (`cost`).
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


MOST_NS = 100_000_000  # of one check, by the weights of its keywords, which are upper bounds
MOST_NS_OF_ONE = MOST_NS // 10  # of a value without parts: a schema beyond that is refused when it is published
MOST_TOLD = 100
# The library gathers all that is wrong before it tells the first, at some 30 microseconds each; if only the first is
# asked for, all that is wrong with the branches of a union.
MOST_GATHERED = 2_000
MOST_TRIED = 300_000
# A pattern that can be matched by trying alone gives up soon; the others take time in proportion to the text.
_PATTERNS = FancyRegexOptions(backtrack_limit=1_000, size_limit=1_000_000, dfa_size_limit=1_000_000)

_TOO_COSTLY = Problem("", "too_costly", "its schema would take too long to check it: make it smaller, or less deep")
_NO_NUMBERS = Numbers(None, False)
_UNTOLD = Problem("", "invalid", "it does not fit its schema, and is too large to tell what is wrong with it")
_MORE = Problem("", "more", "there may be more that does not fit: not all of it is told at once")


class Schema:
    """A compiled schema. `formats` replace those of the same names; `tell` words a flaw."""

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
        self._tell = tell or _told

    def flaws(self, value: JSON) -> list[Flaw]:
        """All that is wrong, however much it is: for schemas of our own."""
        return list(self._validator.iter_errors(value))

    def problems(self, value: JSON, text: bytes, *, is_made: bool = False) -> list[Problem]:
        """What is wrong with a value and its JSON: the first hundred things.

        `is_made`: it came of something that is done. What would cost too much to look at is then taken as it is.
        """
        if self.estimate_ns(value, text) > MOST_NS:
            return [] if is_made else [_TOO_COSTLY]
        if self.fits(value):
            return []
        parts, depth = _measured(value)
        flaws_at_most = parts * self._cost.at(depth).flaws
        if flaws_at_most > MOST_GATHERED:
            return [_UNTOLD] if flaws_at_most > MOST_TRIED else [*map(self._tell, self._first(value)), _MORE]
        flaws = self.flaws(value)
        return [*map(self._tell, flaws[:MOST_TOLD]), *([_MORE] if len(flaws) > MOST_TOLD else [])]

    def fits(self, value: JSON) -> bool:
        """Checks a value whatever it costs: for schemas of our own."""
        return self._validator.is_valid(value)

    def estimate_ns(self, value: JSON, text: bytes) -> int:
        """How long a check may take at most. The value is walked only if the bound by its size is over the limit."""
        cost, size = self._cost, len(text)
        numbers = Numbers.of(text) if cost.depends_on_numbers else _NO_NUMBERS
        at_most = cost.estimate(cost.most, size // 2 + 1, size, numbers)  # a part takes two bytes at least
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
        """What is wrong with an output, in a line for each thing; None if it fits."""
        problems = self.problems(output, msgspec.json.encode(output), is_made=True)
        return "\n".join(map(str, problems)) if problems else None


def schema_problem(schema: JSON) -> str | None:
    """What is wrong with a schema that somebody wrote; None if it can be used."""
    if not isinstance(schema, dict | bool):
        return "it is an object, or true or false"
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

"""JSON Schemas that definitions bring along: one way to compile them, and to say what does not fit.

The only place that knows the schema library. A schema is compiled offline: a `$ref` to another host is never followed,
neither when a definition is published nor when a value is checked. Messages say what was expected and where, and never
what was found: payloads hold what logs must not.
"""

import jsonschema_rs
import msgspec
from jsonschema_rs import ValidationError as Flaw
from jsonschema_rs import ValidationErrorKind as Kind
from msgspec import Raw

from .errors import Problem
from .kernel.definition import JSON

__all__ = ["Flaw", "Kind", "Schema", "pointer", "schema_problem"]


class Schema:
    """A compiled schema."""

    __slots__ = ("_validator",)

    def __init__(self, schema: JSON) -> None:
        assert isinstance(schema, dict | bool)
        self._validator = jsonschema_rs.validator_for(schema, offline=True, mask="the value", validate_formats=True)

    def flaws(self, value: JSON) -> list[Flaw]:
        return list(self._validator.iter_errors(value))

    def problems(self, value: JSON) -> list[Problem]:
        return [Problem(pointer(flaw.instance_path), flaw.kind.name, flaw.message) for flaw in self.flaws(value)]

    def problems_of(self, raw: Raw | None) -> list[Problem]:
        return self.problems(None if raw is None else msgspec.json.decode(raw))

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
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        return getattr(error, "message", None) or str(error).splitlines()[0]
    return None


def pointer(path: list[str | int]) -> str:
    """RFC 6901."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)

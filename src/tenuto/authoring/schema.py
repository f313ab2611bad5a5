"""JSON Schemas: that of our own documents, and those that documents bring along."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema_rs

from tenuto.kernel.definition import JSON


@cache
def _document_schema() -> str:
    return Path(__file__).with_name("definition.schema.json").read_text(encoding="utf-8")


def definition_schema() -> dict[str, Any]:
    """The JSON Schema of definitions, for editors and clients. The caller's own copy."""
    schema: dict[str, Any] = json.loads(_document_schema())
    return schema


@cache
def document_validator() -> jsonschema_rs.Validator:
    return validator(definition_schema())


def validator(schema: Any) -> jsonschema_rs.Validator:
    """Compiles a schema. `offline`: a `$ref` to another host is not followed. Values do not appear in its messages."""
    return jsonschema_rs.validator_for(schema, offline=True, mask="the value", validate_formats=True)


def schema_problem(schema: JSON) -> str | None:
    """What is wrong with a schema that somebody wrote; None if it can be used."""
    try:
        validator(schema)
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError, ValueError) as error:
        return getattr(error, "message", None) or str(error).splitlines()[0]
    return None


def pointer(path: list[str | int]) -> str:
    """RFC 6901."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)

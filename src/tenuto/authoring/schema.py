"""The JSON Schema of our own documents."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from tenuto.values.schema import Schema


@cache
def _document_schema() -> str:
    return Path(__file__).with_name("definition.schema.json").read_text(encoding="utf-8")


def definition_schema() -> dict[str, Any]:
    """The JSON Schema of definitions, for editors and clients. The caller's own copy."""
    schema: dict[str, Any] = json.loads(_document_schema())
    return schema


@cache
def document_validator() -> Schema:
    return Schema(definition_schema())

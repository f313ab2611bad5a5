"""Checks values against schemas that were derived from types."""

from typing import Any

from msgspec import Raw

from tenuto.errors import Problem

from . import Schema
from .derivation import FORMATS
from .expectation import problem_of


class DerivedSchema:
    """A compiled schema of a type. Accepts values that would take too long to check, because decoding checks them."""

    __slots__ = ("_document", "_schema")

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._schema = Schema(document, formats=FORMATS, tell=lambda flaw: problem_of(flaw, document))

    def problems_of(self, raw: Raw) -> list[Problem]:
        return list(dict.fromkeys(self._schema.problems_of(raw, is_made=True)))

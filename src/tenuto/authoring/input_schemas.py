"""The JSON Schemas of a saga's input, stored with its definition: they refuse a wrong input without the saga's code."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec
from msgspec import Raw, Struct

from tenuto.errors import Problem
from tenuto.values.schema import Schema, schema_problem
from tenuto.values.schema.derivation import FORMATS, derive
from tenuto.values.schema.expectation import problem_of


@dataclass(frozen=True, slots=True)
class InputReader:
    """A parameter that reads the input of an execution, or the declared input of the saga.

    `key` is the one key that it reads. `is_required` means that the key must have a value, `is_optional` that null
    stands for the parameter's default.
    """

    where: str
    annotation: Any
    key: str | None = None
    is_required: bool = False
    is_optional: bool = False


class DerivedSchema:
    """A compiled schema of a type. Accepts values that would take too long to check, because decoding checks them."""

    __slots__ = ("_document", "_schema")

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        self._schema = Schema(document, formats=FORMATS, tell=lambda flaw: problem_of(flaw, document))

    def problems_of(self, raw: Raw) -> list[Problem]:
        return list(dict.fromkeys(self._schema.problems_of(raw, is_made=True)))


class InputSchemas(Struct, frozen=True, dict=True, omit_defaults=True):
    """What an input must be: `input` for one input of all steps, `steps` for inputs by step.

    `reader` names the parameter that takes the whole input.
    """

    input: dict[str, Any] | None = None
    steps: dict[str, dict[str, Any]] = {}
    reader: str = ""

    def problems_of(self, raw: Raw) -> list[Problem]:
        """Returns why this value cannot be the input of all steps."""
        if self._input is None:
            return []
        problems = self._input.problems_of(raw)
        whole = f"; it is read by {self.reader}" if self.reader else ""
        return [p if p.path else Problem(p.path, p.code, p.message + whole) for p in problems]

    def problems_of_step(self, step: str, raw: Raw) -> list[Problem]:
        """Returns why this value cannot be the input of one step."""
        known = self.steps.get(step)
        if known is None:
            return []
        if step not in self._steps:
            self._steps[step] = DerivedSchema(known)
        return self._steps[step].problems_of(raw)

    @cached_property
    def encoded(self) -> bytes:
        """The schemas as they are stored."""
        return msgspec.json.encode(self)  # fields in the order of the class

    @cached_property
    def hash(self) -> str:
        return hashlib.sha256(self.encoded).hexdigest()

    @cached_property
    def _input(self) -> DerivedSchema | None:
        return None if self.input is None else DerivedSchema(self.input)

    @cached_property
    def _steps(self) -> dict[str, DerivedSchema]:
        return {}


def derive_input_schemas(readers: Iterable[InputReader], steps: Mapping[str, Any]) -> InputSchemas | None:
    """Derives the schemas. `steps` are the input types by step. Returns None if nothing is known."""
    readers = list(readers)
    whole = next((reader.where for reader in readers if reader.key is None), "")
    by_step = {id: schema for id, annotation in steps.items() if (schema := _of_type(annotation)) is not None}
    found = InputSchemas(_of_input(readers), by_step, whole)
    return found if found.input is not None or found.steps else None


def _of_type(annotation: Any) -> dict[str, Any] | None:
    derived = derive([annotation])
    return _usable(derived.schemas[0], derived.definitions)


def _of_input(readers: list[InputReader]) -> dict[str, Any] | None:
    derived = derive([reader.annotation for reader in readers])
    parts: list[dict[str, Any]] = []
    for reader, schema in zip(readers, derived.schemas, strict=True):
        part = _as_read(reader, schema)
        if part and part not in parts:
            parts.append(part)
    if not parts:
        return None
    return _usable(parts[0] if len(parts) == 1 else {"allOf": parts}, derived.definitions)


def _as_read(reader: InputReader, schema: dict[str, Any]) -> dict[str, Any]:
    if schema and reader.is_optional:
        schema = {"anyOf": [schema, {"type": "null"}]}
    if reader.key is None:
        return schema
    part: dict[str, Any] = {"type": "object", "properties": {reader.key: schema}}
    return {**part, "required": [reader.key]} if reader.is_required else part


def _usable(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the schema with its definitions, or None if it says nothing or the library cannot use it."""
    if not schema:
        return None
    document = {**schema, "$defs": definitions} if definitions else schema
    return document if schema_problem(document) is None else None


def decode_input_schemas(stored: bytes | None) -> InputSchemas | None:
    return None if stored is None else msgspec.json.decode(stored, type=InputSchemas)

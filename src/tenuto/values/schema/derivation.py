"""Derives JSON Schemas from annotated types, for processes that check a value without having its class.

A derived schema accepts everything that `decoder` reads as the type, and may accept more: a value that it refuses
cannot be read anywhere. What a type checks in its own code (`__post_init__`, validators) is not in it.
"""

import datetime
import decimal
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from tenuto.values.reading import Fields, StandInType, Variants, readable

_REFS = "#/$defs/"


class Derived(NamedTuple):
    """One schema for each annotation, `{}` where nothing is known, and the definitions that they refer to."""

    schemas: list[dict[str, Any]]
    definitions: dict[str, Any]


def derive(annotations: Sequence[Any]) -> Derived:
    derivation = _Derivation()
    schemas = [derivation.of(annotation, f"{index}." if index else "") for index, annotation in enumerate(annotations)]
    return Derived(schemas, derivation.definitions)


class _Derivation:
    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}
        self._seen: dict[Any, dict[str, Any]] = {}

    def of(self, annotation: Any, prefix: str) -> dict[str, Any]:
        """`prefix` keeps its definitions apart from those of another type: both may have a class of the same name."""
        try:
            (schema,) = self._components([annotation], prefix)
        except Exception:  # msgspec has no schema for a part of it, or a class fails when it is asked for one
            return {}
        return schema

    def _components(self, annotations: Sequence[Any], prefix: str) -> list[dict[str, Any]]:
        types = [readable(annotation) for annotation in annotations]
        schemas, components = msgspec.json.schema_components(
            types, schema_hook=self._custom, ref_template=f"{_REFS}{prefix}{{name}}"
        )
        for name, schema in components.items():
            self.definitions[prefix + name] = _rewrite(schema, _as_msgspec_reads)
        return [_rewrite(schema, _as_msgspec_reads) for schema in schemas]

    def _custom(self, cls: Any) -> dict[str, Any]:
        """Returns the schema of a type that msgspec reads through `decoder`'s hook."""
        if cls not in self._seen:
            self._seen[cls] = {}  # what a class that contains itself finds
            self._seen[cls] = self._schema_of(cls)
        return self._seen[cls]

    def _schema_of(self, cls: Any) -> dict[str, Any]:
        prefix = f"{len(self._seen)}."
        if isinstance(cls, StandInType):
            return self._stand_in(cls.read, prefix)
        if hasattr(cls, "model_json_schema"):
            return self._model(cls, prefix)
        for base, words in ((str, "string"), (int, ["integer", "boolean"]), (float, "number")):
            if isinstance(cls, type) and issubclass(cls, base):
                return {"type": words}
        return {}

    def _stand_in(self, read: object, prefix: str) -> dict[str, Any]:
        if isinstance(read, Variants):
            return {"anyOf": self._components(read.members, prefix)}
        assert isinstance(read, Fields)
        schemas = self._components(list(read.types.values()), prefix)
        properties = dict(zip(read.types, schemas, strict=True))
        return {"title": read.name, "type": "object", "properties": properties, "required": read.required}

    def _model(self, cls: Any, prefix: str) -> dict[str, Any]:
        if _runs_code_first(cls.__pydantic_core_schema__):
            return {}
        # pydantic's own definitions have names that may be msgspec's, too.
        schema = cls.model_json_schema(mode="validation", ref_template=f"{_REFS}{prefix}{{model}}")
        for name, definition in schema.pop("$defs", {}).items():
            self.definitions[prefix + name] = _rewrite(definition, _as_pydantic_reads)
        name = f"{prefix}{cls.__name__}."
        self.definitions[name] = _rewrite(schema, _as_pydantic_reads)
        return {"$ref": _REFS + name}


_CODE_FIRST = ("function-before", "function-wrap", "function-plain")


def _runs_code_first(core_schema: object) -> bool:
    """Whether a pydantic model has code that sees a value before its type does, and may accept anything."""
    pending = [core_schema]
    for part in pending:  # grows while it is walked
        if isinstance(part, Mapping):
            if part.get("type") in _CODE_FIRST:
                return True
            pending.extend(part.values())
        elif isinstance(part, list | tuple):
            pending.extend(part)
    return False


# -- Where schemas are stricter than the readers -----------------------------------------------------------------------


_BY_NAME = ("properties", "patternProperties")
_LISTS = ("anyOf", "allOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "propertyNames")

Rewrite = Callable[[dict[str, Any]], dict[str, Any]]


def _rewrite(schema: Any, rewrite: Rewrite) -> Any:
    """Applies `rewrite` to a schema and its subschemas."""
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    for word, part in schema.items():
        if word in _BY_NAME:
            found[word] = {name: _rewrite(each, rewrite) for name, each in part.items()}
        elif word in _LISTS:
            found[word] = [_rewrite(each, rewrite) for each in part]
        elif word in _SINGLE:
            found[word] = _rewrite(part, rewrite)
    return rewrite(found)


def _as_msgspec_reads(schema: dict[str, Any]) -> dict[str, Any]:
    found = {word: part for word, part in schema.items() if word != "uniqueItems"}  # a set takes an item twice
    if found.get("format") == "decimal":
        found["type"] = ["string", "number"]
    return found


_LAX = {"integer": ["integer", "number", "string", "boolean"], "number": ["number", "string", "boolean"]}
_LAX_BOOLEAN = ["boolean", "integer", "number", "string"]


def _as_pydantic_reads(schema: dict[str, Any]) -> dict[str, Any]:
    """Unless a model is strict, it converts text to numbers and numbers to times; formats are its own."""
    found = {word: part for word, part in schema.items() if word not in ("format", "uniqueItems")}
    kind = schema.get("type")
    if kind == "boolean":
        found["type"] = _LAX_BOOLEAN
    elif isinstance(kind, str) and kind in _LAX:
        found["type"] = _LAX[kind]
    elif kind == "string" and "format" in schema:
        found["type"] = ["string", "number"]
    if "oneOf" in found:  # several branches may fit, now that each takes more
        found["anyOf"] = found.pop("oneOf")
    return found


# -- Formats -----------------------------------------------------------------------------------------------------------


def _reads_as(kind: type) -> Callable[[str], bool]:
    def is_read(text: str) -> bool:
        try:
            msgspec.convert(text, kind)
        except msgspec.ValidationError:
            return False
        return True

    return is_read


# As msgspec reads them, which is not as RFC 3339 and its like have them.
FORMATS: dict[str, Callable[[str], bool]] = {
    "date": _reads_as(datetime.date),
    "date-time": _reads_as(datetime.datetime),
    "time": _reads_as(datetime.time),
    "duration": _reads_as(datetime.timedelta),
    "uuid": _reads_as(uuid.UUID),
    "decimal": _reads_as(decimal.Decimal),
}

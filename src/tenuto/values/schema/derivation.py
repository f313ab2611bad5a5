"""Derives JSON Schemas from annotated types, for processes that check a value without having its class.

A derived schema accepts every value that `decoder` can read as the type, and may accept more. A value that it rejects
cannot be decoded in any process. Checks in the code of a type (`__post_init__`, validators) are not part of the schema.
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
    """One schema per annotation (`{}` if unknown), and the definitions that they refer to."""

    schemas: list[dict[str, Any]]
    definitions: dict[str, Any]


def derive(annotations: Sequence[Any]) -> Derived:
    derivation = _Derivation()
    schemas: list[dict[str, Any]] = []
    for index, annotation in enumerate(annotations):
        first = annotations.index(annotation)  # the same type again would only repeat its definitions
        schemas.append(schemas[first] if first < index else derivation.of(annotation, f"{index}." if index else ""))
    return Derived(schemas, derivation.definitions)


class _Derivation:
    def __init__(self) -> None:
        self.definitions: dict[str, Any] = {}
        self._seen: dict[Any, dict[str, Any]] = {}

    def of(self, annotation: Any, prefix: str) -> dict[str, Any]:
        """Returns the schema of an annotation.

        `prefix` separates definitions of equally named classes in different types.
        """
        try:
            (schema,) = self._components([annotation], prefix)
        except Exception:  # msgspec has no schema for a part of the type, or a hook of the class raises
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
            self._seen[cls] = {}  # ends the recursion for a class that contains itself
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
        # The names of pydantic's definitions may collide with those of msgspec.
        schema = cls.model_json_schema(mode="validation", ref_template=f"{_REFS}{prefix}{{model}}")
        for name, definition in schema.pop("$defs", {}).items():
            self.definitions[prefix + name] = _rewrite(definition, _as_pydantic_reads)
        name = f"{prefix}{cls.__name__}."
        self.definitions[name] = _rewrite(schema, _as_pydantic_reads)
        return {"$ref": _REFS + name}


_CODE_FIRST = ("function-before", "function-wrap", "function-plain")


def _runs_code_first(core_schema: object) -> bool:
    """Returns whether a pydantic model runs user code before it checks types, and so may accept any value."""
    pending = [core_schema]
    for part in pending:  # `pending` grows during the loop
        if isinstance(part, Mapping):
            if part.get("type") in _CODE_FIRST:
                return True
            pending.extend(part.values())
        elif isinstance(part, list | tuple):
            pending.extend(part)
    return False


# -- Schemas that are stricter than the decoders -----------------------------------------------------------------------


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
    found = {word: part for word, part in schema.items() if word != "uniqueItems"}  # a set accepts duplicates
    if found.get("format") == "decimal":
        found["type"] = ["string", "number"]
    return found


_LAX = {"integer": ["integer", "number", "string", "boolean"], "number": ["number", "string", "boolean"]}
_LAX_BOOLEAN = ["boolean", "integer", "number", "string"]


def _as_pydantic_reads(schema: dict[str, Any]) -> dict[str, Any]:
    """Unless a model is strict, pydantic converts text to numbers and numbers to times. Its formats differ, too."""
    found = {word: part for word, part in schema.items() if word not in ("format", "uniqueItems")}
    kind = schema.get("type")
    if kind == "boolean":
        found["type"] = _LAX_BOOLEAN
    elif isinstance(kind, str) and kind in _LAX:
        found["type"] = _LAX[kind]
    elif kind == "string" and "format" in schema:
        found["type"] = ["string", "number"]
    if "oneOf" in found:  # each branch now accepts more, so several may match
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


# As msgspec parses them, which differs from RFC 3339.
FORMATS: dict[str, Callable[[str], bool]] = {
    "date": _reads_as(datetime.date),
    "date-time": _reads_as(datetime.datetime),
    "time": _reads_as(datetime.time),
    "duration": _reads_as(datetime.timedelta),
    "uuid": _reads_as(uuid.UUID),
    "decimal": _reads_as(decimal.Decimal),
}

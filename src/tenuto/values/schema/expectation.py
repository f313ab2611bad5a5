"""Describes the problems of a derived schema: the expected type, its fields, and the type that was found."""

from typing import Any

from tenuto.errors import Problem

from . import Flaw, Kind, pointer

_MOST_FIELDS = 12
PYTHON_TYPES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "array": "list",
    "object": "object",
    "null": "None",
}


def problem_of(flaw: Flaw, document: dict[str, Any]) -> Problem:
    """Returns the problem of a value that does not fit `document`, without showing the value."""
    flaw = _innermost(flaw)
    path, kind = list(flaw.instance_path), flaw.kind
    if isinstance(kind, Kind.Required):
        at = [*path, kind.property]
        return Problem(pointer(at), "missing", f"is missing: expected {expected(document, at)}")
    if isinstance(kind, Kind.Type | Kind.AnyOf | Kind.Enum | Kind.Format):
        return Problem(pointer(path), "type", f"expected {expected(document, path)}, got {type_name(flaw.instance)}")
    return Problem(pointer(path), kind.name, flaw.message)


def _innermost(flaw: Flaw) -> Flaw:
    """Returns the error of the union branch that matched furthest:

    `Order | None` fails inside the order if there is one.
    """
    while isinstance(flaw.kind, Kind.AnyOf):
        inner = [branch[0] for branch in flaw.kind.context if branch]
        furthest = max(inner, key=_depth, default=flaw)
        if _depth(furthest) <= len(flaw.instance_path):
            break
        flaw = furthest
    return flaw


def _depth(flaw: Flaw) -> int:
    return len(flaw.instance_path) + isinstance(flaw.kind, Kind.Required)


def type_name(value: object) -> str:
    """Returns the Python name of a JSON value's type."""
    if isinstance(value, dict):
        return "object"
    return "None" if value is None else type(value).__name__


def expected(document: dict[str, Any], path: list[str | int]) -> str:
    """Describes the type that the schema expects at a path: `int`, or `Order` with its fields."""
    schema = _at(document, document, path)
    fields = _fields(document, _resolved(document, schema))
    return f"`{_name(document, schema)}`{fields}"


def _at(document: dict[str, Any], schema: Any, path: list[str | int]) -> Any:
    for position, part in enumerate(path):
        found = [inner for each in _branches(document, schema) if (inner := _inside(each, part)) is not None]
        if len(found) > 1:  # several branches define this part: use the first that contains the whole path
            rest = path[position + 1 :]
            return next((end for each in found if (end := _at(document, each, rest)) is not None), None)
        schema = found[0] if found else None
    return schema


def _branches(document: dict[str, Any], schema: Any) -> list[dict[str, Any]]:
    schema = _resolved(document, schema)
    inner = [*schema.get("anyOf", ()), *schema.get("allOf", ())]
    return [schema, *(branch for each in inner for branch in _branches(document, each))]


def _resolved(document: dict[str, Any], schema: Any) -> dict[str, Any]:
    while isinstance(schema, dict) and "$ref" in schema:
        schema = document.get("$defs", {}).get(schema["$ref"].removeprefix("#/$defs/"))
    return schema if isinstance(schema, dict) else {}


def _inside(schema: dict[str, Any], part: str | int) -> Any:
    if isinstance(part, int):
        places = schema.get("prefixItems", ())
        return places[part] if part < len(places) else schema.get("items")
    return schema.get("properties", {}).get(part, schema.get("additionalProperties"))


def _name(document: dict[str, Any], schema: Any) -> str:
    schema = _resolved(document, schema)
    if "enum" in schema:
        return f"one of {', '.join(map(repr, schema['enum']))}"
    if (inner := schema.get("anyOf")) is not None:
        return " | ".join(dict.fromkeys(_name(document, each) for each in inner))
    if (inner := schema.get("allOf")) is not None:
        return " & ".join(dict.fromkeys(_name(document, each) for each in inner))
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0]  # the other types are those that pydantic or `Decimal` converts
    if kind == "array" and isinstance(schema.get("items"), dict):
        return f"list[{_name(document, schema['items'])}]"
    if kind == "object":
        title: str | None = schema.get("title")
        values = schema.get("additionalProperties")
        return title or (f"dict[str, {_name(document, values)}]" if isinstance(values, dict) else "object")
    word = PYTHON_TYPES.get(kind, "any value") if isinstance(kind, str) else "any value"
    return f"{word} ({schema['format']})" if "format" in schema else word


def _fields(document: dict[str, Any], schema: dict[str, Any]) -> str:
    """Returns the fields of an object, or of the only object in a union. `Order` and `Order | None` are one object."""
    objects = [each for each in _branches(document, schema) if each.get("properties")]
    if not objects or any(each != objects[0] for each in objects):
        return ""
    properties, required = objects[0]["properties"], objects[0].get("required", ())
    fields = [
        f"{name} ({_name(document, each)}{'' if name in required else ', optional'})"
        for name, each in list(properties.items())[:_MOST_FIELDS]
    ]
    more = [] if len(properties) <= _MOST_FIELDS else [f"{len(properties) - _MOST_FIELDS} more"]
    noun = "field" if len(properties) == 1 else "fields"
    return f" (an object with the {noun} {', '.join([*fields, *more])})"

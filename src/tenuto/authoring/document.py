"""JSON definitions: parsed, checked against the published schema, and validated."""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from tenuto.errors import DefinitionError, Problem
from tenuto.kernel import validation
from tenuto.kernel.definition import Definition, Step, from_document
from tenuto.kernel.validation.steps import HANDLED
from tenuto.values.schema import Flaw, Kind, Schema, pointer, schema_problem
from tenuto.values.schema.expectation import PYTHON_TYPES, type_name

from .applicability import find_inapplicable
from .document_repair import RepairedDocument
from .known_options import meant
from .translator import attempt_timeout

Source: TypeAlias = Mapping[str, Any] | Path | str | bytes

MAX_BYTES = 4 * 1024 * 1024
NOTIFYING = frozenset({"webhook", "email", "log"})  # built in, and idempotent by the step's key


def read_document(source: Source, more: Callable[[Definition], list[Problem]] | None = None) -> Definition:
    """Reads a definition from a mapping, a file or JSON text.

    Raises `DefinitionError` with every problem and its JSON pointer. `more` adds the checks of the caller.
    """
    document = _load(source)
    problems = _schema_problems(document)
    repaired = RepairedDocument(document, problems)
    definition = _convert(repaired.document)
    if definition is not None:
        found = [*_undeclared(repaired.document, "/steps"), *find_problems(definition), *find_inapplicable(definition)]
        found += [] if more is None else more(definition)
        problems += [problem for problem in found if repaired.reports(problem)]
        if not problems:
            return definition
    assert problems, "the schema accepts what the structs reject"
    raise DefinitionError(f"The definition has {_count(problems)}.", problems=problems)


def check_definition(definition: Definition) -> None:
    """Raises `DefinitionError` if the definition is invalid."""
    problems = find_problems(definition)
    if problems:
        raise DefinitionError(f"Definition {definition.name!r} has {_count(problems)}.", problems=problems)


def find_problems(definition: Definition) -> list[Problem]:
    """Returns the kernel's problems, and those of the schemas in the definition."""
    return [*_bad_schemas(definition), *validation.problems(definition)]


def _count(problems: list[Problem]) -> str:
    return "a problem" if len(problems) == 1 else f"{len(problems)} problems"


# -- Reading -----------------------------------------------------------------------------------------------------------


def _load(source: Source) -> dict[str, Any]:
    """Parses the source. A mapping is encoded first, so that only JSON values pass."""
    try:
        if isinstance(source, Mapping):
            text = msgspec.json.encode(dict(source))
        else:
            text = source.read_bytes() if isinstance(source, Path) else _bytes(source)
        if len(text) > MAX_BYTES:
            raise DefinitionError.at(
                "", "too_large", f"the document has {len(text):,} bytes; the maximum is {MAX_BYTES:,}"
            )
        document = json.loads(text, object_pairs_hook=_reject_repeated_keys, parse_constant=_reject_constant)
    except OSError as error:
        raise DefinitionError.at("", "unreadable", f"the file cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, RecursionError) as error:
        hint = ": to read a file, pass a Path" if isinstance(source, str) and source.endswith(".json") else ""
        raise DefinitionError.at("", "not_json", f"the document is not valid JSON ({error}){hint}") from None
    if not isinstance(document, dict):
        raise DefinitionError.at("", "type", "a definition must be a JSON object")
    return document


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _reject_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {repeated!r} occurs twice in one object")
    return found


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def _convert(document: dict[str, Any]) -> Definition | None:
    """Returns None if the shape is too wrong to validate further. The schema reports why."""
    try:
        return from_document(_with_defaults(document))
    except (msgspec.ValidationError, TypeError, AttributeError, KeyError):
        return None


# -- The schema --------------------------------------------------------------------------------------------------------


def definition_schema() -> dict[str, Any]:
    """Returns a new copy of the JSON Schema of definitions, for editors and clients."""
    schema: dict[str, Any] = json.loads(_schema_text())
    return schema


@cache
def _schema_text() -> str:
    return Path(__file__).with_name("definition.schema.json").read_text(encoding="utf-8")


@cache
def _document_schema() -> Schema:
    return Schema(definition_schema())


def _schema_problems(document: dict[str, Any]) -> list[Problem]:
    found = [problem for flaw in _document_schema().flaws(document) for problem in _problems_of(flaw)]
    return sorted(dict.fromkeys(found), key=lambda problem: _order(problem.path))


def _order(path: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in path.split("/")]


def _problems_of(flaw: Flaw) -> Iterator[Problem]:
    at, kind = pointer(flaw.instance_path), flaw.kind
    match kind:
        case Kind.Required():
            yield Problem(f"{at}/{kind.property}", "missing", f"`{kind.property}` is missing")
        case Kind.AdditionalProperties():
            for name in kind.unexpected:
                yield Problem(f"{at}/{name}", "unknown_field", _unknown_field(name, flaw))
        case Kind.Enum():
            yield Problem(at, "unknown_word", f"must be one of {', '.join(str(option) for option in kind.options)}")
        case Kind.Pattern():
            yield Problem(at, "bad_name", f"must be {validation.NAMES}")
        case Kind.Type():
            names = sorted(kind.types, key=lambda name: name == "null")
            text = f"must be {' or '.join(PYTHON_TYPES[name] for name in names)}, not {type_name(flaw.instance)}"
            yield Problem(at, kind.name, text)
        case _:
            yield Problem(at, kind.name, flaw.message)


def _unknown_field(name: str, flaw: Flaw) -> str:
    if name in ("foreach", "suffix") and "scope" in flaw.schema_path:
        return "a scope cannot be fanned out: put `foreach` on a step"
    return f"`{name}` is not a field here{meant(name, _fields_at(flaw), kind='Fields')}"


def _fields_at(flaw: Flaw) -> list[str]:
    """Returns the fields of the object whose schema the flaw names."""
    schema: Any = definition_schema()
    for part in flaw.schema_path[:-1]:
        schema = schema[part]
        while "$ref" in schema:
            schema = definition_schema()["$defs"][schema["$ref"].rpartition("/")[2]]
    return list(schema["properties"])


# -- Defaults and declarations -----------------------------------------------------------------------------------------


def _with_defaults(document: dict[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in document.items() if name != "$schema"}
    return {**rest, "steps": [_node_with_defaults(node) for node in document["steps"]]}


def _node_with_defaults(node: dict[str, Any]) -> dict[str, Any]:
    if node.get("type") == "scope":
        return {**node, "children": [_node_with_defaults(child) for child in node.get("children", ())]}
    if node.get("type", "task") not in HANDLED:
        return node
    policy = dict(node.get("retry_policy") or {})
    if policy.get("backoff_strategy") == "jittered":
        policy["backoff_strategy"] = "exponential"
    policy["timeout_ms"] = attempt_timeout(policy.get("timeout_ms"), node.get("timeout_ms"))
    return {**node, "retry_policy": policy}


def _undeclared(document: dict[str, Any], at: str) -> Iterator[Problem]:
    """JSON steps must declare whether they may be retried, except for built-in notifications."""
    nodes = document["steps"] if "steps" in document else document.get("children", ())
    for index, node in enumerate(nodes):
        if node.get("type") == "scope":
            yield from _undeclared(node, f"{at}/{index}/children")
        elif _must_declare(node) and node.get("idempotency_strategy") is None:
            text = "declare whether it may be retried: SAFE_TO_RETRY, SAFE_TO_RETRY_WITH_GUARD or NOT_SAFE_TO_RETRY"
            yield Problem(f"{at}/{index}/idempotency_strategy", "missing", text)


def _must_declare(node: dict[str, Any]) -> bool:
    kind = node.get("type", "task")
    return kind in HANDLED and not (kind == "notify" and node.get("handler") in NOTIFYING)


def _bad_schemas(definition: Definition) -> Iterator[Problem]:
    given = [("/input_schema", definition.input_schema), ("/output_schema", definition.output_schema)]
    given += [
        (f"{place.pointer}/output_schema", place.node.output_schema)
        for place in validation.Tree(definition).places
        if isinstance(place.node, Step)
    ]
    for at, schema in given:
        if schema is not None and (why := schema_problem(schema)) is not None:
            yield Problem(at, "bad_schema", f"not a valid JSON Schema: {why}")

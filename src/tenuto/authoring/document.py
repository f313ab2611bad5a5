"""Definitions as JSON: checked against the published schema, then for sense, then read."""

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from tenuto.errors import DefinitionError, Problem
from tenuto.kernel import validation
from tenuto.kernel.definition import Definition, Step, from_document
from tenuto.kernel.validation.steps import HANDLED
from tenuto.values.schema import Flaw, Kind, pointer, schema_problem

from .schema import definition_schema as definition_schema
from .schema import document_validator
from .translate import attempt_timeout

Source: TypeAlias = Mapping[str, Any] | Path | str | bytes

MAX_BYTES = 4 * 1024 * 1024
NOTIFYING = frozenset({"webhook", "email", "log"})  # ours: a notification has a row of its own, under the step's key


def read_document(source: Source, more: Callable[[Definition], list[Problem]] | None = None) -> Definition:
    """A definition from a mapping, a file, or JSON text. `DefinitionError` has every problem, with its JSON pointer.

    `more` finds what only others can tell.
    """
    document = _load(source)
    problems = _schema_problems(document)
    definition = _convert(document)
    if definition is not None:
        told = {problem.path for problem in problems}
        problems += [*_undeclared(document, "/steps"), *(p for p in find_problems(definition) if p.path not in told)]
        problems += [] if more is None else more(definition)
        if not problems:
            return definition
    assert problems, "the schema lets through what the structs refuse"
    raise DefinitionError(f"The definition has {_count(problems)}.", problems=problems)


def check_definition(definition: Definition) -> None:
    """Of a definition that is one already: whether it makes sense."""
    problems = find_problems(definition)
    if problems:
        raise DefinitionError(f"Definition {definition.name!r} has {_count(problems)}.", problems=problems)


def find_problems(definition: Definition) -> list[Problem]:
    """What the kernel finds, and the schemas that the definition brings along."""
    return [*_bad_schemas(definition), *validation.problems(definition)]


def _count(problems: list[Problem]) -> str:
    return "a problem" if len(problems) == 1 else f"{len(problems)} problems"


# -- Reading -----------------------------------------------------------------------------------------------------------


def _load(source: Source) -> dict[str, Any]:
    """Plain JSON, whatever it came as. A mapping goes by way of text too, so that nothing but JSON gets further."""
    try:
        if isinstance(source, Mapping):
            text = msgspec.json.encode(dict(source))
        else:
            text = source.read_bytes() if isinstance(source, Path) else _bytes(source)
        if len(text) > MAX_BYTES:
            raise DefinitionError.at("", "too_large", f"it has {len(text):,} bytes, and at most {MAX_BYTES:,} are read")
        document = json.loads(text, object_pairs_hook=_without_repetition, parse_constant=_refuse_constant)
    except OSError as error:
        raise DefinitionError.at("", "unreadable", f"the file cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, RecursionError) as error:
        hint = ": give a Path to read a file" if isinstance(source, str) and source.endswith(".json") else ""
        raise DefinitionError.at("", "not_json", f"it is not JSON ({error}){hint}") from None
    if not isinstance(document, dict):
        raise DefinitionError.at("", "type", "a definition is a JSON object")
    return document


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {repeated!r} is given twice in one object")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} has no JSON form")


def _convert(document: dict[str, Any]) -> Definition | None:
    """None where the shape is so wrong that nothing more can be said; the schema has said what it is."""
    try:
        return from_document(_with_defaults(document))
    except (msgspec.ValidationError, TypeError, AttributeError, KeyError):
        return None


# -- The schema --------------------------------------------------------------------------------------------------------


def _schema_problems(document: dict[str, Any]) -> list[Problem]:
    found = [problem for flaw in document_validator().flaws(document) for problem in _told(flaw)]
    return sorted(dict.fromkeys(found), key=lambda problem: _order(problem.path))


def _order(path: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in path.split("/")]


def _told(flaw: Flaw) -> Iterator[Problem]:
    at, kind = pointer(flaw.instance_path), flaw.kind
    match kind:
        case Kind.Required():
            yield Problem(f"{at}/{kind.property}", "missing", f"`{kind.property}` is missing")
        case Kind.AdditionalProperties():
            for name in kind.unexpected:
                yield Problem(f"{at}/{name}", "unknown_field", _unknown_field(name, flaw))
        case Kind.Enum():
            yield Problem(at, "unknown_word", f"it must be one of {', '.join(str(option) for option in kind.options)}")
        case Kind.Pattern():
            yield Problem(at, "bad_name", f"it must be {validation.NAMES}")
        case _:
            yield Problem(at, kind.name, flaw.message)


def _unknown_field(name: str, flaw: Flaw) -> str:
    if name in ("foreach", "suffix") and "scope" in flaw.schema_path:
        return "a scope cannot be fanned out: put `foreach` on a step"
    return f"there is no field `{name}` here"


# -- What documents may leave out --------------------------------------------------------------------------------------


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
    """In JSON nothing says what a handler does, so its author must; what ours do when they notify is known."""
    nodes = document["steps"] if "steps" in document else document.get("children", ())
    for index, node in enumerate(nodes):
        if node.get("type") == "scope":
            yield from _undeclared(node, f"{at}/{index}/children")
        elif _must_declare(node) and node.get("idempotency_strategy") is None:
            text = "say whether it may be repeated: SAFE_TO_RETRY, SAFE_TO_RETRY_WITH_GUARD or NOT_SAFE_TO_RETRY"
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
            yield Problem(at, "bad_schema", f"it cannot be used as a JSON Schema: {why}")

"""Describes how a plan differs from the stored one, in the terms of its author."""

from collections.abc import Iterator
from typing import Any

from tenuto.errors import Problem
from tenuto.kernel.definition import JSON, differences

from .problems import keyword_of

_UNITS = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))


def describe_changes(stored: JSON, now: JSON, *, is_saga: bool) -> list[Problem]:
    """Returns a problem for each difference. `is_saga`: with Python options instead of pointers into a document."""
    return [_describe(pointer, stored, now, is_saga=is_saga) for pointer in differences(stored, now)]


def _describe(pointer: str, stored: Any, now: Any, *, is_saga: bool) -> Problem:
    fix = "set `version=2` in `@saga`" if is_saga else "give the definition a new `version`"
    if is_saga and isinstance(stored, dict) and isinstance(stored.get("version"), int):
        fix = f"set `version={stored['version'] + 1}` in `@saga`"
    where, field = "the saga", pointer.split("/")[1:]
    while len(field) > 1 and field[0] in ("steps", "children"):
        stored, now = _child(stored, field[0], field[1]), _child(now, field[0], field[1])
        where, field = f"step `{field[1]}`", field[2:]
    path = where if is_saga else pointer
    if not field or (where == "the saga" and field == ["steps"]):
        what = "is not stored" if stored is None else "is gone" if now is None else "has its steps in another order"
        return Problem(path, "changed_plan", f"{where} {what}; {fix}")
    name = keyword_of("/".join(field)) if is_saga else field[-1]
    is_time = field[-1].endswith("_ms")
    before, after = (_shown(_at(each, field), is_time=is_time) for each in (stored, now))
    return Problem(path, "changed_plan", f"`{name}` of {where}: {before} stored, {after} now; {fix}")


def _child(node: Any, field: str, id: str) -> Any:
    return next((child for child in _children(node, field) if child.get("step_id") == id), None)


def _children(node: Any, field: str) -> Iterator[dict[str, Any]]:
    yield from (node or {}).get(field) or ()


def _at(document: Any, field: list[str]) -> Any:
    for name in field:
        if isinstance(document, list):
            document = document[int(name)] if name.isdecimal() and int(name) < len(document) else None
        else:
            document = document.get(name) if isinstance(document, dict) else None
    return document


def _shown(value: Any, *, is_time: bool) -> str:
    if value is None:
        return "none"
    if not is_time or not isinstance(value, int):
        return repr(value) if isinstance(value, str) else str(value)
    for milliseconds, unit in _UNITS:
        if value and value % milliseconds == 0:
            return f"{value // milliseconds} {unit}"
    return f"{value} ms"

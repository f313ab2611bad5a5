"""Finds markers that stand where they have no effect, and says where they belong."""

from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin

from .annotations import describe
from .context import SagaContext
from .markers import (
    FromCompensationError,
    FromCompensationResult,
    FromStep,
    Header,
    Headers,
    Input,
    Required,
    Result,
    Variable,
    Variables,
)
from .settings import STEP, Declared

_OF_STEP = (FromStep, FromCompensationResult, FromCompensationError)
_NAMED = (Header, Variable)
_MARKERS = (*_OF_STEP, *_NAMED, Input, Result, Headers, Variables, Required)


def misplaced_marker(annotation: Any, marks: tuple[object, ...], default: object) -> str | None:
    """Returns what is wrong with the markers of a parameter, or None. `marks` are those around its type."""
    if (kind := _kind(default)) is not None:
        return f"{kind.__name__} is its default value, which marks nothing: write {_example(annotation, kind)}"
    if (kind := _kind(annotation)) is not None:
        return f"{kind.__name__} is its type: write {_example(None, kind)}"
    for mark in marks:
        if isinstance(mark, type) and mark in (*_OF_STEP, *_NAMED):
            what = "the step" if mark in _OF_STEP else "a name"
            return f"{mark.__name__} needs {what}: write {_example(annotation, mark)}"
        if mark is SagaContext:
            return "SagaContext is a type, not a marker: annotate the parameter with SagaContext itself"
        if isinstance(mark, Declared) or hasattr(mark, STEP):
            return f"a step is not a marker: write {_example(annotation, FromStep)}"
    inner = next(_inner_markers(annotation), None)
    if inner is not None:
        return f"{inner.__name__} is inside of its type: write {_example(annotation, inner)}, around the whole type"
    return None


def _kind(value: object) -> type | None:
    """Returns the marker that the value is, as a class or an instance."""
    if isinstance(value, type):
        return value if value in _MARKERS else None
    return type(value) if isinstance(value, _MARKERS) else None


def _inner_markers(annotation: Any) -> Iterator[type]:
    arguments = get_args(annotation)
    if get_origin(annotation) is Annotated:
        yield from (kind for mark in arguments[1:] if (kind := _kind(mark)) is not None)
        arguments = arguments[:1]
    for argument in arguments:
        yield from _inner_markers(argument)


def _example(annotation: Any, kind: type) -> str:
    name = kind.__name__
    if kind in _OF_STEP:
        name = f"{name}(step)"
    elif kind in _NAMED:
        name = f'{name}("name")'
    return f"Annotated[{'T' if annotation is None else describe(_without_markers(annotation))}, {name}]"


def _without_markers(annotation: Any) -> Any:
    """Removes `Annotated` from the outside; a type with markers inside of it is shown as `T`."""
    if get_origin(annotation) is Annotated:
        return _without_markers(get_args(annotation)[0])
    return annotation if next(_inner_markers(annotation), None) is None else "T"

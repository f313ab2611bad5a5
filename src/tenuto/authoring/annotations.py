"""Compares annotated types: whether a value of one can be read as another. Only certain mismatches count."""

import collections.abc
import dataclasses
import types
import typing
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import msgspec

from tenuto.values.hooks import name_of as describe

__all__ = ["accepts_none", "describe", "elements", "fits", "is_unknown", "members", "same"]

NoneType = type(None)
_ARRAYS = (list, tuple, set, frozenset, collections.abc.Collection)
_MAPS = (dict, collections.abc.Mapping)
_NOT_ARRAYS = (str, bytes, bytearray, *_MAPS)


def fits(source: Any, target: Any) -> bool:
    """Returns whether a value of type `source` can be read as `target`. True if the types do not tell.

    None is ignored: a skipped step returns it whatever its annotation is.
    """
    sources, targets = members(source), members(target)
    if not sources:
        return accepts_none(target) or not targets
    return any(_one_fits(s, t) for s in sources for t in targets)


def same(parameter: Any, offered: Any) -> bool:
    """Returns whether the parameter's type is the offered type or a base class of it, and both are known."""
    wanted, given = members(parameter), members(offered)
    if not wanted or not given or any(is_unknown(member) for member in (*wanted, *given)):
        return False
    return all(any(g == w or _is_subclass(g, w) for w in wanted) for g in given)


def members(annotation: Any) -> tuple[Any, ...]:
    """Returns the members of a union, without None and `Annotated` metadata."""
    annotation = bare(annotation)
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(inner for argument in get_args(annotation) for inner in members(argument))
    return () if annotation is None or annotation is NoneType else (annotation,)


def accepts_none(annotation: Any) -> bool:
    annotation = bare(annotation)
    if get_origin(annotation) in (Union, types.UnionType):
        return any(accepts_none(argument) for argument in get_args(annotation))
    return annotation is None or annotation is NoneType or is_unknown(annotation)


def bare(annotation: Any) -> Any:
    """Removes `Annotated` and replaces a `NewType` by its supertype."""
    while get_origin(annotation) is Annotated or isinstance(annotation, typing.NewType):
        annotation = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation.__supertype__
    return annotation


def is_unknown(annotation: Any) -> bool:
    return annotation is Any or annotation is object or isinstance(annotation, TypeVar | str)


def elements(annotation: Any) -> Any:
    """Returns the element type of a list-like annotation, or None."""
    origin, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if not _is_subclass(origin, _ARRAYS) or _is_subclass(origin, _NOT_ARRAYS) or hasattr(origin, "_fields"):
        return None
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        return Any
    return arguments[0] if arguments else Any


def _one_fits(source: Any, target: Any) -> bool:
    if is_unknown(source) or is_unknown(target) or source == target:
        return True
    if get_origin(source) is Literal or get_origin(target) is Literal:
        return True
    given, wanted = elements(source), elements(target)
    if given is not None or wanted is not None:
        return given is not None and wanted is not None and fits(given, wanted)
    if _is_object(source) and _is_object(target):
        return _objects_fit(source, target)
    return _classes_fit(get_origin(source) or source, get_origin(target) or target)


def _objects_fit(source: Any, target: Any) -> bool:
    source, target = get_origin(source) or source, get_origin(target) or target
    # A plain dict may be anything that is written as an object, and anything so written may be read as one.
    return _is_plain_map(source) or _is_plain_map(target) or _is_subclass(source, target)


def _classes_fit(source: Any, target: Any) -> bool:
    if not isinstance(source, type) or not isinstance(target, type):
        return True
    if source is bool:  # an int to Python, not to JSON
        return target is bool
    return issubclass(source, target) or (issubclass(source, int) and target is float)


def _is_object(annotation: Any) -> bool:
    cls = get_origin(annotation) or annotation
    return _is_plain_map(cls) or dataclasses.is_dataclass(cls) or _has_fields(cls)


def _has_fields(cls: Any) -> bool:
    if not isinstance(cls, type):
        return False
    return (
        issubclass(cls, msgspec.Struct) or typing.is_typeddict(cls) or hasattr(cls, "__attrs_attrs__") or _is_model(cls)
    )


def _is_model(cls: type) -> bool:
    return hasattr(cls, "model_validate")


def _is_plain_map(cls: Any) -> bool:
    return _is_subclass(cls, _MAPS) and not typing.is_typeddict(cls)


def _is_subclass(cls: Any, base: Any) -> bool:
    try:
        return issubclass(cls, base)
    except TypeError:  # a TypedDict, a protocol, or no class at all
        return False

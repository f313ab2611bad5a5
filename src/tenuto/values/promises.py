"""Checks annotations: whether values of a type can be encoded and decoded."""

import typing
from typing import Any

import msgspec

from .hooks import CLASSES, field_names, name_of
from .parts import parts_of
from .reading import Fields, StandInType, Variants, readable, refusal


def can_serialise(annotation: Any) -> str | None:
    """Returns why values of this type cannot be encoded or decoded, as a message for the author; None if they can."""
    try:
        info = msgspec.inspect.type_info(readable(annotation))
    except NameError as error:
        return f"{name_of(annotation)} names `{error.name}`, which cannot be found: define it at the top of its module"
    except Exception as error:
        return refusal(annotation, error)
    return next((text for part in parts_of(info) if (text := _obstacle(part)) is not None), None)


def _obstacle(info: msgspec.inspect.Type) -> str | None:
    if isinstance(info, msgspec.inspect.CustomType):
        return _obstacle_of_class(info.cls)
    if isinstance(info, msgspec.inspect.DataclassType):
        # msgspec silently omits private fields when it encodes.
        private = [name for name in field_names(info.cls) or () if name.startswith("_")]
        if private:
            return f"{info.cls.__qualname__}.{private[0]} is private and would be lost: rename the field"
    return None


def _obstacle_of_class(cls: Any) -> str | None:
    if isinstance(cls, StandInType):
        return _obstacle_of_stand_in(typing.cast(object, vars(cls)["read"].__func__))
    if cls is object or hasattr(cls, "model_validate_json"):
        return None
    if isinstance(cls, type) and issubclass(cls, str | int | float):
        return None
    return f"{name_of(cls)} has no JSON form; use {CLASSES}"


def _obstacle_of_stand_in(read: object) -> str | None:
    if isinstance(read, Fields):
        hints = typing.get_type_hints(read.cls, include_extras=True)
        return next((text for name in read.readers if (text := can_serialise(hints[name])) is not None), None)
    assert isinstance(read, Variants)
    shapes = [_shape(member) for member in read.members]
    twins = [m for m, shape in zip(read.members, shapes, strict=True) if shape is not None and shapes.count(shape) > 1]
    if twins:
        names = " and ".join(name_of(twin) for twin in twins)
        return f"{names} have the same fields, so their JSON cannot be told apart: give each a Literal field"
    return next((text for member in read.members if (text := can_serialise(member)) is not None), None)


def _shape(member: Any) -> object:
    names = field_names(member) if isinstance(member, type) else None
    if names is None:
        return None
    hints = typing.get_type_hints(member, include_extras=True)
    return sorted((name, repr(hints.get(name))) for name in names)


def holds_sets(annotation: Any) -> bool:
    try:
        info = msgspec.inspect.type_info(annotation)
    except Exception:  # sets are then encoded in iteration order
        return False
    return any(isinstance(part, msgspec.inspect.SetType | msgspec.inspect.FrozenSetType) for part in parts_of(info))

"""Encoders and the hook for types that msgspec does not support."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Final, get_args, get_origin

import msgspec

from .models import dump, is_model

MAX_DEPTH: Final = 100
CLASSES: Final = "a dataclass, a msgspec Struct, a pydantic model or an attrs class"


def enc_hook(value: Any) -> object:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return dict(value)
    if is_model(value):
        return dump(value)
    raise NotImplementedError


def _models_left_out(value: Any) -> object:
    return None if is_model(value) else enc_hook(value)


AS_IS = msgspec.json.Encoder(enc_hook=enc_hook)
# Processes iterate over the same set in different orders, but equal inputs must have equal digests.
BY_ORDER = msgspec.json.Encoder(enc_hook=enc_hook, order="deterministic")
BY_KEY = msgspec.json.Encoder(enc_hook=enc_hook, order="sorted")
# Raises for keys that are not strings, because it cannot sort them. Used only as a check, so models are left out.
TEXT_KEYS = msgspec.json.Encoder(enc_hook=_models_left_out, order="deterministic")
PACKED = msgspec.msgpack.Encoder(enc_hook=enc_hook)


def field_names(annotation: Any) -> list[str] | None:
    cls = get_origin(annotation) or annotation
    if not isinstance(cls, type):
        return None
    if issubclass(cls, msgspec.Struct):
        return list(cls.__struct_fields__)
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls)]
    if hasattr(cls, "__attrs_attrs__"):
        return [field.name for field in cls.__attrs_attrs__]
    return None


def name_of(annotation: Any) -> str:
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__qualname__
    return str(annotation).replace("typing.", "")

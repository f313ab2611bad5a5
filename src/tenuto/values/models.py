"""Encodes pydantic models. They are recognised by their methods, so that pydantic is not imported."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import inspect

from .parts import parts_of

_KEY = b'":'  # ends every key in compact JSON; inside strings the quote has a backslash before it


class RepeatedKeys(Exception):
    """Two keys of a model have the same JSON text, so its dump has lost a value. `text` contains both."""

    def __init__(self, text: bytes) -> None:
        super().__init__("two keys are one text")
        self.text = text


def is_model(value: object) -> bool:
    return hasattr(type(value), "model_dump")


def dump(model: Any) -> object:
    # The form that `model_validate_json` reads back: with validation aliases, without computed fields.
    dumped: object = model.model_dump(mode="json", by_alias=True, round_trip=True)
    cls: Any = type(model)
    if _may_repeat_keys(cls):
        try:
            text: bytes = model.model_dump_json(by_alias=True, round_trip=True).encode()
            kept = msgspec.json.encode(dumped)
        except Exception:  # another flaw, which encoding reports
            return dumped
        if loses_keys(text, kept):
            raise RepeatedKeys(text)
    return dumped


def loses_keys(text: bytes, read_and_written: bytes) -> bool:
    """Returns whether keys were lost by decoding and encoding, which keeps only the last of equal keys."""
    return read_and_written.count(_KEY) < text.count(_KEY)


@lru_cache(maxsize=4096)
def _may_repeat_keys(cls: Any) -> bool:
    """Returns whether two keys of a model can have the same JSON text. Validated keys of the types below cannot."""
    models = [cls]
    for model in models:  # `models` grows during the loop
        names = [field.serialization_alias or name for name, field in model.model_fields.items()]
        if len(set(names)) < len(names) or model.model_config.get("extra") == "allow":
            return True
        for part in _parts_of_fields(model):
            if isinstance(part, inspect.DictType) and not isinstance(part.key_type, _KEYS_OF_A_KIND):
                return True
            if isinstance(part, inspect.CustomType) and hasattr(part.cls, "model_fields"):
                if part.cls not in models:
                    models.append(part.cls)
            elif isinstance(part, inspect.AnyType | inspect.CustomType):
                return True
    return False


_KEYS_OF_A_KIND = inspect.StrType | inspect.IntType | inspect.UUIDType | inspect.DateType | inspect.DateTimeType


def _parts_of_fields(model: Any) -> Iterator[inspect.Type]:
    for field in model.model_fields.values():
        try:
            info = inspect.type_info(field.annotation)
        except Exception:  # a type that only pydantic supports may contain anything
            info = inspect.AnyType()
        yield from parts_of(info)

"""Pydantic models, which are known by their methods: pydantic is not imported."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import inspect

from .parts import parts_of

_KEY = b'":'  # ends every key of a compact JSON, and is in strings only behind a backslash


class RepeatedKeys(Exception):
    """Two keys of a model are one text, so what it dumps has lost a value. The JSON that it writes has both."""

    def __init__(self, text: bytes) -> None:
        super().__init__("two keys are one text")
        self.text = text


def is_model(value: object) -> bool:
    return hasattr(type(value), "model_dump")


def dump(model: Any) -> object:
    # What `model_validate_json` reads back: aliases as they are read, and no computed fields.
    dumped: object = model.model_dump(mode="json", by_alias=True, round_trip=True)
    cls: Any = type(model)
    if _may_repeat_keys(cls):
        try:
            text: bytes = model.model_dump_json(by_alias=True, round_trip=True).encode()
            kept = msgspec.json.encode(dumped)
        except Exception:  # it has another flaw, which is found where it is written
            return dumped
        if loses_keys(text, kept):
            raise RepeatedKeys(text)
    return dumped


def loses_keys(text: bytes, read_and_written: bytes) -> bool:
    """Whether a JSON text had more keys before it was read: of those that are the same, the last one counts."""
    return read_and_written.count(_KEY) < text.count(_KEY)


@lru_cache(maxsize=4096)
def _may_repeat_keys(cls: Any) -> bool:
    """Most models cannot: what they hold was validated, and keys of one of the types below never are the same text."""
    models = [cls]
    for model in models:  # grows while it is walked
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
        except Exception:  # a type that only pydantic knows may hold anything
            info = inspect.AnyType()
        yield from parts_of(info)

"""What is wrong with a value that was refused, and where. Slow, and walked only as far as the first flaw."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from .hooks import AS_IS, CLASSES, MAX_DEPTH, enc_hook, field_names
from .models import RepeatedKeys, is_model

_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels, or it holds itself"


def first_flaw(value: object, where: str) -> str | None:
    """Its place and what it is, in words that do not show the value; None if there is none."""
    return next(_flaws(value, where, 1), None)


def _flaws(value: object, where: str, depth: int) -> Iterator[str]:
    if isinstance(value, float):
        if not math.isfinite(value):
            yield f"{where}: NaN and Infinity have no JSON form"
    elif isinstance(value, str):
        if (why := _flaw_of_text(value)) is not None:
            yield f"{where}: {why}"
    elif isinstance(value, Raw):
        yield from _flaws_of_raw(value, where, depth)
    elif isinstance(value, _Repeated):
        yield f"{where}{value.place} (the key): it is there twice, because {_ONE_KEY}"
    elif is_model(value):
        yield from _flaws_of_model(value, where, depth)
    elif (parts := _parts(value)) is not None:
        if depth > MAX_DEPTH:
            yield f"{_shortened(where)}: {_TOO_DEEP}"
        for place, part in parts:
            yield from _flaws(part, where + place, depth + 1)
    elif not _is_plain(value):
        yield f"{where}: {_unknown_type(value)}"


def _flaw_of_text(text: str) -> str | None:
    if "\0" in text:
        return "text with a NUL character cannot be stored"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "text with a lone surrogate is not Unicode"
    return None


def _flaws_of_raw(value: Raw, where: str, depth: int) -> Iterator[str]:
    try:
        msgspec.json.decode(value)
    except msgspec.DecodeError:
        yield f"{where}: it is said to be JSON, and is not"
    except RecursionError:
        yield f"{where}: {_TOO_DEEP}"
    else:
        yield from _flaws_of_json(bytes(value), where, depth)


def _flaws_of_json(text: bytes, where: str, depth: int) -> Iterator[str]:
    # msgspec keeps the last of two keys without a word.
    try:
        value = json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        yield f"{where}: {_TOO_DEEP}"
    else:
        yield from _flaws(value, where, depth)


def _object(items: list[tuple[str, object]]) -> object:
    found = dict(items)
    return found if len(found) == len(items) else _Repeated([key for key, _ in items])


_ONE_KEY = "keys that differ in Python, as 1 and '1' do, can be the same in JSON"


class _Repeated:
    """Stands in the walk for an object that has a key twice."""

    def __init__(self, keys: list[str]) -> None:
        first = {key: position for position, key in reversed(list(enumerate(keys)))}
        self.place = next(_place_of_key(key, position) for position, key in enumerate(keys) if first[key] < position)


def _flaws_of_model(value: Any, where: str, depth: int) -> Iterator[str]:
    try:
        dumped = enc_hook(value)
    except RepeatedKeys as repeated:
        yield from _flaws_of_json(repeated.text, where, depth)
    except Exception as error:
        yield f"{where}: {type(value).__qualname__} refuses to be written ({type(error).__name__})"
    else:
        yield from _flaws(dumped, where, depth)


def _parts(value: Any) -> Iterator[tuple[str, object]] | None:
    if isinstance(value, Mapping):
        return _parts_of_mapping(value)
    if isinstance(value, list | tuple | set | frozenset):
        return ((f"[{index}]", item) for index, item in enumerate(value))
    if (names := field_names(type(value))) is not None:
        return ((f".{name}", getattr(value, name)) for name in names if hasattr(value, name))
    return None


def _parts_of_mapping(value: Mapping[object, object]) -> Iterator[tuple[str, object]]:
    for position, (key, item) in enumerate(value.items()):
        place = _place_of_key(key, position)
        if isinstance(key, str):
            yield f"{place} (the key)", key
        elif not _is_plain({key: 0}):
            yield f"{place} (the key)", _BadKey()
        yield place, item


class _BadKey:
    """Stands in the walk for a key that JSON cannot have."""


def _place_of_key(key: object, position: int) -> str:
    # A key may be somebody's name or address. One that looks like a field is shown, any other is counted.
    if isinstance(key, str) and len(key) <= 40 and key.isidentifier():
        return f".{key}"
    return f"[key {position}]"


def _is_plain(value: object) -> bool:
    try:
        AS_IS.encode(value)
    except Exception:
        return False
    return True


def _unknown_type(value: object) -> str:
    if isinstance(value, _BadKey):
        return "keys are text or numbers"
    if hasattr(value, "__await__"):
        return "a coroutine that nobody awaits: declare the handler `async def`"
    return f"a {type(value).__qualname__} has no JSON form; use {CLASSES}"


def _shortened(where: str) -> str:
    return where if len(where) <= 80 else f"{where[:80]}…"

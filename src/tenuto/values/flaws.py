"""Finds the first flaw of a value that cannot be encoded. Slow, so it runs only after encoding has failed."""

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from .hooks import AS_IS, CLASSES, MAX_DEPTH, enc_hook, field_names
from .models import RepeatedKeys, is_model

_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels, or it contains itself"


def first_flaw(value: object, where: str) -> str | None:
    """Returns the place and the kind of the first flaw, without showing the value; None if there is no flaw."""
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
        yield f"{where}{value.place} (the key): duplicate key; {_ONE_KEY}"
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
        yield f"{where}: a Raw value that is not valid JSON"
    except RecursionError:
        yield f"{where}: {_TOO_DEEP}"
    else:
        yield from _flaws_of_json(bytes(value), where, depth)


def _flaws_of_json(text: bytes, where: str, depth: int) -> Iterator[str]:
    # msgspec silently keeps the last of two equal keys, so the standard library parses the text.
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
    """Replaces an object that contains a key twice."""

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
    """Replaces a key that JSON does not allow."""


def _place_of_key(key: object, position: int) -> str:
    # A key may be personal data, such as a name or an address. Keys that look like field names are shown; for all
    # others the position is shown.
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
        return "a coroutine that was never awaited: declare the handler `async def`"
    return f"a {type(value).__qualname__} has no JSON form; use {CLASSES}"


def _shortened(where: str) -> str:
    return where if len(where) <= 80 else f"{where[:80]}…"

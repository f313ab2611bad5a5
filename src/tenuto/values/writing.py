"""To canonical JSON. This is on the path of every step: one pass in C, three searches of the text that it gave,
and where there are keys, a second pass that tells whether all of them are text."""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import Raw

from tenuto.errors import PayloadError
from tenuto.kernel.definition import PAYLOAD_LIMIT

from .flaws import first_flaw
from .hooks import AS_IS, BY_ORDER, MAX_DEPTH, PACKED, TEXT_KEYS
from .models import RepeatedKeys, loses_keys
from .promises import holds_sets

DEFAULT_LIMIT: Final = PAYLOAD_LIMIT

Encode = Callable[[object], Raw]
Write = Callable[[object], bytes]

_NULL = Raw(b"null")
_BACKSLASH, _COLON = 0x5C, 0x3A
_SHALLOW = 2 * MAX_DEPTH  # a shorter text cannot be nested deeper: every level costs two brackets
_test_keys = TEXT_KEYS.encode


def encode(value: object, hint: Any = None, *, where: str = "value", limit: int = DEFAULT_LIMIT) -> Raw:
    """Canonical JSON of a value; `PayloadError` if it has none. `hint` is the annotation that it was declared with."""
    return _encode(value, _settled(hint), where, limit)


def encoder(annotation: Any = None, *, where: str = "value", limit: int = DEFAULT_LIMIT) -> Encode:
    """`encode` for one annotation, with all that the annotation tells settled beforehand."""
    writer = _settled(annotation)
    return lambda value: _encode(value, writer, where, limit)


def _encode(value: object, writer: Write | None, where: str, limit: int) -> Raw:
    if value is None:
        return _NULL
    try:
        text = (writer or _writer_of(type(value)))(value)
    except Exception as error:
        raise _unencodable(value, where, error) from None
    # Only a text with a null may have been a NaN, and only one with a backslash may hold a NUL.
    if len(text) >= _SHALLOW or text.find(b"null") >= 0 or _BACKSLASH in text or len(text) > limit:
        _look_closely(text, value, where, limit)
    # Keys of a dict differ, and so do their texts if all of them are text. Others may not: 1 and "1".
    if _COLON in text:
        try:
            _test_keys(value)
        except Exception:
            _compare_keys(text, where)
    return Raw(text)


def _settled(annotation: Any) -> Write | None:
    """None where nothing is annotated: then the class of each value tells."""
    if annotation is None:
        return None
    try:
        return _writer_of(annotation)
    except TypeError:  # an annotation with a part that cannot be hashed
        return _writer(annotation)


def _writer(annotation: Any) -> Write:
    if annotation is Raw:
        return _write_again
    return (BY_ORDER if holds_sets(annotation) else AS_IS).encode


_writer_of: Callable[[Any], Write] = lru_cache(maxsize=4096)(_writer)


def _write_again(value: object) -> bytes:
    """What somebody else wrote is JSON only when it has been read."""
    assert isinstance(value, Raw)
    text = AS_IS.encode(msgspec.json.decode(value))
    if loses_keys(bytes(value), text):
        raise RepeatedKeys(bytes(value))
    return text


def _compare_keys(text: bytes, where: str) -> None:
    written = Raw(text)
    try:
        loses = loses_keys(text, AS_IS.encode(msgspec.json.decode(written)))
    except msgspec.DecodeError:  # a part was said to be JSON
        loses = True
    if loses and (flaw := first_flaw(written, where)) is not None:
        raise PayloadError(flaw)


def _look_closely(text: bytes, value: object, where: str, limit: int) -> None:
    if len(text) > limit:
        raise PayloadError(
            f"{where}: {len(text):,} bytes of JSON, and at most {limit:,} are kept",
            code="payload_too_large",
            hint="keep it in a store of your own and pass a reference",
        )
    suspect = (
        (text.find(b"null") >= 0 and _may_hold_nan(value))
        or (_BACKSLASH in text and text.find(b"\\u0000") >= 0)
        or _is_too_deep(text)
    )
    if suspect and (flaw := first_flaw(value, where)) is not None:
        raise PayloadError(flaw)


# In MessagePack a float is 0xcb and eight bytes, and NaN and Infinity are those whose exponent is all ones.
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]", re.DOTALL)


def _may_hold_nan(value: object) -> bool:
    """msgspec writes NaN as null. Its MessagePack keeps it, and is searched far faster than the value is walked."""
    try:
        return _NOT_FINITE.search(PACKED.encode(value)) is not None
    except Exception:  # integers beyond 64 bits, which JSON may hold and MessagePack may not
        return True


_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_STRUCTURE = bytes(byte for byte in range(256) if byte not in b'[]{}"')


def _is_too_deep(text: bytes) -> bool:
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return False
    if _BACKSLASH in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    rest = text.translate(_BRACKETS, _NO_STRUCTURE).replace(b'""', b"")
    if rest.find(b'"') >= 0:  # there are brackets in strings
        rest = b"".join(rest.split(b'"')[::2])
    for _ in range(MAX_DEPTH):  # each pass takes the innermost level away
        if not rest:
            return False
        rest = rest.replace(b"[]", b"")
    return bool(rest)


def _unencodable(value: object, where: str, error: Exception) -> PayloadError:
    return PayloadError(first_flaw(value, where) or f"{where}: it cannot be written as JSON ({type(error).__name__})")

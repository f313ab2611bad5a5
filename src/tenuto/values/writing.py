"""Encodes values to canonical JSON.

Every step passes through this module, so the usual case is fast: msgspec encodes in one pass, three searches of the
text detect rare problems, and if the text has keys, a second pass checks that all of them are strings.
"""

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
_SHALLOW = 2 * MAX_DEPTH  # shorter text cannot exceed the depth, because every level takes two brackets
_test_keys = TEXT_KEYS.encode


def encode(value: object, hint: Any = None, *, where: str = "value", limit: int = DEFAULT_LIMIT) -> Raw:
    """Encodes a value as canonical JSON, or raises `PayloadError`. `hint` is the annotation of the value."""
    return _encode(value, _settled(hint), where, limit)


def encoder(annotation: Any = None, *, where: str = "value", limit: int = DEFAULT_LIMIT) -> Encode:
    """Returns `encode` for one annotation. Work that depends only on the annotation is done once."""
    writer = _settled(annotation)
    return lambda value: _encode(value, writer, where, limit)


def _encode(value: object, writer: Write | None, where: str, limit: int) -> Raw:
    if value is None:
        return _NULL
    try:
        text = (writer or _writer_of(type(value)))(value)
    except Exception as error:
        raise _unencodable(value, where, error) from None
    # NaN is encoded as null, and NUL as an escape. Text with neither a null nor a backslash contains neither.
    if len(text) >= _SHALLOW or text.find(b"null") >= 0 or _BACKSLASH in text or len(text) > limit:
        _look_closely(text, value, where, limit)
    # String keys of a dict never collide in JSON. Other keys may, such as 1 and "1".
    if _COLON in text:
        try:
            _test_keys(value)
        except Exception:
            _compare_keys(text, where)
    return Raw(text)


def _settled(annotation: Any) -> Write | None:
    """Returns the writer of an annotation; None without annotation, because then the class of each value decides."""
    if annotation is None:
        return None
    try:
        return _writer_of(annotation)
    except TypeError:  # the annotation is not hashable
        return _writer(annotation)


def _writer(annotation: Any) -> Write:
    if annotation is Raw:
        return _write_again
    return (BY_ORDER if holds_sets(annotation) else AS_IS).encode


_writer_of: Callable[[Any], Write] = lru_cache(maxsize=4096)(_writer)


def _write_again(value: object) -> bytes:
    """Decodes and re-encodes a `Raw`, because only decoding proves that it is JSON."""
    assert isinstance(value, Raw)
    text = AS_IS.encode(msgspec.json.decode(value))
    if loses_keys(bytes(value), text):
        raise RepeatedKeys(bytes(value))
    return text


def _compare_keys(text: bytes, where: str) -> None:
    written = Raw(text)
    try:
        loses = loses_keys(text, AS_IS.encode(msgspec.json.decode(written)))
    except msgspec.DecodeError:  # a `Raw` part is not JSON
        loses = True
    if loses and (flaw := first_flaw(written, where)) is not None:
        raise PayloadError(flaw)


def _look_closely(text: bytes, value: object, where: str, limit: int) -> None:
    if len(text) > limit:
        raise PayloadError(
            f"{where}: {len(text):,} bytes of JSON exceed the limit of {limit:,}",
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


# In MessagePack a float is 0xcb and eight bytes. NaN and Infinity have an exponent of all ones.
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]", re.DOTALL)


def _may_hold_nan(value: object) -> bool:
    """Searches the MessagePack form for NaN and Infinity, which is far faster than walking the value in Python."""
    try:
        return _NOT_FINITE.search(PACKED.encode(value)) is not None
    except Exception:  # integers beyond 64 bits, which MessagePack does not support
        return True


_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_STRUCTURE = bytes(byte for byte in range(256) if byte not in b'[]{}"')


def _is_too_deep(text: bytes) -> bool:
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return False
    if _BACKSLASH in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    rest = text.translate(_BRACKETS, _NO_STRUCTURE).replace(b'""', b"")
    if rest.find(b'"') >= 0:  # strings contain brackets
        rest = b"".join(rest.split(b'"')[::2])
    for _ in range(MAX_DEPTH):  # each pass removes the innermost level
        if not rest:
            return False
        rest = rest.replace(b"[]", b"")
    return bool(rest)


def _unencodable(value: object, where: str, error: Exception) -> PayloadError:
    return PayloadError(first_flaw(value, where) or f"{where}: it cannot be written as JSON ({type(error).__name__})")

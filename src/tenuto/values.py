"""Values that cross the durable boundary: from Python to canonical JSON, and back to the annotated type.

Canonical means: one text for one value (compact, fields and keys in the order they have, the members of a set sorted
where an annotation tells that it is one), and nothing in it that a database, another language or a later release could
read differently: no NaN or Infinity, no lone surrogates, no NUL characters, no more than `MAX_DEPTH` levels, and no
more bytes than the limit. Errors say where in a value something is wrong and why, and never show the value: payloads
hold what logs must not.

msgspec does the work in C. What it does not know (pydantic models, subclasses of str, int and float, unions of several
classes) comes through its two hooks; pydantic is recognised by its methods and never imported.
"""

import dataclasses
import math
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, Final, Union, get_args, get_origin

import msgspec
from msgspec import Raw

from .errors import PayloadError

DEFAULT_LIMIT: Final = 256 * 1024
MAX_DEPTH: Final = 100

Encode = Callable[[object], Raw]
Decode = Callable[[Raw | None], object]

_NULL = Raw(b"null")
_BACKSLASH = 0x5C
_SHALLOW = 2 * MAX_DEPTH  # a shorter text cannot be nested deeper: every level costs two brackets


# -- To JSON -----------------------------------------------------------------------------------------------------------


def encode(value: object, hint: Any = None, *, where: str = "value", limit: int = DEFAULT_LIMIT) -> Raw:
    """Canonical JSON of a value; `PayloadError` if it has none. `hint` is the annotation that it was declared with."""
    return encoder(hint, where=where, limit=limit)(value)


def encoder(annotation: Any = None, *, where: str = "value", limit: int = DEFAULT_LIMIT) -> Encode:
    """`encode` for one annotation, with everything settled beforehand: this is on the path of every step."""
    try:
        return _encoder(annotation, where, limit)
    except TypeError:  # an annotation with a part that cannot be hashed
        return _encoder.__wrapped__(annotation, where, limit)


@lru_cache(maxsize=4096)
def _encoder(annotation: Any, where: str, limit: int) -> Encode:
    settled = None if annotation is None else _writer(annotation)
    small = min(limit, _SHALLOW - 1)

    def encode(value: object) -> Raw:
        if value is None:
            return _NULL
        try:
            text = (settled or _writer_of(type(value)))(value)
        except Exception as error:
            raise _unencodable(value, where, error) from None
        # Only a text with a null may have been a NaN, and only one with a backslash may hold a NUL.
        if len(text) <= small and _BACKSLASH not in text and text.find(b"null") < 0:
            return Raw(text)
        _look_closely(text, value, where, limit)
        return Raw(text)

    return encode


def _enc_hook(value: Any) -> object:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(type(value), "model_dump"):
        # What `model_validate_json` reads back: aliases as they are read, and no computed fields.
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    raise NotImplementedError


_AS_IS = msgspec.json.Encoder(enc_hook=_enc_hook)
# Two processes walk one set in two orders, and the same input must have the same digest in both.
_BY_ORDER = msgspec.json.Encoder(enc_hook=_enc_hook, order="deterministic")
_PACKED = msgspec.msgpack.Encoder(enc_hook=_enc_hook)


def _writer(annotation: Any) -> Callable[[object], bytes]:
    return (_BY_ORDER if _holds_sets(annotation) else _AS_IS).encode


# Where nothing is annotated, the value's own class tells.
_writer_of: Callable[[Any], Callable[[object], bytes]] = lru_cache(maxsize=4096)(_writer)


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
    if suspect and (flaw := next(_flaws(value, where, 1), None)) is not None:
        raise PayloadError(flaw)


# In MessagePack a float is 0xcb and eight bytes, and NaN and Infinity are those whose exponent is all ones.
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]", re.DOTALL)


def _may_hold_nan(value: object) -> bool:
    """msgspec writes NaN as null. Its MessagePack keeps it, and is searched far faster than the value is walked."""
    try:
        return _NOT_FINITE.search(_PACKED.encode(value)) is not None
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
    flaw = next(_flaws(value, where, 1), None)
    return PayloadError(flaw or f"{where}: it cannot be written as JSON ({type(error).__name__})")


def _flaws(value: object, where: str, depth: int) -> Iterator[str]:
    """What is wrong in a value that was refused, with its place. Slow, and walked only as far as the first flaw."""
    if isinstance(value, float):
        if not math.isfinite(value):
            yield f"{where}: NaN and Infinity have no JSON form"
    elif isinstance(value, str):
        if (why := _flaw_of_text(value)) is not None:
            yield f"{where}: {why}"
    elif hasattr(type(value), "model_dump"):
        yield from _flaws_of_model(value, where, depth)
    elif (parts := _parts(value)) is not None:
        if depth > MAX_DEPTH:
            yield f"{_shortened(where)}: nested deeper than {MAX_DEPTH} levels, or it holds itself"
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


def _flaws_of_model(value: Any, where: str, depth: int) -> Iterator[str]:
    try:
        dumped = _enc_hook(value)
    except Exception as error:
        yield f"{where}: {type(value).__qualname__} refuses to be written ({type(error).__name__})"
    else:
        yield from _flaws(dumped, where, depth)


def _parts(value: Any) -> Iterator[tuple[str, object]] | None:
    if isinstance(value, Mapping):
        return _parts_of_mapping(value)
    if isinstance(value, list | tuple | set | frozenset):
        return ((f"[{index}]", item) for index, item in enumerate(value))
    if (names := _field_names(type(value))) is not None:
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


def _field_names(annotation: Any) -> list[str] | None:
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


def _is_plain(value: object) -> bool:
    try:
        _AS_IS.encode(value)
    except Exception:
        return False
    return True


def _unknown_type(value: object) -> str:
    if isinstance(value, _BadKey):
        return "keys are text or numbers"
    if hasattr(value, "__await__"):
        return "a coroutine that nobody awaits: declare the handler `async def`"
    return f"a {type(value).__qualname__} has no JSON form; use {_CLASSES}"


_CLASSES = "a dataclass, a msgspec Struct, a pydantic model or an attrs class"


def _shortened(where: str) -> str:
    return where if len(where) <= 80 else f"{where[:80]}…"


# -- From JSON ---------------------------------------------------------------------------------------------------------


def decoder(annotation: Any = Any, *, where: str = "value") -> Decode:
    """Reads canonical JSON as the annotated type: `PayloadError` with code `incompatible` where it no longer fits."""
    try:
        return _decoder(annotation, where)
    except TypeError as error:
        raise PayloadError(f"{where}: {_refusal(annotation, error)}") from None


@lru_cache(maxsize=4096, typed=True)
def _decoder(annotation: Any, where: str) -> Decode:
    read = _reader(annotation)

    def decode(raw: Raw | None) -> object:
        if raw is None:
            return None
        try:
            return read(raw)
        except (ValueError, TypeError) as error:
            place, why = _explain(error)
            raise PayloadError(f"{where}{place}: {why}", code="incompatible") from None

    return decode


def _reader(annotation: Any) -> Callable[[Raw | bytes], object]:
    read_model: Callable[[bytes], object] | None = getattr(annotation, "model_validate_json", None)
    if read_model is not None and isinstance(annotation, type):
        return lambda raw: read_model(bytes(raw))
    return msgspec.json.Decoder(_readable(annotation), dec_hook=_dec_hook).decode


def _readable(annotation: Any) -> Any:
    """The annotation as msgspec takes it: what it refuses is replaced by a stand-in that reads it in our way."""
    if annotation is object:
        return Any
    if annotation in (typing.NoReturn, typing.Never):
        return None
    try:
        msgspec.json.Decoder(annotation, dec_hook=_dec_hook)
    except TypeError:
        return _rewritten(annotation)
    return annotation


def _rewritten(annotation: Any) -> Any:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return _stand_in(_Variants(arguments))
    if origin is Annotated:
        return _readable(arguments[0])
    if origin is not None and arguments and not dataclasses.is_dataclass(origin):
        return origin[tuple(a if a is Ellipsis else _readable(a) for a in arguments)]
    if isinstance(annotation, type) and not issubclass(annotation, msgspec.Struct) and _field_names(annotation):
        return _stand_in(_Fields(annotation))
    return annotation


class _StandInType(type):
    """Of a class that stands for another type. msgspec asks whether what our hook gave is of the class: it is."""

    read: Callable[[object], object]

    def __instancecheck__(cls, instance: object) -> bool:
        return True


def _stand_in(read: "_Variants | _Fields") -> _StandInType:
    return _StandInType(read.name, (), {"read": staticmethod(read)})


class _Variants:
    """A union that msgspec cannot tell apart by shape alone: several classes, or a model beside something else.

    The value was written from one of the members, so reading it as that member and writing it again gives the same
    text. The first member of which that holds is the one; failing that (a field was added since), the first that fits.
    """

    def __init__(self, members: tuple[Any, ...]) -> None:
        self.name = " | ".join(_name(member) for member in members)
        self.members = members
        self.readers = [_reader(member) for member in members]

    def __call__(self, value: object) -> object:
        raw = _AS_IS.encode(value)
        fitting = [found for read in self.readers if (found := self._try(read, raw)) is not _NOTHING]
        if not fitting:
            raise ValueError(f"Expected `{self.name}`")
        return next((found for found in fitting if _BY_KEY.encode(found) == _BY_KEY.encode(value)), fitting[0])

    @staticmethod
    def _try(read: Callable[[bytes], object], raw: bytes) -> object:
        try:
            return read(raw)
        except (ValueError, TypeError):
            return _NOTHING


_NOTHING = object()
_BY_KEY = msgspec.json.Encoder(enc_hook=_enc_hook, order="sorted")


class _Fields:
    """A dataclass or attrs class that has such a union in a field: read field by field, and made by calling it."""

    def __init__(self, cls: Any) -> None:
        self.name = cls.__qualname__
        self.cls = cls
        hints = typing.get_type_hints(cls, include_extras=True)
        self.readers = {name: (keyword, _reader(hints[name])) for name, keyword in _keywords(cls)}

    def __call__(self, value: object) -> object:
        if not isinstance(value, dict):
            raise ValueError(f"Expected `object`, got `{type(value).__name__}`")
        given = [(keyword, read, value[name]) for name, (keyword, read) in self.readers.items() if name in value]
        return self.cls(**{keyword: read(_AS_IS.encode(part)) for keyword, read, part in given})


def _keywords(cls: Any) -> list[tuple[str, str]]:
    """The fields that a call of the class takes, each with the keyword it takes it by."""
    if hasattr(cls, "__attrs_attrs__"):
        return [(field.name, field.alias) for field in cls.__attrs_attrs__ if field.init]
    return [(field.name, field.name) for field in dataclasses.fields(cls) if field.init]


def _dec_hook(cls: Any, value: Any) -> Any:
    if isinstance(cls, _StandInType):
        return cls.read(value)
    if cls is object:
        return value
    if hasattr(cls, "model_validate_json"):
        # By way of text: only then does a strict model take a string for a date.
        return cls.model_validate_json(msgspec.json.encode(value))
    if isinstance(cls, type) and any(issubclass(cls, base) and isinstance(value, base) for base in (str, int, float)):
        return cls(value)
    raise TypeError(f"Expected `{_name(cls)}`")


_PLACE = re.compile(r"(?P<why>.*?)(?: - at `\$(?P<place>[^`]*)`)?", re.DOTALL)


def _explain(error: Exception) -> tuple[str, str]:
    """Where it does not fit and why, in words that do not show the value."""
    match = _PLACE.fullmatch(str(error))
    place = (match["place"] if match else None) or ""
    cause = error.__cause__ if isinstance(error, msgspec.DecodeError) else error
    if cause is None:
        why = match["why"] if match else ""
        return place, "not one of the values allowed" if why.startswith("Invalid enum value") else why
    if hasattr(cause, "errors"):
        return _explain_model(place, cause)
    if str(cause).startswith("Expected `"):
        return place, str(cause)
    return place, f"refused by the type's own checks ({type(cause).__name__})"


def _explain_model(place: str, error: Any) -> tuple[str, str]:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    inner = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    # The author of a validator may have put the value into its message.
    told = first["msg"] if first["type"] not in ("value_error", "assertion_error") else "refused by a validator"
    return place + inner, told


# -- What annotations promise ------------------------------------------------------------------------------------------


def can_serialise(annotation: Any) -> str | None:
    """What keeps values of this type from crossing the boundary, in words for the author; None if nothing does."""
    try:
        readable = _readable(annotation)
        info = msgspec.inspect.type_info(readable)
    except NameError as error:
        return f"{_name(annotation)} names `{error.name}`, which cannot be found: define it at the top of its module"
    except Exception as error:
        return _refusal(annotation, error)
    return next((text for part in _walk(info) if (text := _obstacle(part)) is not None), None)


def _refusal(annotation: Any, error: Exception) -> str:
    return f"{_name(annotation)} cannot be read back from JSON: {error}"


def _walk(info: msgspec.inspect.Type) -> Iterator[msgspec.inspect.Type]:
    """A type and all it is made of. Recursive types make a graph with cycles, so each is visited once."""
    queue: list[object] = [info]
    seen: set[int] = set()
    for part in queue:  # grows while it is walked
        if isinstance(part, tuple):
            queue.extend(part)
        elif isinstance(part, msgspec.inspect.Type | msgspec.inspect.Field) and id(part) not in seen:
            seen.add(id(part))
            queue.extend(getattr(part, name) for name in part.__struct_fields__)
            if isinstance(part, msgspec.inspect.Type):
                yield part


def _obstacle(info: msgspec.inspect.Type) -> str | None:
    if isinstance(info, msgspec.inspect.CustomType):
        return _obstacle_of_class(info.cls)
    if isinstance(info, msgspec.inspect.DataclassType):
        # msgspec leaves such fields out when it writes, without a word.
        private = [name for name in _field_names(info.cls) or () if name.startswith("_")]
        if private:
            return f"{info.cls.__qualname__}.{private[0]} is private and would be lost: rename the field"
    return None


def _obstacle_of_class(cls: Any) -> str | None:
    if isinstance(cls, _StandInType):
        return _obstacle_of_stand_in(typing.cast(object, vars(cls)["read"].__func__))
    if cls is object or hasattr(cls, "model_validate_json"):
        return None
    if isinstance(cls, type) and issubclass(cls, str | int | float):
        return None
    return f"{_name(cls)} has no JSON form; use {_CLASSES}"


def _obstacle_of_stand_in(read: object) -> str | None:
    if isinstance(read, _Fields):
        hints = typing.get_type_hints(read.cls, include_extras=True)
        return next((text for name in read.readers if (text := can_serialise(hints[name])) is not None), None)
    assert isinstance(read, _Variants)
    shapes = [_shape(member) for member in read.members]
    twins = [m for m, shape in zip(read.members, shapes, strict=True) if shape is not None and shapes.count(shape) > 1]
    if twins:
        names = " and ".join(_name(twin) for twin in twins)
        return f"{names} have the same fields, so their JSON cannot be told apart: give each a Literal field"
    return next((text for member in read.members if (text := can_serialise(member)) is not None), None)


def _shape(member: Any) -> object:
    names = _field_names(member) if isinstance(member, type) else None
    if names is None:
        return None
    hints = typing.get_type_hints(member, include_extras=True)
    return sorted((name, repr(hints.get(name))) for name in names)


def _holds_sets(annotation: Any) -> bool:
    try:
        info = msgspec.inspect.type_info(annotation)
    except Exception:  # then there is nothing to go by, and sets come in the order they have
        return False
    return any(isinstance(part, msgspec.inspect.SetType | msgspec.inspect.FrozenSetType) for part in _walk(info))


def _name(annotation: Any) -> str:
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__qualname__
    return str(annotation).replace("typing.", "")

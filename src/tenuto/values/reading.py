"""Decodes canonical JSON to the annotated type."""

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
from msgspec import Raw

from tenuto.errors import PayloadError

from .hooks import AS_IS, BY_KEY, field_names, name_of

Decode = Callable[[Raw | None], object]


def decoder(annotation: Any = Any, *, where: str = "value") -> Decode:
    """Returns a function that decodes JSON as the annotated type.

    It raises `PayloadError` (`incompatible`) on mismatch.
    """
    try:
        return _decoder(annotation, where)
    except TypeError as error:
        raise PayloadError(f"{where}: {refusal(annotation, error)}") from None


@lru_cache(maxsize=4096, typed=True)
def _decoder(annotation: Any, where: str) -> Decode:
    read = _reader(annotation)

    def decode(raw: Raw | None) -> object:
        if raw is None:
            return None
        try:
            return read(raw)
        except Exception as error:  # from msgspec, or from the constructor of the type
            place, why = _explain(error)
            refused = PayloadError(f"{where}{place}: {_with_type(annotation, place, why)}", code="incompatible")
            refused.path = _path(place)
            raise refused from None

    return decode


def _reader(annotation: Any) -> Callable[[Raw | bytes], object]:
    read_model: Callable[[bytes], object] | None = getattr(annotation, "model_validate_json", None)
    if read_model is not None and isinstance(annotation, type):
        return lambda raw: read_model(bytes(raw))
    return msgspec.json.Decoder(readable(annotation), dec_hook=_dec_hook).decode


def readable(annotation: Any) -> Any:
    """Returns an annotation that msgspec supports: stand-ins replace the parts that it does not support."""
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
        return _stand_in(Variants(arguments))
    if origin is Annotated:
        return readable(arguments[0])
    if origin is not None and arguments and not dataclasses.is_dataclass(origin):
        return origin[tuple(a if a is Ellipsis else readable(a) for a in arguments)]
    if isinstance(annotation, type) and not issubclass(annotation, msgspec.Struct) and field_names(annotation):
        return _stand_in(Fields(annotation))
    return annotation


class StandInType(type):
    """Metaclass of stand-ins. msgspec checks that the hook's result is an instance, so every value is one."""

    read: Callable[[object], object]

    def __instancecheck__(cls, instance: object) -> bool:
        return True


def _stand_in(read: "Variants | Fields") -> StandInType:
    return StandInType(read.name, (), {"read": staticmethod(read)})


class Variants:
    """A union that msgspec cannot tell apart by shape: several classes, or a model beside something else.

    The value was encoded from one of the members, so decoding it as that member and encoding it again gives the same
    text. The first member with that property is chosen. If there is none, because a field was added since, the first
    member that fits is.
    """

    def __init__(self, members: tuple[Any, ...]) -> None:
        self.name = " | ".join(name_of(member) for member in members)
        self.members = members
        self.readers = [_reader(member) for member in members]

    def __call__(self, value: object) -> object:
        raw = AS_IS.encode(value)
        fitting = [found for read in self.readers if (found := self._try(read, raw)) is not _NOTHING]
        if not fitting:
            raise ValueError(f"Expected `{self.name}`")
        return next((found for found in fitting if BY_KEY.encode(found) == BY_KEY.encode(value)), fitting[0])

    @staticmethod
    def _try(read: Callable[[bytes], object], raw: bytes) -> object:
        try:
            return read(raw)
        except (ValueError, TypeError):
            return _NOTHING


_NOTHING = object()


class Fields:
    """A dataclass or attrs class with such a union in a field. Decoded field by field and constructed by a call."""

    def __init__(self, cls: Any) -> None:
        self.name = cls.__qualname__
        self.cls = cls
        hints = typing.get_type_hints(cls, include_extras=True)
        keywords = _keywords(cls)
        self.types = {name: hints[name] for name, _ in keywords}
        parameters = inspect.signature(cls).parameters
        self.required = [name for name, keyword in keywords if parameters[keyword].default is inspect.Parameter.empty]
        self.readers = {name: (keyword, _reader(hints[name])) for name, keyword in keywords}

    def __call__(self, value: object) -> object:
        if not isinstance(value, dict):
            raise ValueError(f"Expected `object`, got `{type(value).__name__}`")
        given = [(keyword, read, value[name]) for name, (keyword, read) in self.readers.items() if name in value]
        return self.cls(**{keyword: read(AS_IS.encode(part)) for keyword, read, part in given})


def _keywords(cls: Any) -> list[tuple[str, str]]:
    """Returns the fields that the constructor accepts, each with its keyword."""
    if hasattr(cls, "__attrs_attrs__"):
        return [(field.name, field.alias) for field in cls.__attrs_attrs__ if field.init]
    return [(field.name, field.name) for field in dataclasses.fields(cls) if field.init]


def _dec_hook(cls: Any, value: Any) -> Any:
    if isinstance(cls, StandInType):
        return cls.read(value)
    if cls is object:
        return value
    if hasattr(cls, "model_validate_json"):
        # Through JSON text, because only then does a strict model accept a string as a date.
        return cls.model_validate_json(msgspec.json.encode(value))
    if isinstance(cls, type) and any(issubclass(cls, base) and isinstance(value, base) for base in (str, int, float)):
        return cls(value)
    raise TypeError(f"Expected `{name_of(cls)}`")


_PLACE = re.compile(r"(?P<why>.*?)(?: - at `\$(?P<place>[^`]*)`)?", re.DOTALL)


def _explain(error: Exception) -> tuple[str, str]:
    """Returns the place of a mismatch and its reason, without showing the value."""
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


_NO_OBJECT = "Expected `object`, "
_MISSING = "Object missing"


def _with_type(annotation: Any, place: str, why: str) -> str:
    """Adds the expected type to a reason, with its fields if the value is not an object."""
    names = field_names(annotation)
    if not place and names and why.startswith(_NO_OBJECT):
        noun = "field" if len(names) == 1 else "fields"
        found = why.removeprefix(_NO_OBJECT)
        return f"Expected `{name_of(annotation)}`, an object with the {noun} {', '.join(names)}; {found}"
    return f"{why} (reading `{name_of(annotation)}`)" if place or why.startswith(_MISSING) else why


_PART = re.compile(r"\.(?P<name>[^.\[\]]+)|\[(?P<index>\d+)\]")


def _path(place: str) -> tuple[str | int, ...]:
    """Splits `.items[2].price` into its parts, up to a key that msgspec does not show (`[...]`)."""
    found: list[str | int] = []
    at = 0
    while (part := _PART.match(place, at)) is not None:
        found.append(part["name"] or int(part["index"]))
        at = part.end()
    return tuple(found)


def _explain_model(place: str, error: Any) -> tuple[str, str]:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    inner = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
    # A validator's message may contain the value.
    why = first["msg"] if first["type"] not in ("value_error", "assertion_error") else "refused by a validator"
    return place + inner, why


def refusal(annotation: Any, error: Exception) -> str:
    return f"{name_of(annotation)} cannot be read back from JSON: {error}"

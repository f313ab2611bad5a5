"""Binds a function to a `Call`: each parameter is read from it and decoded to its annotated type."""

from collections.abc import Callable, Mapping
from typing import TypeAlias, cast

import msgspec
from msgspec import Raw

from tenuto import errors
from tenuto.errors import NonRetryableError, StepError
from tenuto.values.codec import Decode, decoder

from .annotations import accepts_none
from .markers import (
    FromCompensationError,
    FromCompensationResult,
    FromStep,
    Header,
    Headers,
    Input,
    Result,
    StepRef,
    Variable,
    Variables,
)
from .program import Call, Needs
from .signature import EMPTY, Context, Function, Parameter, Signature, Unmarked

Resolver: TypeAlias = Callable[[Call], object]
NameOf: TypeAlias = Callable[[StepRef], str]


class Invocation:
    """Calls a function with arguments that are read from a `Call`."""

    __slots__ = ("function", "keywords", "positional")

    def __init__(self, function: Function, positional: list[Resolver], keywords: dict[str, Resolver]) -> None:
        self.function = function
        self.positional = positional
        self.keywords = keywords

    def __call__(self, call: Call) -> object:
        arguments = [resolve(call) for resolve in self.positional]
        if not self.keywords:
            return self.function(*arguments)
        return self.function(*arguments, **{name: resolve(call) for name, resolve in self.keywords.items()})

    def read(self, call: Call) -> None:
        for resolve in (*self.positional, *self.keywords.values()):
            resolve(call)


def bind(signature: Signature, where: str, name_of: NameOf) -> tuple[Needs, Invocation]:
    """Returns what the function needs, and its invocation. `name_of` resolves step references."""
    positional = [_resolver(p, where, name_of) for p in signature.parameters if not p.by_keyword]
    keywords = {p.name: _resolver(p, where, name_of) for p in signature.parameters if p.by_keyword}
    return _needs(signature, name_of), Invocation(signature.function, positional, keywords)


def bind_input(parameter: Parameter, where: str) -> Callable[[Raw], object]:
    """Returns a function that reads an input as this parameter does, before there is a call."""
    read = _resolver(parameter, where, str)
    return lambda raw: read(cast(Call, _InputAlone(raw)))


class _InputAlone:
    """The part of a `Call` that a parameter with `Input` reads."""

    __slots__ = ("input",)

    def __init__(self, input: Raw) -> None:
        self.input = input


def _needs(signature: Signature, name_of: NameOf) -> Needs:
    def named(kind: type[FromStep | FromCompensationResult | FromCompensationError]) -> tuple[str, ...]:
        sources = [p.source for p in signature.parameters]
        return tuple(dict.fromkeys(name_of(source.step) for source in sources if isinstance(source, kind)))

    return Needs(
        input=bool(signature.marked(Input)),
        own_result=bool(signature.marked(Result)),
        results=named(FromStep),
        compensation_results=named(FromCompensationResult),
        compensation_errors=named(FromCompensationError),
        context=any(isinstance(p.source, Context) for p in signature.parameters),
    )


def _resolver(parameter: Parameter, where: str, name_of: NameOf) -> Resolver:
    place = f"{where}, parameter {parameter.name!r}"
    read = _reader(parameter, place, name_of)
    default = parameter.default
    if default is EMPTY and not parameter.required:
        return read

    def resolve(call: Call) -> object:
        value = read(call)
        if value is None and default is not EMPTY:
            value = default
        if value is None and parameter.required:
            raise NonRetryableError(f"{place} is required, but has no value", code="parameter_missing")
        return value

    return resolve


def _reader(parameter: Parameter, place: str, name_of: NameOf) -> Resolver:
    annotation = parameter.annotation
    match parameter.source:
        case Input(key=None) | Unmarked():
            decode = _input_decoder(parameter, place)
            return lambda call: decode(call.input)
        case Input(key=str(key)):
            return _read_key(key, _input_decoder(parameter, place), place)
        case Result():
            decode = decoder(annotation, where=place)
            return lambda call: decode(call.own_result)
        case FromStep(step=step):
            return _read_step(name_of(step), decoder(annotation, where=place))
        case FromCompensationResult(step=step):
            return _read_compensation(name_of(step), decoder(annotation, where=place))
        case FromCompensationError(step=step):
            return _read_error(name_of(step))
        case Header(name=name):
            return lambda call: _header(call.headers, name)
        case Headers():
            return lambda call: dict(call.headers)
        case Variable(name=name):
            decode = decoder(annotation, where=place)
            return lambda call: decode(call.variables.get(name))
        case Variables():
            return lambda call: {name: msgspec.json.decode(value) for name, value in call.variables.items()}
        case Context():
            return lambda call: call.context
        case _:
            return lambda call: None


def _input_decoder(parameter: Parameter, place: str) -> Decode:
    decode = decoder(parameter.annotation, where=place)
    if parameter.default is EMPTY or accepts_none(parameter.annotation):
        return decode
    # An execution that is started without an input has null: the default stands for it.
    return lambda raw: None if raw is None or bytes(raw) == b"null" else decode(raw)


_OBJECT = msgspec.json.Decoder(dict[str, Raw])


def _read_key(key: str, decode: Decode, place: str) -> Resolver:
    def read(call: Call) -> object:
        if call.input is None:
            return None
        try:
            fields = _OBJECT.decode(call.input)
        except msgspec.DecodeError:
            text = f"{place} reads the key {key!r} of the input, but the input is not an object"
            raise NonRetryableError(text, code="input_invalid") from None
        return decode(fields.get(key))

    return read


def _read_step(id: str, decode: Decode) -> Resolver:
    def read(call: Call) -> object:
        found = call.result_of(id)
        return decode(_joined(found) if isinstance(found, list) else found)

    return read


def _joined(results: list[Raw | None]) -> Raw:
    """Joins the results of a fan-out into one JSON list without decoding them."""
    return Raw(b"[%b]" % b",".join([b"null" if result is None else bytes(result) for result in results]))


def _read_compensation(id: str, decode: Decode) -> Resolver:
    return lambda call: decode(call.compensation_result(id))


_ERRORS: dict[str, type[StepError]] = {
    cls.error_class: cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, StepError) and cls is not StepError
}


def _read_error(id: str) -> Resolver:
    def read(call: Call) -> object:
        failure = call.compensation_error(id)
        if failure is None:
            return None
        return _ERRORS[failure.error_class](failure.summary, code=failure.code)

    return read


def _header(headers: Mapping[str, str], name: str) -> str | None:
    if name in headers:
        return headers[name]
    wanted = name.lower()
    return next((value for key, value in headers.items() if key.lower() == wanted), None)

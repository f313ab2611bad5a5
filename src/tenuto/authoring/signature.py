"""The parameters of a function, read from their annotations, and whether each is allowed in its place."""

import functools
import inspect
import operator
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, TypeAlias, Union, get_args, get_origin

from tenuto.errors import StepError
from tenuto.values.codec import can_serialise

from .annotations import fits, members
from .context import SagaContext
from .marker_placement import misplaced_marker
from .markers import (
    FromCompensationError,
    FromCompensationResult,
    FromStep,
    Header,
    Headers,
    Input,
    Required,
    Result,
    Variable,
    Variables,
)
from .problems import Problems

EMPTY: Final = inspect.Parameter.empty
Function: TypeAlias = Callable[..., Any]


class Unmarked:
    """A parameter without a marker: the input of a step; in a compensation, its type decides."""


class Context:
    """The `SagaContext`, recognised by its type."""


class Nothing:
    """A compensation's parameter that is neither the input nor the result. It is always None."""


Source: TypeAlias = (
    Input
    | Result
    | FromStep
    | FromCompensationResult
    | FromCompensationError
    | Header
    | Headers
    | Variable
    | Variables
    | Unmarked
    | Context
    | Nothing
)
_SOURCES = typing.get_args(Source)


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    annotation: Any
    source: Source
    required: bool
    default: object
    by_keyword: bool


@dataclass(frozen=True, slots=True)
class Signature:
    function: Function
    is_async: bool
    parameters: tuple[Parameter, ...]
    result: Any

    def marked(self, *sources: type) -> list[Parameter]:
        return [parameter for parameter in self.parameters if isinstance(parameter.source, sources)]


# -- Reading a function ------------------------------------------------------------------------------------------------


def read_signature(function: Function, names: Mapping[str, object], where: str, problems: Problems) -> Signature:
    """What a function takes and gives. `names` are what its annotations may name beside its module's globals."""
    inner = _innermost(function)
    if inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner):
        problems.add(where, "generator", "it is a generator, but a step returns one result: return a list instead")
    if (cls := _class_without_self(function)) is not None:
        name = getattr(function, "__name__", "…")
        text = f"{where} of {cls} has no `self`: write `def {name}(self, …)`, or add @staticmethod"
        problems.add("", "no_self", text)
        return Signature(function, inspect.iscoroutinefunction(inner), (), Any)
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):
        problems.add(where, "signature", "its signature cannot be inspected: wrap it in a function of your own")
        signature = inspect.Signature()
    hints = _Hints(inner, names, where, problems)
    parameters = tuple(
        found
        for parameter in signature.parameters.values()
        if (found := _read_parameter(parameter, hints, where, problems)) is not None
    )
    return Signature(
        function, inspect.iscoroutinefunction(inner), parameters, hints.of("return", signature.return_annotation)
    )


def _class_without_self(function: Function) -> str | None:
    """Returns the class of a method without `self`: it has no such parameter, or the first one is annotated as data."""
    if not isinstance(function, types.MethodType) or isinstance(function.__self__, type):
        return None
    try:
        first = next(iter(inspect.signature(function.__func__).parameters.values()), None)
    except (ValueError, TypeError):
        return None
    return None if first is not None and _takes_self(first) else type(function.__self__).__name__


def _takes_self(first: inspect.Parameter) -> bool:
    if first.kind is first.KEYWORD_ONLY:
        return False
    return first.name == "self" or first.annotation is EMPTY or first.kind is first.VAR_POSITIONAL


def _innermost(function: Function) -> Function:
    while isinstance(function, functools.partial):
        function = function.func
    if isinstance(function, types.FunctionType | types.MethodType | types.BuiltinFunctionType | type):
        return function
    return typing.cast(Function, getattr(function, "__call__", function))  # noqa: B004  (the bound method itself)


class _Hints:
    """Resolves annotations to types, also those that `from __future__ import annotations` left as strings."""

    def __init__(self, function: Function, names: Mapping[str, object], where: str, problems: Problems) -> None:
        plain = inspect.unwrap(getattr(function, "__func__", function))
        self.globals = getattr(plain, "__globals__", {})
        self.names = dict(names)
        self.where = where
        self.problems = problems

    def of(self, name: str, annotation: object) -> Any:
        if annotation is EMPTY:
            return Any
        holder = types.SimpleNamespace(__annotations__={name: annotation})
        try:
            return typing.get_type_hints(holder, self.globals, self.names, include_extras=True)[name]
        except Exception as error:
            where = self.where if name == "return" else f"{self.where}, parameter {name!r}"
            text = f"its annotation {annotation!r} cannot be resolved ({error}): use names of the module or the class"
            self.problems.add(where, "annotation", text)
            return Any


def _read_parameter(parameter: inspect.Parameter, hints: _Hints, where: str, problems: Problems) -> Parameter | None:
    where = f"{where}, parameter {parameter.name!r}"
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        problems.add(where, "variadic", "*args and **kwargs cannot be filled: name the parameters that the step needs")
        return None
    annotation, marks = _split(hints.of(parameter.name, parameter.annotation))
    if (misplaced := misplaced_marker(annotation, marks, parameter.default)) is not None:
        problems.add(where, "marker", misplaced)
        return None
    sources = [source for mark in marks if (source := _source(mark)) is not None]
    if len(sources) > 1:
        problems.add(
            where, "two_markers", f"it has {len(sources)} markers, but a parameter takes one: keep one of them"
        )
    source = sources[0] if sources else Context() if _is_context(annotation) else Unmarked()
    return Parameter(
        name=parameter.name,
        annotation=annotation,
        source=source,
        required=any(mark is Required or isinstance(mark, Required) for mark in marks),
        default=parameter.default,
        by_keyword=parameter.kind is parameter.KEYWORD_ONLY,
    )


def _split(annotation: Any) -> tuple[Any, tuple[object, ...]]:
    """Splits an annotation into its type and its `Annotated` metadata, also for `Annotated[T, …] | None`."""
    if get_origin(annotation) is Annotated:
        inner, *marks = get_args(annotation)
        inner, more = _split(inner)
        return inner, (*more, *marks)
    if get_origin(annotation) in (Union, types.UnionType):
        parts = [_split(argument) for argument in get_args(annotation)]
        if any(_source(mark) is not None for _, marks in parts for mark in marks):
            union = functools.reduce(operator.or_, [inner for inner, _ in parts])
            return union, tuple(mark for _, marks in parts for mark in marks)
    return annotation, ()


def _source(mark: object) -> Source | None:
    """Returns the marker. Markers without arguments may be given as the class."""
    if isinstance(mark, type):
        return mark() if mark in (Input, Result, Headers, Variables) else None
    return typing.cast(Source, mark) if isinstance(mark, _SOURCES) else None


def _is_context(annotation: Any) -> bool:
    found = members(annotation)
    return len(found) == 1 and isinstance(found[0], type) and issubclass(found[0], SagaContext)


# -- What is allowed where ---------------------------------------------------------------------------------------------


def settle(signature: Signature, kind: str, where: str, problems: Problems) -> Signature:
    """Makes the one unmarked parameter of a step, probe or named handler its input."""
    unmarked = signature.marked(Unmarked)
    if len(unmarked) > 1:
        _refuse_several(unmarked, where, problems)
    if kind != "handler":
        for parameter in signature.marked(Result, FromCompensationResult, FromCompensationError):
            text = f"{type(parameter.source).__name__} is allowed in compensations only: use FromStep, or remove it"
            problems.add(f"{where}, parameter {parameter.name!r}", "misplaced", text)
    settled = _with_source(signature, unmarked, Input())
    check_types(settled, where, problems)
    return settled


def _refuse_several(unmarked: list[Parameter], where: str, problems: Problems) -> None:
    names = ", ".join(repr(parameter.name) for parameter in unmarked)
    text = (
        f"parameters {names} have no marker, but only one unmarked parameter can be the input: "
        'mark the others, for example Annotated[T, FromStep(step)] or Annotated[T, Input("key")]'
    )
    problems.add(where, "ambiguous_parameters", text)


def _with_source(signature: Signature, chosen: list[Parameter], source: Source) -> Signature:
    return replace(
        signature,
        parameters=tuple(replace(p, source=source) if p in chosen else p for p in signature.parameters),
    )


def settle_compensation(
    signature: Signature, choose: Callable[[Parameter], Source], where: str, problems: Problems
) -> Signature:
    """Lets `choose` decide by type what the one unmarked parameter of a compensation is."""
    unmarked = signature.marked(Unmarked)
    if len(unmarked) > 1:
        _refuse_several(unmarked, where, problems)
        return _with_source(signature, unmarked, Nothing())
    for parameter in unmarked:
        signature = _with_source(signature, [parameter], choose(parameter))
    check_types(signature, where, problems)
    return signature


_GIVEN: dict[type, tuple[Any, str]] = {
    Header: (str, "a header is a string: annotate it `str | None`"),
    Headers: (dict[str, str], "headers map names to strings: annotate it `Mapping[str, str]`"),
    Variables: (dict[str, Any], "variables map names to values: annotate it `Mapping[str, Any]`"),
    FromCompensationError: (StepError, "it is an error or None: annotate it `StepError | None`"),
}


def check_types(signature: Signature, where: str, problems: Problems) -> None:
    for parameter in signature.parameters:
        place = f"{where}, parameter {parameter.name!r}"
        if (why := _type_problem(parameter)) is not None:
            problems.add(place, "type", why)


def _type_problem(parameter: Parameter) -> str | None:
    given = _GIVEN.get(type(parameter.source))
    if given is not None:
        return None if fits(given[0], parameter.annotation) else given[1]
    return None if isinstance(parameter.source, Context | Nothing) else can_serialise(parameter.annotation)


def check_result(annotation: Any, where: str, problems: Problems) -> None:
    if (why := can_serialise(annotation)) is not None:
        problems.add(where, "type", f"its result cannot be stored: {why}")

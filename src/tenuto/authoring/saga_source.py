"""The source of a saga, from a class or a builder: settings, steps in order, and functions from elsewhere."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ForwardRef, TypeAlias, TypeVar, get_args, get_origin

from tenuto.errors import DefinitionError

from .agents import RUN, Agent, Run, RunSettings
from .context import STEP_ID_ATTRIBUTE, step_name
from .decorators import Saga
from .markers import StepRef
from .problems import Problems
from .settings import (
    EXTERNAL_COMPENSATIONS,
    EXTERNAL_STEPS,
    SAGA,
    STEP,
    AnySettings,
    Declared,
    ExternalCompensation,
    ExternalStep,
    SagaSettings,
    StepSettings,
)
from .signature import Function

Extra: TypeAlias = Function | ModuleType


@dataclass(slots=True)
class StepSource:
    """One step as written. Other steps refer to it by `origin`: the plain function, or the declaration."""

    id: str
    settings: AnySettings
    origin: object
    function: Function | None = None
    names: Mapping[str, object] = field(default_factory=dict)  # for resolving its annotations


@dataclass(slots=True)
class SagaSource:
    settings: SagaSettings
    steps: list[StepSource]
    instance: object = None  # its methods can be guards, reconciles and compensations
    names: Mapping[str, object] = field(default_factory=dict)
    input: Any = Any
    output: Any = Any
    # External compensations by step. They take precedence over those of the class.
    compensations: dict[str, Function] = field(default_factory=dict)

    def function(self, ref: StepRef) -> tuple[Function, Mapping[str, object]] | None:
        """Returns the callable that `guard`, `reconcile` or `compensate` names, and the names for its annotations."""
        if isinstance(ref, str):
            method = getattr(self.instance, ref, None) if self.instance is not None else None
            return (method, self.names) if callable(method) else None
        name = self._attribute(ref)
        # By name, so that a subclass may override it.
        return (getattr(self.instance, name), self.names) if name is not None else (ref, {})

    def _attribute(self, function: Function) -> str | None:
        for base in type(self.instance).__mro__:
            for name, value in vars(base).items():
                if value is function or (value is not None and getattr(value, "__func__", None) is function):
                    return name
        return None


def saga_name(saga: object) -> str:
    """Returns the name of a saga, given by name, class, instance or builder."""
    if isinstance(saga, str):
        return saga
    settings = getattr(saga, SAGA, None)
    if isinstance(settings, SagaSettings):
        return settings.name
    settings = getattr(saga, RUN, None)
    if isinstance(settings, RunSettings):
        return settings.name
    name = getattr(saga, "name", None)
    if isinstance(name, str) and not isinstance(saga, type):
        return name
    what = saga.__qualname__ if isinstance(saga, type) else type(saga).__qualname__
    raise DefinitionError(f'{what} is not a saga: decorate the class with @saga("name")')


# -- A decorated class -------------------------------------------------------------------------------------------------


def read_class(instance: object) -> SagaSource:
    """Reads a decorated class. Steps keep the order in which they are written, base classes first."""
    if isinstance(instance, type):
        saga_name(instance)
        raise DefinitionError(f"{instance.__qualname__} is a class: pass an instance, {instance.__qualname__}(…)")
    settings = getattr(instance, SAGA, None)
    if not isinstance(settings, SagaSettings):
        saga_name(instance)  # raises with a better message
        raise DefinitionError(f"{type(instance).__qualname__} is not a saga")
    names = names_of(type(instance))
    taken, given = types_of(type(instance))
    source = SagaSource(settings, [], instance, names, taken, given)
    for name, origin in steps_of(type(instance)).items():
        source.steps.append(step_source(instance, name, origin, names))
    return source


def names_of(cls: type) -> dict[str, object]:
    """Returns the names of the class body, which annotations use: `FromStep(flight)`."""
    return {name: value for base in reversed(cls.__mro__[:-1]) for name, value in vars(base).items()}


def steps_of(cls: type) -> dict[str, object]:
    """Returns the steps by attribute. An undecorated override replaces a step's function, as test doubles do."""
    found: dict[str, object] = {}
    for base in reversed(cls.__mro__):
        for name, value in vars(base).items():
            if isinstance(value, Declared) or isinstance(getattr(value, STEP, None), StepSettings):
                found[name] = value
            elif name in found and not callable(value) and not isinstance(value, staticmethod | classmethod):
                del found[name]
    return found


def step_source(instance: object, name: str, origin: object, names: Mapping[str, object]) -> StepSource:
    if isinstance(origin, Declared):
        return StepSource(origin.id or name, origin.settings, origin)
    settings = getattr(origin, STEP)
    assert isinstance(settings, StepSettings)
    plain = getattr(origin, "__func__", origin)
    return StepSource(getattr(origin, STEP_ID_ATTRIBUTE), settings, plain, getattr(instance, name), names)


def types_of(cls: type) -> tuple[Any, Any]:
    """Returns `Input` and `Output` of the `Saga[Input, Output]` among the base classes."""
    known: dict[Any, Any] = {}
    for base in cls.__mro__:
        for generic in vars(base).get("__orig_bases__", ()):
            origin, arguments = get_origin(generic), get_args(generic)
            resolved = tuple(known.get(a, Any if isinstance(a, TypeVar | ForwardRef) else a) for a in arguments)
            if origin in (Saga, Agent, Run):
                return resolved[0], resolved[1]
            if isinstance(origin, type):
                known.update(zip(getattr(origin, "__parameters__", ()), resolved, strict=False))
    return Any, Any


# -- Steps and compensations from elsewhere ----------------------------------------------------------------------------


def add_extras(source: SagaSource, extras: tuple[Extra, ...], problems: Problems, *, strict: bool = True) -> None:
    """Adds external steps and compensations. If `strict`, a function that belongs to another saga is a problem."""
    for extra in extras:
        for function in functions_of(extra):
            _add_function(source, function, problems, strict=strict and not isinstance(extra, ModuleType))


def functions_of(extra: Extra) -> list[Function]:
    """Returns the function itself, or the external steps and compensations of a module."""
    if not isinstance(extra, ModuleType):
        return [extra]
    return list(dict.fromkeys(v for v in vars(extra).values() if inspect.isroutine(v) and declarations(v)))


def declarations(function: Function) -> tuple[ExternalStep | ExternalCompensation, ...]:
    """Returns the `@external_step` and `@compensation_step` declarations of a function."""
    steps: tuple[ExternalStep, ...] = getattr(function, EXTERNAL_STEPS, ())
    compensations: tuple[ExternalCompensation, ...] = getattr(function, EXTERNAL_COMPENSATIONS, ())
    return (*steps, *compensations)


def _add_function(source: SagaSource, function: Function, problems: Problems, *, strict: bool) -> None:
    where = f"function {getattr(function, '__qualname__', repr(function))!r}"
    declared = declarations(function)
    if not declared:
        problems.add(where, "not_a_step", "it is neither an @external_step nor a @compensation_step: decorate it")
    for given in declared:
        owner = saga_name(given.saga)
        if owner != source.settings.name:
            if strict:
                text = f"it belongs to saga {owner!r}, not to {source.settings.name!r}"
                problems.add(where, "unknown_saga", text)
        elif isinstance(given, ExternalStep):
            source.steps.append(StepSource(given.id, given.settings, function, function))
        else:
            _add_compensation(source, given, function, where, problems)


def _add_compensation(
    source: SagaSource, given: ExternalCompensation, function: Function, where: str, problems: Problems
) -> None:
    step = given.for_step if isinstance(given.for_step, str) else step_name(given.for_step)
    if step in source.compensations:
        problems.add(where, "two_compensations", f"step {step!r} has two external compensations: keep one of them")
    source.compensations[step] = function

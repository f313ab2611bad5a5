"""What a saga is made of, wherever it was written: its settings, its steps in order, and the functions around them."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ForwardRef, TypeAlias, TypeVar, get_args, get_origin

from tenuto.errors import DefinitionError

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
class Piece:
    """One step as its author wrote it. `origin` is what others name it by: the plain function, or the declaration."""

    id: str
    settings: AnySettings
    origin: object
    function: Function | None = None
    names: Mapping[str, object] = field(default_factory=dict)  # which its annotations may use


@dataclass(slots=True)
class Material:
    settings: SagaSettings
    pieces: list[Piece]
    instance: object = None  # whose methods a guard, a reconcile or a compensation may be
    names: Mapping[str, object] = field(default_factory=dict)
    input: Any = Any
    output: Any = Any
    # A compensation from outside the class, by step; it wins over the one inside.
    compensations: dict[str, Function] = field(default_factory=dict)

    def function(self, ref: StepRef) -> tuple[Function, Mapping[str, object]] | None:
        """The callable that `guard`, `reconcile` or `compensate` names, and the names that its annotations may use."""
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
    """The name of a saga that is given by its name, its class, an instance or a builder."""
    if isinstance(saga, str):
        return saga
    settings = getattr(saga, SAGA, None)
    if isinstance(settings, SagaSettings):
        return settings.name
    name = getattr(saga, "name", None)
    if isinstance(name, str) and not isinstance(saga, type):
        return name
    what = saga.__qualname__ if isinstance(saga, type) else type(saga).__qualname__
    raise DefinitionError(f'{what} is not a saga: decorate the class with @saga("name")')


# -- A decorated class -------------------------------------------------------------------------------------------------


def gather(instance: object) -> Material:
    """A saga written as a class. Steps come in the order they are written, those of base classes first."""
    if isinstance(instance, type):
        saga_name(instance)
        raise DefinitionError(f"{instance.__qualname__} is a class: give an instance, {instance.__qualname__}(…)")
    settings = getattr(instance, SAGA, None)
    if not isinstance(settings, SagaSettings):
        saga_name(instance)  # which says what is wrong
        raise DefinitionError(f"{type(instance).__qualname__} is not a saga")
    names = _names_of(type(instance))
    taken, given = _types_of(type(instance))
    material = Material(settings, [], instance, names, taken, given)
    for name, origin in _steps_of(type(instance)).items():
        material.pieces.append(_piece(instance, name, origin, names))
    return material


def _names_of(cls: type) -> dict[str, object]:
    """The class body's names, which annotations may use: `FromStep(flight)` names a function beside it."""
    return {name: value for base in reversed(cls.__mro__[:-1]) for name, value in vars(base).items()}


def _steps_of(cls: type) -> dict[str, object]:
    """By attribute. What overrides a step without being one is its function: so doubles are made for tests."""
    found: dict[str, object] = {}
    for base in reversed(cls.__mro__):
        for name, value in vars(base).items():
            if isinstance(value, Declared) or isinstance(getattr(value, STEP, None), StepSettings):
                found[name] = value
            elif name in found and not callable(value) and not isinstance(value, staticmethod | classmethod):
                del found[name]
    return found


def _piece(instance: object, name: str, origin: object, names: Mapping[str, object]) -> Piece:
    if isinstance(origin, Declared):
        return Piece(origin.id or name, origin.settings, origin)
    settings = getattr(origin, STEP)
    assert isinstance(settings, StepSettings)
    plain = getattr(origin, "__func__", origin)
    return Piece(getattr(origin, STEP_ID_ATTRIBUTE), settings, plain, getattr(instance, name), names)


def _types_of(cls: type) -> tuple[Any, Any]:
    """`Input` and `Output` of `Saga[Input, Output]`, wherever among the bases it stands."""
    known: dict[Any, Any] = {}
    for base in cls.__mro__:
        for generic in vars(base).get("__orig_bases__", ()):
            origin, arguments = get_origin(generic), get_args(generic)
            resolved = tuple(known.get(a, Any if isinstance(a, TypeVar | ForwardRef) else a) for a in arguments)
            if origin is Saga:
                return resolved[0], resolved[1]
            if isinstance(origin, type):
                known.update(zip(getattr(origin, "__parameters__", ()), resolved, strict=False))
    return Any, Any


# -- Steps and compensations from elsewhere ----------------------------------------------------------------------------


def add_extras(material: Material, extras: tuple[Extra, ...], problems: Problems, *, strict: bool = True) -> None:
    """Takes in what belongs to this saga. A module may hold things of other sagas; a function given by hand may not."""
    for extra in extras:
        for function in functions_of(extra):
            _add_function(material, function, problems, strict=strict and not isinstance(extra, ModuleType))


def functions_of(extra: Extra) -> list[Function]:
    """A function itself, or those of a module that are declared to be of use to a saga."""
    if not isinstance(extra, ModuleType):
        return [extra]
    return list(dict.fromkeys(v for v in vars(extra).values() if inspect.isroutine(v) and declarations(v)))


def declarations(function: Function) -> tuple[ExternalStep | ExternalCompensation, ...]:
    """What a function was declared to be for sagas elsewhere."""
    steps: tuple[ExternalStep, ...] = getattr(function, EXTERNAL_STEPS, ())
    compensations: tuple[ExternalCompensation, ...] = getattr(function, EXTERNAL_COMPENSATIONS, ())
    return (*steps, *compensations)


def _add_function(material: Material, function: Function, problems: Problems, *, strict: bool) -> None:
    where = f"function {getattr(function, '__qualname__', repr(function))!r}"
    declared = declarations(function)
    if not declared:
        problems.add(where, "not_a_step", "it is neither an @external_step nor a @compensation_step")
    for given in declared:
        owner = saga_name(given.saga)
        if owner != material.settings.name:
            if strict:
                text = f"it belongs to saga {owner!r}, and this is {material.settings.name!r}"
                problems.add(where, "unknown_saga", text)
        elif isinstance(given, ExternalStep):
            material.pieces.append(Piece(given.id, given.settings, function, function))
        else:
            _add_compensation(material, given, function, where, problems)


def _add_compensation(
    material: Material, given: ExternalCompensation, function: Function, where: str, problems: Problems
) -> None:
    step = given.for_step if isinstance(given.for_step, str) else step_name(given.for_step)
    if step in material.compensations:
        problems.add(where, "two_compensations", f"step {step!r} has two compensations from outside: keep one")
    material.compensations[step] = function

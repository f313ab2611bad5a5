"""Markers for parameter annotations, and inputs by step."""

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Concatenate, Generic, Self, TypeAlias, TypeVar, overload

from .context import step_name

StepRef: TypeAlias = str | Callable[..., Any]

T = TypeVar("T")


# -- Parameters --------------------------------------------------------------------------------------------------------


class Input:
    """`Annotated[T, Input]` is the step's input; `Annotated[T, Input("key")]` is one key of it."""

    __slots__ = ("key",)

    def __init__(self, key: str | None = None) -> None:
        self.key = key


class Result:
    """In a compensation: the result of the step that is compensated."""


class Headers:
    """All headers of the execution."""


class Variables:
    """All variables of the execution."""


class Required:
    """Makes a parameter required: the step fails instead of being called with None. Combines with other markers."""


class _OfStep:
    __slots__ = ("step",)

    def __init__(self, step: StepRef) -> None:
        self.step = step


class FromStep(_OfStep):
    """The result of another step, which becomes a dependency. For a fan-out, the list of all results.

    `FromStep("notify#3")` is the result of one clone.
    """

    __slots__ = ()


class FromCompensationResult(_OfStep):
    """In a compensation: what the compensation of another step returned, or None."""

    __slots__ = ()


class FromCompensationError(_OfStep):
    """In a compensation: the error that the compensation of another step ended with, or None."""

    __slots__ = ()


class _Named:
    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Header(_Named):
    """One header, or None. Names are not case-sensitive."""

    __slots__ = ()


class Variable(_Named):
    """One variable, or None."""

    __slots__ = ()


# -- Inputs by step ----------------------------------------------------------------------------------------------------


class ExpandEach(Generic[T]):
    """The input of a fan-out: runs the step once per item. Clones are named by `suffix(item)`, or by index."""

    __slots__ = ("items", "source", "suffix")

    def __init__(self, items: Iterable[T], *, suffix: Callable[[T], str] | None = None) -> None:
        self.items = tuple(items)
        self.suffix = suffix
        self.source: tuple[StepRef, str] | None = None

    @classmethod
    def from_step(cls, step: StepRef, path: str = "result") -> "ExpandEach[Any]":
        """For `@step(foreach=…)`: takes the items from an earlier step's result, at `path` ("result.people")."""
        each: ExpandEach[Any] = ExpandEach(())
        each.source = (step, path)
        return each


class StepInputs:
    """Inputs by step: `StepInputs({"flight": a, BookTrip.notify: ExpandEach(people)})`. Other steps get no input."""

    __slots__ = ("by_step",)

    @overload
    def __init__(self, inputs: Mapping[StepRef, object] = ...) -> None: ...
    @overload
    def __init__(self, inputs: Mapping[str, object]) -> None: ...  # keys are invariant, so it is no case of the other
    def __init__(self, inputs: Mapping[Any, object] = MappingProxyType({})) -> None:
        self.by_step: dict[str, object] = {}
        for step, value in inputs.items():
            self._put(step, value)

    def set(self, step: Callable[Concatenate[Any, T, ...], Any], value: T | ExpandEach[T]) -> Self:
        """Sets the input of a step, checked against the type of its first parameter."""
        self._put(step, value)
        return self

    def _put(self, step: StepRef, value: object) -> None:
        id = step if isinstance(step, str) else step_name(step)
        if id in self.by_step:
            raise ValueError(f"step {id!r} is given two inputs")
        self.by_step[id] = value

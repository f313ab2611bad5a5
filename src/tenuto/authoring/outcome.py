"""The answers of guards and reconciles: what happened to an effect whose outcome is unknown."""

from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from tenuto.values.durations import Duration

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Done(Generic[T_co]):
    """The effect happened. `result` becomes the step's result."""

    result: T_co


@dataclass(frozen=True, slots=True)
class NotDone:
    """The effect did not happen, so a new attempt is safe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """Not known yet. The probe runs again, after `retry_after` if given."""

    retry_after: Duration | None = None


@dataclass(frozen=True, slots=True)
class Unknown:
    """The outcome cannot be determined, so a person decides."""

    reason: str


Outcome: TypeAlias = Done[T] | NotDone | Pending | Unknown

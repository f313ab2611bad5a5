"""What a guard or a reconcile handler answers: what became of an effect whose outcome is unknown."""

from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from tenuto.values.durations import Duration

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Done(Generic[T_co]):
    """The effect was made. Its result becomes the step's result."""

    result: T_co


@dataclass(frozen=True, slots=True)
class NotDone:
    """The effect was not made: a new attempt is permitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """Not decided yet: ask again, after `retry_after` if given."""

    retry_after: Duration | None = None


@dataclass(frozen=True, slots=True)
class Unknown:
    """It cannot be found out: a person decides."""

    reason: str


Outcome: TypeAlias = Done[T] | NotDone | Pending | Unknown

"""Which faults a seed has, and how often. Every seed draws its own mix: a uniform one hides bugs."""

from dataclasses import dataclass, fields, replace
from random import Random

from tenuto.errors import StorageError

NONE = 0.0


@dataclass(frozen=True)
class Rates:
    """Shares of calls, or of seconds where it says so. All are zero in the quiet phase."""

    fails_before: float = NONE
    applied_but_error: float = NONE
    applied_late: float = NONE
    busy: float = NONE
    slow: float = NONE
    stale: float = NONE
    read_only: float = NONE  # a second
    full: float = NONE  # a second
    out_of_reach: float = NONE  # a second
    renewal_lost: float = NONE
    hint_lost: float = NONE
    hint_doubled: float = NONE
    posted_twice: float = NONE
    shuffled: float = NONE
    clock: float = NONE  # a second
    kill: float = NONE  # a second
    freeze: float = NONE  # a second
    close: float = NONE  # a second


QUIET = Rates()
OFTEN = Rates(
    fails_before=0.05,
    applied_but_error=0.05,
    applied_late=0.03,
    busy=0.05,
    slow=0.1,
    stale=0.05,
    read_only=0.05,
    full=0.05,
    out_of_reach=0.05,
    renewal_lost=0.3,
    hint_lost=0.5,
    hint_doubled=0.2,
    posted_twice=0.3,
    shuffled=0.5,
    clock=0.1,
    kill=0.15,
    freeze=0.08,
    close=0.08,
)


def draw_rates(rng: Random) -> Rates:
    """Each fault is absent, seldom or frequent."""
    drawn = {field.name: getattr(OFTEN, field.name) * rng.choice((0, 0, 0.3, 1)) for field in fields(Rates)}
    return replace(QUIET, **drawn)


def unreachable() -> StorageError:
    return StorageError("the connection broke", code="unreachable")


def gave_way() -> StorageError:
    return StorageError("the database gave one of two transactions up", code="busy")


def refused(why: str) -> StorageError:
    return StorageError(f"the database cannot be written: {why}", code=why)

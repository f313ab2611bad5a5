"""Effects: the work that a runtime must have in progress. The agenda of an execution maps keys to effects.

Effects are keyed and idempotent. If an effect leaves the agenda while in progress, the runtime must stop it; there is
no effect for that. The next wake-up is not an effect but `state.wake_at`.
"""

from typing import TypeAlias

from msgspec import Struct

from .address import Ref


class RunAttempt(Struct, frozen=True, gc=False):
    """Call the handler of this attempt's phase here, and report the outcome."""

    ref: Ref


class DispatchAttempt(Struct, frozen=True, gc=False):
    """Hand this attempt to its queue or bus; another process reports its outcome."""

    ref: Ref


class RequestAdmission(Struct, frozen=True, gc=False):
    """Queue for the concurrency key; report `Admitted` when it is this execution's turn."""

    key: str


class RequestHold(Struct, frozen=True, gc=False):
    """Reserve credits for another run; report `HoldGranted` or `HoldRefused`."""

    amount: int
    run: int


Effect: TypeAlias = RunAttempt | DispatchAttempt | RequestAdmission | RequestHold
EffectKey: TypeAlias = Ref | str

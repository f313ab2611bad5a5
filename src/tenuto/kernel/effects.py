"""Effects: what a runtime has to do next. The agenda of an execution maps keys to effects.

Effects are keyed and safe to ask twice. One that leaves the agenda while it is under way is to be stopped: there is no
effect for that. When to wake is not an effect but `state.wake_at`.
"""

from typing import TypeAlias

from msgspec import Struct

from .address import Ref


class RunAttempt(Struct, frozen=True, gc=False):
    """Call the handler of this attempt's phase here, and report what came of it."""

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

"""Who holds an attempt, and what is said of one that nobody holds any more."""

from typing import Literal

from tenuto.kernel.address import Ref
from tenuto.kernel.evolve import holder_of
from tenuto.kernel.state import Execution, ScopeState, StepState


def open_holder(state: Execution, ref: Ref) -> StepState | ScopeState | None:
    holder = holder_of(state, ref)
    return holder if holder is not None and holder.open is not None and holder.open.ref == ref else None


def staleness(holder: StepState | ScopeState, ref: Ref) -> Literal["duplicate", "stale_attempt", "unknown"]:
    if isinstance(holder, ScopeState):
        newest = holder.plan_number
    else:
        numbers = {
            "forward": holder.number,
            "compensate": holder.undo_number,
            "guard": holder.guard_number,
            "reconcile": holder.reconcile_number,
        }
        newest = numbers[ref.phase]
    if ref.number > newest:
        return "unknown"
    return "duplicate" if ref.number == newest else "stale_attempt"

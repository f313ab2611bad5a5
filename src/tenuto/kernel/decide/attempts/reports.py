"""Reports on attempts: whether one still counts, and which rule hears it."""

from tenuto.kernel.address import Ref, fan_of, lease_id
from tenuto.kernel.decide.turn import Turn
from tenuto.kernel.evolve import holder_of
from tenuto.kernel.facts import APPLIED, Answer, Failed, Ignored, Outcome, Reported, TimedOut
from tenuto.kernel.state import CLONE_SUCCEEDED, Execution, FanState, ScopeState, StepState

from .forward import forward_reported
from .holders import staleness
from .probes import probe_reported
from .proposals import plan_reported
from .undo import undo_reported

_SUCCEEDED = bytes([CLONE_SUCCEEDED])


def reported(turn: Turn, fact: Reported) -> Answer:
    state = turn.state
    ref = fact.ref
    holder = holder_of(state, ref)
    stale = _why_stale(state, holder, fact)
    if stale is not None:
        return stale
    assert holder is not None
    if isinstance(holder, ScopeState):
        plan_reported(turn, holder, fact)
    elif ref.phase == "compensate":
        undo_reported(turn, holder, fact)
    elif ref.phase == "forward":
        forward_reported(turn, holder, fact)
    else:
        probe_reported(turn, holder, fact)
    return APPLIED


def _why_stale(state: Execution, holder: StepState | ScopeState | None, fact: Reported) -> Ignored | None:
    """Only the holder of an attempt may report it. What was timed out or lost may, until something else is known."""
    ref = fact.ref
    if fact.lease is not None and fact.lease != lease_id(state.id, ref):
        return Ignored("stale_lease")
    if state.finished is not None:
        return Ignored("terminal")
    if holder is None:
        return Ignored("duplicate" if _was_closed_clone(state, ref) else "unknown")
    if holder.open is not None and holder.open.ref == ref:
        return None
    if isinstance(holder, StepState) and holder.late == ref and not _tells_nothing(fact.outcome):
        return None
    return Ignored(staleness(holder, ref))


def _tells_nothing(outcome: Outcome) -> bool:
    """That it is unknown what became of the attempt is known already."""
    return isinstance(outcome, TimedOut) or (isinstance(outcome, Failed) and outcome.error_class == "INDETERMINATE")


def _was_closed_clone(state: Execution, ref: Ref) -> bool:
    clone = fan_of(ref.path)
    fan = state.nodes.get(clone[0]) if clone is not None else None
    return isinstance(fan, FanState) and clone is not None and fan.marks[clone[1] : clone[1] + 1] == _SUCCEEDED

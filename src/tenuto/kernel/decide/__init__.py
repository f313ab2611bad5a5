"""`decide(state, fact, now)`: one fact becomes events, applied to the state as they are decided, and an answer.

Law 1: `decide` holds all the policy and does nothing else: no IO, no clock, no chance.
Law 2: a fact that is refused or ignored changes nothing; timers that were due before it have fired all the same.
Law 3: timers due at or before the moment a fact arrived fire before it, the others after it.
Law 4: the expressions of a fact, and of what is due after it, share one budget; so do those of what was due before
    it. Once half of it is used, ends of waits are left for the next turn, which is due at once: many that are due
    together are not failed for the work of all.
"""

from collections.abc import Callable

from msgspec import Struct

from tenuto.kernel import facts as f
from tenuto.kernel.events import Entry
from tenuto.kernel.state import Execution

from . import attempts, cancel, control, people, runs
from .length import end_when_full
from .timers import fire_due
from .turn import Turn

__all__ = ["Decision", "decide"]


class Decision(Struct, frozen=True, gc=False):
    """The entries to append to the history, and the answer to the sender of the fact."""

    entries: list[Entry]
    answer: f.Answer


def decide(state: Execution, fact: f.Fact, now: int, epoch: int | None = None) -> Decision:
    """Decides one fact. `state` is changed; if the entries cannot be committed it must be thrown away.

    `epoch` is that of the owner who decides; left out, it is the one of the last entry.
    """
    turn = Turn(state, now)
    if epoch is not None:
        turn.epoch = epoch
    if type(fact) is f.Taken:  # grants of this turn, also those of timers, belong to the new owner
        turn.epoch = max(fact.epoch, state.epoch)
    elif type(fact) is f.Start and fact.owned:  # epoch 0 has no owner, so grants under it cannot be lost
        turn.epoch = max(1, state.epoch)
    if state.timers:
        fire_due(turn, min(fact.at, turn.now))
        turn.renew_budget()
    turn.cause, turn.actor = fact.cause, fact.actor
    answer = _DECIDE[type(fact)](turn, fact)
    if state.timers:
        turn.cause = turn.actor = None
        fire_due(turn, turn.now)
    end_when_full(turn)
    return Decision(turn.entries(), answer)


def _tick(turn: Turn, fact: f.Tick) -> f.Answer:
    return f.APPLIED


_DECIDE: dict[type, Callable[..., f.Answer]] = {  # type: ignore[explicit-any]  # each takes its own fact
    f.Start: control.start,
    f.Begun: attempts.begun,
    f.Reported: attempts.reported,
    f.Dispatched: attempts.dispatched,
    f.DispatchRefused: attempts.dispatch_refused,
    f.Acked: attempts.acked,
    f.Taken: attempts.taken,
    f.Lost: attempts.lost,
    f.Returned: attempts.returned,
    f.Tick: _tick,
    f.Signal: people.signaled,
    f.Decide: people.decided,
    f.Pause: control.pause,
    f.Resume: control.resume,
    f.Cancel: cancel.cancel,
    f.Retry: runs.retry,
    f.Fail: cancel.fail,
    f.Admitted: control.admitted,
    f.HoldGranted: runs.hold_granted,
    f.HoldRefused: runs.hold_refused,
}

"""One turn: decides a fact. Each event is recorded and applied at once, so that the next rule sees it.

Every rule takes the turn. `emit` records an event; `grant` adds attempts to the last event. Folding the history applies
the same entries in the same order, so it yields the same state.
"""

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from tenuto.kernel.address import Phase, fan_of, review_id, step_id
from tenuto.kernel.definition import JSON
from tenuto.kernel.events import (
    AttemptFailed,
    AttemptsGranted,
    AttemptSucceeded,
    AttemptTimedOut,
    Entry,
    Event,
    Failure,
    Grant,
    ProbeAnswered,
)
from tenuto.kernel.evolve import apply, apply_grant, enter, fan_at, scope_above
from tenuto.kernel.state import Execution, FanState, ScopeState, StepState

from .evaluation import Evaluation


class Turn:
    __slots__ = ("_evaluation", "_event", "_grants", "_recorded", "_why", "actor", "cause", "epoch", "now", "state")

    def __init__(self, state: Execution, now: int) -> None:
        self.state = state
        self.now = max(now, state.at)
        self.epoch = state.epoch
        self.cause: str | None = None
        self.actor: str | None = None
        self._recorded: list[Entry] = []
        # The last event, to which grants may still be added, and its cause.
        self._event: Event | None = None
        self._grants: list[Grant] = []
        self._why: tuple[str | None, str | None] = (None, None)
        self._evaluation: Evaluation | None = None

    @property
    def evaluation(self) -> Evaluation:
        """Evaluates expressions for this turn, within one budget."""
        if self._evaluation is None:
            self._evaluation = Evaluation(self.state)
        return self._evaluation

    def renew_budget(self) -> None:
        """Renews the budget, so that a fact can evaluate the same whether or not timers were due before it."""
        self._evaluation = None

    @property
    def is_spent(self) -> bool:
        """Whether the expressions of this turn have used half of their budget."""
        return self._evaluation is not None and self._evaluation.budget.is_low

    def emit(self, event: Event) -> None:
        if self._event is not None:
            self._record(self._event)
        if self.state.plan.overrides:
            event = self._with_override(event)
        self._event = event
        self._why = (self.cause, self.actor)
        state = self.state
        enter(state, state.seq + 1, self.now, self.epoch, self.actor)
        apply(state, event)

    def _with_override(self, event: Event) -> Event:
        """Notes what the settings of the deployment changed of the step, so that the history explains the verdict."""
        if not isinstance(event, AttemptSucceeded | AttemptFailed | AttemptTimedOut | ProbeAnswered):
            return event
        override = self.state.plan.overrides.get(step_id(event.path))
        return event if override is None else replace(event, override=override)

    def grant(self, path: str, phase: Phase, number: int, first: int = -1, last: int = -1) -> None:
        if self._event is None:
            self.emit(AttemptsGranted())
        grant = Grant(path, phase, number, first, last)
        apply_grant(self.state, grant)
        self._grants.append(grant)

    def new_review(self) -> str:
        """The id of the review that the next event opens."""
        return review_id(self.state.id, self.state.seq + 1)

    def _record(self, event: Event) -> None:
        grants = tuple(self._grants)
        if grants:
            self._grants = []
        cause, actor = self._why
        self._recorded.append(Entry(self.state.seq, self.now, self.epoch, event, grants, cause, actor))

    def entries(self) -> list[Entry]:
        """Ends the turn and returns the entries that it recorded."""
        if self._event is not None:
            self._record(self._event)
            self._event = None
        return self._recorded


def may_start(state: Execution) -> bool:
    """Whether any forward attempt may start now."""
    return (
        state.finished is None
        and state.pause is None
        and state.cancel is None
        and state.undo is None
        and state.admitted
        and not state.opens_at
    )


def may_repeat(state: Execution, step: StepState) -> bool:
    """Returns whether this step may be attempted again, now or later: its scope is not closing, nothing is canceled."""
    if state.cancel is not None or state.undo is not None or scope_above(state, step.path).status != "open":
        return False
    clone = fan_of(step.path)
    if clone is None:
        return True
    fan = state.nodes[clone[0]]
    assert isinstance(fan, FanState)
    return not fan.closing


def has_slot(state: Execution, step: StepState) -> bool:
    """Whether one more attempt of this step is within the limits of its scope and its fan-out."""
    scope = scope_above(state, step.path)
    if scope.node.limit and scope.busy >= scope.node.limit:
        return False
    clone = fan_of(step.path)
    return clone is None or fan_at(state, clone[0]).busy < step.node.limit


def is_unowned(holder: StepState | ScopeState) -> bool:
    """Returns whether no worker can have begun the open attempt, because it needs an owner and has none.

    It was returned, or granted while there was no owner. Queued attempts, and those fetched by their receiver, need no
    owner.
    """
    open = holder.open
    if open is None or open.epoch or open.begun_at or holder.node.queue is not None:
        return False
    is_directive = open.ref.phase == "forward" and holder.node.outside
    return not is_directive or is_unsent(holder)


def is_unsent(holder: StepState | ScopeState) -> bool:
    """Returns whether a directive is unsent as far as recorded.

    Its sender may have crashed before recording the send.
    """
    open = holder.open
    assert open is not None
    return holder.node.step.handler is not None and not open.dispatched_at and not open.acked


def may_have_been_made(step: StepState) -> bool:
    """Returns whether a forward attempt is in progress, or ended with an unknown outcome."""
    if step.unknown_since:
        return True
    open = step.open
    if open is None or open.ref.phase != "forward":
        return False
    if step.node.outside or step.node.step.safety != "NOT_SAFE_TO_RETRY":
        return True  # it may have been sent, or begun, before that was recorded
    return open.begun_at > 0


def encode(value: JSON) -> Raw:
    return Raw(msgspec.json.encode(value))


def refusal(path: str, code: str, summary: str) -> Failure:
    """Returns a failure that the engine itself detected: no attempt was made, and none will be."""
    return Failure("NON_RETRYABLE", code, summary, path)

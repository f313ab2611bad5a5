"""Attempts that were lost with their owner or worker, and attempts that were returned."""

from tenuto.kernel.address import Ref, fan_of
from tenuto.kernel.decide.ending import advance_undo, open_undo_failure
from tenuto.kernel.decide.scopes import advance, cancel_step, fail_scope, give_up_planning
from tenuto.kernel.decide.turn import Turn, is_unowned, is_unsent, may_repeat
from tenuto.kernel.effects import RunAttempt
from tenuto.kernel.events import AttemptLost, AttemptsGranted, AttemptsReturned, Failure, Loss, ReviewKind, RunEntered
from tenuto.kernel.evolve import fan_at, holder_of, scope_above, scope_at, step_at
from tenuto.kernel.facts import APPLIED, Answer, Ignored, Lost, Returned, Taken
from tenuto.kernel.retry import MAX_LOSSES, judge, judge_undo, loss_delay_ms, needs_begin
from tenuto.kernel.state import Execution, ScopeState, StepState

from .steps import follow, go_on, open_holder, step_disposition


def taken(turn: Turn, fact: Taken) -> Answer:
    """Takeover by a new owner: attempts of the old owner are lost, or run now if they never began."""
    state = turn.state
    losses: list[Ref] = []
    again: list[Ref] = []
    for holder in _own_attempts(state, fact.epoch):
        open = holder.open
        assert open is not None
        never_begun = not open.begun_at and (open.epoch == 0 or needs_begin(holder.node, open.ref))
        (again if never_begun else losses).append(open.ref)
    unknown_owner = ("pending", "") in state.timers or state.epoch == 0
    if state.finished is None and state.unclaimed and not state.opens_at:
        limit = state.plan.definition.policies.timeout_ms
        starts = state.unclaimed == "start" and limit is not None
        turn.emit(RunEntered("running", turn.now + limit if starts and limit is not None else None))
    elif state.finished is None and unknown_owner:
        turn.emit(AttemptsGranted())  # records the owner, because epoch 0 has none
    unwanted = [ref for ref in again if _is_unwanted(state, ref)]
    for ref in again:
        if ref not in unwanted:
            turn.grant(*ref.parts)
    _close(turn, unwanted)
    _lose(turn, losses, fact.lease_ms)
    return APPLIED


def _own_attempts(state: Execution, epoch: int) -> list[StepState | ScopeState]:
    """Returns the attempts of an earlier owner, and the directives that had no owner to send them.

    Directives of an earlier owner may have been sent, so they are not lost: the new owner sends them again.
    """
    holders: list[tuple[Ref, StepState | ScopeState]] = []
    for key, effect in state.agenda.items():
        if not isinstance(key, Ref):
            continue
        holder = holder_of(state, key)
        assert holder is not None
        assert holder.open is not None
        if holder.open.epoch < epoch and (isinstance(effect, RunAttempt) or is_unowned(holder)):
            holders.append((key, holder))
    # Sorted, because a loaded state has its agenda in another order than a grown one, and must decide the same.
    return [holder for _, holder in sorted(holders, key=lambda found: found[0])]


def lost(turn: Turn, fact: Lost) -> Answer:
    """Attempts on a queue whose task worker is dead. Tasks that it never claimed stay on the queue."""
    losses = [ref for ref in fact.refs if open_holder(turn.state, ref) is not None]
    if not losses:
        return Ignored("stale_attempt")
    _lose(turn, losses, fact.lease_ms)
    return APPLIED


def _lose(turn: Turn, refs: list[Ref], lease_ms: int) -> None:
    """Loses attempts.

    Those that are retried share one event; the others follow one by one, as each may close a scope.
    """
    judged = [_loss(turn, holder, ref, lease_ms) for ref in refs if (holder := open_holder(turn.state, ref))]
    repeated = tuple(loss for loss in judged if loss.verdict in ("retry", "probe"))
    if repeated:
        turn.emit(AttemptLost(repeated))
    for ref in refs:
        holder = open_holder(turn.state, ref)
        if holder is not None:
            loss = _loss(turn, holder, ref, lease_ms)
            turn.emit(AttemptLost((loss,)))
            _after_loss(turn, loss)
    for loss in repeated:
        _after_loss(turn, loss)


def _loss(turn: Turn, holder: StepState | ScopeState, ref: Ref, lease_ms: int) -> Loss:
    state = turn.state
    if isinstance(holder, ScopeState):
        again = holder.status == "open" and holder.plan_losses < MAX_LOSSES
        at = _again_at(turn, ref, holder.plan_losses + 1)
        return Loss(*ref.parts, "retry", at) if again else Loss(*ref.parts, "fail")
    if ref.phase in ("guard", "reconcile"):
        return Loss(*ref.parts, "probe", turn.now)
    if ref.phase == "compensate":
        verdict = judge_undo("TRANSIENT", holder.undo_tries, holder.undo_losses + 1, 1, lost=True)
        at = _again_at(turn, ref, holder.undo_losses + 1)
        return Loss(*ref.parts, verdict, at if verdict == "retry" else None)
    spec = holder.node.step
    repeat = may_repeat(state, holder)
    judgement = judge(spec, "lost", "INDETERMINATE", tries=holder.tries, losses=holder.losses + 1, may_repeat=repeat)
    verdict = judgement.verdict
    due = _again_at(turn, ref, holder.losses + 1) if verdict in ("retry", "probe") else None
    if verdict == "probe" and spec.safety == "NOT_SAFE_TO_RETRY":
        # A frozen worker may still make the effect, so the probe waits until the attempt's time is over.
        assert holder.open is not None
        begun_at = holder.open.begun_at or turn.now - lease_ms  # the start of a queue's attempt is unknown
        due = max(turn.now, begun_at + spec.retry_policy.timeout_ms + lease_ms)
    if verdict == "fail":
        verdict = step_disposition(state, holder)
    return Loss(*ref.parts, verdict, due, judgement.half_done)


def _again_at(turn: Turn, ref: Ref, losses: int) -> int:
    return turn.now + loss_delay_ms(losses, turn.state.id, ref.path, ref.phase)


def _after_loss(turn: Turn, loss: Loss) -> None:
    state = turn.state
    if loss.phase == "plan":
        scope = scope_at(state, loss.path)
        if loss.verdict == "fail":
            fail_scope(turn, scope, Failure("TRANSIENT", "worker_lost", "no worker survived planning", loss.path))
            advance(turn, scope)
        return
    if loss.verdict == "retry" and loss.retry_at == turn.now:
        return  # a timer is due
    if loss.verdict in ("retry", "probe"):  # it freed its slot, possibly for long
        if loss.phase == "compensate":
            advance_undo(turn)
        else:
            advance(turn, scope_above(state, loss.path))
        return
    step = step_at(state, loss.path)
    if loss.phase == "compensate":
        open_undo_failure(turn, step)
        advance_undo(turn)
        return
    failure = step.failure
    assert failure is not None
    review: ReviewKind | None = "indeterminate" if loss.verdict == "review" else None
    follow(turn, step, loss.verdict, failure, review)


def returned(turn: Turn, fact: Returned) -> Answer:
    refs = [ref for ref in fact.refs if _may_return(turn, ref)]
    if not refs:
        return Ignored("stale_attempt")
    turn.emit(AttemptsReturned(tuple(refs)))
    _close(turn, [ref for ref in refs if _is_unwanted(turn.state, ref)])
    return APPLIED


def _may_return(turn: Turn, ref: Ref) -> bool:
    """Returns whether the sender can know that no worker began the attempt."""
    holder = open_holder(turn.state, ref)
    if holder is None:
        return False
    assert holder.open is not None
    if holder.node.queue is not None:  # it was withdrawn from its queue and will not return there
        return _is_unwanted(turn.state, ref)
    if isinstance(turn.state.agenda[ref], RunAttempt):
        return holder.open.epoch > 0
    return is_unsent(holder) and holder.open.epoch == turn.epoch  # an earlier owner may have sent it


def _is_unwanted(state: Execution, ref: Ref) -> bool:
    """Returns whether an attempt that has not begun is not needed: its scope closes, or a sibling clone failed."""
    if ref.phase == "plan":
        return scope_at(state, ref.path).status != "open"
    if ref.phase != "forward":
        return False
    clone = fan_of(ref.path)
    closing = clone is not None and fan_at(state, clone[0]).closing
    return closing or scope_above(state, ref.path).status != "open"


def _close(turn: Turn, refs: list[Ref]) -> None:
    """Closes canceled attempts that need no worker. Each may close a scope that contains the next."""
    holders = (holder for ref in refs if (holder := open_holder(turn.state, ref)))
    for holder in holders:
        if isinstance(holder, ScopeState):
            give_up_planning(turn, holder)
            advance(turn, holder)
        else:
            cancel_step(turn, holder)
            go_on(turn, holder)

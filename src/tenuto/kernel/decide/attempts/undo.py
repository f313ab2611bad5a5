"""A compensation answers."""

from tenuto.kernel.compensation import rollback, undo_policy
from tenuto.kernel.decide.ending import advance_undo, open_undo_failure, undo_max_attempts
from tenuto.kernel.decide.turn import Turn
from tenuto.kernel.events import AttemptFailed, AttemptSucceeded
from tenuto.kernel.facts import Reported, Succeeded
from tenuto.kernel.retry import delay_ms, judge_undo
from tenuto.kernel.state import StepState

from .failures import failure_of, wanted_delay


def undo_reported(turn: Turn, step: StepState, fact: Reported) -> None:
    state = turn.state
    path, phase, number = fact.ref.parts
    if isinstance(fact.outcome, Succeeded):
        turn.emit(
            AttemptSucceeded(path, phase, number, fact.started_at, fact.worker, fact.outcome.result, build=fact.build)
        )
        advance_undo(turn)
        return
    failure = failure_of(fact.outcome, path, "handler")
    tries = step.undo_tries + 1
    verdict = judge_undo(failure.error_class, tries, step.undo_losses, undo_max_attempts(state, step), lost=False)
    retry_at, wanted = None, wanted_delay(fact.outcome)
    if verdict == "retry":
        policy = undo_policy(step.node.step, rollback(state).max_attempts)
        retry_at = turn.now + delay_ms(policy, failure.error_class, tries, wanted, state.id, path, phase)
    said = (fact.started_at, fact.worker, failure)
    turn.emit(AttemptFailed(path, phase, number, *said, verdict, retry_at, build=fact.build, retry_after_ms=wanted))
    if verdict == "review":
        open_undo_failure(turn, step)
    advance_undo(turn)

"""Guards and reconcile handlers answer whether an effect was made."""

from typing import Literal

from tenuto.kernel.decide.scopes import advance
from tenuto.kernel.decide.turn import Turn, may_repeat
from tenuto.kernel.definition import RetryPolicy
from tenuto.kernel.events import AttemptFailed, Failure, ProbeAnswered
from tenuto.kernel.evolve import scope_above
from tenuto.kernel.facts import Done, Failed, NotDone, Pending, Reported, Unknown
from tenuto.kernel.retry import delay_ms, may_try_again
from tenuto.kernel.state import StepState

from .failures import failure_of, wanted_delay
from .steps import follow, go_on, mark_of, open_review, step_disposition, try_again

PROBE_POLICY = RetryPolicy(initial_delay_ms=1_000, max_delay_ms=60_000)


def probe_reported(turn: Turn, step: StepState, fact: Reported) -> None:
    state = turn.state
    path, phase, number = fact.ref.parts
    spec = step.node.step

    def answer(
        said: Literal["done", "not_done", "pending", "unknown"],
        verdict: Literal["succeed", "retry", "again", "skip", "fail", "review"],
        **more: object,
    ) -> None:
        turn.emit(
            ProbeAnswered(path, phase, number, said, verdict, fact.started_at, fact.worker, **more)  # type: ignore[arg-type]
        )

    match fact.outcome:
        case Done():
            result, mark = fact.outcome.result, mark_of(state, step.node)
            answer("done", "succeed", result=result, variable=spec.set_variable, key=mark)
            go_on(turn, step)
        case NotDone() if may_repeat(state, step) and may_try_again(spec, step.tries, step.losses):
            answer("not_done", "retry")
            try_again(turn, step)
        case NotDone():
            failure = step.failure or Failure("NON_RETRYABLE", "not_done", "the effect was not made", path)
            verdict = step_disposition(state, step)
            answer("not_done", verdict, failure=failure)
            follow(turn, step, verdict, failure, None)
        case Pending():
            answer("pending", "again", again_at=turn.now + _probe_delay(turn, step, fact))
        case Unknown():
            _probe_gave_up(turn, step, fact, fact.outcome.reason)
        case Failed(error_class="NON_RETRYABLE"):
            _probe_gave_up(turn, step, fact, fact.outcome.summary)
        case _:
            failure, wanted = failure_of(fact.outcome, path, "probe"), wanted_delay(fact.outcome)
            retry_at = turn.now + _probe_delay(turn, step, fact)
            said = (fact.started_at, fact.worker, failure)
            turn.emit(AttemptFailed(path, phase, number, *said, "probe", retry_at, retry_after_ms=wanted))


def _probe_gave_up(turn: Turn, step: StepState, fact: Reported, reason: str) -> None:
    path, phase, number = fact.ref.parts
    failure = Failure("INDETERMINATE", "outcome_unknown", reason, path)
    turn.emit(ProbeAnswered(path, phase, number, "unknown", "review", fact.started_at, fact.worker, failure=failure))
    open_review(turn, step, "indeterminate", failure)
    advance(turn, scope_above(turn.state, path))


def _probe_delay(turn: Turn, step: StepState, fact: Reported) -> int:
    wanted = wanted_delay(fact.outcome)
    if wanted is not None:
        return wanted
    tries = min(fact.ref.number, 16)
    return delay_ms(PROBE_POLICY, "TRANSIENT", tries, None, turn.state.id, step.path, fact.ref.phase)

"""The consequences of an attempt for its step: continue, fail, retry, probe, or open a review."""

from typing import Literal

from tenuto.errors import ExpressionError
from tenuto.kernel.address import Ref, fan_of, parent_of
from tenuto.kernel.decide.credits import affordable
from tenuto.kernel.decide.evaluation import Evaluation
from tenuto.kernel.decide.scopes import advance, close_scope, disposition, fail_child, fail_clone, settle_fan
from tenuto.kernel.decide.turn import Turn, has_slot, may_start, refusal
from tenuto.kernel.events import Failure, ReviewKind, ReviewOpened, StepsReady
from tenuto.kernel.evolve import fan_at, holder_of, scope_above
from tenuto.kernel.facts import Failed, Outcome, Pending
from tenuto.kernel.plan import Node
from tenuto.kernel.state import Execution, ScopeState, StepState


def go_on(turn: Turn, step: StepState) -> None:
    """Continues after a closed step: starts its dependents and closes scopes that are complete."""
    state = turn.state
    clone = fan_of(step.path)
    if clone is not None:
        settle_fan(turn, fan_at(state, clone[0]))
    advance(turn, scope_above(state, step.path))


def follow(turn: Turn, step: StepState, verdict: str, failure: Failure, review: ReviewKind | None) -> None:
    """Carries out the verdict on a forward attempt that did not succeed."""
    state = turn.state
    match verdict:
        case "retry":
            advance(turn, scope_above(state, step.path))  # it freed its slot
        case "probe":
            if ("probe", step.path) not in state.timers:
                grant_probe(turn, step)
            advance(turn, scope_above(state, step.path))
        case "review":
            assert review is not None
            open_review(turn, step, review, failure)
            advance(turn, scope_above(state, step.path))
        case "fail":
            fail_step(turn, step, failure)
        case _:
            go_on(turn, step)


def fail_step(turn: Turn, step: StepState, failure: Failure) -> None:
    clone = fan_of(step.path)
    if clone is not None:
        fail_clone(turn, fan_at(turn.state, clone[0]), failure)
    else:
        fail_child(turn, scope_above(turn.state, step.path), failure)
    go_on(turn, step)


def step_disposition(state: Execution, step: StepState) -> Literal["skip", "fail"]:
    scope = scope_above(state, step.path)
    if fan_of(step.path) is not None:  # a clone is skipped only if its own step says so
        return "skip" if step.node.step.failure_mode == "continue" else "fail"
    return disposition(scope, step.node)


def grant_probe(turn: Turn, step: StepState) -> None:
    if step.node.step.safety == "SAFE_TO_RETRY_WITH_GUARD":
        turn.grant(step.path, "guard", step.guard_number + 1)
    else:
        turn.grant(step.path, "reconcile", step.reconcile_number + 1)


def try_again(turn: Turn, step: StepState) -> None:
    """Grants another forward attempt now, or queues it if the execution is paused or no slot is free."""
    if may_start(turn.state) and has_slot(turn.state, step) and affordable(turn.state, step.node) == "now":
        turn.grant(step.path, "forward", step.number + 1)
    else:
        turn.emit(StepsReady((step.path,)))
        if affordable(turn.state, step.node) == "never":
            advance(turn, scope_above(turn.state, step.path))


ATTEMPTS_SPENT = "attempts spent"


def ends_with_its_attempt(state: Execution, step: StepState) -> bool:
    """Whether the end of its attempt closes the step, even if the outcome is unknown.

    A cancel that drains waits for an external receiver no longer than for its answer or its timeout. A review stays
    open, in which a person can record what was found.
    """
    return step.node.step.completion == "callback" and state.cancel is not None and state.cancel.mode == "drain"


def open_review(turn: Turn, step: StepState, kind: ReviewKind, failure: Failure | None) -> None:
    reason = {
        "compensation": "the effect may have been made in part, and cannot safely be repeated",
        "indeterminate": "nobody knows whether the effect was made",
        "escalation": ATTEMPTS_SPENT,
    }.get(kind, kind)
    id = turn.new_review()
    permission = step.node.step.permission or ""
    turn.emit(ReviewOpened(id, kind, step.path, reason, permission, failure=failure, attempts=step.number))


def mark_of(state: Execution, node: Node, path: str) -> str | None:
    """Returns the key of a completed step. Another step with the same key is skipped in this run."""
    if node.key is None:
        return None
    try:
        # With a separate budget: without the mark, another step with the same key would run.
        return str(Evaluation(state).render(node.key, parent_of(path)))
    except ExpressionError:
        return None  # it rendered when the step began, but values that it reads have changed since


def stop_for_credits(turn: Turn, path: str) -> None:
    """Stops the execution because its credits are exhausted, regardless of edges and failure modes."""
    failure = refusal(path, "credits_exhausted", "the run used more than was reserved for it")
    root = turn.state.root
    if root.status == "open":
        close_scope(turn, root, "failed", failure)
        advance(turn, root)


def wanted_delay(outcome: Outcome) -> int | None:
    """The delay before the next attempt that the outcome asks for, if any."""
    return outcome.retry_after_ms if isinstance(outcome, Failed | Pending) else None


def failure_of(outcome: Outcome, path: str, who: str) -> Failure:
    if isinstance(outcome, Failed):
        return Failure(outcome.error_class, outcome.code, outcome.summary, path)
    return Failure("TRANSIENT", "attempt_timeout", f"no answer from the {who} in time", path)


def trace_of(outcome: Outcome) -> str:
    return outcome.trace if isinstance(outcome, Failed) else ""


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

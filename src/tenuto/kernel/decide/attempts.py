"""What a report about an attempt leads to: success, another attempt, a probe, a review, a failure that moves up."""

from typing import Literal

from msgspec import ValidationError

from tenuto.errors import ExpressionError
from tenuto.kernel.address import Ref, fan_of, lease_id, review_id
from tenuto.kernel.compensation import rollback, undo_policy
from tenuto.kernel.definition import Definition, RetryPolicy, node_from_document
from tenuto.kernel.effects import RunAttempt
from tenuto.kernel.events import (
    AttemptAbandoned,
    AttemptAcked,
    AttemptBegun,
    AttemptDispatched,
    AttemptFailed,
    AttemptLost,
    AttemptsGranted,
    AttemptsReturned,
    AttemptSucceeded,
    AttemptTimedOut,
    ChildrenAdded,
    DispatchFailed,
    Failure,
    Loss,
    Paused,
    ProbeAnswered,
    ReviewKind,
    ReviewOpened,
    ReviewResolved,
    StepsReady,
    Verdict,
)
from tenuto.kernel.evolve import fan_at, find_step, holder_of, scope_above, scope_at, step_at
from tenuto.kernel.facts import (
    APPLIED,
    Acked,
    Answer,
    Begun,
    Dispatched,
    DispatchRefused,
    Done,
    Failed,
    Ignored,
    Lost,
    NotDone,
    Outcome,
    Pending,
    Planned,
    Reported,
    Returned,
    Succeeded,
    Taken,
    TimedOut,
    Unknown,
)
from tenuto.kernel.plan import Node
from tenuto.kernel.retry import (
    MAX_DISPATCHES,
    MAX_LOSSES,
    delay_ms,
    judge,
    judge_undo,
    may_try_again,
    needs_begin,
    uncapped_delay_ms,
)
from tenuto.kernel.state import CLONE_SUCCEEDED, Execution, FanState, ScopeState, StepState
from tenuto.kernel.validation import problems

from .advance import advance, close_scope, disposition, fail_child, fail_clone, fail_scope, settle_fan
from .ending import advance_undo, open_undo_failure, undo_max_attempts
from .turn import Turn, encode, evaluation_scope, has_slot, may_repeat, may_start

PLAN_POLICY = RetryPolicy()
PROBE_POLICY = RetryPolicy(initial_delay_ms=1_000, max_delay_ms=60_000)
_SUCCEEDED = bytes([CLONE_SUCCEEDED])
SETTLED_BY_ITSELF = "the attempt's own answer came after all"


def reported(turn: Turn, fact: Reported) -> Answer:
    state = turn.state
    ref = fact.ref
    holder = holder_of(state, ref)
    stale = _why_stale(state, holder, fact)
    if stale is not None:
        return stale
    assert holder is not None
    if isinstance(holder, ScopeState):
        _plan_reported(turn, holder, fact)
    elif ref.phase == "compensate":
        _undo_reported(turn, holder, fact)
    elif ref.phase == "forward":
        _forward_reported(turn, holder, fact)
    else:
        _probe_reported(turn, holder, fact)
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
    return Ignored(_staleness(holder, ref))


def _tells_nothing(outcome: Outcome) -> bool:
    """That it is unknown what became of the attempt is known already."""
    return isinstance(outcome, TimedOut) or (isinstance(outcome, Failed) and outcome.error_class == "INDETERMINATE")


def _was_closed_clone(state: Execution, ref: Ref) -> bool:
    clone = fan_of(ref.path)
    fan = state.nodes.get(clone[0]) if clone is not None else None
    return isinstance(fan, FanState) and clone is not None and fan.marks[clone[1] : clone[1] + 1] == _SUCCEEDED


def _staleness(holder: StepState | ScopeState, ref: Ref) -> Literal["duplicate", "stale_attempt", "unknown"]:
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


# Forward ------------------------------------------------------------------------------------------------------------


def _forward_reported(turn: Turn, step: StepState, fact: Reported) -> None:
    if step.open is None or step.open.ref != fact.ref:
        _settle_without_probe(turn, step)
    match fact.outcome:
        case Succeeded():
            succeed(turn, step, fact)
        case Failed():
            _fail(turn, step, fact, fact.outcome)
        case TimedOut():
            time_out(turn, step, "attempt", fact.started_at, fact.worker, fact.outcome.usage, fact.build)
        case _:
            outcome = Failed(error_class="NON_RETRYABLE", code="bad_report", summary="this outcome is for probes only")
            _fail(turn, step, fact, outcome)


def _settle_without_probe(turn: Turn, step: StepState) -> None:
    """The late answer is the best there is: whoever was asked in its place is no longer waited for."""
    if step.open is not None:
        turn.emit(AttemptAbandoned((step.open.ref,), "settled"))
    if step.review is not None:
        turn.emit(ReviewResolved(step.review, "dismiss", "close", reason=SETTLED_BY_ITSELF))


def succeed(turn: Turn, step: StepState, fact: Reported) -> None:
    outcome = fact.outcome
    assert isinstance(outcome, Succeeded)
    ref = fact.ref
    state = turn.state
    charge, exhausted = _charge(state, outcome.usage)
    node = step.node
    turn.emit(
        AttemptSucceeded(
            ref.path,
            "forward",
            ref.number,
            fact.started_at,
            fact.worker,
            outcome.result,
            charge,
            node.step.set_variable,
            mark_of(state, node),
            fact.build,
        )
    )
    if exhausted:
        _stop_for_credits(turn, step.path)
    go_on(turn, step)


def mark_of(state: Execution, node: Node) -> str | None:
    """The key that a completed step leaves, so that another with the same one is passed over in this run."""
    if node.key is None:
        return None
    try:
        return str(node.key.render(evaluation_scope(state, node.key)))
    except ExpressionError:
        return None  # it could be made when the step began: what it reads was changed by others since


def _charge(state: Execution, usage: int) -> tuple[int, bool]:
    """What of this usage the hold still covers, and whether it was overrun."""
    left = state.hold - state.charged
    return min(usage, left), state.hold > 0 and usage > left


def _stop_for_credits(turn: Turn, path: str) -> None:
    """Nothing more can be paid for, whatever edges and failure modes there are."""
    failure = Failure("NON_RETRYABLE", "credits_exhausted", "the run used more than was reserved for it", path)
    root = turn.state.root
    if root.status == "open":
        close_scope(turn, root, "failed", failure)
        advance(turn, root)


def go_on(turn: Turn, step: StepState) -> None:
    """A step is closed: what waited for it may start, and scopes that are complete close."""
    state = turn.state
    clone = fan_of(step.path)
    if clone is not None:
        settle_fan(turn, fan_at(state, clone[0]))
    advance(turn, scope_above(state, step.path))


def _fail(turn: Turn, step: StepState, fact: Reported, outcome: Failed) -> None:
    state = turn.state
    ref = fact.ref
    spec = step.node.step
    failure = Failure(outcome.error_class, outcome.code, outcome.summary, ref.path)
    tries = step.tries + (ref.number > step.tried)  # an attempt that timed out, and answers late, is counted already
    charge, exhausted = _charge(state, outcome.usage)
    judgement = judge(
        spec,
        "failed",
        outcome.error_class,
        tries=tries,
        losses=step.losses,
        may_repeat=may_repeat(state, step) and not exhausted,
        partial_effect=outcome.partial_effect,
    )
    retry_at = None
    if judgement.verdict == "retry" or (judgement.verdict == "probe" and outcome.error_class != "INDETERMINATE"):
        wait = delay_ms(spec.retry_policy, outcome.error_class, tries, outcome.retry_after_ms, state.id, ref.path)
        retry_at = turn.now + wait
    elif judgement.verdict == "probe" and state.pause is not None:
        retry_at = turn.now  # asked on resume
    verdict = judgement.verdict
    if verdict == "fail":
        verdict = step_disposition(state, step)
    turn.emit(
        AttemptFailed(
            ref.path,
            "forward",
            ref.number,
            fact.started_at,
            fact.worker,
            failure,
            verdict,
            retry_at,
            judgement.half_done,
            charge,
            fact.build,
        )
    )
    if exhausted:
        _stop_for_credits(turn, step.path)
    _follow(turn, step, verdict, failure, judgement.review)
    if verdict in ("retry", "probe"):
        _escalate(turn, step, failure)


def time_out(
    turn: Turn,
    step: StepState,
    kind: Literal["attempt", "ack", "result"],
    started_at: int,
    worker: str,
    usage: int,
    build: str = "",
) -> None:
    """No answer in time: on a step that is not safe to repeat, the outcome is unknown."""
    state = turn.state
    assert step.open is not None
    ref = step.open.ref
    spec = step.node.step
    safe = spec.safety == "SAFE_TO_RETRY"
    error_class: Literal["TRANSIENT", "INDETERMINATE"] = "TRANSIENT" if safe else "INDETERMINATE"
    failure = Failure(error_class, f"{kind}_timeout", f"no {_AWAITED[kind]} in time", ref.path)
    tries = step.tries + 1
    charge, exhausted = _charge(state, usage)
    repeat = may_repeat(state, step) and not exhausted
    judgement = judge(spec, "timed_out", error_class, tries=tries, losses=step.losses, may_repeat=repeat)
    verdict = judgement.verdict
    retry_at = None
    if verdict == "retry":
        retry_at = turn.now + delay_ms(spec.retry_policy, error_class, tries, None, state.id, ref.path)
    elif verdict == "probe" and state.pause is not None:
        retry_at = turn.now  # asked on resume
    elif verdict == "fail":
        verdict = step_disposition(state, step)
    turn.emit(
        AttemptTimedOut(
            ref.path,
            "forward",
            ref.number,
            started_at,
            worker,
            kind,
            failure,
            verdict,
            retry_at,
            judgement.half_done,
            charge,
            build,
        )
    )
    if exhausted:
        _stop_for_credits(turn, step.path)
    _follow(turn, step, verdict, failure, judgement.review)
    if verdict in ("retry", "probe"):
        _escalate(turn, step, failure)


_AWAITED = {"attempt": "answer from the handler", "ack": "acknowledgement", "result": "result"}


def step_disposition(state: Execution, step: StepState) -> Literal["skip", "fail"]:
    scope = scope_above(state, step.path)
    if fan_of(step.path) is not None:  # a clone is passed over only if its own step says so
        return "skip" if step.node.step.failure_mode == "continue" else "fail"
    return disposition(scope, step.node)


def _follow(turn: Turn, step: StepState, verdict: str, failure: Failure, review: ReviewKind | None) -> None:
    """What happens after a forward attempt ended without success."""
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


def open_review(turn: Turn, step: StepState, kind: ReviewKind, failure: Failure | None) -> None:
    state = turn.state
    reason = {
        "compensation": "the effect may have been made in part, and cannot safely be repeated",
        "indeterminate": "nobody knows whether the effect was made",
    }.get(kind, kind)
    id = review_id(state.id, state.seq + 1)
    permission = step.node.step.permission or ""
    turn.emit(ReviewOpened(id, kind, step.path, reason, permission, failure=failure, attempts=step.number))


def _escalate(turn: Turn, step: StepState, failure: Failure) -> None:
    """Errors pile up: stop, and ask a person before the credits are gone."""
    state = turn.state
    policy = state.plan.definition.policies.escalation
    if policy is None or state.pause is not None or state.finished is not None:
        return
    since = turn.now - policy.window_ms
    errors = sum(at > since for at in state.error_times)
    total = errors + sum(at > since for at in state.ok_times)
    wanted, cap = uncapped_delay_ms(step.node.step.retry_policy, failure.error_class, step.tries)
    too_many = errors > policy.errors
    too_often = total >= policy.min_sample and errors / total > policy.error_rate
    if too_many or too_often or wanted > cap:
        reason = "too many errors" if too_many else "error rate too high" if too_often else "backoff beyond its limit"
        id = review_id(state.id, state.seq + 1)
        turn.emit(ReviewOpened(id, "escalation", step.path, reason, failure=failure))
        limit = state.plan.definition.policies.pause_limit_ms
        turn.emit(Paused("escalated", None if limit is None else turn.now + limit))


# Probes -------------------------------------------------------------------------------------------------------------


def grant_probe(turn: Turn, step: StepState) -> None:
    if step.node.step.safety == "SAFE_TO_RETRY_WITH_GUARD":
        turn.grant(step.path, "guard", step.guard_number + 1)
    else:
        turn.grant(step.path, "reconcile", step.reconcile_number + 1)


def _probe_reported(turn: Turn, step: StepState, fact: Reported) -> None:
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
            _follow(turn, step, verdict, failure, None)
        case Pending():
            answer("pending", "again", again_at=turn.now + _probe_delay(turn, step, fact))
        case Unknown():
            _probe_gave_up(turn, step, fact, fact.outcome.reason)
        case Failed(error_class="NON_RETRYABLE"):
            _probe_gave_up(turn, step, fact, fact.outcome.summary)
        case _:
            outcome = fact.outcome
            if isinstance(outcome, Failed):
                failure = Failure(outcome.error_class, outcome.code, outcome.summary, path)
            else:
                failure = Failure("TRANSIENT", "attempt_timeout", "no answer from the probe in time", path)
            retry_at = turn.now + _probe_delay(turn, step, fact)
            turn.emit(AttemptFailed(path, phase, number, fact.started_at, fact.worker, failure, "probe", retry_at))


def _probe_gave_up(turn: Turn, step: StepState, fact: Reported, reason: str) -> None:
    path, phase, number = fact.ref.parts
    failure = Failure("INDETERMINATE", "outcome_unknown", reason, path)
    turn.emit(ProbeAnswered(path, phase, number, "unknown", "review", fact.started_at, fact.worker, failure=failure))
    open_review(turn, step, "indeterminate", failure)
    advance(turn, scope_above(turn.state, path))


def _probe_delay(turn: Turn, step: StepState, fact: Reported) -> int:
    wanted = fact.outcome.retry_after_ms if isinstance(fact.outcome, Pending | Failed) else None
    if wanted is not None:
        return wanted
    tries = min(fact.ref.number, 16)
    return delay_ms(PROBE_POLICY, "TRANSIENT", tries, None, turn.state.id, step.path, fact.ref.phase)


def try_again(turn: Turn, step: StepState) -> None:
    """Another forward attempt now, if the execution is not paused and there is a slot; else when there is."""
    if may_start(turn.state) and has_slot(turn.state, step):
        turn.grant(step.path, "forward", step.number + 1)
    else:
        queue_step(turn, step)


def queue_step(turn: Turn, step: StepState) -> None:
    turn.emit(StepsReady((step.path,)))


# Undo ---------------------------------------------------------------------------------------------------------------


def _undo_reported(turn: Turn, step: StepState, fact: Reported) -> None:
    state = turn.state
    path, phase, number = fact.ref.parts
    if isinstance(fact.outcome, Succeeded):
        turn.emit(
            AttemptSucceeded(path, phase, number, fact.started_at, fact.worker, fact.outcome.result, build=fact.build)
        )
        advance_undo(turn)
        return
    if isinstance(fact.outcome, Failed):
        outcome = fact.outcome
        failure = Failure(outcome.error_class, outcome.code, outcome.summary, path)
        retry_after = outcome.retry_after_ms
    else:
        failure = Failure("TRANSIENT", "attempt_timeout", "no answer from the handler in time", path)
        retry_after = None
    tries = step.undo_tries + 1
    verdict = judge_undo(failure.error_class, tries, step.undo_losses, undo_max_attempts(state, step), lost=False)
    retry_at = None
    if verdict == "retry":
        policy = undo_policy(step.node.step, rollback(state).max_attempts)
        retry_at = turn.now + delay_ms(policy, failure.error_class, tries, retry_after, state.id, path, phase)
    turn.emit(
        AttemptFailed(path, phase, number, fact.started_at, fact.worker, failure, verdict, retry_at, build=fact.build)
    )
    if verdict == "review":
        open_undo_failure(turn, step)
    advance_undo(turn)


# Planning -----------------------------------------------------------------------------------------------------------


def _plan_reported(turn: Turn, scope: ScopeState, fact: Reported) -> None:
    path, _, number = fact.ref.parts
    state = turn.state
    if isinstance(fact.outcome, Planned):
        wrong = _why_unfit(scope, fact.outcome)
        if wrong:
            _plan_failed(turn, scope, fact, Failure("RETRYABLE", "bad_plan", wrong, path))
            return
        spec = scope.node.scope
        superseded = tuple(p for p in scope.touched if p not in scope.superseded and _has_failed(state, p))
        room = spec.max_children - (len(scope.children) - len(scope.superseded) - len(superseded))
        children = fact.outcome.children[: max(room, 0)]
        charge, exhausted = _charge(state, fact.outcome.usage)
        specs = encode(list(children))
        turn.emit(ChildrenAdded(path, number, specs, len(children), superseded, fact.started_at, fact.worker, charge))
        if exhausted:
            _stop_for_credits(turn, path)
        elif not children and scope.remaining == 0 and not scope.succeeded:
            fail_scope(turn, scope, Failure("NON_RETRYABLE", "empty_plan", "the planner proposed nothing", path))
        advance(turn, scope)
        return
    if isinstance(fact.outcome, Failed):
        failure = Failure(fact.outcome.error_class, fact.outcome.code, fact.outcome.summary, path)
    else:
        failure = Failure("TRANSIENT", "attempt_timeout", "no answer from the planner in time", path)
    _plan_failed(turn, scope, fact, failure)


def _why_unfit(scope: ScopeState, planned: Planned) -> str:
    """What keeps a planner's answer from being run: it is checked like any author's work."""
    try:
        children = tuple(node_from_document(document) for document in planned.children)
    except ValidationError as error:
        return f"not a list of steps: {error}"
    known = [child.id for child in children if child.id in scope.by_id]
    if known:
        return f"ids that are taken: {', '.join(known)}"
    if not children:
        return ""
    spec = scope.node.scope
    found = problems(Definition(name="plan", mode=spec.mode, scheduling=spec.scheduling, steps=children))
    return "; ".join(f"{problem.path}: {problem.message}" for problem in found[:3])


def _plan_failed(turn: Turn, scope: ScopeState, fact: Reported, failure: Failure) -> None:
    state = turn.state
    path, phase, number = fact.ref.parts
    tries = scope.plan_tries + 1
    again = (
        failure.error_class in PLAN_POLICY.retry_on_classes
        and tries < PLAN_POLICY.max_attempts
        and scope.status == "open"
        and state.cancel is None
    )
    retry_at = turn.now + delay_ms(PLAN_POLICY, failure.error_class, tries, None, state.id, path) if again else None
    verdict: Literal["retry", "fail"] = "retry" if again else "fail"
    turn.emit(AttemptFailed(path, phase, number, fact.started_at, fact.worker, failure, verdict, retry_at))
    if not again:
        fail_scope(turn, scope, failure)
        advance(turn, scope)


def _has_failed(state: Execution, path: str) -> bool:
    node = state.nodes[path]
    if isinstance(node, ScopeState):
        return node.status == "closed" and node.failure is not None
    return node.failure is not None and node.status in ("failed", "timed_out", "skipped")


# Outside ------------------------------------------------------------------------------------------------------------


def begun(turn: Turn, fact: Begun) -> Answer:
    holder = holder_of(turn.state, fact.ref)
    if holder is None or holder.open is None or holder.open.ref != fact.ref:
        return Ignored("stale_attempt")
    if holder.open.begun_at:
        return Ignored("duplicate")
    if fact.ref.phase == "plan":
        return APPLIED
    turn.emit(AttemptBegun(*fact.ref.parts, fact.worker, fact.build))
    return APPLIED


def dispatched(turn: Turn, fact: Dispatched) -> Answer:
    step = find_step(turn.state, fact.ref.path)
    if step is None or step.open is None or step.open.ref != fact.ref:
        return Ignored("stale_attempt")
    if step.open.dispatched_at:
        return Ignored("duplicate")
    spec = step.node.step
    ack_due = result_due = None
    if spec.completion == "callback" and fact.ref.phase == "forward" and not step.open.acked:
        ack_due = None if spec.ack_timeout_ms is None else turn.now + spec.ack_timeout_ms
        if ack_due is None:
            assert spec.result_timeout_ms is not None  # a callback has one of them
            result_due = turn.now + spec.result_timeout_ms
    turn.emit(AttemptDispatched(*fact.ref.parts, fact.lane, fact.routing_key, ack_due, result_due))
    return APPLIED


def dispatch_refused(turn: Turn, fact: DispatchRefused) -> Answer:
    """A publish that was tried and not confirmed: a new attempt and lease, with a bound of its own."""
    state = turn.state
    ref = fact.ref
    holder = holder_of(state, ref)
    if holder is None or holder.open is None or holder.open.ref != ref:
        return Ignored("stale_attempt")
    failure = Failure(fact.failure.error_class, fact.failure.code, fact.failure.summary, ref.path)
    if isinstance(holder, ScopeState):
        _plan_failed(turn, holder, Reported(at=fact.at, ref=ref, outcome=fact.failure), failure)
        return APPLIED
    verdict, review = _after_refusal(state, holder, ref, failure)
    retry_at = None
    if verdict in ("retry", "probe"):
        tries = holder.refused_dispatches + 1
        wanted = fact.failure.retry_after_ms
        retry_at = turn.now + delay_ms(RetryPolicy(), failure.error_class, tries, wanted, state.id, ref.path, "send")
    turn.emit(DispatchFailed(*ref.parts, failure, verdict, retry_at))
    if ref.phase != "compensate":
        _follow(turn, holder, verdict, failure, review)
    elif verdict == "review":
        open_undo_failure(turn, holder)
        advance_undo(turn)
    return APPLIED


def _after_refusal(
    state: Execution, step: StepState, ref: Ref, failure: Failure
) -> tuple[Verdict, Literal["compensation", "indeterminate"] | None]:
    """INDETERMINATE: nobody knows whether the directive got through, so whoever may not be asked twice is not."""
    again = step.refused_dispatches + 1 < MAX_DISPATCHES and failure.error_class != "NON_RETRYABLE"
    if ref.phase == "compensate":
        return ("retry" if again else "review"), None
    if ref.phase != "forward":
        return ("probe", None) if again else ("review", "indeterminate")
    spec = step.node.step
    if failure.error_class == "INDETERMINATE" and spec.safety != "SAFE_TO_RETRY":
        repeat = may_repeat(state, step)
        judgement = judge(spec, "failed", "INDETERMINATE", tries=step.tries, losses=step.losses, may_repeat=repeat)
        return judgement.verdict, judgement.review
    return ("retry" if again and may_repeat(state, step) else step_disposition(state, step)), None


def acked(turn: Turn, fact: Acked) -> Answer:
    state = turn.state
    step = holder_of(state, fact.ref)
    if fact.lease != lease_id(state.id, fact.ref):
        return Ignored("stale_lease")
    if state.finished is not None:
        return Ignored("terminal")
    if not isinstance(step, StepState):
        return Ignored("unknown")
    if step.open is None or step.open.ref != fact.ref:
        return Ignored(_staleness(step, fact.ref))
    if step.open.acked:
        return Ignored("duplicate")
    timeout = step.node.step.result_timeout_ms
    due = None if timeout is None else turn.now + timeout
    turn.emit(AttemptAcked(*fact.ref.parts, fact.workspace, due))
    return APPLIED


# Owners -------------------------------------------------------------------------------------------------------------


def taken(turn: Turn, fact: Taken) -> Answer:
    """A new owner: what the old one had in hand is lost, or, if it never began, simply runs."""
    state = turn.state
    losses: list[Ref] = []
    again: list[Ref] = []
    for holder in _local_attempts(state, fact.epoch):
        open = holder.open
        assert open is not None
        never_begun = not open.begun_at and (open.epoch == 0 or needs_begin(holder.node, open.ref))
        (again if never_begun else losses).append(open.ref)
    unknown_owner = ("pending", "") in state.timers or state.epoch == 0
    if state.finished is None and unknown_owner:
        turn.emit(AttemptsGranted())  # from now on it has an owner, which is recorded: epoch 0 is nobody's
    for ref in again:
        turn.grant(*ref.parts)
    _lose(turn, losses, fact.lease_ms)
    return APPLIED


def lost(turn: Turn, fact: Lost) -> Answer:
    """Attempts that were handed to a queue, and whose worker is gone. What it never took stays where it is."""
    losses = [ref for ref in fact.refs if _open_holder(turn.state, ref) is not None]
    if not losses:
        return Ignored("stale_attempt")
    _lose(turn, losses, fact.lease_ms)
    return APPLIED


def _open_holder(state: Execution, ref: Ref) -> StepState | ScopeState | None:
    holder = holder_of(state, ref)
    return holder if holder is not None and holder.open is not None and holder.open.ref == ref else None


def _lose(turn: Turn, refs: list[Ref], lease_ms: int) -> None:
    """Those that will be asked again are one event. The others follow singly: each may close what the next is in."""
    judged = [_loss(turn, holder, ref, lease_ms) for ref in refs if (holder := _open_holder(turn.state, ref))]
    repeated = tuple(loss for loss in judged if loss.verdict in ("retry", "probe"))
    if repeated:
        turn.emit(AttemptLost(repeated))
    for ref in refs:
        holder = _open_holder(turn.state, ref)
        if holder is not None:
            loss = _loss(turn, holder, ref, lease_ms)
            turn.emit(AttemptLost((loss,)))
            _after_loss(turn, loss)
    for loss in repeated:
        _after_loss(turn, loss)


def _local_attempts(state: Execution, epoch: int) -> list[StepState | ScopeState]:
    holders: list[tuple[Ref, StepState | ScopeState]] = []
    for effect in state.agenda.values():
        if isinstance(effect, RunAttempt):
            holder = holder_of(state, effect.ref)
            assert holder is not None
            assert holder.open is not None
            if holder.open.epoch < epoch:
                holders.append((effect.ref, holder))
    # Sorted: a state that was loaded has its agenda in another order than one that grew, and must decide the same.
    return [holder for _, holder in sorted(holders, key=lambda found: found[0])]


def _loss(turn: Turn, holder: StepState | ScopeState, ref: Ref, lease_ms: int) -> Loss:
    state = turn.state
    if isinstance(holder, ScopeState):
        again = holder.status == "open" and holder.plan_losses < MAX_LOSSES
        return Loss(*ref.parts, "retry", turn.now) if again else Loss(*ref.parts, "fail")
    if ref.phase in ("guard", "reconcile"):
        return Loss(*ref.parts, "probe", turn.now)
    if ref.phase == "compensate":
        verdict = judge_undo("TRANSIENT", holder.undo_tries, holder.undo_losses + 1, 1, lost=True)
        return Loss(*ref.parts, verdict, turn.now if verdict == "retry" else None)
    spec = holder.node.step
    repeat = may_repeat(state, holder)
    judgement = judge(spec, "lost", "INDETERMINATE", tries=holder.tries, losses=holder.losses + 1, may_repeat=repeat)
    verdict = judgement.verdict
    due = turn.now if verdict in ("retry", "probe") else None
    if verdict == "probe" and spec.safety == "NOT_SAFE_TO_RETRY":
        # A frozen worker may still be about to make the effect: it is not looked for before its time is over.
        assert holder.open is not None
        begun_at = holder.open.begun_at or turn.now - lease_ms  # nobody knows when the worker of a queue began
        due = max(turn.now, begun_at + spec.retry_policy.timeout_ms + lease_ms)
    if verdict == "fail":
        verdict = step_disposition(state, holder)
    return Loss(*ref.parts, verdict, due, judgement.half_done)


def _after_loss(turn: Turn, loss: Loss) -> None:
    state = turn.state
    if loss.phase == "plan":
        scope = scope_at(state, loss.path)
        if loss.verdict == "fail":
            fail_scope(turn, scope, Failure("TRANSIENT", "worker_lost", "no worker survived planning", loss.path))
            advance(turn, scope)
        return
    if loss.verdict == "retry":
        return  # its timer is due
    if loss.verdict == "probe":
        advance(turn, scope_above(state, loss.path))  # it freed its slot, perhaps for long
        return
    step = step_at(state, loss.path)
    if loss.phase == "compensate":
        open_undo_failure(turn, step)
        advance_undo(turn)
        return
    failure = step.failure
    assert failure is not None
    review: ReviewKind | None = "indeterminate" if loss.verdict == "review" else None
    _follow(turn, step, loss.verdict, failure, review)


def returned(turn: Turn, fact: Returned) -> Answer:
    state = turn.state
    refs = [ref for ref in fact.refs if (holder := _open_holder(state, ref)) and holder.open and holder.open.epoch]
    if not refs:
        return Ignored("stale_attempt")
    turn.emit(AttemptsReturned(tuple(refs)))
    return APPLIED

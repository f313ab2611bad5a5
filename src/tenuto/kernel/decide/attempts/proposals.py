"""Children proposed by a planner: validated like a definition, then added to the scope."""

from typing import Literal

from msgspec import ValidationError

from tenuto.kernel.decide.credits import charge
from tenuto.kernel.decide.scopes import advance, fail_scope
from tenuto.kernel.decide.turn import Turn, encode, refusal
from tenuto.kernel.definition import JSON, Definition, RetryPolicy, Scope, node_from_document
from tenuto.kernel.events import AttemptFailed, ChildrenAdded, Failure
from tenuto.kernel.facts import Failed, Outcome, Planned, Reported, TimedOut
from tenuto.kernel.retry import delay_ms
from tenuto.kernel.state import Execution, ScopeState
from tenuto.kernel.validation import problems

from .steps import failure_of, stop_for_credits, trace_of, wanted_delay


def plan_policy(state: Execution) -> RetryPolicy:
    run = state.plan.run
    return RetryPolicy() if run is None else run.planner_retry


def plan_reported(turn: Turn, scope: ScopeState, fact: Reported) -> None:
    path, _, number = fact.ref.parts
    state = turn.state
    if not isinstance(fact.outcome, Planned):
        plan_failed(turn, scope, fact, failure_of(fact.outcome, path, "planner"))
        return
    children = fact.outcome.children
    superseded = tuple(p for p in scope.touched if p not in scope.superseded and _has_failed(state, p))
    wrong = (
        _why_unfit(scope, fact.outcome)
        or _why_too_many(scope, len(children), len(superseded))
        or _why_too_dear(state, children)
    )
    if wrong:
        plan_failed(turn, scope, fact, Failure("RETRYABLE", "bad_plan", wrong, path))
        return
    charged, exhausted = charge(state, fact.outcome.usage)
    specs = encode(list(children))
    used = (charged, fact.outcome.usage, fact.outcome.tokens)
    turn.emit(ChildrenAdded(path, number, specs, len(children), superseded, fact.started_at, fact.worker, *used))
    if exhausted:
        stop_for_credits(turn, path)
    elif not children and scope.remaining == 0 and not scope.succeeded:
        fail_scope(turn, scope, refusal(path, "empty_plan", "the planner proposed nothing"))
    advance(turn, scope)


def _why_unfit(scope: ScopeState, planned: Planned) -> str:
    """Returns why a planner's answer cannot be run. It is validated like a definition."""
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
    proposed = Definition(name="plan", mode=spec.mode, scheduling=spec.scheduling, steps=children)
    found = problems(proposed, are_agents=True)
    return "; ".join(f"{problem.path}: {problem.message}" for problem in found[:3])


def _why_too_many(scope: ScopeState, proposed: int, superseded: int) -> str:
    """Children that a new plan replaces do not count towards the limit."""
    limit = scope.node.scope.max_children
    present = len(scope.children) - len(scope.superseded) - superseded
    if present + proposed <= limit:
        return ""
    return f"{proposed} children were proposed and {present} are present; max_children is {limit}"


def _why_too_dear(state: Execution, documents: tuple[JSON, ...]) -> str:
    """Returns which step of a plan is estimated to cost more than is reserved for the whole attempt of the run."""
    if not state.hold:
        return ""
    nodes = [node_from_document(document) for document in documents]
    for node in nodes:  # `nodes` grows during the loop
        if isinstance(node, Scope):
            nodes.extend(node.children)
        elif node.estimate > state.hold:
            return f"step {node.id!r} has an estimate of {node.estimate}, and {state.hold} are reserved"
    return ""


def _has_failed(state: Execution, path: str) -> bool:
    node = state.nodes[path]
    if isinstance(node, ScopeState):
        return node.status == "closed" and node.failure is not None
    return node.failure is not None and node.status in ("failed", "timed_out", "skipped")


def plan_failed(turn: Turn, scope: ScopeState, fact: Reported, failure: Failure) -> None:
    state = turn.state
    path, phase, number = fact.ref.parts
    policy = plan_policy(state)
    tries = scope.plan_tries + 1
    usage, tokens = _usage(fact.outcome)
    charged, exhausted = charge(state, usage)
    again = (
        failure.error_class in policy.retry_on_classes
        and tries < policy.max_attempts
        and scope.status == "open"
        and state.cancel is None
        and not exhausted
    )
    wanted = wanted_delay(fact.outcome)
    retry_at = turn.now + delay_ms(policy, failure.error_class, tries, wanted, state.id, path) if again else None
    verdict: Literal["retry", "fail"] = "retry" if again else "fail"
    said, trace = (fact.started_at, fact.worker, failure), trace_of(fact.outcome)
    turn.emit(
        AttemptFailed(
            path,
            phase,
            number,
            *said,
            verdict,
            retry_at,
            charge=charged,
            retry_after_ms=wanted,
            trace=trace,
            usage=usage,
            tokens=tokens,
        )
    )
    if exhausted:
        stop_for_credits(turn, path)
    if not again:
        fail_scope(turn, scope, failure)
        advance(turn, scope)


def _usage(outcome: Outcome) -> tuple[int, int]:
    return (outcome.usage, outcome.tokens) if isinstance(outcome, Failed | TimedOut | Planned) else (0, 0)

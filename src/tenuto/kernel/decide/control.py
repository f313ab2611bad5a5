"""What operators ask for: start, pause, resume, cancel, retry; and what a scope's clock or the credits answer."""

from collections.abc import Iterable

from tenuto.kernel.address import Ref, clone_path, fan_of, parent_of, review_id, segments, step_id
from tenuto.kernel.definition import CancelMode
from tenuto.kernel.effects import RunAttempt
from tenuto.kernel.events import (
    AttemptAbandoned,
    AttemptsReturned,
    CancelRequested,
    CompensationStopped,
    ExecutionAdmitted,
    ExecutionStarted,
    Failure,
    HoldChanged,
    Paused,
    Resumed,
    ReviewOpened,
    ReviewResolved,
    RunOpened,
    ScopeClosing,
)
from tenuto.kernel.facts import (
    APPLIED,
    Admitted,
    Answer,
    Cancel,
    HoldGranted,
    HoldRefused,
    Ignored,
    Pause,
    Refused,
    Resume,
    Retry,
    Start,
)
from tenuto.kernel.plan import Node
from tenuto.kernel.state import (
    CLONE_SUCCEEDED,
    CLONE_UNDONE,
    Execution,
    FanState,
    NodeState,
    ScopeState,
    StepState,
)

from .advance import advance, advance_all, cancel_step, close_scope, restart_point
from .ending import finish
from .turn import Turn, may_have_been_made

RULES = 1
"""Recorded in every execution. A later release that decides differently raises it, and honours the old number."""


def start(turn: Turn, fact: Start) -> Answer:
    state = turn.state
    if state.seq:
        return Ignored("duplicate")
    definition = state.plan.definition
    policies = definition.policies
    pending = policies.pending_timeout_ms
    turn.emit(
        ExecutionStarted(
            fact.execution,
            fact.tenant,
            definition.name,
            definition.version,
            state.plan.hash,
            RULES,
            fact.input,
            fact.by_step,
            fact.each,
            fact.headers,
            fact.variables,
            fact.correlation_id,
            fact.target,
            fact.priority,
            None if policies.timeout_ms is None else turn.now + policies.timeout_ms,
            None if pending is None or fact.owned else turn.now + pending,
            fact.concurrency_key,
            fact.admitted,
            fact.hold,
        )
    )
    advance(turn, state.root)
    return APPLIED


def admitted(turn: Turn, fact: Admitted) -> Answer:
    state = turn.state
    if state.admitted or state.finished is not None:
        return Ignored("duplicate")
    turn.emit(ExecutionAdmitted(fact.key))
    advance_all(turn)
    return APPLIED


def pause(turn: Turn, fact: Pause) -> Answer:
    state = turn.state
    if state.finished is not None:
        return _over(state)
    if state.pause is not None:
        return APPLIED
    limit = state.plan.definition.policies.pause_limit_ms
    turn.emit(Paused(fact.reason, None if limit is None else turn.now + limit))
    return APPLIED


def resume(turn: Turn, fact: Resume) -> Answer:
    state = turn.state
    if state.finished is not None:
        return _over(state)
    if state.pause is None:
        return APPLIED
    for review in [r for r in state.reviews.values() if r.kind == "escalation"]:
        turn.emit(ReviewResolved(review.id, "completed", "close", reason="resumed"))
    turn.emit(Resumed(turn.now - state.pause.since))
    advance_all(turn)
    return APPLIED


def _over(state: Execution) -> Refused:
    return Refused("invalid_transition", f"the execution is {state.finished}, which is final for this run", "")


# Cancel -------------------------------------------------------------------------------------------------------------


_FORCE: dict[CancelMode, int] = {"drain": 0, "compensate": 1, "terminate": 2}


def cancel(turn: Turn, fact: Cancel) -> Answer:
    state = turn.state
    if state.finished == "canceled":
        return APPLIED
    if state.finished is not None:
        if state.retry_hold:  # the run that would have followed does not
            turn.emit(HoldChanged(state.run, 0, refused=True))
            return APPLIED
        return _over(state)
    mode: CancelMode = fact.mode or state.plan.definition.policies.cancel
    if state.cancel is not None and _FORCE[mode] <= _FORCE[state.cancel.mode]:
        return APPLIED
    request_cancel(turn, mode, fact.reason)
    return APPLIED


def request_cancel(turn: Turn, mode: CancelMode, reason: str) -> None:
    state = turn.state
    if state.pause is not None:
        turn.emit(Resumed(turn.now - state.pause.since))
    turn.emit(CancelRequested(mode, reason))
    if mode == "terminate":
        _terminate(turn)
    else:
        if state.undo is None and state.root.status == "open":
            close_scope(turn, state.root, "canceled", None)
        advance_all(turn)


def _terminate(turn: Turn) -> None:
    """Nothing is awaited. An effect that may be under way and cannot be repeated leaves a question for a person."""
    state = turn.state
    open_refs: list[Ref] = []
    unknown: list[StepState] = []
    for step in _active_steps(state):
        if step.open is not None:
            open_refs.append(step.open.ref)
        if step.node.step.safety == "NOT_SAFE_TO_RETRY" and may_have_been_made(step):
            unknown.append(step)
    open_refs.extend(scope.open.ref for scope in _open_scopes(state) if scope.open is not None)
    if open_refs:
        turn.emit(AttemptAbandoned(tuple(open_refs), "terminated"))
    if state.undo is not None:
        rest = [path for group in state.undo.groups[state.undo.group :] for path in group]
        pending = tuple(path for path in rest if path in state.compensable or fan_of(path) is not None)
        turn.emit(CompensationStopped("terminated", pending))
    else:
        for step in _active_steps(state):
            cancel_step(turn, step)
        for scope in [scope for scope in _open_scopes(state) if scope.moving]:  # it waits for its next round or plan
            turn.emit(ScopeClosing(scope.path, "canceled"))
    for review in list(state.reviews.values()):
        turn.emit(ReviewResolved(review.id, "dismiss", "close", reason="terminated"))
    for step in unknown:
        id = review_id(state.id, state.seq + 1)
        reason = "terminated while this effect may have been under way"
        turn.emit(ReviewOpened(id, "indeterminate", step.path, reason, failure=step.failure, attempts=step.number))
    finish(turn, "canceled", None)


def _open_scopes(state: Execution) -> list[ScopeState]:
    found = [state.root]
    for scope in found:  # grows while it is walked
        found.extend(node for path in scope.active if isinstance(node := state.nodes[path], ScopeState))
    return found


def _active_steps(state: Execution) -> list[StepState]:
    steps: list[StepState] = []
    if state.undo is not None:
        for path in state.undo.open:
            clone = fan_of(path)
            node = state.nodes[clone[0] if clone is not None else path]
            step = node.live[clone[1]] if isinstance(node, FanState) and clone is not None else node
            assert isinstance(step, StepState)
            steps.append(step)
        return steps
    for scope in _open_scopes(state):
        for path in scope.active:
            node = state.nodes[path]
            if isinstance(node, StepState):
                steps.append(node)
            elif isinstance(node, FanState):
                live = ("running", "retrying", "awaiting_approval")
                steps.extend(step for step in node.live.values() if step.status in live)
    return steps


# Retry --------------------------------------------------------------------------------------------------------------


def retry(turn: Turn, fact: Retry) -> Answer:
    state = turn.state
    if state.finished != "failed":
        return Refused(
            "invalid_transition",
            f"only a failed execution can be retried; this one is {state.status}",
            "start a new execution",
        )
    redo = _redo_list(state, fact)
    if isinstance(redo, Refused):
        return redo
    for review in [r for r in state.reviews.values() if r.kind == "dead_letter"]:
        turn.emit(ReviewResolved(review.id, "retry", "close", fact.reason))
    _open_run(turn, fact.reason, redo, fact.start, admitted=fact.admitted, owned=fact.owned, hold=fact.hold)
    return APPLIED


def _open_run(
    turn: Turn,
    reason: str,
    redo: tuple[tuple[str, int], ...],
    start: str | None,
    *,
    admitted: bool,
    owned: bool,
    hold: int,
    again: bool = False,
) -> None:
    state = turn.state
    policies = state.plan.definition.policies
    at = _child_with(state, step_id(start)) if start is not None else None
    begin, visits = restart_point(state, "", at) if state.plan.root.is_flow else (None, {})
    turn.emit(
        RunOpened(
            state.run + 1,
            reason,
            begin,
            visits,
            redo,
            None if policies.timeout_ms is None else turn.now + policies.timeout_ms,
            None if policies.pending_timeout_ms is None or owned else turn.now + policies.pending_timeout_ms,
            admitted,
            hold,
            start,
            again,
        )
    )
    advance(turn, state.root)
    nobodys = tuple(sorted(effect.ref for effect in state.agenda.values() if isinstance(effect, RunAttempt)))
    if nobodys and not owned:
        turn.emit(AttemptsReturned(nobodys))  # whoever takes the execution has not lost them


def _child_with(state: Execution, id: str) -> str:
    """The child of the root that this step is, or is in."""
    for child in state.root.children:
        if any(node.id == id for node in child.walk()):
            return child.id
    return next(segments(path)[0].id for path in state.nodes if path and step_id(path) == id)  # a planner added it


def _redo_list(state: Execution, fact: Retry) -> tuple[tuple[str, int], ...] | Refused:
    """What is to be made again: all that was undone, and all from the step that the operator names."""
    redo: dict[str, int] = {}
    for path, node in state.nodes.items():
        if isinstance(node, StepState) and node.undo == "done":
            redo[path] = node.generation + 1
        elif isinstance(node, FanState):
            for index, mark in enumerate(node.marks):
                if mark == CLONE_UNDONE:
                    live = node.live.get(index)
                    generation = live.generation if live is not None else node.generations.get(index, 1)
                    redo[clone_path(node.path, index)] = generation + 1
    if fact.start is None:
        return tuple(redo.items())
    named = _last_visits(path for path in state.nodes if path and step_id(path) == step_id(fact.start))
    if not named and not any(node.id == step_id(fact.start) for node in state.plan.root.walk()):
        return Refused("not_found", f"the definition has no step {fact.start!r}", "name a step of the definition")
    for path in _downstream(state, named):
        node = state.nodes[path]
        completed = _completed(node)
        if completed and node.node.step.safety == "NOT_SAFE_TO_RETRY" and not fact.again:
            return Refused(
                "not_safe",
                f"step {path!r} is completed and not safe to repeat",
                "say `again` to make its effect once more, or start at a later step",
            )
        redo.update((path, generation + (1 if fact.again else 0)) for path, generation in completed)
    return tuple(redo.items())


def _last_visits(paths: Iterable[str]) -> list[str]:
    """Of the visits of one node the last: that is where a flow begins again."""
    return list({tuple(segment.id for segment in segments(path)): path for path in paths}.values())


def _completed(node: NodeState) -> list[tuple[str, int]]:
    """What of this node is completed, with its generation: a step, or clones of a fan-out."""
    if isinstance(node, FanState):
        return [
            (clone_path(node.path, index), node.generations.get(index, 1))
            for index, mark in enumerate(node.marks)
            if mark == CLONE_SUCCEEDED
        ]
    return [(node.path, node.generation)] if isinstance(node, StepState) and node.done else []


def _downstream(state: Execution, paths: list[str]) -> list[str]:
    """These nodes, all that depends on them, and all that stands inside either."""
    found: dict[str, None] = {}
    for path in paths:
        for sibling in _dependents(state, path):
            found.update(dict.fromkeys(p for p in state.nodes if p == sibling or p.startswith(f"{sibling}/")))
    return list(found)


def _dependents(state: Execution, path: str) -> list[str]:
    found = [path]
    at = path
    while at:
        above = parent_of(at)
        scope = state.nodes[above]
        assert isinstance(scope, ScopeState)
        found.extend(_followers(scope, at, state.nodes[at].node))
        at = above
    return found


def _followers(scope: ScopeState, path: str, node: Node) -> list[str]:
    """The siblings that were reached after this one in a flow; elsewhere those that depend on it."""
    reached = list(scope.touched)
    if scope.node.is_flow:
        return reached[reached.index(path) + 1 :]
    dependent = [found.id for found in _closure(scope, node)]
    return [sibling for sibling in reached if step_id(sibling) in dependent]


def _closure(scope: ScopeState, node: Node) -> list[Node]:
    reached = {node.index: node}
    pending = [node]
    for current in pending:  # grows while it is walked
        for index, _ in current.dependents:
            if index not in reached:
                reached[index] = scope.children[index]
                pending.append(scope.children[index])
    return [found for index, found in reached.items() if index != node.index]


def hold_granted(turn: Turn, fact: HoldGranted) -> Answer:
    state = turn.state
    if not state.retry_hold:
        return Ignored("duplicate")
    redo = _redo_list(state, Retry(at=fact.at, reason="automatic retry"))
    assert not isinstance(redo, Refused)
    for review in [r for r in state.reviews.values() if r.kind == "dead_letter"]:
        turn.emit(ReviewResolved(review.id, "retry", "close", "automatic retry"))
    _open_run(turn, "automatic retry", redo, None, admitted=fact.admitted, owned=True, hold=fact.amount)
    return APPLIED


def hold_refused(turn: Turn, fact: HoldRefused) -> Answer:
    if not turn.state.retry_hold:
        return Ignored("duplicate")
    turn.emit(HoldChanged(turn.state.run, 0, refused=True))
    return APPLIED


def expire_root(turn: Turn, code: str, summary: str) -> None:
    """The execution's own time is over: its scope closes as failed, running attempts are awaited."""
    state = turn.state
    close_scope(turn, state.root, "timed_out", Failure("NON_RETRYABLE", code, summary))
    advance_all(turn)

"""Opens a new run of a failed execution: the effects it makes again, the results it keeps, and where it begins."""

from collections.abc import Iterable, Iterator

from tenuto.kernel.address import clone_path, parent_of, segments, step_id
from tenuto.kernel.definition import RetryPolicy
from tenuto.kernel.effects import RunAttempt
from tenuto.kernel.events import AttemptsReturned, HoldChanged, ReviewResolved, RunEntered, RunOpened
from tenuto.kernel.evolve import scope_at
from tenuto.kernel.evolve.structure import is_before
from tenuto.kernel.facts import APPLIED, Answer, HoldGranted, HoldRefused, Ignored, Refused, Retry
from tenuto.kernel.plan import Node
from tenuto.kernel.retry import delay_ms
from tenuto.kernel.state import CLONE_SUCCEEDED, CLONE_UNDONE, Execution, FanState, NodeState, ScopeState, StepState

from .length import refused_when_long
from .scopes import advance, restart_point
from .turn import Turn

RUN_POLICY = RetryPolicy()


def retry(turn: Turn, fact: Retry) -> Answer:
    state = turn.state
    if (refused := refused_unless_failed(state)) is not None:
        return refused
    if fact.run not in (0, state.run):
        text = f"this retry is for run {fact.run}, and run {state.run} has failed since"
        return Refused("invalid_transition", text, "look at the new failure, then retry")
    if (refused := refused_when_spent(state)) is not None:
        return refused
    if (refused := refused_when_long(state)) is not None:
        return refused
    redo = _redo_list(state, fact)
    if isinstance(redo, Refused):
        return redo
    _open_run(
        turn, fact.reason, redo, fact.start, admitted=fact.admitted, owned=fact.owned, hold=fact.hold, again=fact.again
    )
    return APPLIED


def refused_when_spent(state: Execution) -> Refused | None:
    """Returns the refusal of one more attempt of a run that has had them all; None for any other execution."""
    if state.plan.run is None or state.run < state.max_attempts:
        return None
    text = f"the run has had as many attempts as it may have: {state.max_attempts}"
    return Refused("attempts_spent", text, "create a new run")


def refused_unless_failed(state: Execution) -> Refused | None:
    if state.finished == "failed":
        return None
    text = f"only a failed execution can be retried; this one is {state.status}"
    if state.finished is not None:
        hint = "start a new execution"
    elif state.status == "waiting_approval":
        hint = "a person has to decide first: `blocked` names the review and the commands for it"
    else:
        hint = "wait until it ends, or cancel it"
    return Refused("invalid_transition", text, hint)


def hold_granted(turn: Turn, fact: HoldGranted) -> Answer:
    state = turn.state
    if not state.retries:
        return Ignored("duplicate")
    redo = _redo_list(state, Retry(at=fact.at, reason="automatic retry"))
    assert not isinstance(redo, Refused)
    delay = delay_ms(RUN_POLICY, "TRANSIENT", state.run, None, state.id, "run")
    _open_run(turn, "automatic retry", redo, None, admitted=fact.admitted, owned=True, hold=fact.amount, delay=delay)
    return APPLIED


def hold_refused(turn: Turn, fact: HoldRefused) -> Answer:
    if not turn.state.retries:
        return Ignored("duplicate")
    turn.emit(HoldChanged(turn.state.run, 0, refused=True))
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
    delay: int = 0,
) -> None:
    state = turn.state
    run = state.plan.run
    if run is not None and not hold:
        hold = state.hold  # each attempt of a run reserves the same
    for review in [r for r in state.reviews.values() if r.kind == "dead_letter"]:
        turn.emit(ReviewResolved(review.id, "retry", "close", reason))
    policies = state.plan.definition.policies
    waits = run is not None and (bool(delay) or not owned or not admitted)  # then its time counts from its claim
    at = child_with(state, step_id(start)) if start is not None else None
    begin, visits = restart_point(state, "", at) if state.plan.root.is_flow else (None, {})
    turn.emit(
        RunOpened(
            state.run + 1,
            reason,
            begin,
            visits,
            redo,
            None if policies.timeout_ms is None or waits else turn.now + policies.timeout_ms,
            None if policies.pending_timeout_ms is None or owned else turn.now + policies.pending_timeout_ms,
            admitted,
            hold,
            start,
            again,
            owned,
            turn.now + delay if run is not None and delay else 0,
            turn.now + run.retry_timeout_ms if run is not None and (delay or not admitted) else None,
        )
    )
    advance(turn, state.root)
    unowned = tuple(sorted(effect.ref for effect in state.agenda.values() if isinstance(effect, RunAttempt)))
    if unowned and not owned:
        turn.emit(AttemptsReturned(unowned))  # so that the next owner does not count them as lost


def queue_attempt(turn: Turn) -> None:
    """Queues the attempt of a run whose delay is over. If its owner can run it, it is claimed at once."""
    state = turn.state
    policies = state.plan.definition.policies
    pending = None if policies.pending_timeout_ms is None else turn.now + policies.pending_timeout_ms
    turn.emit(RunEntered("pending", pending_until=pending))
    if turn.epoch:
        limit = policies.timeout_ms
        turn.emit(RunEntered("running", None if limit is None else turn.now + limit))
    advance(turn, state.root)


def child_with(state: Execution, id: str) -> str | None:
    """Returns the child of the root that is, or contains, this step; None if there is none."""
    for child in state.root.children:
        if any(node.id == id for node in child.walk()):
            return child.id
    added = (segments(path)[0].id for path in state.nodes if path and step_id(path) == id)  # added by a planner
    return next(added, None)


def _redo_list(state: Execution, fact: Retry) -> tuple[tuple[str, int], ...] | Refused:
    """Returns the effects to make again: all that were undone, and all from the step that the operator named."""
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
                "pass `again` to repeat its effect, or start at a later step",
            )
        redo.update((path, generation + (1 if fact.again else 0)) for path, generation in completed)
        if fact.again:  # a receiver may remember by its key that an attempt failed
            redo.update((path, generation + 1) for path, generation in _tried(node))
    return tuple(redo.items())


def _last_visits(paths: Iterable[str]) -> list[str]:
    """Returns the last visit of each node, where a flow restarts."""
    return list({tuple(segment.id for segment in segments(path)): path for path in paths}.values())


def _completed(node: NodeState) -> list[tuple[str, int]]:
    """Returns the completed parts of a node with their generations: a step, or clones of a fan-out."""
    if isinstance(node, FanState):
        return [
            (clone_path(node.path, index), node.generations.get(index, 1))
            for index, mark in enumerate(node.marks)
            if mark == CLONE_SUCCEEDED
        ]
    return [(node.path, node.generation)] if isinstance(node, StepState) and node.done else []


def _tried(node: NodeState) -> list[tuple[str, int]]:
    """Returns the parts of a node that were attempted and not completed, with their generations."""
    if isinstance(node, FanState):
        return [
            (clone_path(node.path, index), clone.generation if clone is not None else node.generations.get(index, 1))
            for index, mark in enumerate(node.marks)
            if mark not in (CLONE_SUCCEEDED, CLONE_UNDONE)
            for clone in (node.live.get(index),)
            if (node.numbers.get(index) if clone is None else clone.number)
        ]
    return [(node.path, node.generation)] if isinstance(node, StepState) and node.number and not node.done else []


def _downstream(state: Execution, paths: list[str]) -> list[str]:
    """Returns these nodes, their dependents, and everything inside either."""
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
        found.extend(_followers(scope_at(state, above), at, state.nodes[at].node))
        at = above
    return found


def _followers(scope: ScopeState, path: str, node: Node) -> list[str]:
    """Returns the siblings reached after this one in a flow, otherwise its dependents."""
    reached = list(scope.touched)
    if scope.node.is_flow:
        return reached[reached.index(path) + 1 :]
    dependent = [found.id for found in _closure(scope, node)]
    return [sibling for sibling in reached if step_id(sibling) in dependent]


def _closure(scope: ScopeState, node: Node) -> list[Node]:
    reached = {node.index: node}
    pending = [node]
    for current in pending:  # `pending` grows during the loop
        for index, _ in current.dependents:
            if index not in reached:
                reached[index] = scope.children[index]
                pending.append(scope.children[index])
    return [found for index, found in reached.items() if index != node.index]


def unsafe_again(state: Execution, start: str | None) -> list[str]:
    """Returns unsafe steps that were tried and that a new run from `start` would try again.

    A new run opens everything that is not done, not only what follows `start`. Effects that were undone are made again
    under a new key, which is not a retry.
    """
    visits: dict[str, int] = {}
    if state.plan.root.is_flow:
        at = child_with(state, step_id(start)) if start is not None else None
        visits = restart_point(state, "", at)[1]
    return [node.path for node in _reopened(state, state.root, visits) if _is_unsafe(node)]


def _reopened(state: Execution, scope: ScopeState, visits: dict[str, int]) -> Iterator[StepState | FanState]:
    for path in scope.touched:
        if path in scope.superseded or (visits and is_before(path, visits)):
            continue
        node = state.nodes[path]
        if isinstance(node, ScopeState):
            yield from _reopened(state, node, {})
        else:
            yield node


def _is_unsafe(node: StepState | FanState) -> bool:
    if node.node.step.safety != "NOT_SAFE_TO_RETRY":
        return False
    return _was_tried(node) if isinstance(node, StepState) else _has_tried_clone(node)


def _was_tried(step: StepState) -> bool:
    taken_back = step.undo == "done" and step.failure is None
    return step.number > 0 and not step.done and not taken_back


def _has_tried_clone(fan: FanState) -> bool:
    for index, mark in enumerate(fan.marks):
        live = fan.live.get(index)
        if live is not None and _was_tried(live):
            return True
        if live is None and fan.numbers.get(index) and mark not in (CLONE_SUCCEEDED, CLONE_UNDONE):
            return True
    return False

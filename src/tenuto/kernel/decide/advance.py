"""How a scope goes on: which children open, what a closed child leads to, when the scope itself closes.

`advance` is called for the scope in which something changed, and works its way up. Everything it looks at is in the
state, so it may be called at any time: after a report, a timer, a resume.
"""

import re
from typing import Literal

from tenuto.errors import ExpressionError
from tenuto.kernel.address import ROOT, child_path, clone_path, parent_of, review_id, segments, step_id
from tenuto.kernel.compensation import undo_groups
from tenuto.kernel.definition import FAIL, FAN_OUT_LIMIT, JSON, SUCCEED
from tenuto.kernel.events import (
    NULL,
    BranchTaken,
    Expanded,
    Failure,
    NodesClosed,
    ReviewOpened,
    ReviewResolved,
    ScopeClosed,
    ScopeClosing,
    ScopeOpened,
    ScopeOutcome,
    ScopeRepeated,
    ScopeRestarted,
    StepRefused,
    WaitEnded,
    WaitOpened,
)
from tenuto.kernel.evolve import scope_above, scope_at
from tenuto.kernel.expression import evaluate_bool, evaluate_key, evaluate_list
from tenuto.kernel.plan import Node
from tenuto.kernel.retry import MATRIX, needs_begin
from tenuto.kernel.state import CLONE_SUCCEEDED, Execution, FanState, NodeState, ScopeState, StepState

from .ending import advance_undo, end
from .turn import Turn, encode, evaluation_scope, may_start, refusal

ROUND_DELAY_MS = 100
_NO_LABELS: tuple[str, ...] = ()
REPLAN_INNER_FAILURES = 10


def advance(turn: Turn, scope: ScopeState) -> None:
    """Starts what can start in this scope; closes it when nothing is left; then does the same for what is above it."""
    while True:
        _start_children(turn, scope)
        if not _settle(turn, scope) and scope.status != "closed":  # or it was closed together with its parent
            return
        scope = scope_above(turn.state, scope.path)


def advance_all(turn: Turn) -> None:
    """After a resume or an admission: every open scope may have something to start, the deepest ones first."""
    state = turn.state
    if state.undo is not None:
        advance_undo(turn)
        return
    for path in sorted(_open_scopes(state), key=lambda path: -len(segments(path))):
        advance(turn, scope_at(state, path))


def _open_scopes(state: Execution) -> list[str]:
    found = [ROOT]
    for path in found:  # grows while it is walked
        scope = scope_at(state, path)
        found.extend(child for child in scope.active if isinstance(state.nodes[child], ScopeState))
    return found


# Starting -----------------------------------------------------------------------------------------------------------


def _start_children(turn: Turn, scope: ScopeState) -> None:
    if scope.status != "open" or scope.waiting_round or not may_start(turn.state):
        return
    node = scope.node
    if node.has_planner:
        if _needs_plan(scope):
            _ask_planner(turn, scope)
            return
        if _needs_new_plan(turn.state, scope):
            _ask_planner(turn, scope)
    limit = node.limit
    if scope.ready:
        _start_queued(turn, scope, limit)
    if scope.fans:
        for fan_path in list(scope.fans):
            _start_clones(turn, scope, fan_path)
    if node.is_flow:
        _follow_flow(turn, scope)
        return
    while scope.ready and _is_open(scope) and (not limit or scope.busy < limit):
        child = scope.children[scope.ready[0]]
        _open_child(turn, scope, child, child_path(scope.path, child.id, visit=1 if child.repeat_until else None))


def _is_open(scope: ScopeState) -> bool:
    """Asked anew in loops whose body may close the scope."""
    return scope.status == "open"


def _start_queued(turn: Turn, scope: ScopeState, limit: int) -> None:
    """Steps that were open before and may be attempted again: they stand before those that were never opened."""
    while scope.ready and (not limit or scope.busy < limit):
        child = scope.children[scope.ready[0]]
        visit = scope.visits[child.id] if scope.node.is_flow else None
        path = child_path(scope.path, child.id, visit=visit)
        step = turn.state.nodes.get(path)
        if not isinstance(step, StepState) or step.status == "pending":
            return
        turn.grant(path, "forward", step.number + 1)


def _needs_plan(scope: ScopeState) -> bool:
    return scope.node.has_planner and not scope.added


def _needs_new_plan(state: Execution, scope: ScopeState) -> bool:
    """Most children failed, or many of theirs: another decomposition may do better."""
    spec = scope.node.scope
    if spec.planner is None or scope.status != "open" or state.replans >= spec.max_replans or state.cancel is not None:
        return False
    standing = len(scope.children) - len(scope.superseded)
    return scope.failed * 2 > standing or scope.inner_failed > REPLAN_INNER_FAILURES


def _ask_planner(turn: Turn, scope: ScopeState) -> None:
    if scope.open is None and not scope.moving:
        turn.grant(scope.path, "plan", scope.plan_number + 1)


def _follow_flow(turn: Turn, scope: ScopeState) -> None:
    while scope.status == "open" and not scope.active:
        target = _flow_target(turn.state, scope)
        if target in (SUCCEED, FAIL):
            return
        node = scope.by_id[target]
        visit = scope.visits.get(target, 0) + 1
        if visit > node.spec.max_visits:
            failure = refusal(scope.path, "loop_limit", f"step {target!r} was visited {visit - 1} times, its limit")
            close_scope(turn, scope, "failed", failure)
            return
        _open_child(turn, scope, node, child_path(scope.path, target, visit=visit))


def _flow_target(state: Execution, scope: ScopeState) -> str:
    """The child that a flow goes to next, or how it ends."""
    if scope.current is None:
        return scope.start or scope.children[0].id
    if scope.taken is not None:
        return scope.taken
    # It succeeded or was passed over: of one that failed the edge was recorded, or it closed the flow.
    return scope.by_id[step_id(scope.current)].spec.on_success or SUCCEED


def _closed_status(state: Execution, path: str) -> str | None:
    node = state.nodes[path]
    return node.outcome if isinstance(node, ScopeState) else node.status


def _open_child(turn: Turn, scope: ScopeState, node: Node, path: str) -> None:
    """Opens one child: it is granted, waits, or is closed at once."""
    state = turn.state
    if node.index in scope.poisoned:
        turn.emit(NodesClosed((path,), "failed_upstream"))
        return
    if _is_kept(state, path):
        turn.emit(NodesClosed((path,), "reused"))
        return
    try:
        if node.when is not None and not evaluate_bool(node.when, evaluation_scope(state, node.when)):
            turn.emit(NodesClosed((path,), "skipped"))
        elif node.is_scope:
            _open_scope(turn, node, path)
        elif node.is_fan or node.id in state.each:
            _expand(turn, scope, node, path)
        else:
            _open_step(turn, scope, node, path)
    except ExpressionError as error:
        refuse(turn, scope, node, path, refusal(path, error.code, str(error)))


def _is_kept(state: Execution, path: str) -> bool:
    """Whether an earlier round or run left a result that is taken instead of running again."""
    node = state.nodes.get(path)
    if isinstance(node, ScopeState):
        return node.kept
    return isinstance(node, StepState) and node.done and node.node.step.type != "decision"


def refuse(turn: Turn, scope: ScopeState, node: Node, path: str, failure: Failure) -> None:
    verdict = disposition(scope, node)
    turn.emit(StepRefused(path, verdict, failure))
    if verdict == "fail":
        fail_child(turn, scope, failure)


def _open_step(turn: Turn, scope: ScopeState, node: Node, path: str) -> None:
    state = turn.state
    step = node.step
    if node.key is not None:
        key = str(node.key.render(evaluation_scope(state, node.key)))
        if key in state.marks:
            turn.emit(NodesClosed((path,), "marked"))
            return
    match step.type:
        case "decision":
            target = next(
                (
                    target
                    for condition, target in node.branches
                    if evaluate_bool(condition, evaluation_scope(state, condition))
                ),
                step.default or FAIL,
            )
            turn.emit(BranchTaken(path, target))
        case "wait":
            _open_wait(turn, node, path)
        case "human_approval":
            due = None if step.timeout_ms is None else turn.now + step.timeout_ms
            id = review_id(state.id, state.seq + 1)
            turn.emit(ReviewOpened(id, "approval", path, "approval", step.permission or "", due))
        case _:
            if not _can_afford(state, node):
                refuse(turn, scope, node, path, _out_of_credits(path))
                return
            known = state.nodes.get(path)
            turn.grant(path, "forward", (known.number if isinstance(known, StepState) else 0) + 1)


def _can_afford(state: Execution, node: Node) -> bool:
    estimate = node.step.estimate
    return not estimate or not state.hold or state.hold - state.charged >= estimate


def _out_of_credits(path: str) -> Failure:
    return refusal(path, "credits_exhausted", "what is left of the hold is less than this step is estimated to cost")


def _open_wait(turn: Turn, node: Node, path: str) -> None:
    state = turn.state
    assert node.payload is not None
    config = node.payload.render(evaluation_scope(state, node.payload))
    assert isinstance(config, dict)
    deadline = None if node.step.timeout_ms is None else turn.now + node.step.timeout_ms
    if "signal" in config:
        name = str(config["signal"])
        turn.emit(WaitOpened(path, "signal", name, deadline=deadline))
        kept = state.signals.get(name)
        if kept:
            turn.emit(WaitEnded(path, kept[0].id, kept[0].payload, node.step.set_variable))
        return
    due = turn.now + _milliseconds(config["duration_ms"]) if "duration_ms" in config else instant_ms(config["until"])
    turn.emit(WaitOpened(path, "timer", due_at=due, deadline=deadline))


def _milliseconds(value: JSON) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ExpressionError("`duration_ms` must be a number of milliseconds, not below zero", code="bad_duration")
    return int(value)


def instant_ms(value: JSON) -> int:
    """A point in time: milliseconds since 1970, or RFC 3339 text."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value)
    parsed = _parse_rfc3339(value) if isinstance(value, str) else None
    if parsed is None:
        raise ExpressionError("`until` must be milliseconds since 1970 or an RFC 3339 time", code="bad_time")
    return parsed


_RFC3339 = re.compile(r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:[Zz]|([+-])(\d\d):(\d\d))")


def _parse_rfc3339(text: str) -> int | None:
    match = _RFC3339.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 61):
        return None
    # Days since 1970-01-01 of a date of the Gregorian calendar, counting years from March.
    march_year = year - (month <= 2)
    era, of_era = divmod(march_year, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    days = era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
    offset = 0
    if match[8] is not None:
        offset = (int(match[9]) * 60 + int(match[10])) * (1 if match[8] == "+" else -1)
    fraction = int((match[7] or "0").ljust(3, "0")[:3])
    return ((days * 24 + hour) * 60 + minute - offset) * 60_000 + second * 1_000 + fraction


def _open_scope(turn: Turn, node: Node, path: str) -> None:
    state = turn.state
    deadline = None if node.scope.timeout_ms is None else turn.now + node.scope.timeout_ms
    start, visits = restart_point(state, path) if state.run > 1 and node.is_flow else (None, {})
    turn.emit(ScopeOpened(path, deadline, start, visits))
    scope = scope_at(state, path)
    _start_children(turn, scope)
    _settle(turn, scope)


def restart_point(state: Execution, path: str, at: str | None = None) -> tuple[str | None, dict[str, int]]:
    """Where a flow begins again in a new run: as told, else at its earliest undone visit, else where it failed.

    Visits completed before that point keep their numbers, so that a later loop is a new visit; the others are met
    again, and taken from the record or made anew.
    """
    scope = state.nodes.get(path)
    if not isinstance(scope, ScopeState) or scope.current is None:
        return at, {}
    reached = list(scope.touched)  # in the order of the visits
    if at is not None:
        begin = next((path for path in reversed(reached) if step_id(path) == at), None)
    else:
        failed = scope.last_failed or scope.current
        begin = next(path for path in reached if path == failed or _is_unmade(state, state.nodes[path]))
    before = reached if begin is None else reached[: reached.index(begin)]
    visits = {segment.id: segment.visit or 1 for segment in (segments(path)[-1] for path in before)}
    return at if begin is None else step_id(begin), visits


def _is_unmade(state: Execution, node: NodeState) -> bool:
    """Whether anything in this node was completed and is to be made again: it was undone, or an operator said so."""
    if isinstance(node, StepState):
        return not node.done and (node.done_seq > 0 or node.undo_seq > 0)
    if isinstance(node, FanState):
        return any(seq and mark != CLONE_SUCCEEDED for mark, seq in zip(node.marks, node.done_seq, strict=True))
    return any(_is_unmade(state, state.nodes[path]) for path in node.touched)


# Fan-outs -----------------------------------------------------------------------------------------------------------


def _expand(turn: Turn, scope: ScopeState, node: Node, path: str) -> None:
    state = turn.state
    if node.id in state.each:
        count, items, labels = state.each[node.id], NULL, _NO_LABELS
    else:
        assert node.foreach is not None
        values = evaluate_list(node.foreach, evaluation_scope(state, node.foreach))
        count, items, labels = len(values), encode(values), _labels(state, node, path, values)
    if count == 0:
        turn.emit(NodesClosed((path,), "skipped"))
        return
    if count > FAN_OUT_LIMIT:
        raise ExpressionError(f"a fan-out of {count} items is over the limit of {FAN_OUT_LIMIT}", code="fan_out_limit")
    turn.emit(Expanded(path, count, items, labels))
    if settle_fan(turn, _fan_at(state, path)):
        return
    _start_clones(turn, scope, path)


def _labels(state: Execution, node: Node, path: str, values: list[JSON]) -> tuple[str, ...]:
    if node.suffix is None:
        return ()
    scope = evaluation_scope(state, node.suffix)
    labels = tuple(
        evaluate_key(node.suffix, {**scope, "item": item, "index": index}) for index, item in enumerate(values)
    )
    if len(dict.fromkeys(labels)) < len(labels):
        raise ExpressionError(f"the suffixes of fan-out {node.id!r} are not unique", code="duplicate_suffix")
    return labels


def _fan_at(state: Execution, path: str) -> FanState:
    fan = state.nodes[path]
    assert isinstance(fan, FanState)
    return fan


def _start_clones(turn: Turn, scope: ScopeState, path: str) -> None:
    """Grants as many clones as there are slots: those whose delay is over first, then the next ones in order."""
    fan = _fan_at(turn.state, path)
    while fan.queue and not fan.closing and _free_slots(scope, fan):
        index = fan.queue[0]
        turn.grant(clone_path(path, index), "forward", fan.live[index].number + 1)
    while fan.cursor < fan.end and not fan.closing and scope.status == "open" and (free := _free_slots(scope, fan)):
        first = fan.cursor
        while fan.marks[first] == CLONE_SUCCEEDED:
            first += 1
        last = first
        if not fan.numbers:
            while last + 1 < fan.end and last - first + 1 < free and fan.marks[last + 1] != CLONE_SUCCEEDED:
                last += 1
        if not _can_afford(turn.state, fan.node):
            fail_clone(turn, fan, _out_of_credits(path))
            settle_fan(turn, fan)
            return
        if last == first:
            turn.grant(clone_path(path, first), "forward", fan.numbers.get(first, 0) + 1)
        else:
            turn.grant(path, "forward", 1, first, last)


def _free_slots(scope: ScopeState, fan: FanState) -> int:
    free = fan.node.limit - fan.busy
    limit = scope.node.limit
    return max(min(free, limit - scope.busy), 0) if limit else max(free, 0)


def settle_fan(turn: Turn, fan: FanState) -> bool:
    """Closes a fan-out when its clones are closed, or, once one of them failed, when the running ones are."""
    if fan.status != "running":  # its scope closed it already
        return False
    state = turn.state
    scope = scope_above(state, fan.path)
    halted = fan.closing or scope.status != "open"
    if fan.remaining and not (halted and fan.active == 0):
        return False
    if fan.closing:
        verdict = disposition(scope, fan.node)
        outcome: ScopeOutcome = "skipped" if verdict == "skip" else "failed"
        failure = fan.failure
        turn.emit(ScopeClosed(fan.path, outcome, failure))
        if verdict == "fail" and failure is not None:
            fail_child(turn, scope, failure)
    elif fan.remaining or fan.failure is not None:
        turn.emit(ScopeClosed(fan.path, "canceled"))
    else:
        turn.emit(ScopeClosed(fan.path, "succeeded" if fan.succeeded else "skipped"))
    return True


def fail_clone(turn: Turn, fan: FanState, failure: Failure) -> None:
    """One clone failed for good: no further ones start, and a scope that fails fast closes with them."""
    if fan.closing or fan.status != "running":
        return
    scope = scope_above(turn.state, fan.path)
    turn.emit(ScopeClosing(fan.path, "failed", failure))
    _stop_clones(turn, fan)
    if not scope.node.is_flow and scope.status == "open" and disposition(scope, fan.node) == "fail":
        fail_child(turn, scope, failure)


# Failing ------------------------------------------------------------------------------------------------------------


def disposition(scope: ScopeState, node: Node) -> Literal["skip", "fail"]:
    """Whether a child that failed for good is passed over or makes its scope fail."""
    if scope.status == "closing":
        return "fail"
    if not node.is_scope and node.step.failure_mode == "continue":
        return "skip"
    return "skip" if scope.node.scope.failure_mode == "continue" and not scope.node.is_flow else "fail"


def fail_child(turn: Turn, scope: ScopeState, failure: Failure) -> None:
    """A child of this scope failed for good, and is not passed over."""
    if scope.status != "open":
        return
    if scope.node.is_flow and scope.current is not None:
        spec = scope.by_id[step_id(scope.current)].spec
        timed_out = _closed_status(turn.state, scope.current) == "timed_out"
        edge = spec.on_timeout if timed_out else spec.on_failure
        if edge is not None:
            turn.emit(BranchTaken(scope.current, edge))
            return
    if scope.open is not None or _needs_new_plan(turn.state, scope):
        return  # its planner is asked, or will be: `advance` sees to it
    fail_scope(turn, scope, failure)


def fail_scope(turn: Turn, scope: ScopeState, failure: Failure) -> None:
    if scope.status == "open":
        close_scope(turn, scope, "retry" if _may_restart(turn.state, scope, failure) else "failed", failure)


def _may_restart(state: Execution, scope: ScopeState, failure: Failure) -> bool:
    spec = scope.node.scope
    rounds = state.run if _restarts_as_run(state, scope) else scope.round
    return (
        spec.failure_mode == "retry"
        and MATRIX[failure.error_class].retried
        and rounds < spec.max_rounds
        and state.budget_left > 0
        and state.cancel is None
    )


def _restarts_as_run(state: Execution, scope: ScopeState) -> bool:
    """What is paid for with credits is not run again in a round but as a run of its own, with credits of its own."""
    return scope.path == ROOT and state.hold > 0


def close_scope(turn: Turn, scope: ScopeState, outcome: ScopeOutcome, failure: Failure | None) -> None:
    """The outcome is known: nothing new starts, what only waits is closed, what runs is awaited."""
    turn.emit(ScopeClosing(scope.path, outcome, failure))
    for path in list(scope.active):
        _stop_child(turn, path)


def _stop_child(turn: Turn, path: str) -> None:
    node = turn.state.nodes[path]
    if isinstance(node, ScopeState):
        if node.status == "open" or node.outcome == "retry":
            close_scope(turn, node, "canceled", None)
        _settle(turn, node)
    elif isinstance(node, FanState):
        _stop_clones(turn, node)
        settle_fan(turn, node)
    elif not _must_be_awaited(node):
        cancel_step(turn, node)


def _stop_clones(turn: Turn, fan: FanState) -> None:
    for step in list(fan.live.values()):
        if step.status in ("running", "retrying", "awaiting_approval") and not _must_be_awaited(step):
            cancel_step(turn, step)


def _must_be_awaited(step: StepState) -> bool:
    """An attempt that runs, or whose outcome is still to be found out. Approvals, delays and signals are not awaited.

    Nor is an attempt that must be recorded before it begins, and was not: it never will.
    """
    if step.open is not None and not step.node.outside and needs_begin(step.node, step.open.ref):
        return step.open.begun_at > 0
    return step.open is not None or (step.status in ("retrying", "awaiting_approval") and _is_unknown(step))


def _is_unknown(step: StepState) -> bool:
    safety = step.node.step.safety
    if step.status == "awaiting_approval":
        return step.node.step.type != "human_approval"
    return safety != "SAFE_TO_RETRY" and step.unknown_since > 0


def cancel_step(turn: Turn, step: StepState) -> None:
    if step.review is not None:
        turn.emit(ReviewResolved(step.review, "dismiss", "close", reason="closed with its scope"))
    turn.emit(NodesClosed((step.path,), "canceled"))


# Closing ------------------------------------------------------------------------------------------------------------


def _settle(turn: Turn, scope: ScopeState) -> bool:
    """Closes the scope if it has come to its end. True when its parent should go on."""
    state = turn.state
    while not scope.active and _has_ended(state, scope):
        outcome, failure = _outcome(state, scope)
        if outcome == "retry":
            if _tried_in_vain(state, scope):
                turn.emit(ScopeClosing(scope.path, "failed", failure))
                continue
            _restart(turn, scope)
            return False
        if outcome == "succeeded" and scope.status == "open" and not _is_over(turn, scope):
            if scope.status == "open":
                if not _repeat(turn, scope):
                    return True
                scope = scope_at(state, _next_visit(scope))
                _start_children(turn, scope)
            continue
        if scope.path != ROOT:
            _close(turn, scope, outcome, failure)
            return True
        if state.pause is None and (state.admitted or not undo_groups(state)):  # an undo waits for its turn, too
            end(turn, outcome, failure)
        return False
    return False


def _has_ended(state: Execution, scope: ScopeState) -> bool:
    if scope.status == "closed" or state.finished is not None or state.undo is not None:
        return False
    return scope.open is None and not scope.waiting_round and _is_exhausted(state, scope)


def _is_exhausted(state: Execution, scope: ScopeState) -> bool:
    if scope.status == "closing":
        return True
    if _needs_plan(scope) or ("retry", scope.path) in state.timers:
        return False
    if scope.node.is_flow:
        return _flow_target(state, scope) in (SUCCEED, FAIL)
    return scope.remaining == 0


def _outcome(state: Execution, scope: ScopeState) -> tuple[ScopeOutcome, Failure | None]:
    if scope.status == "closing":
        assert scope.outcome is not None
        if scope.outcome == "retry" and state.cancel is not None:
            return "canceled", None
        if scope.outcome == "retry" and state.budget_left <= 0:
            return "failed", scope.failure
        return scope.outcome, scope.failure
    if scope.node.is_flow:
        if _flow_target(state, scope) == SUCCEED:
            return "succeeded", None
        assert scope.current is not None
        failure = state.nodes[scope.current].failure
        return "failed", failure or refusal(scope.current, "flow_failed", "the flow ended in $fail")
    if scope.failed and scope.succeeded == 0 and scope.node.scope.planner is not None:
        return "failed", refusal(scope.path, "all_children_failed", "no child succeeded")
    if scope.succeeded or not scope.children:
        return "succeeded", None
    if scope.node.scope.fail_if_empty:
        return "failed", refusal(
            scope.path, "nothing_done", "all children were skipped, which this scope does not allow"
        )
    return "skipped", None


def _tried_in_vain(state: Execution, scope: ScopeState) -> bool:
    """Whether a step in this scope that is not safe to retry was tried and not completed: a round would retry it."""
    for path in scope.touched:
        node = state.nodes[path]
        if isinstance(node, ScopeState):
            if _tried_in_vain(state, node):
                return True
        elif node.node.step.safety == "NOT_SAFE_TO_RETRY":
            steps = node.live.values() if isinstance(node, FanState) else (node,)
            if any(_may_have_begun(step) for step in steps):
                return True
    return False


def _may_have_begun(step: StepState) -> bool:
    """Of a step that is not safe to retry: whether an attempt of this round, of which nothing came, may have begun."""
    gave_up = step.number > 0 and step.status in ("failed", "timed_out", "skipped")
    return not step.done and (step.tries + step.losses > 0 or gave_up)


def _restart(turn: Turn, scope: ScopeState) -> None:
    """The next round of a scope that failed."""
    state = turn.state
    if _restarts_as_run(state, scope):
        if state.pause is None:
            end(turn, "retry", scope.failure)
        return
    delay = ROUND_DELAY_MS << (scope.round - 1)
    turn.emit(ScopeRestarted(scope.path, scope.round + 1, state.budget_left - 1, turn.now + delay))


def _is_over(turn: Turn, scope: ScopeState) -> bool:
    """Whether a scope that repeats itself has met its condition. One that cannot go on closes as failed."""
    condition = scope.node.repeat_until
    if condition is None:
        return True
    try:
        if evaluate_bool(condition, evaluation_scope(turn.state, condition)):
            return True
    except ExpressionError as error:
        close_scope(turn, scope, "failed", refusal(scope.path, error.code, str(error)))
        return False
    visit = segments(scope.path)[-1].visit or 1
    if visit >= scope.node.scope.max_visits:
        failure = refusal(scope.path, "loop_limit", f"the condition was not met in {visit} visits, the limit")
        close_scope(turn, scope, "failed", failure)
    return False


def _next_visit(scope: ScopeState) -> str:
    visit = (segments(scope.path)[-1].visit or 1) + 1
    return child_path(parent_of(scope.path), scope.node.id, visit=visit)


def _repeat(turn: Turn, scope: ScopeState) -> bool:
    """Opens the next visit. False if an earlier run completed it: then its result is taken, and the repetition over."""
    path = _next_visit(scope)
    timeout = scope.node.scope.timeout_ms
    turn.emit(ScopeRepeated(scope.path))
    if _is_kept(turn.state, path):
        turn.emit(NodesClosed((path,), "reused"))
        return False
    turn.emit(ScopeOpened(path, None if timeout is None else turn.now + timeout))
    return True


def _close(turn: Turn, scope: ScopeState, outcome: ScopeOutcome, failure: Failure | None) -> None:
    parent = scope_above(turn.state, scope.path)
    if outcome in ("failed", "timed_out") and disposition(parent, scope.node) == "skip":
        outcome = "skipped"
    turn.emit(ScopeClosed(scope.path, outcome, failure))
    if outcome in ("failed", "timed_out") and failure is not None:
        fail_child(turn, parent, failure)

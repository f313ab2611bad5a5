"""Advances a scope: starts its children, closes it when none is left, then advances its parent."""

from tenuto.kernel.address import ROOT, child_path, segments
from tenuto.kernel.compensation import undo_groups
from tenuto.kernel.decide.credits import affordable, out_of_credits
from tenuto.kernel.decide.ending import advance_undo, end
from tenuto.kernel.decide.turn import Turn, may_start, refusal
from tenuto.kernel.definition import FAIL, SUCCEED
from tenuto.kernel.events import ScopeClosing
from tenuto.kernel.evolve import scope_above, scope_at
from tenuto.kernel.state import Execution, ScopeState, StepState

from .closing import close_scope, conclude
from .opening import open_child, refuse_child, start_clones
from .outcomes import ask_planner, flow_target, has_ended, needs_new_plan, needs_plan, outcome_of
from .rounds import is_over, next_visit, repeat, restart, tried_in_vain


def advance(turn: Turn, scope: ScopeState) -> None:
    """Starts the children that can start, closes the scope if none is left, then advances its parent."""
    while True:
        _start_children(turn, scope)
        if not _settle(turn, scope) and scope.status != "closed":  # or it was closed together with its parent
            return
        scope = scope_above(turn.state, scope.path)


def advance_waiting(turn: Turn) -> None:
    """Advances the scopes with ready children after credits that were set aside became free."""
    state = turn.state
    if not state.hold or state.undo is not None or state.finished is not None:
        return
    for path in [scope.path for scope in open_scopes(state) if scope.ready or scope.fans]:
        scope = state.nodes[path]
        if isinstance(scope, ScopeState) and scope.status == "open" and state.finished is None:
            advance(turn, scope)


def advance_all(turn: Turn) -> None:
    """Advances every open scope after a resume or an admission, the deepest first."""
    state = turn.state
    if state.undo is not None:
        advance_undo(turn)
        return
    paths = [scope.path for scope in open_scopes(state)]
    for path in sorted(paths, key=lambda path: -len(segments(path))):
        advance(turn, scope_at(state, path))


def open_scopes(state: Execution) -> list[ScopeState]:
    found = [state.root]
    for scope in found:  # `found` grows during the loop
        found.extend(node for path in scope.active if isinstance(node := state.nodes[path], ScopeState))
    return found


def _start_children(turn: Turn, scope: ScopeState) -> None:
    if scope.status != "open" or scope.waiting_round or not may_start(turn.state):
        return
    node = scope.node
    if node.has_planner:
        if needs_plan(scope):
            ask_planner(turn, scope)
            return
        if needs_new_plan(turn.state, scope):
            ask_planner(turn, scope)
    limit = node.limit
    if scope.ready and (scope.fans or node.is_flow):
        _start_queued(turn, scope, limit)
    if scope.fans:
        for fan_path in list(scope.fans):
            start_clones(turn, scope, fan_path)
    if node.is_flow:
        _follow_flow(turn, scope)
        return
    nodes = turn.state.nodes
    while scope.ready and _is_open(scope) and (not limit or scope.busy < limit):
        child = scope.children[scope.ready[0]]
        path = child_path(scope.path, child.id, visit=1) if child.repeat_until else child_path(scope.path, child.id)
        known = nodes.get(path)
        if not child.is_scope and not child.is_fan and affordable(turn.state, child) == "later":
            break
        if isinstance(known, StepState) and known.status != "pending":
            if affordable(turn.state, child) == "never":
                refuse_child(turn, scope, child, path, out_of_credits(path))
                continue
            turn.grant(path, "forward", known.number + 1)
            continue
        opened = open_child(turn, scope, child, path)
        if opened is not None:
            _enter(turn, opened)


def _is_open(scope: ScopeState) -> bool:
    """Returns whether the scope is still open. Loops call it again, because their body may close the scope."""
    return scope.status == "open"


def _start_queued(turn: Turn, scope: ScopeState, limit: int) -> None:
    """Starts steps that queue for another attempt. They come before clones and new steps."""
    while scope.ready and (not limit or scope.busy < limit):
        child = scope.children[scope.ready[0]]
        visit = scope.visits[child.id] if scope.node.is_flow else None
        path = child_path(scope.path, child.id, visit=visit)
        step = turn.state.nodes.get(path)
        if not isinstance(step, StepState) or step.status == "pending" or affordable(turn.state, child) == "later":
            return
        if affordable(turn.state, child) == "never":
            refuse_child(turn, scope, child, path, out_of_credits(path))
            continue
        turn.grant(path, "forward", step.number + 1)


def _follow_flow(turn: Turn, scope: ScopeState) -> None:
    while scope.status == "open" and not scope.active:
        target = flow_target(turn.state, scope)
        if target in (SUCCEED, FAIL):
            return
        node = scope.by_id[target]
        visit = scope.visits.get(target, 0) + 1
        if visit > node.spec.max_visits:
            failure = refusal(scope.path, "loop_limit", f"step {target!r} was visited {visit - 1} times, its limit")
            close_scope(turn, scope, "failed", failure)
            return
        opened = open_child(turn, scope, node, child_path(scope.path, target, visit=visit))
        if opened is not None:
            _enter(turn, opened)


def _enter(turn: Turn, scope: ScopeState) -> None:
    _start_children(turn, scope)
    _settle(turn, scope)


def _settle(turn: Turn, scope: ScopeState) -> bool:
    """Closes the scope if it has ended. Returns true if its parent should advance."""
    state = turn.state
    while not scope.active and has_ended(state, scope):
        outcome, failure = outcome_of(state, scope)
        if outcome == "retry":
            if tried_in_vain(state, scope):
                turn.emit(ScopeClosing(scope.path, "failed", failure))
                continue
            restart(turn, scope)
            return False
        if outcome == "succeeded" and scope.status == "open" and not is_over(turn, scope):
            if scope.status == "open":
                if not repeat(turn, scope):
                    return True
                scope = scope_at(state, next_visit(scope))
                _start_children(turn, scope)
            continue
        if scope.path != ROOT:
            conclude(turn, scope, outcome, failure)
            return True
        # a compensation waits for admission, too
        if state.pause is None and (state.admitted or not undo_groups(state)):
            end(turn, outcome, failure)
        return False
    return False

"""A child opens: it is granted, waits, asks a person, becomes many, or is closed at once."""

from tenuto.errors import ExpressionError
from tenuto.kernel.decide.credits import can_afford, out_of_credits
from tenuto.kernel.decide.turn import Turn, refusal
from tenuto.kernel.definition import FAIL
from tenuto.kernel.events import (
    BranchTaken,
    Failure,
    NodesClosed,
    ReviewOpened,
    ScopeOpened,
    StepRefused,
    WaitEnded,
    WaitOpened,
)
from tenuto.kernel.evolve import scope_at
from tenuto.kernel.plan import Node
from tenuto.kernel.state import Execution, ScopeState, StepState

from .clones import expand
from .closing import disposition, fail_child
from .flows import restart_point
from .instants import instant_ms, milliseconds


def open_child(turn: Turn, scope: ScopeState, node: Node, path: str) -> ScopeState | None:
    """Opens one child. If that is a scope it is given back, because its own children are still to start."""
    state = turn.state
    if node.index in scope.poisoned:
        turn.emit(NodesClosed((path,), "failed_upstream"))
        return None
    if is_kept(state, path):
        turn.emit(NodesClosed((path,), "reused"))
        return None
    try:
        if node.when is not None and not turn.evaluation.true(node.when):
            turn.emit(NodesClosed((path,), "skipped"))
        elif node.is_scope:
            return _open_scope(turn, node, path)
        elif node.is_fan or node.id in state.each:
            expand(turn, scope, node, path)
        else:
            _open_step(turn, scope, node, path)
    except ExpressionError as error:
        _refuse(turn, scope, node, path, refusal(path, error.code, str(error)))
    return None


def is_kept(state: Execution, path: str) -> bool:
    """Whether an earlier round or run left a result that is taken instead of running again."""
    node = state.nodes.get(path)
    if isinstance(node, ScopeState):
        return node.kept
    return isinstance(node, StepState) and node.done and node.node.step.type != "decision"


def _refuse(turn: Turn, scope: ScopeState, node: Node, path: str, failure: Failure) -> None:
    verdict = disposition(scope, node)
    turn.emit(StepRefused(path, verdict, failure))
    if verdict == "fail":
        fail_child(turn, scope, failure)


def _open_step(turn: Turn, scope: ScopeState, node: Node, path: str) -> None:
    state = turn.state
    step = node.step
    if node.key is not None:
        key = str(turn.evaluation.render(node.key))
        if key in state.marks:
            turn.emit(NodesClosed((path,), "marked"))
            return
    match step.type:
        case "decision":
            target = next(
                (target for condition, target in node.branches if turn.evaluation.true(condition)),
                step.default or FAIL,
            )
            turn.emit(BranchTaken(path, target))
        case "wait":
            _open_wait(turn, node, path)
        case "human_approval":
            due = None if step.timeout_ms is None else turn.now + step.timeout_ms
            id = turn.new_review()
            turn.emit(ReviewOpened(id, "approval", path, "approval", step.permission or "", due))
        case _:
            if not can_afford(state, node):
                _refuse(turn, scope, node, path, out_of_credits(path))
                return
            known = state.nodes.get(path)
            turn.grant(path, "forward", (known.number if isinstance(known, StepState) else 0) + 1)


def _open_wait(turn: Turn, node: Node, path: str) -> None:
    state = turn.state
    assert node.payload is not None
    config = turn.evaluation.render(node.payload)
    assert isinstance(config, dict)
    deadline = None if node.step.timeout_ms is None else turn.now + node.step.timeout_ms
    if "signal" in config:
        name = str(config["signal"])
        turn.emit(WaitOpened(path, "signal", name, deadline=deadline))
        kept = state.signals.get(name)
        if kept:
            turn.emit(WaitEnded(path, kept[0].id, kept[0].payload, node.step.set_variable, ""))
        return
    due = turn.now + milliseconds(config["duration_ms"]) if "duration_ms" in config else instant_ms(config["until"])
    turn.emit(WaitOpened(path, "timer", due_at=due, deadline=deadline))


def _open_scope(turn: Turn, node: Node, path: str) -> ScopeState:
    state = turn.state
    deadline = None if node.scope.timeout_ms is None else turn.now + node.scope.timeout_ms
    start, visits = restart_point(state, path) if state.run > 1 and node.is_flow else (None, {})
    turn.emit(ScopeOpened(path, deadline, start, visits))
    return scope_at(state, path)

"""Finds steps and their results."""

import re
from collections.abc import Iterator

from msgspec import Raw

from tenuto.kernel import events as e
from tenuto.kernel.address import ROOT, child_path, clone_path, fan_of, parent_of, parse_segment, step_id
from tenuto.kernel.evolve import find_step
from tenuto.kernel.naming import labels_of
from tenuto.kernel.plan import Node
from tenuto.kernel.state import CLONE_SUCCEEDED, CLONE_UNDONE, Execution, FanState, ScopeState, TimerKind

_NAME = re.compile(r"[^#@]+(?:#[0-9]{1,9})?")


def find_path(state: Execution, name: str, near: str = ROOT) -> str | None:
    """Resolves the name of a step to its path: first among the siblings of `near`, then in outer scopes, then anywhere.

    A name may be a path already, and may name a clone: by its label (`notify#ada`), or if clones have no labels by its
    index (`notify#3`). If clones have labels, an index is never accepted, because it could select another clone. In a
    loop, the name means the latest visit unless it names one.
    """
    id, hash, label = name.partition("#")
    fan = _find(state, id, near) if hash else None
    if fan is None or not (labels := labels_of(state, fan)):
        return _find(state, name, near)
    if label in labels:
        return clone_path(fan, labels.index(label))
    return name if "/" in name and _is_there(state, name) else None


def _is_there(state: Execution, path: str) -> bool:
    return path in state.nodes or find_step(state, path) is not None


def _find(state: Execution, name: str, near: str) -> str | None:
    if _is_there(state, name):
        return name
    if _NAME.fullmatch(last := name.rpartition("/")[2]) is None:
        return None
    segment = parse_segment(last)
    at = near
    while at != ROOT:
        at = parent_of(at)
        scope = state.nodes.get(at)
        if isinstance(scope, ScopeState) and (inner := _inside(state, scope, segment.id)) is not None:
            return _with_clone(_child_path(state, *inner), segment.clone)
    for node in state.plan.root.walk():
        if node.id == segment.id and node.parent is not None:
            return _with_clone(path_of(state, node), segment.clone)
    return _with_clone(_added_path(state, segment.id), segment.clone)


def _inside(state: Execution, scope: ScopeState, id: str) -> tuple[ScopeState, Node] | None:
    """Returns the node with this id in a scope, however deep, and the scope that contains it."""
    if id in scope.by_id:
        node = scope.by_id[id]
        task = state.nodes.get(child_path(scope.path, id)) if node.is_scope and id in node.by_id else None
        return (task, node.by_id[id]) if isinstance(task, ScopeState) else (scope, node)
    for child in scope.children if scope.path != ROOT else ():
        if id in child.ids and (path := _child_path(state, scope, child)) is not None:
            inner = state.nodes.get(path)
            if isinstance(inner, ScopeState):
                return _inside(state, inner, id)
    return None


def _with_clone(path: str | None, clone: int | None) -> str | None:
    return path if path is None or clone is None else clone_path(path, clone)


def path_of(state: Execution, node: Node) -> str | None:
    """Returns the path of a node of the plan.

    If it or a scope around it was visited repeatedly, that is the latest visit.
    """
    if node.parent is None:
        return ROOT
    above = path_of(state, node.parent)
    scope = state.nodes.get(above) if above is not None else None
    return _child_path(state, scope, node) if isinstance(scope, ScopeState) else None


def _child_path(state: Execution, scope: ScopeState, node: Node) -> str | None:
    if scope.node.is_flow:
        visit = scope.visits.get(node.id)
        return None if visit is None else child_path(scope.path, node.id, visit=visit)
    if node.repeat_until is None:
        return child_path(scope.path, node.id)
    visit = 1
    while child_path(scope.path, node.id, visit=visit + 1) in state.nodes:
        visit += 1
    return child_path(scope.path, node.id, visit=visit)


def _added_path(state: Execution, id: str) -> str | None:
    """Returns the path of a child that a planner added. Such children are not in the plan."""
    return next((path for path in state.nodes if path and step_id(path) == id), None)


def result_of(event: e.Event) -> Raw | None:
    """Returns the result in an event that completed a step or a compensation."""
    if isinstance(event, e.AttemptSucceeded | e.ProbeAnswered | e.ReviewResolved):
        return event.result
    return event.payload if isinstance(event, e.WaitEnded) else None


def result_seqs(state: Execution, path: str) -> int | list[int]:
    """Returns the numbers of the events with a step's result: one per clone for a fan-out, 0 if there is none."""
    node = state.nodes.get(path)
    if isinstance(node, FanState):
        kept = (CLONE_SUCCEEDED, CLONE_UNDONE)
        return [seq if mark in kept else 0 for mark, seq in zip(node.marks, node.done_seq, strict=True)]
    clone = fan_of(path)
    if clone is not None:
        fan = state.nodes.get(clone[0])
        if isinstance(fan, FanState) and clone[1] < fan.count and clone[1] not in fan.live:
            return fan.done_seq[clone[1]] if fan.marks[clone[1]] in (CLONE_SUCCEEDED, CLONE_UNDONE) else 0
    step = find_step(state, path)
    return step.done_seq if step is not None and step.status == "succeeded" else 0


def all_nodes(state: Execution) -> Iterator[Node]:
    """Yields the nodes of the plan and those that planners added."""
    for node in state.plan.root.walk():
        if node.parent is not None:
            yield node
        path = path_of(state, node) if node.is_scope else None
        scope = state.nodes.get(path) if path is not None else None
        if isinstance(scope, ScopeState):
            for added in scope.children[len(node.children) :]:
                yield from added.walk()


def leaf_nodes(state: Execution) -> list[Node]:
    """Returns the steps of the plan and those that planners added."""
    return [node for node in all_nodes(state) if not node.is_scope]


def earliest(state: Execution, kinds: tuple[TimerKind, ...], path: str) -> int | None:
    if not state.timers:
        return None
    return min((due for kind in kinds if (due := state.timers.get((kind, path))) is not None), default=None)

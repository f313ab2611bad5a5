"""An execution as a graph: its steps and scopes, what follows what, and how far each has come.

A node or scope is named by its place in the plan: the ids from the root on, joined by "/". Loops show the latest visit,
a fan-out is one node. Children that a planner added at run time are included.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, TypedDict

from tenuto.kernel import events as e
from tenuto.kernel.address import fan_of, segments
from tenuto.kernel.definition import Scope
from tenuto.kernel.plan import Node
from tenuto.kernel.state import CLONE_UNDONE, CLOSED, Execution, FanState, NodeState, ScopeState, StepState

from .finding import all_nodes, earliest, path_of
from .shapes import NOTHING_UNDER_WAY, Activity, BlockedReason, time_text
from .steps import clone_counts, step_status

EdgeKind = Literal["dependency", "success", "failure", "timeout", "compensation"]

GraphError = TypedDict("GraphError", {"class": str, "code": str, "summary": str})
GraphEdge = TypedDict("GraphEdge", {"from": str, "to": str, "kind": EdgeKind})


class GraphClones(TypedDict):
    total: int
    by_status: dict[str, int]


class GraphNode(TypedDict):
    """A step. `path` names its latest visit, if it was reached. `blocked` is why it waits."""

    id: str
    path: str
    scope: str
    kind: Literal["step", "fan_out"]
    name: str
    step_type: str
    status: str
    phase: Literal["forward", "compensation"]
    attempts: int
    started_at: str | None
    ended_at: str | None
    clones: GraphClones | None
    error: GraphError | None
    blocked: BlockedReason | None
    compensation_status: str | None


class GraphScope(TypedDict):
    """A scope. The root has the empty path and no parent."""

    path: str
    parent: str | None
    mode: str
    status: str
    label: str


class GraphDocument(TypedDict):
    """The graph after event `seq`. Edges join nodes and scopes."""

    seq: int
    nodes: list[GraphNode]
    scopes: list[GraphScope]
    edges: list[GraphEdge]


def graph_document(
    state: Execution, history: Sequence[e.Entry], activity: Activity = NOTHING_UNDER_WAY
) -> GraphDocument:
    """The state and the history it folds from. `activity` is that of the present, so leave it out for the past."""
    times, undone = _walk(history)
    waiting = {ref.path: found.reason for ref, found in activity.waiting.items()}
    nodes: list[GraphNode] = []
    scopes = [_scope(state, state.plan.root)]
    edges: list[GraphEdge] = list(_edges(state, state.plan.root))
    for node in all_nodes(state):
        if node.is_scope:
            scopes.append(_scope(state, node))
            edges.extend(_edges(state, node))
        else:
            nodes.append(_node(state, node, times, waiting))
    edges.extend(_compensations(undone))
    return {"seq": state.seq, "nodes": nodes, "scopes": scopes, "edges": edges}


def place(node: Node) -> str:
    """The name of a node in the graph: where it is in the plan."""
    if node.parent is None:
        return ""
    above = place(node.parent)
    return f"{above}/{node.id}" if above else node.id


def _place_of(path: str) -> str:
    return "/".join(segment.id for segment in segments(path))


# -- Times -------------------------------------------------------------------------------------------------------------


class _Times(NamedTuple):
    """Of a step, or of all clones of a fan-out: when the first began, and what happened last."""

    started_at: int
    last_at: int


_OF_A_STEP = (
    e.AttemptSucceeded | e.AttemptFailed | e.AttemptTimedOut | e.ProbeAnswered | e.DispatchFailed | e.WaitOpened
    | e.WaitEnded | e.StepExpired | e.StepRefused | e.BranchTaken | e.ReviewOpened
)  # fmt: skip


def _walk(history: Sequence[e.Entry]) -> tuple[dict[str, _Times], tuple[tuple[str, ...], ...]]:
    """The times of each step, and the groups of the latest rollback."""
    times: dict[str, _Times] = {}
    groups: tuple[tuple[str, ...], ...] = ()
    reviews: dict[str, str] = {}
    for entry in history:
        event = entry.event
        if isinstance(event, e.CompensationStarted):
            groups = event.groups
        for path in (*_paths(event, reviews), *(grant.path for grant in entry.grants)):
            clone = fan_of(path)
            at = path if clone is None else clone[0]
            known = times.get(at)
            times[at] = _Times(entry.at if known is None else known.started_at, entry.at)
    return times, groups


def _paths(event: e.Event, reviews: dict[str, str]) -> Sequence[str]:
    match event:
        case e.ReviewOpened():
            reviews[event.id] = event.path
            return (event.path,) if event.kind == "approval" else ()
        case e.ReviewResolved():
            return (reviews.pop(event.id),) if event.id in reviews else ()
        case e.NodesClosed():
            return event.paths
        case e.AttemptLost():
            return [loss.path for loss in event.losses]
        case e.AttemptAbandoned():
            return [ref.path for ref in event.refs]
        case _ if isinstance(event, _OF_A_STEP):
            return (event.path,)
        case _:
            return ()


# -- Nodes -------------------------------------------------------------------------------------------------------------


def _node(state: Execution, node: Node, times: Mapping[str, _Times], waiting: Mapping[str, BlockedReason]) -> GraphNode:
    path = path_of(state, node)
    found = state.nodes.get(path) if path is not None else None
    at, status = path or place(node), step_status(state, found)
    timed = times.get(at)
    failure = None if found is None else found.failure
    undo = _compensation(found)
    assert node.parent is not None
    return {
        "id": place(node),
        "path": at,
        "scope": place(node.parent),
        "kind": "fan_out" if node.is_fan else "step",
        "name": node.spec.name or node.id,
        "step_type": node.spec.type,
        "status": status,
        "phase": "forward" if undo is None else "compensation",
        "attempts": found.number if isinstance(found, StepState) else 0,
        "started_at": None if timed is None else time_text(timed.started_at),
        "ended_at": time_text(timed.last_at) if timed is not None and status in CLOSED else None,
        "clones": _clones(found) if isinstance(found, FanState) else None,
        "error": None
        if failure is None
        else {"class": failure.error_class, "code": failure.code, "summary": failure.summary},
        "blocked": None if found is None else _blocked(state, found, waiting),
        "compensation_status": undo,
    }


def _clones(fan: FanState) -> GraphClones:
    counts: dict[str, int] = {**clone_counts(fan)}  # type: ignore[dict-item]  # all its values are numbers
    return {"total": counts.pop("total"), "by_status": {status: count for status, count in counts.items() if count}}


def _compensation(found: NodeState | None) -> str | None:
    if isinstance(found, StepState):
        return None if found.undo == "none" else found.undo
    if isinstance(found, FanState):
        live = [step.undo for step in found.live.values() if step.undo != "none"]
        if live:
            return next((status for status in live if status not in ("done", "skipped")), live[0])
        return "done" if CLONE_UNDONE in found.marks else None
    return None


def _blocked(state: Execution, found: NodeState, waiting: Mapping[str, BlockedReason]) -> BlockedReason | None:
    """Why a step waits. A fan-out waits for the reason of its first clone that does, if no other one runs."""
    if isinstance(found, StepState):
        return _step_blocked(state, found, waiting)
    if isinstance(found, FanState) and found.live and found.status == "running":
        reasons = [_step_blocked(state, step, waiting) for step in found.live.values() if step.status not in CLOSED]
        return None if None in reasons else next(iter(reasons), None)
    return None


def _step_blocked(state: Execution, step: StepState, waiting: Mapping[str, BlockedReason]) -> BlockedReason | None:
    if step.review is not None and (review := state.reviews.get(step.review)) is not None:
        return "approval" if review.kind == "approval" else "review"
    if step.path in waiting:
        return waiting[step.path]
    if earliest(state, ("retry", "probe"), step.path) is not None:
        return "retry"
    if ("wait", step.path) in state.timers:
        return "timer"
    if any(step.path in paths for paths in state.waits.values()):
        return "signal"
    return "callback" if step.open is not None and step.open.dispatched_at else None


def _scope(state: Execution, node: Node) -> GraphScope:
    path = path_of(state, node)
    found = state.nodes.get(path) if path is not None else None
    spec = node.spec
    assert isinstance(spec, Scope)
    return {
        "path": place(node),
        "parent": None if node.parent is None else place(node.parent),
        "mode": spec.mode,
        "status": step_status(state, found),
        "label": spec.name or spec.id,
    }


# -- Edges -------------------------------------------------------------------------------------------------------------


def _edges(state: Execution, scope: Node) -> Iterator[GraphEdge]:
    path = path_of(state, scope)
    found = state.nodes.get(path) if path is not None else None
    children = found.children if isinstance(found, ScopeState) and found.children else scope.children
    by_id = {child.id: child for child in children}
    for child in children:
        if scope.is_flow:
            for name, kind in _transitions(child):
                if name in by_id:
                    yield {"from": place(child), "to": place(by_id[name]), "kind": kind}
        for index, _ in child.dependents:
            yield {"from": place(child), "to": place(children[index]), "kind": "dependency"}


def _transitions(node: Node) -> Iterator[tuple[str, EdgeKind]]:
    """Where a flow can go from here. Several ways to the same step are one edge of each kind."""
    spec, found = node.spec, dict[tuple[str, EdgeKind], None]()
    if not isinstance(spec, Scope):
        for name in (*(branch.next for branch in spec.branches), spec.default):
            if name is not None:
                found[name, "success"] = None
    exits: dict[EdgeKind, str | None] = {
        "success": spec.on_success,
        "failure": spec.on_failure,
        "timeout": spec.on_timeout,
    }
    found.update({(name, kind): None for kind, name in exits.items() if name is not None})
    yield from found


def _compensations(groups: tuple[tuple[str, ...], ...]) -> Iterator[GraphEdge]:
    """The order of a rollback: from each group to the next. Clones of one fan-out are one node."""
    places = [list(dict.fromkeys(_place_of(path) for path in group)) for group in groups]
    seen: dict[tuple[str, str], None] = {}
    for first, second in pairwise(places):
        seen.update({(one, other): None for one in first for other in second if one != other})
    for one, other in seen:
        yield {"from": one, "to": other, "kind": "compensation"}

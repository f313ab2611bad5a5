"""Order and concurrency: dependencies, and the number of steps that run at once."""

from tenuto.kernel import events as e
from tenuto.kernel.address import Ref, fan_of, parent_of, step_id
from tenuto.kernel.definition import SUCCEED

from .invariants import Family, require
from .model import Model, ModelScope

family = Family("State machine")

G8 = family(
    "G8",
    "A child of a scope starts once per round, after its dependencies and where the flow leads, and concurrency stays "
    "within the limits.",
)


def granted(model: Model, ref: Ref, entry: e.Entry) -> None:
    is_child = ref.phase == "forward" and fan_of(ref.path) is None
    if is_child and ref not in model.open_refs and not _is_under_way(model, ref.path):
        _starts(model, ref.path)


def _is_under_way(model: Model, path: str) -> bool:
    """Returns whether the step has started in this round and is being retried."""
    return path in model.scopes[parent_of(path)].active


def recorded(model: Model, entry: e.Entry) -> None:
    for path in started_by(model, entry.event):
        _starts(model, path)


def started_by(model: Model, event: e.Event) -> tuple[str, ...]:
    """Returns the children that an event starts without an attempt."""
    match event:
        case e.ScopeOpened() | e.Expanded() | e.WaitOpened() | e.StepRefused() | e.ReviewOpened(kind="approval"):
            return (event.path,)
        case e.BranchTaken() if model.decides(event):
            return (event.path,)
        case e.NodesClosed(status="skipped" | "reused" | "marked"):
            return event.paths
    return ()


def _starts(model: Model, path: str) -> None:
    scope = model.scopes[parent_of(path)]
    id = step_id(path)
    others = [other for other in scope.active if other != path] if scope.node.is_flow else []
    require(not others, G8, f"{path} started in a flow beside {others[:3]}")
    if scope.node.is_flow:
        target = flow_target(model, scope)
        require(id == target, G8, f"{path} started, and the flow leads to {target}")
        return
    require(id not in scope.closed, G8, f"{path} started twice in a round")
    for before in waits_for(model, scope.path, id):
        status = scope.closed.get(before)
        over = status in ("succeeded", "skipped") or _is_passed(model, scope, id, before)
        require(over, G8, f"{path} started before {before} ({status or 'not closed'})")


def _is_passed(model: Model, scope: ModelScope, id: str, before: str) -> bool:
    """Returns whether a planner replaced the child. That blocks only children that need its result."""
    needed = scope.node.scope.mode == "dag" and before in model.child(scope.path, id).spec.depends_on
    return not needed and before in model.replaced(scope.path)


def flow_target(model: Model, scope: ModelScope) -> str:
    """Returns the next child of a flow, or how the flow ends."""
    if not scope.last:
        return scope.start or model.children(scope.path)[0].id
    if scope.taken is not None:
        return scope.taken
    return model.child(scope.path, step_id(scope.last)).spec.on_success or SUCCEED


def waits_for(model: Model, scope: str, id: str) -> list[str]:
    spec = model.scopes[scope].node.scope
    batch = model.batches.get((scope, id))
    ids = list(batch) if batch is not None else [child.id for child in spec.children]
    if spec.mode == "sequence":
        return ids[: ids.index(id)]
    if spec.mode != "dag":
        return []
    if spec.scheduling == "layered" and batch is None:
        layers = layers_in(model, scope)
        return [other for other in ids if layers[other] < layers[id]]
    node = model.child(scope, id)
    return list(node.spec.depends_on)


def layers_in(model: Model, scope: str) -> dict[str, int]:
    node = model.scopes[scope].node
    if node.id not in model.layers:
        model.layers[node.id] = layers_of({child.id: child.depends_on for child in node.scope.children})
    return model.layers[node.id]


def layers_of(edges: dict[str, tuple[str, ...]]) -> dict[str, int]:
    """Returns the layer of each child: one more than the highest layer of its dependencies."""
    layers: dict[str, int] = {}
    waiting = list(edges)
    while waiting:
        id = waiting[-1]
        missing = [before for before in edges[id] if before not in layers]
        if missing:
            waiting += missing
        else:
            layers[waiting.pop()] = 1 + max((layers[before] for before in edges[id]), default=-1)
    return layers


def took_slot(model: Model, path: str) -> None:
    """Checks the limits after an attempt has taken a slot."""
    for scope in model.ancestors(path)[:2]:
        limit = scope.node.limit
        count = len(scope.running)
        require(not limit or count <= limit, G8, f"{count} run in {scope.path!r}, and the limit is {limit}")

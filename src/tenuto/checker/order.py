"""Order and concurrency: what waits for what, and how many run at once."""

from tenuto.kernel import events as e
from tenuto.kernel.address import Ref, fan_of, parent_of, step_id
from tenuto.kernel.definition import SUCCEED

from .books import Books
from .invariants import Family, require
from .tracks import Frame

family = Family("State machine")

G8 = family(
    "G8",
    "Whatever is in a scope starts once in a round, after all that it depends on and where its flow leads, and no more "
    "run at once than the limits allow.",
)


def granted(books: Books, ref: Ref, entry: e.Entry) -> None:
    is_child = ref.phase == "forward" and fan_of(ref.path) is None
    if is_child and ref not in books.open_refs and not _is_under_way(books, ref.path):
        _starts(books, ref.path)


def _is_under_way(books: Books, path: str) -> bool:
    """It started in this round, and is tried again."""
    return path in books.frames[parent_of(path)].active


def recorded(books: Books, entry: e.Entry) -> None:
    for path in started_by(books, entry.event):
        _starts(books, path)


def started_by(books: Books, event: e.Event) -> tuple[str, ...]:
    """Children that it is the turn of, where no attempt says so."""
    match event:
        case e.ScopeOpened() | e.Expanded() | e.WaitOpened() | e.StepRefused() | e.ReviewOpened(kind="approval"):
            return (event.path,)
        case e.BranchTaken() if books.decides(event):
            return (event.path,)
        case e.NodesClosed(status="skipped" | "reused" | "marked"):
            return event.paths
    return ()


def _starts(books: Books, path: str) -> None:
    frame = books.frames[parent_of(path)]
    id = step_id(path)
    others = [other for other in frame.active if other != path] if frame.node.is_flow else []
    require(not others, G8, f"{path} started in a flow beside {others[:3]}")
    if frame.node.is_flow:
        target = flow_target(books, frame)
        require(id == target, G8, f"{path} started, and the flow leads to {target}")
        return
    require(id not in frame.closed, G8, f"{path} started twice in a round")
    for before in waits_for(books, frame.path, id):
        status = frame.closed.get(before)
        over = status in ("succeeded", "skipped") or _is_passed(books, frame, id, before)
        require(over, G8, f"{path} started before {before} ({status or 'not closed'})")


def _is_passed(books: Books, frame: Frame, id: str, before: str) -> bool:
    """Whether a planner replaced it, which stops only what needs its result."""
    needed = frame.node.scope.mode == "dag" and before in books.child(frame.path, id).spec.depends_on
    return not needed and before in books.replaced(frame.path)


def flow_target(books: Books, frame: Frame) -> str:
    """Where a flow goes next, or how it ends."""
    if not frame.last:
        return frame.start or books.children(frame.path)[0].id
    if frame.taken is not None:
        return frame.taken
    return books.child(frame.path, step_id(frame.last)).spec.on_success or SUCCEED


def waits_for(books: Books, scope: str, id: str) -> list[str]:
    spec = books.frames[scope].node.scope
    batch = books.batches.get((scope, id))
    ids = list(batch) if batch is not None else [child.id for child in spec.children]
    if spec.mode == "sequence":
        return ids[: ids.index(id)]
    if spec.mode != "dag":
        return []
    if spec.scheduling == "layered" and batch is None:
        layers = layers_in(books, scope)
        return [other for other in ids if layers[other] < layers[id]]
    node = books.child(scope, id)
    return list(node.spec.depends_on)


def layers_in(books: Books, scope: str) -> dict[str, int]:
    node = books.frames[scope].node
    if node.id not in books.layers:
        books.layers[node.id] = layers_of({child.id: child.depends_on for child in node.scope.children})
    return books.layers[node.id]


def layers_of(edges: dict[str, tuple[str, ...]]) -> dict[str, int]:
    """One more than the highest layer among those that it depends on."""
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


def took_slot(books: Books, path: str) -> None:
    """After something began to run."""
    for frame in books.ancestors(path)[:2]:
        limit = frame.node.limit
        count = len(frame.running)
        require(not limit or count <= limit, G8, f"{count} run in {frame.path!r}, and the limit is {limit}")

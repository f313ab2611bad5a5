"""Order and concurrency: what waits for what, and how many run at once."""

from tenuto.kernel import events as e
from tenuto.kernel.address import Ref, fan_of, parent_of, step_id

from .books import Books
from .invariants import Family, require

family = Family("State machine")

G8 = family("G8", "A step starts after all that it depends on, and no more run at once than the limits allow.")


def granted(books: Books, ref: Ref, entry: e.Entry) -> None:
    if ref.phase == "forward" and fan_of(ref.path) is None:
        track = books.track(ref.path)
        if track.open != ref and track.number("forward") == 0:
            _starts(books, ref.path)


def recorded(books: Books, entry: e.Entry) -> None:
    if isinstance(entry.event, e.ScopeOpened):
        _starts(books, entry.event.path)


def _starts(books: Books, path: str) -> None:
    frame = books.frames[parent_of(path)]
    id = step_id(path)
    if frame.node.scope.mode == "flow":
        others = [other for other in frame.active if other != path]
        require(not others, G8, f"{path} started in a flow beside {others[:3]}")
        return
    require(id not in frame.closed, G8, f"{path} started twice in a round")
    for before in waits_for(books, frame.path, id):
        status = frame.closed.get(before)
        require(status in ("succeeded", "skipped"), G8, f"{path} started before {before} ({status or 'not closed'})")


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

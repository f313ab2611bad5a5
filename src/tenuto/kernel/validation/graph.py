"""Validates the edges between nodes: dependencies in a `dag`, transitions in a `flow`."""

from collections.abc import Iterator

from tenuto.errors import Problem
from tenuto.kernel.definition import FAIL, SUCCEED, Node, Scope, Step

from .reads import unknown
from .tree import Place, Tree


def check_edges(place: Place, tree: Tree) -> Iterator[Problem]:
    mode = place.scope.mode
    siblings = place.parent.by_id if place.parent is not None else {}
    if mode == "dag":
        yield from _of_dependencies(place, siblings, tree)
    elif place.node.depends_on:
        parent = place.parent
        where = "beside `steps`" if parent is None or parent.parent is None else f"in scope {place.scope.id!r}"
        text = f'`depends_on` needs `"mode": "dag"`, and this stands in a `{mode}`: put `"mode": "dag"` {where}'
        yield Problem(f"{place.pointer}/depends_on", "misplaced", f"{text}, or remove `depends_on`")
    for field, target in _targets(place.node):
        if mode != "flow":
            text = f"only steps of a `flow` name the next one, and this stands in a `{mode}`: leave it out"
            yield Problem(f"{place.pointer}/{field}", "misplaced", text)
        elif target not in siblings and target not in (SUCCEED, FAIL):
            yield Problem(f"{place.pointer}/{field}", "unknown_step", unknown(target, siblings, tree, flow=True))


def _of_dependencies(place: Place, siblings: dict[str, Place], tree: Tree) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, name in enumerate(place.node.depends_on):
        pointer = f"{place.pointer}/depends_on/{index}"
        if name == place.node.id:
            yield Problem(pointer, "cycle", f"{name!r} depends on itself")
        elif name not in siblings:
            yield Problem(pointer, "unknown_step", unknown(name, siblings, tree))
        elif name in seen:
            yield Problem(pointer, "repeated", f"{name!r} is named twice")
        seen.add(name)


def _targets(node: Node) -> Iterator[tuple[str, str]]:
    """Yields the steps that this one leads to, each with the field that names it. Branches are validated separately."""
    for field, target in (
        ("on_success", node.on_success),
        ("on_failure", node.on_failure),
        ("on_timeout", node.on_timeout),
    ):
        if target is not None:
            yield field, target
    if isinstance(node, Step) and node.type == "decision":
        for index, branch in enumerate(node.branches):
            yield f"branches/{index}/next", branch.next
        if node.default is not None:
            yield "default", node.default


def check_children(place: Place) -> Iterator[Problem]:
    assert isinstance(place.node, Scope)
    if place.node.mode == "dag":
        yield from _cycles(place)
    elif place.node.mode == "flow" and place.children:
        yield from _of_flow(place)


def _cycles(place: Place) -> Iterator[Problem]:
    by_id = place.by_id
    waiting = {id: {d for d in child.node.depends_on if d in by_id and d != id} for id, child in by_id.items()}
    free = [id for id in waiting if not waiting[id]]
    dependents: dict[str, list[str]] = {id: [] for id in waiting}
    for id, needed in waiting.items():
        for name in sorted(needed):
            dependents[name].append(id)
    for id in free:  # `free` grows during the loop: Kahn's algorithm
        for dependent in dependents[id]:
            waiting[dependent].discard(id)
            if not waiting[dependent]:
                free.append(dependent)
    stuck = {id: sorted(needed) for id, needed in waiting.items() if needed}
    while stuck:
        cycle = _cycle_from(next(iter(stuck)), stuck)
        path = " → ".join([*cycle, cycle[0]])
        text = f"these wait for one another: {path}. Take one of the dependencies out"
        yield Problem(f"{by_id[cycle[0]].pointer}/depends_on", "cycle", text)
        stuck = _without(stuck, cycle)


def _cycle_from(start: str, stuck: dict[str, list[str]]) -> list[str]:
    """Returns a cycle. Each stuck node waits for another stuck node, so following them leads into one."""
    path = {start: 0}
    current = start
    while (current := stuck[current][0]) not in path:
        path[current] = len(path)
    return list(path)[path[current] :]


def _without(stuck: dict[str, list[str]], cycle: list[str]) -> dict[str, list[str]]:
    """Returns the nodes that are still stuck without this cycle."""
    taken = frozenset(cycle)
    rest = {id: needed for id, needed in stuck.items() if id not in taken}
    while True:
        left = {id: [name for name in needed if name in rest] for id, needed in rest.items()}
        kept = {id: needed for id, needed in left.items() if needed}
        if len(kept) == len(rest):
            return kept
        rest = kept


def _of_flow(place: Place) -> Iterator[Problem]:
    targets = [target for child in place.children for _, target in _targets(child.node)]
    is_meant_as_dag = any(child.node.depends_on for child in place.children)
    if is_meant_as_dag or any(target not in place.by_id and target not in (SUCCEED, FAIL) for target in targets):
        return  # already reported, and the edges are unknown
    start, reached = place.children[0].node.id, _reached(place)
    for child in place.children:
        if child.node.id not in reached:
            text = f"no step leads here from {start!r}, where the flow begins: name it somewhere, or take it out"
            yield Problem(child.pointer, "unreachable", text)
    if not any(_may_end(child.node) for child in reached.values()):
        field = "steps" if place.parent is None else "children"
        text = f"the flow has no end: let one of its steps lead to `{SUCCEED}`, or leave its `on_success` out"
        yield Problem(f"{place.pointer}/{field}", "endless", text)


def _reached(place: Place) -> dict[str, Place]:
    queue = [place.children[0]]
    reached = {queue[0].node.id: queue[0]}
    for child in queue:  # `queue` grows during the loop
        for _, target in _targets(child.node):
            if target in place.by_id and target not in reached:
                reached[target] = place.by_id[target]
                queue.append(place.by_id[target])
    return reached


def _may_end(node: Node) -> bool:
    targets = [target for _, target in _targets(node)]
    if isinstance(node, Step) and node.type == "decision":
        return node.default is None or SUCCEED in targets or FAIL in targets
    return node.on_success is None or SUCCEED in targets or FAIL in targets

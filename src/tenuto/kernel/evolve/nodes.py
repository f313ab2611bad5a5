"""Opens and closes steps, fan-outs and scopes, and maintains the counters and ready queues."""

import msgspec
from msgspec import Raw

from tenuto.kernel.address import ROOT, fan_of, parse_segment, step_id
from tenuto.kernel.definition import JSON, node_from_document
from tenuto.kernel.plan import Node, compile_children
from tenuto.kernel.state import (
    CLONE_CANCELED,
    CLONE_LIVE,
    CLONE_SKIPPED,
    CLONE_SUCCEEDED,
    ClosedStatus,
    Execution,
    FanState,
    ScopeState,
    StepState,
    StepStatus,
)
from tenuto.kernel.transitions import set_fan_out_status, set_scope_status, set_status

from .parts import STEP_TIMERS, clear_timer, fan_at, note_latest, scope_above, set_moving, step_at, watch


def locate(state: Execution, path: str) -> tuple[ScopeState, Node]:
    scope = scope_above(state, path)
    return scope, scope.by_id[step_id(path)]


def reached(state: Execution, path: str) -> StepState:
    """Returns a step that was reached before. A closed clone gets its object back."""
    clone = fan_of(path)
    return step_at(state, path) if clone is None else clone_at(fan_at(state, clone[0]), clone[1], path)


def opened(state: Execution, path: str) -> StepState:
    """Returns the step at this path and adds it to its scope's active children. Creates it if necessary."""
    clone = fan_of(path)
    if clone is not None:
        return opened_clone(state, fan_at(state, clone[0]), clone[1], path)
    existing = state.nodes.get(path)
    if isinstance(existing, StepState):
        if existing.status == "pending":
            enter(scope_above(state, path), existing.node, path)
        return existing
    scope, node = locate(state, path)
    step = StepState(node, path)
    state.nodes[path] = step
    enter(scope, node, path)
    return step


def clone_at(fan: FanState, index: int, path: str) -> StepState:
    step = fan.live.get(index)
    if step is None:
        step = StepState(fan.node, path, generation=fan.generations.get(index, 1), number=fan.numbers.get(index, 0))
        step.guard_number, step.reconcile_number = fan.probe_numbers.get(index, (0, 0))
        step.undo_number = fan.undo_numbers.get(index, 0)
        if index >= fan.count:  # an earlier round had more items, which are still to be compensated
            step.status, step.done_seq = "succeeded", fan.owed[index]
        elif fan.marks[index] == CLONE_SUCCEEDED:
            step.status, step.done, step.done_seq = "succeeded", True, fan.done_seq[index]
            step.number = step.number or 1
        elif fan.done_seq[index]:
            step.done_seq = fan.done_seq[index]
            step.number = step.number or 1
        fan.live[index] = step
    return step


def opened_clone(state: Execution, fan: FanState, index: int, path: str) -> StepState:
    step = clone_at(fan, index, path)
    if step.status == "pending":
        fan.marks[index] = CLONE_LIVE
        fan.active += 1
        fan.cursor = max(fan.cursor, index + 1)
        drop_idle_fan(state, fan)
    elif step.status == "retrying" and fan.queue and fan.queue[0] == index:
        fan.queue.popleft()
        drop_idle_fan(state, fan)
    return step


def drop_idle_fan(state: Execution, fan: FanState) -> None:
    if fan.cursor >= fan.end and not fan.queue:
        scope_above(state, fan.path).fans.pop(fan.path, None)


def open_fan(state: Execution, scope: ScopeState, node: Node, path: str) -> FanState:
    fan = state.nodes.get(path)
    if not isinstance(fan, FanState):
        fan = FanState(node, path)
        state.nodes[path] = fan
    enter(scope, node, path)
    return fan


def open_scope(state: Execution, parent: ScopeState | None, node: Node, path: str) -> ScopeState:
    """Opens a scope: its first layer, or all children without dependencies, are ready. A planner's children stay."""
    scope = ScopeState(node, path, children=node.children, by_id=node.by_id)
    old = state.nodes.get(path)
    if isinstance(old, ScopeState):
        set_scope_status(old, "open")  # raises if the old one has not ended; the new one replaces it
    state.nodes[path] = scope
    if parent is not None:
        enter(parent, node, path)
    if isinstance(old, ScopeState):
        scope.plan_number = old.plan_number
        scope.touched = old.touched
        scope.undone = old.undone
        scope.superseded = old.superseded
        scope.replans = old.replans
        for specs in old.added:
            know_children(scope, specs)
    fill_ready(scope)
    return scope


def fill_ready(scope: ScopeState) -> None:
    node = scope.node
    scope.remaining = len(scope.children) - len(scope.superseded)
    scope.unmet = [child.unmet for child in scope.children]
    scope.ready.clear()
    if node.is_flow:
        scope.remaining = 0
        return
    waiting_for_nobody = [child for child in scope.children if child.unmet == 0]
    if node.layers:
        waiting_for_nobody = [child for child in waiting_for_nobody if not in_layers(scope, child)]
        scope.layer = -1
        next_layer(scope)
    for child in waiting_for_nobody:
        make_ready(scope, child)


def enter(scope: ScopeState, node: Node, path: str) -> None:
    if scope.node.is_flow:
        segment = parse_segment(path.rpartition("/")[2])
        scope.visits[segment.id] = segment.visit or 1
        scope.taken = None
    else:
        unqueue(scope, node.index)
    scope.active[path] = None
    scope.touched[path] = None


def unqueue(scope: ScopeState, index: int) -> None:
    if scope.ready:
        if scope.ready[0] == index:
            scope.ready.popleft()
        elif index in scope.ready:
            scope.ready.remove(index)


def leave_queue(state: Execution, step: StepState) -> None:
    """Removes a step from the slot queue, because a late report, its deadline or a cancel has settled it."""
    if step.status != "retrying" or step.open is not None:
        return
    clone = fan_of(step.path)
    if clone is None:
        unqueue(scope_above(state, step.path), step.node.index)
        return
    fan = fan_at(state, clone[0])
    if clone[1] in fan.queue:
        fan.queue.remove(clone[1])
        drop_idle_fan(state, fan)


def complete(state: Execution, step: StepState, result: Raw, variable: str | None, key: str | None) -> None:
    """Completes a step. Its result is in the current event."""
    step.done = True
    step.done_seq = state.last_done = state.seq
    step.half_done = 0
    step.spared = False
    step.late = None
    step.unknown_since = 0
    step.failure = None
    watch(state, step.node.id, result)
    if variable is not None:
        state.variables[variable] = result
    if key is not None:
        state.marks[key] = step.path
    close_step(state, step, "succeeded")


def not_made(state: Execution, step: StepState) -> None:
    """Records that the effect was not made, not even in part or by an earlier round."""
    if step.half_done and state.compensable.get(step.path) == step.half_done:
        del state.compensable[step.path]
        if step.done_seq > step.undo_seq:  # an effect completed in an earlier round is still to be compensated
            state.compensable[step.path] = step.done_seq
    step.half_done = 0


def close_step(state: Execution, step: StepState, status: StepStatus, *, poison: bool = False) -> None:
    path = step.path
    if step.status == "retrying":
        leave_queue(state, step)
    set_status(step, status)
    set_moving(state, step, False)
    step.review = None
    step.late = None
    if state.plan.watches_all or step.node.id in state.plan.watched:
        note_latest(state, path, step.node.id)
    if state.timers:
        for kind in STEP_TIMERS:
            clear_timer(state, kind, path)
    if step.half_done or (status == "succeeded" and step.node.compensable and step.done and not step.spared):
        note_compensable(state, step)
    clone = fan_of(path)
    if clone is not None:
        close_clone(state, fan_at(state, clone[0]), clone[1], step)
        return
    scope = scope_above(state, path)
    optional = step.node.step.failure_mode == "continue"
    failed_skip = status == "skipped" and step.failure is not None and not optional
    leave_scope(state, scope, step.node, path, status, poison=poison or failed_skip)


def note_compensable(state: Execution, step: StepState) -> None:
    clone = fan_of(step.path)
    if clone is not None:
        state.compensable[clone[0]] = 0  # its clones are numbered separately
        return
    state.compensable.pop(step.path, None)
    state.compensable[step.path] = step.done_seq if step.done else step.half_done


def close_clone(state: Execution, fan: FanState, index: int, step: StepState) -> None:
    fan.remaining -= 1
    fan.active -= 1
    match step.status:
        case "succeeded":
            fan.succeeded += 1
            fan.marks[index] = CLONE_SUCCEEDED
            fan.done_seq[index] = step.done_seq
            fan.owed.pop(index, None)
            fan.spared.pop(index, None)
            fold_clone(fan, index)
        case "skipped":
            fan.skipped += 1
            fan.marks[index] = CLONE_SKIPPED
        case "canceled":
            fan.marks[index] = CLONE_CANCELED
        case _:
            fan.failure = fan.failure or step.failure


def fold_clone(fan: FanState, index: int) -> None:
    """Drops the object of a clone. Details that do not fit into its byte move to the fan-out."""
    step = fan.live.pop(index)
    if step.number > 1:
        fan.numbers[index] = step.number
    if step.guard_number or step.reconcile_number:
        fan.probe_numbers[index] = (step.guard_number, step.reconcile_number)
    if step.undo_number:
        fan.undo_numbers[index] = step.undo_number
    if step.generation > 1:
        fan.generations[index] = step.generation


def close_fan(state: Execution, fan: FanState, status: ClosedStatus, *, poison: bool = False) -> None:
    set_fan_out_status(fan, status)
    fan.closing = False
    if state.plan.watches_all or fan.node.id in state.plan.watched:
        note_latest(state, fan.path, fan.node.id)
    scope = scope_above(state, fan.path)
    scope.fans.pop(fan.path, None)
    leave_scope(state, scope, fan.node, fan.path, status, poison=poison)


def leave_scope(
    state: Execution, scope: ScopeState, node: Node, path: str, status: StepStatus, *, poison: bool
) -> None:
    """Closes a child: updates counters and makes dependents ready."""
    scope.active.pop(path, None)
    if status in ("failed", "timed_out") or (status == "skipped" and state.nodes[path].failure is not None):
        scope.failed += 1
        if scope.node.parent is not None:
            scope_above(state, scope.path).inner_failed += 1
    if scope.node.is_flow:
        scope.current = path
        if status in ("failed", "timed_out"):
            scope.last_failed = path
        return
    scope.remaining -= 1
    if status == "succeeded":
        scope.succeeded += 1
    elif status == "skipped":
        scope.skipped += 1
    elif status in ("failed", "timed_out"):
        return  # dependents never become ready: the scope closes, or its planner replaces the child
    release(scope, node, poison=poison)


def release(scope: ScopeState, node: Node, *, poison: bool) -> None:
    """Releases the dependents of this child, or the next layer."""
    for index, needs_result in node.dependents:
        scope.unmet[index] -= 1
        if poison and needs_result:
            scope.poisoned[index] = None
        if scope.unmet[index] == 0 and not in_layers(scope, node):
            make_ready(scope, scope.children[index])
    if in_layers(scope, node):
        scope.layer_left -= 1
        if scope.layer_left == 0:
            next_layer(scope)


def in_layers(scope: ScopeState, node: Node) -> bool:
    """Returns whether a child belongs to a layer. Children that a planner added do not."""
    return bool(scope.node.layers) and node.index < len(scope.node.children)


def next_layer(scope: ScopeState) -> None:
    if scope.layer + 1 < len(scope.node.layers):
        scope.layer += 1
        layer = scope.node.layers[scope.layer]
        scope.layer_left = len(layer)
        for index in layer:
            make_ready(scope, scope.children[index])


def make_ready(scope: ScopeState, child: Node) -> None:
    """Makes a child ready, unless a new plan has replaced it: then its dependents are skipped."""
    if scope.superseded and any(step_id(path) == child.id for path in scope.superseded):
        release(scope, child, poison=True)
    else:
        scope.ready.append(child.index)


def add_children(scope: ScopeState, specs: Raw) -> None:
    nodes = know_children(scope, specs)
    scope.unmet.extend(node.unmet for node in nodes)
    scope.ready.extend(node.index for node in nodes if node.unmet == 0)
    scope.remaining += len(nodes)


def know_children(scope: ScopeState, specs: Raw) -> tuple[Node, ...]:
    documents: list[JSON] = msgspec.json.decode(specs)
    first = len(scope.children)
    nodes = compile_children(scope.node, tuple(node_from_document(document) for document in documents))
    for node in nodes:
        node.index += first
        node.dependents = tuple((index + first, data) for index, data in node.dependents)
    scope.added.append(specs)
    scope.children = (*scope.children, *nodes)
    scope.by_id = {**scope.by_id, **{node.id: node for node in nodes}}
    return nodes


def restore_node(state: Execution, path: str) -> None:
    """Connects a node from a snapshot to the plan. Parents come before their children."""
    node = state.nodes[path]
    if path == ROOT:
        node.node = state.plan.root
    else:
        _, node.node = locate(state, path)
    if isinstance(node, FanState):
        for step in node.live.values():
            step.node = node.node
    elif isinstance(node, ScopeState):
        node.children, node.by_id = node.node.children, node.node.by_id
        added, node.added = node.added, []
        for specs in added:
            know_children(node, specs)

"""The current state of each step."""

from collections.abc import Iterator, Sequence

from tenuto.kernel.address import clone_path
from tenuto.kernel.naming import clone_name, labels_of
from tenuto.kernel.plan import Node
from tenuto.kernel.state import (
    CLONE_CANCELED,
    CLONE_LIVE,
    CLONE_PENDING,
    CLONE_SKIPPED,
    CLONE_SUCCEEDED,
    CLONE_UNDONE,
    Execution,
    FanState,
    NodeState,
    ScopeState,
    StepState,
    StepStatus,
)

from .finding import all_nodes, earliest, find_path, path_of
from .shapes import (
    NOTHING_UNDER_WAY,
    Activity,
    CloneCounts,
    CloneDocument,
    StepDocument,
    decoded,
    error_document,
    time_text,
)


def step_documents(state: Execution, activity: Activity = NOTHING_UNDER_WAY) -> Iterator[StepDocument]:
    """Yields the current state of each step: for a loop its latest visit, for a fan-out one entry with counts."""
    for node in all_nodes(state):
        path = path_of(state, node)
        found = state.nodes.get(path) if path is not None else None
        yield _step_document(state, activity, node, path or node.id, found)


def _step_document(
    state: Execution, activity: Activity, node: Node, path: str, found: NodeState | None
) -> StepDocument:
    step = found if isinstance(found, StepState) else None
    return {
        "step_id": node.id,
        "path": path,
        "type": node.spec.type,
        "status": step_status(state, found),
        "attempts": step.number if step is not None else 0,
        "error": error_document(state, found.failure) if found is not None else None,
        "retry_at": time_text(earliest(state, ("retry", "probe"), path)),
        "review_id": step.review if step is not None else None,
        "compensation": step.undo if step is not None else "none",
        "progress": decoded(activity.progress.get(path)),
        "clones": clone_counts(found) if isinstance(found, FanState) else None,
    }


def clone_documents(state: Execution, name: str, first: int, count: int) -> list[CloneDocument] | None:
    """Returns clones of a fan-out, beginning with `first`; None if there is no fan-out of that name."""
    path = find_path(state, name)
    fan = state.nodes.get(path) if path is not None else None
    if not isinstance(fan, FanState):
        return None
    labels = labels_of(state, fan.path)
    return [_clone_document(state, fan, index, labels) for index in range(first, min(first + count, fan.count))]


def _clone_document(state: Execution, fan: FanState, index: int, labels: Sequence[str]) -> CloneDocument:
    live = fan.live.get(index)
    path = clone_path(fan.path, index)
    return {
        "step_id": clone_name(fan.path, index, labels),
        "path": path,
        "index": index,
        "status": clone_status(state, fan, index),
        "attempts": live.number if live is not None else fan.numbers.get(index, 0) or int(fan.done_seq[index] > 0),
        "error": error_document(state, live.failure) if live is not None else None,
        "retry_at": time_text(earliest(state, ("retry", "probe"), path)),
        "compensated": fan.marks[index] == CLONE_UNDONE or (live is not None and live.undo == "done"),
    }


def step_status(state: Execution, node: NodeState | None) -> StepStatus:
    """Returns the status of a step. In a finished execution, steps that never started are skipped."""
    if node is None:
        return "pending" if state.finished is None else "skipped"
    if isinstance(node, ScopeState):
        return _scope_status(node)
    return "skipped" if node.status == "pending" and state.finished is not None else node.status


def _scope_status(scope: ScopeState) -> StepStatus:
    if scope.status != "closed":
        return "running"
    return "failed" if scope.outcome is None or scope.outcome == "retry" else scope.outcome


def clone_counts(fan: FanState) -> CloneCounts:
    live = [step.status for step in fan.live.values()]
    failed = sum(status in ("failed", "timed_out") for status in live)
    running = sum(status in ("running", "retrying", "awaiting_approval") for status in live)
    succeeded = fan.marks.count(CLONE_SUCCEEDED) + fan.marks.count(CLONE_UNDONE)
    skipped = fan.marks.count(CLONE_SKIPPED) + fan.marks.count(CLONE_CANCELED)
    return {
        "total": fan.count,
        "pending": fan.count - failed - running - succeeded - skipped,
        "running": running,
        "succeeded": succeeded,
        "failed": failed,
        "skipped": skipped,
    }


_CLONE_STATUS: dict[int, StepStatus] = {
    CLONE_PENDING: "pending",
    CLONE_LIVE: "running",
    CLONE_SUCCEEDED: "succeeded",
    CLONE_SKIPPED: "skipped",
    CLONE_CANCELED: "canceled",
    CLONE_UNDONE: "succeeded",
}


def clone_status(state: Execution, fan: FanState, index: int) -> StepStatus:
    live = fan.live.get(index)
    status = live.status if live is not None else _CLONE_STATUS[fan.marks[index]]
    return "skipped" if status == "pending" and state.finished is not None else status

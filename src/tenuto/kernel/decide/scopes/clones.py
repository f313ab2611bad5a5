"""A step becomes many: its clones are counted, named, and started as slots become free."""

from tenuto.errors import ExpressionError
from tenuto.kernel.address import clone_path
from tenuto.kernel.decide.credits import can_afford, out_of_credits
from tenuto.kernel.decide.turn import Turn
from tenuto.kernel.definition import FAN_OUT_LIMIT, JSON
from tenuto.kernel.events import NULL, Expanded, NodesClosed
from tenuto.kernel.evolve import fan_at
from tenuto.kernel.plan import Node
from tenuto.kernel.state import CLONE_SUCCEEDED, FanState, ScopeState

from .closing import fail_clone, settle_fan

_NO_LABELS: tuple[str, ...] = ()


def expand(turn: Turn, scope: ScopeState, node: Node, path: str) -> None:
    state = turn.state
    if node.id in state.each:
        count, items, labels = state.each[node.id], NULL, _NO_LABELS
    else:
        assert node.foreach is not None
        values, items = turn.evaluation.items(node.foreach)
        count, labels = len(values), _labels(turn, node, values)
    if count == 0:
        turn.emit(NodesClosed((path,), "skipped"))
        return
    if count > FAN_OUT_LIMIT:
        raise ExpressionError(f"a fan-out of {count} items is over the limit of {FAN_OUT_LIMIT}", code="fan_out_limit")
    turn.emit(Expanded(path, count, items, labels))
    if settle_fan(turn, fan_at(state, path)):
        return
    start_clones(turn, scope, path)


def _labels(turn: Turn, node: Node, values: list[JSON]) -> tuple[str, ...]:
    if node.suffix is None:
        return ()
    labels = turn.evaluation.labels(node.suffix, values)
    if len(dict.fromkeys(labels)) < len(labels):
        raise ExpressionError(f"the suffixes of fan-out {node.id!r} are not unique", code="duplicate_suffix")
    return labels


def start_clones(turn: Turn, scope: ScopeState, path: str) -> None:
    """Grants as many clones as there are slots: those whose delay is over first, then the next ones in order."""
    fan = fan_at(turn.state, path)
    while fan.queue and not fan.closing and _free_slots(scope, fan):
        index = fan.queue[0]
        turn.grant(clone_path(path, index), "forward", fan.live[index].number + 1)
    while fan.cursor < fan.end and not fan.closing and scope.status == "open" and (free := _free_slots(scope, fan)):
        first = fan.cursor
        while fan.marks[first] == CLONE_SUCCEEDED:
            first += 1
        last = first
        if not fan.numbers:
            while last + 1 < fan.end and last - first + 1 < free and fan.marks[last + 1] != CLONE_SUCCEEDED:
                last += 1
        if not can_afford(turn.state, fan.node):
            fail_clone(turn, fan, out_of_credits(path))
            settle_fan(turn, fan)
            return
        if last == first:
            turn.grant(clone_path(path, first), "forward", fan.numbers.get(first, 0) + 1)
        else:
            turn.grant(path, "forward", 1, first, last)


def _free_slots(scope: ScopeState, fan: FanState) -> int:
    free = fan.node.limit - fan.busy
    limit = scope.node.limit
    return max(min(free, limit - scope.busy), 0) if limit else max(free, 0)

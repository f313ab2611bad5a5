"""Opens the children of a scope: steps, waits, approvals, nested scopes, and the clones of a fan-out."""

import re

from tenuto.errors import ExpressionError
from tenuto.kernel.address import clone_path
from tenuto.kernel.decide.credits import affordable, out_of_credits
from tenuto.kernel.decide.turn import Turn, refusal
from tenuto.kernel.definition import FAIL, FAN_OUT_LIMIT, JSON
from tenuto.kernel.events import (
    NULL,
    BranchTaken,
    Expanded,
    Failure,
    NodesClosed,
    ReviewOpened,
    ScopeOpened,
    StepRefused,
    WaitEnded,
    WaitOpened,
)
from tenuto.kernel.evolve import fan_at, scope_at
from tenuto.kernel.plan import Node
from tenuto.kernel.state import CLONE_SUCCEEDED, Execution, FanState, ScopeState, StepState

from .closing import disposition, fail_child, fail_clone, settle_fan
from .outcomes import restart_point


def open_child(turn: Turn, scope: ScopeState, node: Node, path: str) -> ScopeState | None:
    """Opens one child. Returns it if it is a scope, because its own children are still to start."""
    state = turn.state
    if node.index in scope.poisoned:
        turn.emit(NodesClosed((path,), "failed_upstream"))
        return None
    if is_kept(state, path):
        turn.emit(NodesClosed((path,), "reused"))
        return None
    try:
        if node.when is not None and not turn.evaluation.true(node.when, scope.path):
            turn.emit(NodesClosed((path,), "skipped"))
        elif node.is_scope:
            return _open_scope(turn, node, path)
        elif node.is_fan or node.id in state.each:
            expand(turn, scope, node, path)
        else:
            _open_step(turn, scope, node, path)
    except ExpressionError as error:
        refuse_child(turn, scope, node, path, refusal(path, error.code, str(error)))
    return None


def is_kept(state: Execution, path: str) -> bool:
    """Returns whether an earlier round or run left a result that is used instead of running again."""
    node = state.nodes.get(path)
    if isinstance(node, ScopeState):
        return node.kept
    return isinstance(node, StepState) and node.done and node.node.step.type != "decision"


def refuse_child(turn: Turn, scope: ScopeState, node: Node, path: str, failure: Failure) -> None:
    """Closes a child that cannot be started, or attempted again, without an attempt."""
    verdict = disposition(scope, node)
    turn.emit(StepRefused(path, verdict, failure))
    if verdict == "fail":
        fail_child(turn, scope, failure)


def _open_step(turn: Turn, scope: ScopeState, node: Node, path: str) -> None:
    state = turn.state
    step = node.step
    if node.key is not None:
        key = str(turn.evaluation.render(node.key, scope.path))
        if key in state.marks:
            turn.emit(NodesClosed((path,), "marked"))
            return
    match step.type:
        case "decision":
            target = next(
                (target for condition, target in node.branches if turn.evaluation.true(condition, scope.path)),
                step.default or FAIL,
            )
            turn.emit(BranchTaken(path, target))
        case "wait":
            _open_wait(turn, scope, node, path)
        case "human_approval":
            due = None if step.timeout_ms is None else turn.now + step.timeout_ms
            id = turn.new_review()
            turn.emit(ReviewOpened(id, "approval", path, "approval", step.permission or "", due))
        case _:
            if affordable(state, node) == "never":
                refuse_child(turn, scope, node, path, out_of_credits(path))
                return
            known = state.nodes.get(path)
            turn.grant(path, "forward", (known.number if isinstance(known, StepState) else 0) + 1)


def _open_wait(turn: Turn, scope: ScopeState, node: Node, path: str) -> None:
    state = turn.state
    assert node.payload is not None
    config = turn.evaluation.render(node.payload, scope.path)
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


_NO_LABELS: tuple[str, ...] = ()


def expand(turn: Turn, scope: ScopeState, node: Node, path: str) -> None:
    state = turn.state
    if node.id in state.each:
        count, items, labels = state.each[node.id], NULL, _NO_LABELS
    else:
        assert node.foreach is not None
        values, items = turn.evaluation.items(node.foreach, scope.path)
        count, labels = len(values), _labels(turn, scope, node, values)
    if count == 0:
        turn.emit(NodesClosed((path,), "skipped"))
        return
    if count > FAN_OUT_LIMIT:
        raise ExpressionError(f"a fan-out of {count} items is over the limit of {FAN_OUT_LIMIT}", code="fan_out_limit")
    turn.emit(Expanded(path, count, items, labels))
    if settle_fan(turn, fan_at(state, path)):
        return
    start_clones(turn, scope, path)


def _labels(turn: Turn, scope: ScopeState, node: Node, values: list[JSON]) -> tuple[str, ...]:
    if node.suffix is None:
        return ()
    labels = turn.evaluation.labels(node.suffix, values, scope.path)
    if len(dict.fromkeys(labels)) < len(labels):
        raise ExpressionError(f"the suffixes of fan-out {node.id!r} are not unique", code="duplicate_suffix")
    return labels


def start_clones(turn: Turn, scope: ScopeState, path: str) -> None:
    """Grants as many clones as there are slots: first those whose delay is over, then the next in order."""
    fan = fan_at(turn.state, path)
    while fan.queue and not fan.closing and _free_slots(scope, fan):
        if not _affords_clone(turn, fan):
            return
        index = fan.queue[0]
        turn.grant(clone_path(path, index), "forward", fan.live[index].number + 1)
    while fan.cursor < fan.end and not fan.closing and scope.status == "open" and (free := _free_slots(scope, fan)):
        first = fan.cursor
        while fan.marks[first] == CLONE_SUCCEEDED:
            first += 1
        last = first
        if not fan.numbers and not fan.node.step.estimate:
            while last + 1 < fan.end and last - first + 1 < free and fan.marks[last + 1] != CLONE_SUCCEEDED:
                last += 1
        if not _affords_clone(turn, fan):
            return
        if last == first:
            turn.grant(clone_path(path, first), "forward", fan.numbers.get(first, 0) + 1)
        else:
            turn.grant(path, "forward", 1, first, last)


def _affords_clone(turn: Turn, fan: FanState) -> bool:
    can = affordable(turn.state, fan.node)
    if can == "never":
        fail_clone(turn, fan, out_of_credits(fan.path))
        settle_fan(turn, fan)
    return can == "now"


def _free_slots(scope: ScopeState, fan: FanState) -> int:
    free = fan.node.limit - fan.busy
    limit = scope.node.limit
    return max(min(free, limit - scope.busy), 0) if limit else max(free, 0)


def milliseconds(value: JSON) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ExpressionError("`duration_ms` must be a number of milliseconds, not below zero", code="bad_duration")
    return int(value)


def instant_ms(value: JSON) -> int:
    """Parses a point in time: milliseconds since 1970, or RFC 3339 text."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value)
    parsed = _parse_rfc3339(value) if isinstance(value, str) else None
    if parsed is None:
        raise ExpressionError("`until` must be milliseconds since 1970 or an RFC 3339 time", code="bad_time")
    return parsed


_RFC3339 = re.compile(r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d{1,9}))?(?:[Zz]|([+-])(\d\d):(\d\d))")


def _parse_rfc3339(text: str) -> int | None:
    match = _RFC3339.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 61):
        return None
    # Days since 1970-01-01 of a date of the Gregorian calendar, counting years from March.
    march_year = year - (month <= 2)
    era, of_era = divmod(march_year, 400)
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    days = era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
    offset = 0
    if match[8] is not None:
        offset = (int(match[9]) * 60 + int(match[10])) * (1 if match[8] == "+" else -1)
    fraction = int((match[7] or "0").ljust(3, "0")[:3])
    return ((days * 24 + hour) * 60 + minute - offset) * 60_000 + second * 1_000 + fraction

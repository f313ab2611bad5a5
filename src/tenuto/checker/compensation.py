"""Compensation: exactly the effects that were made, in the order of the policy; failures open a review.

The policies are copied from the documentation, independent of the engine.
"""

from typing import Literal, NamedTuple

from tenuto.kernel import events as e
from tenuto.kernel.address import Ref, fan_of, step_id
from tenuto.kernel.definition import CompensationOrder

from .invariants import Family, require
from .model import Model, ModelStep, Rollback
from .order import waits_for


class Policy(NamedTuple):
    order: Literal["reverse", "layers", "all"]
    on_failure: Literal["stop", "break_if_critical", "go_on"]
    max_attempts: int


POLICIES: dict[CompensationOrder, Policy] = {
    "STRICT_SEQUENTIAL": Policy("reverse", "stop", 1),
    "GROUPED_PARALLEL": Policy("layers", "stop", 1),
    "RETRY_WITH_BACKOFF": Policy("reverse", "stop", 5),
    "CIRCUIT_BREAKER": Policy("reverse", "break_if_critical", 1),
    "BEST_EFFORT_PARALLEL": Policy("all", "go_on", 1),
}

family = Family("Compensation")

P1 = family("P1", "A rollback compensates every compensable effect exactly once before the execution ends.")
P2 = family("P2", "Compensations run in the order of the policy, and stop where the policy stops.")
P3 = family("P3", "A compensation is attempted no more often than its policy allows, unless a person asks for more.")
P4 = family("P4", "A compensation that failed or was skipped has an open review.", "at rest")
P5 = family("P5", "No compensation starts while a forward attempt may still report.")


def policy_of(model: Model) -> Policy:
    return POLICIES[model.plan.definition.policies.compensation]


def granted(model: Model, ref: Ref, entry: e.Entry) -> None:
    if ref.phase != "compensate":
        return
    step = model.step(ref.path)
    if step.open == ref:
        return
    undo = model.undo
    require(undo is not None, P1, f"{ref} was granted outside of a rollback")
    assert undo is not None
    others = [open for open in model.open_refs if open.phase != "compensate"][:3] if _mixed(model, undo) else []
    require(not others, P5, f"{ref} was granted while {others} were open")
    group = undo.group_of.get(ref.path)
    require(group is not None, P1, f"{ref} is not in the rollback")
    assert group is not None
    _tried(model, step, ref)
    if not (step.undo_failures or step.undo_losses or step.undo_human):
        _in_turn(model, undo, ref, group)
        _goes_on(model, undo, ref, undo.groups[group])


def _mixed(model: Model, undo: Rollback) -> bool:
    """Returns whether anything but compensations is open. Compares counters, because a rollback may be long."""
    undoing = sum(model.steps[path].open is not None for path in undo.open if path in model.steps)
    return len(model.open_refs) > undoing


def _tried(model: Model, step: ModelStep, ref: Ref) -> None:
    allowed = (step.node.step.compensation_max_attempts or policy_of(model).max_attempts) + step.undo_human
    tries = step.undo_failures
    require(tries < allowed, P3, f"{ref} was granted after {tries} failures of {allowed}")
    limit = model.plan.root.limit
    undo = model.undo
    assert undo is not None
    if limit and not step.undo_human:  # an attempt that a person requested does not count towards the limit
        steps = [model.steps[path] for path in undo.open if path != ref.path]
        others = [other for other in steps if other.open is not None and not other.undo_human]
        require(len(others) < limit, P2, f"{ref} was granted beside {len(others)} others, and the limit is {limit}")


def _in_turn(model: Model, undo: Rollback, ref: Ref, group: int) -> None:
    while undo.over < group:
        for path in undo.groups[undo.over]:
            over = model.steps[path].undo in ("done", "skipped", "failed", "again")
            require(over, P2, f"{ref} was granted before the undo of {path} was over")
        undo.over += 1


def _goes_on(model: Model, undo: Rollback, ref: Ref, group: tuple[str, ...]) -> None:
    policy = policy_of(model)
    if policy.on_failure == "stop":
        together = set(group) if policy.order == "layers" else set()
        before = [path for path in undo.failed if path not in together][:3]
        require(not before, P2, f"{ref} was granted after the undo of {before} had failed")
    elif policy.on_failure == "break_if_critical":
        critical = [path for path in undo.failed if model.steps[path].node.step.compensation_critical][:3]
        require(not critical, P2, f"{ref} was granted after the critical undo of {critical} had failed")


def recorded(model: Model, entry: e.Entry) -> None:
    match entry.event:
        case e.CompensationStarted() as event:
            _started(model, event)
        case e.ExecutionFinished() as event:
            _finished(model, event)


def _started(model: Model, event: e.CompensationStarted) -> None:
    require(not model.open_refs, P5, f"a rollback began while {list(model.open_refs)[:3]} were open")
    require(model.undo is None, P1, "a second rollback began in one run")
    made = model.to_undo()
    listed = [path for group in event.groups for path in group]
    require(len(listed) == len(set(listed)), P1, "a step is listed twice")
    missing, foreign = sorted(made.keys() - set(listed)), sorted(set(listed) - made.keys())
    require(not missing and not foreign, P1, f"made and not listed: {missing[:5]}; listed and not made: {foreign[:5]}")
    _ordered(model, event.groups, made)


def _ordered(model: Model, groups: tuple[tuple[str, ...], ...], made: dict[str, int]) -> None:
    order = policy_of(model).order
    if order == "reverse":
        seqs = [made[path] for group in groups for path in group]
        require(all(len(group) == 1 for group in groups), P2, "steps are undone together")
        require(seqs == sorted(seqs, reverse=True), P2, "steps are not undone in the reverse of their completion")
    elif order == "all":
        require(len(groups) == 1, P2, "steps are not undone together")
    else:
        _layered(model, groups)


def _layered(model: Model, groups: tuple[tuple[str, ...], ...]) -> None:
    """Requires that dependents are compensated before their dependencies, and clones before their source.

    Clones of one fan-out are interchangeable, except in a flow, where the order of completion counts.
    """
    first_made: dict[str, int] = {}  # of nodes compensated in this group or an earlier one
    parted: dict[tuple[str, str], str] = {}
    for group in groups:
        last_made: dict[str, int] = {}
        for path in group:
            head, seq = _head(path), model.steps[path].to_undo
            last_made[head] = max(last_made.get(head, 0), seq)
            first_made[head] = min(first_made.get(head, seq), seq)
        for head, seq in last_made.items():
            for other, made in first_made.items():
                if (head, other) not in parted:
                    parted[head, other] = _relation(model, head, other)
                relation = parted[head, other]
                wrong = relation == "depends" or (relation == "flow" and seq > made)
                require(not wrong, P2, f"{other} is undone before {head}, which came after it")


def _head(path: str) -> str:
    clone = fan_of(path)
    return path if clone is None else clone[0]


def _relation(model: Model, path: str, other: str) -> Literal["", "depends", "flow"]:
    """Returns whether `path` depends on `other` in their common scope, or whether that scope is a flow."""
    ours, theirs = path.split("/"), other.split("/")
    shared = 0
    while shared < min(len(ours), len(theirs)) and ours[shared] == theirs[shared]:
        shared += 1
    if shared == len(ours) == len(theirs):
        shared -= 1
    elif shared >= min(len(ours), len(theirs)):
        return ""
    scope = "/".join(ours[:shared])
    if model.scopes[scope].node.is_flow:
        return "flow"
    wanted = [step_id(ours[shared])]
    target = step_id(theirs[shared])
    for id in wanted:  # `wanted` grows during the loop
        before = waits_for(model, scope, id)
        if target in before:
            return "depends"
        wanted.extend(name for name in before if name not in wanted)
    return ""


ENDED_FROM_OUTSIDE = ("heartbeat_timeout", "unstuck")  # failures of runs without a worker to compensate them


def _finished(model: Model, event: e.ExecutionFinished) -> None:
    if model.undo is None:
        ended = event.error is not None and event.error.code in ENDED_FROM_OUTSIDE
        owed = event.status == "failed" and not event.retry_hold and not event.retries and not ended
        owed = owed or (event.status == "canceled" and model.cancel == "compensate")
        left = list(model.to_undo())[:5] if owed else []
        require(not left, P1, f"{event.status} without undoing {left}")
        return
    if model.undo.stopped not in ("circuit_open", "terminated"):
        paths = [path for group in model.undo.groups for path in group]
        left = [path for path in paths if model.steps[path].undo not in ("done", "skipped")][:5]
        require(not left, P1, f"{event.status} before {left} were undone")


def at_rest(model: Model) -> None:
    """Requires, between two decisions, that a review is open for every failed compensation."""
    if model.undo is not None and not model.finished:
        asked = {review.path for review in model.reviews.values() if review.kind == "compensation_failed"}
        failed = [path for path in model.undo.failed if model.steps[path].undo == "failed"]
        left = [path for path in failed if path not in asked][:3]
        require(not left, P4, f"the undo of {left} failed, and no review is open for it")

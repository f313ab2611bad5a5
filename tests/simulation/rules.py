"""What may follow what in a history. Each rule looks at one entry, or one grant, against the books so far."""

from typing import Literal, NamedTuple

from tenuto.kernel import events as e
from tenuto.kernel.address import Ref, fan_of, parent_of, step_id
from tenuto.kernel.definition import CompensationOrder, ErrorClass, RetryPolicy, Step

from .model import Model
from .trace import Violation
from .tracks import AUTOMATIC, Track

MAX_LOSSES = 3
MAX_DISPATCHES = 10


class Policy(NamedTuple):
    order: Literal["reverse", "layers", "all"]
    on_failure: Literal["stop", "break_if_critical", "go_on"]
    max_attempts: int


# Written down once more, from the documents: a rule that reads the kernel's own table would believe whatever it says.
POLICIES: dict[CompensationOrder, Policy] = {
    "STRICT_SEQUENTIAL": Policy("reverse", "stop", 1),
    "GROUPED_PARALLEL": Policy("layers", "stop", 1),
    "RETRY_WITH_BACKOFF": Policy("reverse", "stop", 5),
    "CIRCUIT_BREAKER": Policy("reverse", "break_if_critical", 1),
    "BEST_EFFORT_PARALLEL": Policy("all", "go_on", 1),
}
DELAYS: dict[ErrorClass, tuple[int, int]] = {  # the first delay and the longest
    "TRANSIENT": (100, 30_000),
    "RETRYABLE": (100, 30_000),
    "INDETERMINATE": (100, 30_000),
    "RATE_LIMITED": (1_000, 300_000),
    "DEPENDENCY_FAILED": (5_000, 300_000),
}
HONOURS_RETRY_AFTER: tuple[ErrorClass, ...] = ("RATE_LIMITED", "DEPENDENCY_FAILED")

AFTER_THE_END = (e.RunOpened, e.HoldChanged, e.ReviewResolved)


def require(condition: object, law: str, detail: object) -> None:
    if not condition:
        raise Violation(law, str(detail))


# -- Grants ------------------------------------------------------------------------------------------------------------


def check_grant(model: Model, ref: Ref, entry: e.Entry) -> None:
    require(not model.finished, "terminal states never change", f"{ref} granted after {model.finished}")
    if ref.phase == "plan":
        _check_plan_grant(model, ref)
        return
    track = model.track(ref.path)
    if track.open == ref:
        _check_granted_again(track, entry)
        return
    require(track.open is None, "one open attempt per step", f"{ref} granted while {track.open} is open")
    require(ref.number == track.numbers[ref.phase] + 1, "attempts are numbered without gaps", ref)
    require(model.paused_at is None, "a pause stops new attempts", ref)
    require(entry.at >= track.not_before, "back-off is respected", f"{ref} at {entry.at}, due {track.not_before}")
    if ref.phase == "forward":
        _check_forward(model, track, ref)
    elif ref.phase == "compensate":
        _check_undo(model, track, ref)
    else:
        require(model.undo is None, "nothing is probed during an undo", ref)


def _check_plan_grant(model: Model, ref: Ref) -> None:
    frame = model.frames[ref.path]
    if frame.planning == ref:
        return
    require(frame.planning is None, "one open attempt per step", ref)
    require(ref.number == frame.plan_number + 1, "attempts are numbered without gaps", ref)
    require(model.paused_at is None, "a pause stops new attempts", ref)
    require(not model.cancel and model.undo is None, "a cancel stops new forward attempts", ref)
    for above in (frame, *model.ancestors(ref.path)):
        require(above.status == "open", "a closing scope starts nothing", f"{ref} in {above.path!r}")
    require(frame.plan_losses <= MAX_LOSSES, "losses are bounded", ref)


def _check_granted_again(track: Track, entry: e.Entry) -> None:
    """The same attempt once more: only if it is known that nobody began it."""
    assert track.open is not None
    forward = track.open.phase == "forward"
    unsafe = forward and track.node.step.safety == "NOT_SAFE_TO_RETRY" and not track.begun
    require(
        track.returned or track.epoch == 0 or unsafe,
        "an attempt is granted once",
        f"{track.open} granted again by epoch {entry.epoch}",
    )


def _check_forward(model: Model, track: Track, ref: Ref) -> None:
    require(model.admitted, "nothing starts before admission", ref)
    require(not model.cancel, "a cancel stops new forward attempts", ref)
    require(model.undo is None, "nothing goes forward during an undo", ref)
    require(not track.done, "a completed step is not run again", ref)
    require(
        track.undone_generation < track.generation, "what was undone is made again under a new key", f"{ref} {track}"
    )
    for frame in model.ancestors(ref.path):
        require(frame.status == "open", "a closing scope starts nothing", f"{ref} in {frame.path!r}")
    _check_repetition(track, ref)
    if fan_of(ref.path) is None and track.numbers["forward"] == 0:
        check_order(model, ref.path)


def _check_repetition(track: Track, ref: Ref) -> None:
    step = track.node.step
    require(not track.unsafe or step.safety != "NOT_SAFE_TO_RETRY", "NOT_SAFE is not begun twice", ref)
    require(track.refusals < MAX_DISPATCHES, "dispatches are bounded", ref)
    if not track.last or track.last == "undispatched":
        return
    allowed = step.retry_policy.max_attempts + track.human
    require(len(track.failures) < allowed or track.last == "lost", "tries are bounded", f"{ref} after {track.failures}")
    require(track.losses <= MAX_LOSSES or track.human, "losses are bounded", f"{ref} after {track.losses}")
    if track.guarded:
        return
    require(step.safety != "SAFE_TO_RETRY_WITH_GUARD", "a guard is asked before a repetition", ref)
    unknown = track.last in ("timed_out", "lost", "INDETERMINATE")
    may = track.last in step.retry_policy.retry_on_classes or (track.last == "timed_out" and _retries_timeouts(step))
    require(may or (unknown and track.last != "timed_out"), "only allowed classes are retried", f"{ref}: {track.last}")


def _retries_timeouts(step: Step) -> bool:
    return "TRANSIENT" in step.retry_policy.retry_on_classes


def check_order(model: Model, path: str) -> None:
    """A child starts after all that it waits for."""
    frame = model.frames[parent_of(path)]
    id = step_id(path)
    scope = frame.node.scope
    if scope.mode == "flow":
        require(not (frame.active.keys() - {path}), "a flow has one child at a time", f"{path} beside {frame.active}")
        return
    require(id not in frame.closed, "a child runs once in a round", path)
    for before in _waits_for(model, frame.path, id):
        status = frame.closed.get(before)
        require(status in ("succeeded", "skipped"), "order of the graph", f"{path} before {before} ({status})")


def _waits_for(model: Model, scope: str, id: str) -> list[str]:
    spec = model.frames[scope].node.scope
    batch = model.batches.get((scope, id))
    ids = list(batch) if batch is not None else [child.id for child in spec.children]
    if spec.mode == "sequence":
        return ids[: ids.index(id)]
    if spec.mode != "dag":
        return []
    node = next(child for child in model.children(scope) if child.id == id)
    if spec.scheduling == "layered" and batch is None:
        layers = _layers({child.id: child.depends_on for child in spec.children})
        return [other for other in ids if layers[other] < layers[id]]
    return list(node.spec.depends_on)


def _layers(edges: dict[str, tuple[str, ...]]) -> dict[str, int]:
    layers: dict[str, int] = {}

    def layer(id: str) -> int:
        if id not in layers:
            layers[id] = 1 + max((layer(before) for before in edges[id]), default=-1)
        return layers[id]

    for id in edges:
        layer(id)
    return layers


def check_concurrency(model: Model, path: str) -> None:
    """After something took a slot."""
    for frame in model.ancestors(path)[:2]:
        limit = frame.node.limit
        at_most = f"{frame.path!r} runs {list(frame.running)}, limit {limit}"
        require(not limit or len(frame.running) <= limit, "concurrency limits", at_most)


# -- Undo --------------------------------------------------------------------------------------------------------------


def check_rollback(model: Model, event: e.CompensationStarted) -> None:
    require(not model.open_attempts(), "no undo while an attempt is open", model.open_attempts())
    require(model.undo is None, "one undo at a time in a run", event)
    wanted = model.to_undo()
    listed = [path for group in event.groups for path in group]
    require(len(listed) == len(set(listed)), "each step is undone once", listed)
    require(set(listed) == set(wanted), "exactly what was made is undone", f"listed {listed}, made {wanted}")
    order = POLICIES[model.plan.definition.policies.compensation].order
    if order == "reverse":
        expected = sorted(wanted, key=lambda path: -wanted[path])
        require(all(len(group) == 1 for group in event.groups), "undo order", event.groups)
        require([wanted[p] for p in listed] == [wanted[p] for p in expected], "undo order", f"{listed} not {expected}")
    elif order == "all":
        require(len(event.groups) == 1, "undo order", event.groups)
    else:
        _check_layers(model, event.groups)


def _check_layers(model: Model, groups: tuple[tuple[str, ...], ...]) -> None:
    """What depends on another is undone before it, clones before what they fan out from."""
    for later, group in enumerate(groups):
        for path in group:
            for earlier in groups[: later + 1]:
                for other in earlier:
                    require(not _depends(model, path, other), "undo order", f"{other} before {path}: {groups}")


def _depends(model: Model, path: str, other: str) -> bool:
    """Whether `path` waits for `other`, in the scope where their ways part."""
    ours, theirs = path.split("/"), other.split("/")
    shared = 0
    while shared < min(len(ours), len(theirs)) and ours[shared] == theirs[shared]:
        shared += 1
    if shared >= min(len(ours), len(theirs)):
        return False
    scope = "/".join(ours[:shared])
    if model.frames[scope].node.is_flow:
        return model.tracks[path].to_undo > model.tracks[other].to_undo
    wanted = [step_id(ours[shared])]
    target = step_id(theirs[shared])
    for id in wanted:  # grows while it is walked
        before = _waits_for(model, scope, id)
        if target in before:
            return True
        wanted.extend(name for name in before if name not in wanted)
    return False


def _check_undo(model: Model, track: Track, ref: Ref) -> None:
    undo = model.undo
    require(undo is not None, "an undo belongs to a rollback", ref)
    assert undo is not None
    require(not [r for r in model.open_attempts() if r.phase != "compensate"], "no undo while an attempt is open", ref)
    group = next((i for i, group in enumerate(undo.groups) if ref.path in group), None)
    require(group is not None, "exactly what was made is undone", ref)
    assert group is not None
    policy = POLICIES[model.plan.definition.policies.compensation]
    allowed = (track.node.step.compensation_max_attempts or policy.max_attempts) + track.undo_human
    require(track.undo_failures < allowed, "tries are bounded", f"{ref} after {track.undo_failures}")
    limit = model.plan.root.limit
    others = [path for path in undo.open if path != ref.path and model.tracks[path].open is not None]
    full = limit and len(others) >= limit and not track.undo_human  # who asks for one more gets it
    require(not full, "concurrency limits", f"{ref} beside {others}")
    if track.undo_failures or track.undo_losses or track.undo_human:
        return
    failed = [path for path in (p for group in undo.groups for p in group) if model.tracks[path].undo == "failed"]
    for earlier in undo.groups[:group]:
        for path in earlier:
            over = model.tracks[path].undo in ("done", "skipped") or path in failed
            require(over, "undo order", f"{ref} before {path}")
    _check_goes_on(model, ref, failed, undo.groups[group])


def _check_goes_on(model: Model, ref: Ref, failed: list[str], group: tuple[str, ...]) -> None:
    policy = POLICIES[model.plan.definition.policies.compensation]
    if policy.on_failure == "stop":
        before = [path for path in failed if path not in group or policy.order != "layers"]
        require(not before, "a failed undo stops the rest", f"{ref} after {before}")
    elif policy.on_failure == "break_if_critical":
        critical = [path for path in failed if model.tracks[path].node.step.compensation_critical]
        require(not critical, "an open breaker stops the rest", f"{ref} after {critical}")


# -- Events ------------------------------------------------------------------------------------------------------------


def check_event(model: Model, entry: e.Entry) -> None:
    event = entry.event
    if model.finished:
        require(isinstance(event, AFTER_THE_END), "terminal states never change", f"{event} after {model.finished}")
    match event:
        case e.AttemptSucceeded() | e.AttemptFailed() | e.AttemptTimedOut() | e.ProbeAnswered() | e.AttemptBegun():
            _check_report(model, Ref(event.path, event.phase, event.number))
    match event:
        case e.AttemptFailed() | e.AttemptTimedOut() if event.phase == "forward":
            _check_failure(model, entry.at, event)
        case e.AttemptLost():
            for loss in event.losses:
                _check_loss(model, loss)
        case e.ProbeAnswered():
            again = event.verdict == "retry"
            require(not again or event.answer == "not_done", "only a recorded `not done` permits a repetition", event)
        case e.WaitEnded():
            known = event.by in ("timer", model.arriving, *model.kept)
            require(known, "a kept signal is used once", event)
        case e.NodesClosed():
            _check_awaited(model, event)
        case e.ScopeOpened():
            check_order(model, event.path)
        case e.ScopeRestarted():
            _check_restart(model, event)
        case e.CompensationStarted():
            check_rollback(model, event)
        case e.RunOpened():
            _check_run(model, event)
        case e.ExecutionFinished():
            _check_finish(model, event)


def _check_report(model: Model, ref: Ref) -> None:
    if ref.phase == "plan":
        require(model.frames[ref.path].planning == ref, "only the holder reports", ref)
        return
    track = model.track(ref.path)
    law = f"{ref}, open {track.open}, late {track.late}"
    require(ref in (track.open, track.late), "only the holder reports, or its late answer", law)


def _check_failure(model: Model, at: int, event: e.AttemptFailed | e.AttemptTimedOut) -> None:
    track = model.track(event.path)
    step = track.node.step
    tries = len(track.failures | {event.number})
    require(tries <= step.retry_policy.max_attempts + track.human + track.losses, "tries are bounded", event)
    if event.verdict == "retry":
        require(step.safety == "SAFE_TO_RETRY", "only safe steps are simply retried", event)
        require(tries < step.retry_policy.max_attempts + track.human, "tries are bounded", event)
        assert event.retry_at is not None
        least = _least_delay(step.retry_policy, event.failure.error_class, tries)
        require(event.retry_at >= at + least, "back-off is respected", f"{event}: at least {least}")


def _least_delay(policy: RetryPolicy, error_class: ErrorClass, tries: int) -> int:
    first, longest = DELAYS[error_class]
    initial = first if policy.initial_delay_ms is None else policy.initial_delay_ms
    most = longest if policy.max_delay_ms is None else policy.max_delay_ms
    factor = 2 ** (tries - 1) if policy.backoff_strategy == "exponential" else 1
    return int(min(initial * factor, most) * (1 - policy.jitter))


def _check_loss(model: Model, loss: e.Loss) -> None:
    if loss.phase == "plan":
        return
    track = model.track(loss.path)
    require(track.open == Ref(loss.path, loss.phase, loss.number), "only an open attempt is lost", loss)
    require(not track.returned, "what was handed back is not lost", loss)
    outside = track.node.outside if loss.phase == "forward" else track.node.queue is not None
    require(track.epoch > 0 or outside, "what nobody owned is not lost", loss)
    if loss.phase == "forward":
        unsafe = track.node.step.safety == "NOT_SAFE_TO_RETRY"
        require(track.begun or not unsafe or track.node.outside, "NOT_SAFE that never began is not lost", loss)
        if unsafe and loss.verdict == "probe":
            due = track.since + track.node.step.retry_policy.timeout_ms
            require(loss.retry_at is not None and loss.retry_at >= due, "a frozen worker's time is waited for", loss)
        require(loss.verdict != "retry" or track.node.step.safety == "SAFE_TO_RETRY", "only safe steps ...", loss)
        require(track.losses <= MAX_LOSSES + track.human, "losses are bounded", loss)


def _check_awaited(model: Model, event: e.NodesClosed) -> None:
    """What runs is awaited, whoever closes around it."""
    tracks = [model.tracks[path] for path in event.paths if path in model.tracks]
    running = [track for track in tracks if track.open is not None and not _never_begins(track)]
    require(not running, "running attempts are awaited", event)


def _never_begins(track: Track) -> bool:
    """An attempt that must be recorded before it begins, and was not."""
    return track.node.step.safety == "NOT_SAFE_TO_RETRY" and not track.node.outside and not track.begun


def _check_restart(model: Model, event: e.ScopeRestarted) -> None:
    frame = model.frames[event.path]
    require(not model.cancel, "a cancel stops new forward attempts", event)
    require(event.round == frame.round + 1 <= frame.node.scope.max_rounds, "rounds are bounded", event)
    require(event.budget_left == model.budget - 1 >= 0, "the retry budget is bounded", event)
    inside = [ref for ref in model.open_attempts() if not event.path or ref.path.startswith(f"{event.path}/")]
    require(not inside, "a round ends before the next begins", inside)


def _check_run(model: Model, event: e.RunOpened) -> None:
    require(model.finished == "failed", "only a failed execution is retried", event)
    require(event.run == model.run + 1, "runs are numbered without gaps", event)
    for path, generation in event.redo:
        track = model.track(path)
        undone = track.undone_generation == track.generation
        may_rise = undone or event.reason != AUTOMATIC
        steps = generation - track.generation
        require(steps in ((1,) if undone else (0, 1) if may_rise else (0,)), "generations rise with reason", event)


def _check_finish(model: Model, event: e.ExecutionFinished) -> None:
    require(not model.open_attempts(), "nothing is open after the end", model.open_attempts())
    require(event.charged == model.charged, "charges add up", f"{event} {model.charged}")
    require(event.charged + event.refunded == model.hold, "charged + refunded = hold", f"{event} hold {model.hold}")
    require(event.status != "canceled" or model.cancel, "canceled only if asked", event)
    left = [review for review in model.reviews.values() if review.kind != "dead_letter"]
    terminated = model.cancel == "terminate"
    open_kinds = {review.kind for review in left}
    require(not left or (terminated and open_kinds == {"indeterminate"}), "no open review could start an attempt", left)
    if model.undo is None:
        owed = event.status == "failed" and not event.retry_hold
        owed = owed or (event.status == "canceled" and model.cancel == "compensate")
        require(not owed or not model.to_undo(), "exactly what was made is undone", model.to_undo())
        return
    settled = all(model.tracks[path].undo in ("done", "skipped") for group in model.undo.groups for path in group)
    broken = model.undo.stopped in ("circuit_open", "terminated")
    require(settled or broken, "an undo ends before its execution", {p: t.undo for p, t in model.tracks.items()})


def check_charges(model: Model) -> None:
    require(0 <= model.charged <= model.hold or model.hold == 0, "never charged above the hold", model.charged)
    require(model.hold > 0 or model.charged == 0, "never charged above the hold", model.charged)

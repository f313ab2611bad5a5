"""Applies recorded entries and grants to the model of an execution.

The updates check nothing. The invariants are checked first, on the model before the update.
"""

import msgspec

from tenuto.kernel import events as e
from tenuto.kernel.address import ROOT, Ref, fan_of, parent_of, step_id
from tenuto.kernel.definition import JSON, Scope, Step, node_from_document
from tenuto.kernel.plan import Node

from .model import AUTOMATIC, Model, ModelScope, ModelStep, Rollback

HEARD = 1_000  # ids of signals that ended a wait and are remembered


def apply(model: Model, entry: e.Entry) -> None:
    event = entry.event
    model.seq, model.at, model.epoch = entry.seq, entry.at, entry.epoch
    model.dues.note(event)
    match event:
        case e.ExecutionStarted():
            model.started = event
            model.scopes[ROOT] = ModelScope(ROOT, model.plan.root)
            model.admitted, model.hold = event.admitted, event.hold
        case e.ExecutionAdmitted():
            model.admitted = True
        case e.RunOpened():
            _open_run(model, event)
        case e.ExecutionFinished():
            model.finished, model.paused_at = event.status, None
            model.finishes += 1
            model.failure = event.error
        case e.Paused():
            model.paused_at = entry.at
        case e.Resumed():
            model.paused_at = None
        case e.CancelRequested():
            model.cancel = event.mode
        case e.ChildrenAdded():
            _add_children(model, event)
        case e.ReviewOpened():
            _open_review(model, event)
        case e.ReviewResolved():
            _resolve_review(model, entry.seq, event)
        case e.CompensationStarted():
            model.undo = Rollback(event.cause, event.groups)
        case e.CompensationStopped() if model.undo is not None:
            model.undo.stopped = event.reason
        case _:
            if not _apply_to_attempt(model, entry):
                _apply_to_node(model, entry)


def _apply_to_attempt(model: Model, entry: e.Entry) -> bool:
    event = entry.event
    match event:
        case e.AttemptBegun():
            step = model.step(event.path)
            step.begun = step.unsafe = True
            step.since = entry.at
        case e.AttemptSucceeded():
            model.charged += event.charge
            _succeed(model, entry.seq, event)
        case e.AttemptFailed() | e.AttemptTimedOut():
            model.charged += event.charge
            _fail(model, entry.seq, event)
        case e.AttemptLost():
            for loss in event.losses:
                _lose(model, entry.seq, loss)
        case e.AttemptsReturned():
            for ref in event.refs:
                if ref.phase == "plan":
                    model.scopes[ref.path].unasked = True
                else:
                    _return(model, model.step(ref.path))
        case e.AttemptAbandoned():
            for ref in event.refs:
                _end(model, ref)
                unsafe = ref.phase == "forward" and model.step(ref.path).node.step.safety == "NOT_SAFE_TO_RETRY"
                if unsafe and event.why == "terminated":
                    model.cut_off.append(ref)
        case e.AttemptDispatched():
            model.step(event.path).refusals = 0
            model.step(event.path).sent = True
        case e.AttemptAcked():
            model.step(event.path).sent = model.step(event.path).acked = True
        case e.DispatchFailed():
            _dispatch_failed(model, event)
        case e.ProbeAnswered():
            _probed(model, entry.seq, event)
        case _:
            return False
    return True


def _return(model: Model, step: ModelStep) -> None:
    """Returns an attempt. If its start was recorded, it did not happen."""
    step.returned = True
    if step.begun:
        step.begun, step.unsafe = False, step.was_unsafe


def _apply_to_node(model: Model, entry: e.Entry) -> None:
    event = entry.event
    match event:
        case e.StepExpired():
            step = model.step(event.path)
            _end_open(model, step)
            if event.verdict != "review":
                _close(model, event.path, "skipped" if event.verdict == "skip" else "timed_out")
        case e.StepRefused():
            _close(model, event.path, "skipped" if event.verdict == "skip" else "failed")
        case e.BranchTaken():
            if model.decides(event):
                _close(model, event.path, "succeeded")
            model.scopes[parent_of(event.path)].taken = event.target
        case e.Expanded():
            model.scopes[event.path] = ModelScope(event.path, model.node(event.path), count=event.count)
            _open(model, event.path)
        case e.NodesClosed():
            _close_nodes(model, event)
        case e.ScopeOpened():
            model.scopes[event.path] = _scope(model, event)
            _open(model, event.path)
            model.scopes[parent_of(event.path)].running[event.path] = None
        case e.ScopeClosing():
            model.scopes[event.path].status = "closing"
        case e.ScopeClosed():
            model.scopes[event.path].status = "closed"
            _close(model, event.path, event.outcome)
        case e.ScopeRepeated():
            model.scopes[event.path].status = "closed"
            parent = model.scopes[parent_of(event.path)]
            del parent.active[event.path]
            parent.running.pop(event.path, None)
        case e.ScopeRestarted():
            _restart(model, event)
        case e.WaitOpened():
            _open(model, model.step(event.path).path)
        case e.SignalKept():
            model.kept.append(event.id)
        case e.WaitEnded():
            if event.by in model.kept:
                model.kept.remove(event.by)
            if event.by != "timer":
                _use(model, event.by)
            model.step(event.path).done = True
            _close(model, event.path, "succeeded")


def _use(model: Model, signal: str) -> None:
    """Remembers a used signal id. Only the latest are kept, so an older id counts as a new signal."""
    model.used[signal] = None
    if len(model.used) > HEARD:
        del model.used[next(iter(model.used))]


def _scope(model: Model, event: e.ScopeOpened) -> ModelScope:
    scope = ModelScope(event.path, model.node(event.path), start=event.start)
    old = model.scopes.get(event.path)
    if old is not None:  # children that a planner added stay, and their attempts continue their numbers
        scope.plan_number = old.plan_number
    return scope


def grant(model: Model, ref: Ref, entry: e.Entry) -> None:
    if ref.phase == "plan":
        scope = model.scopes[ref.path]
        scope.planning, scope.plan_number = ref, ref.number
        scope.unasked = entry.epoch == 0 and scope.node.queue is None
        model.open_refs[ref] = None
        return
    step = model.step(ref.path)
    if step.open == ref:
        step.epoch, step.returned = entry.epoch, False
        return
    step.open, step.epoch, step.since = ref, entry.epoch, entry.at
    model.open_refs[ref] = None
    step.begun = step.returned = step.sent = step.acked = False
    step.numbers[ref.phase] = ref.number
    if ref.phase == "forward":
        _give_time(model, step, entry.at)
        step.late = None
        step.guarded = False
        step.was_unsafe = step.unsafe
        step.unsafe = step.unsafe or step.node.outside  # a directive may be sent as soon as it is granted
        _run(model, step)
    elif ref.phase == "compensate":
        _set_undo(model, step, "running")
        assert model.undo is not None
        model.undo.open[ref.path] = None


def _give_time(model: Model, step: ModelStep, at: int) -> None:
    model.dues.set("ack", step.path, None)
    model.dues.set("result", step.path, None)
    if (timeout_ms := step.node.step.timeout_ms) is not None:
        model.dues.begin("deadline", step.path, at + timeout_ms)


def _run(model: Model, step: ModelStep) -> None:
    clone = fan_of(step.path)
    if clone is not None:
        model.scopes[clone[0]].running[step.path] = None
    else:
        _open(model, step.path)
    model.scopes[parent_of(step.path)].running[step.path] = None


def _open(model: Model, path: str) -> None:
    model.scopes[parent_of(path)].active[path] = None


def _close(model: Model, path: str, status: str) -> None:
    """Closes a child of a scope, or a clone."""
    step = model.steps.get(path)
    if step is not None:
        step.late = None
        step.not_before = 0
        model.dues.set("reconcile", path, None)
    clone = fan_of(path)
    if clone is not None:
        model.scopes[clone[0]].closed[str(clone[1])] = status
        return
    parent = model.scopes[parent_of(path)]
    parent.active.pop(path, None)
    parent.running.pop(path, None)
    parent.closed[step_id(path)] = status
    parent.last, parent.taken = path, None


def _end(model: Model, ref: Ref) -> None:
    if ref.phase == "plan":
        _end_planning(model, model.scopes[ref.path])
    else:
        _end_open(model, model.step(ref.path))


def _end_planning(model: Model, scope: ModelScope) -> None:
    if scope.planning is not None:
        model.open_refs.pop(scope.planning, None)
    scope.planning = None


def _set_undo(model: Model, step: ModelStep, status: str) -> None:
    step.undo = status
    if model.undo is not None:
        if status == "failed":
            model.undo.failed[step.path] = None
        else:
            model.undo.failed.pop(step.path, None)


def _end_open(model: Model, step: ModelStep) -> None:
    if step.open is not None:
        model.open_refs.pop(step.open, None)
    if step.open is not None and step.open.phase == "forward":
        model.scopes[parent_of(step.path)].running.pop(step.path, None)
        clone = fan_of(step.path)
        if clone is not None:
            model.scopes[clone[0]].running.pop(step.path, None)
    if step.open is not None and step.open.phase == "compensate" and model.undo is not None:
        model.undo.open.pop(step.path, None)
    step.open = None


def _succeed(model: Model, seq: int, event: e.AttemptSucceeded) -> None:
    step = model.step(event.path)
    _end_open(model, step)
    if event.phase == "compensate":
        _undone(model, step)
    else:
        step.made(seq)
        _close(model, event.path, "succeeded")


def _undone(model: Model, step: ModelStep) -> None:
    _set_undo(model, step, "done")
    step.undone_generation = step.generation
    step.unsafe = False  # the effect was undone: it may be made again, under a new key
    model.clearances[step.path] += 1
    step.made_seq = step.half_seq = 0
    step.done = False


def _fail(model: Model, seq: int, event: e.AttemptFailed | e.AttemptTimedOut) -> None:
    if event.phase == "plan":
        scope = model.scopes[event.path]
        _end_planning(model, scope)
        scope.plan_not_before = event.retry_at or 0
        return
    step = model.step(event.path)
    timed_out = isinstance(event, e.AttemptTimedOut)
    _end_open(model, step)
    if event.phase == "compensate":
        step.undo_failures += 1
        _set_undo(model, step, "retrying" if event.verdict == "retry" else "failed")
        step.not_before = event.retry_at or 0
    elif event.phase == "forward":
        ref = Ref(event.path, event.phase, event.number)
        step.failures |= {event.number}
        step.override = event.override
        step.last = "timed_out" if timed_out else event.failure.error_class
        step.late = ref if timed_out or event.failure.error_class == "INDETERMINATE" else None
        if event.half_done:
            step.half_made(seq)
        known = step.is_unsafe and not timed_out and event.failure.error_class != "INDETERMINATE"
        if known and event.verdict == "probe" and event.retry_at is not None:
            model.dues.set("reconcile", step.path, event.retry_at + step.node.step.reconcile_timeout_ms)
        _after(model, step, event.verdict, event.retry_at, timed_out=timed_out)
    else:
        step.not_before = event.retry_at or 0
        _look_for(model, step, event.verdict)


def _lose(model: Model, seq: int, loss: e.Loss) -> None:
    if loss.phase == "plan":
        scope = model.scopes[loss.path]
        _end_planning(model, scope)
        scope.plan_losses += 1
        scope.plan_not_before = loss.retry_at or 0
        return
    step = model.step(loss.path)
    _end_open(model, step)
    if loss.phase == "compensate":
        step.undo_losses += 1
        _set_undo(model, step, "retrying" if loss.verdict == "retry" else "failed")
        step.not_before = loss.retry_at or 0
    elif loss.phase == "forward":
        step.losses += 1
        step.last = "lost"
        step.late = Ref(loss.path, loss.phase, loss.number)
        if loss.half_done:
            step.half_made(seq)
        _after(model, step, loss.verdict, loss.retry_at)


def _after(model: Model, step: ModelStep, verdict: str, retry_at: int | None, *, timed_out: bool = False) -> None:
    step.not_before = retry_at or 0
    _look_for(model, step, verdict)
    if verdict in ("skip", "fail"):
        _close(model, step.path, "skipped" if verdict == "skip" else "timed_out" if timed_out else "failed")


def _look_for(model: Model, step: ModelStep, verdict: str) -> None:
    if verdict == "probe":
        model.dues.begin("reconcile", step.path, model.at + step.node.step.reconcile_timeout_ms)


def _dispatch_failed(model: Model, event: e.DispatchFailed) -> None:
    step = model.step(event.path)
    _end_open(model, step)
    step.refusals += 1
    if event.phase == "compensate":
        _set_undo(model, step, "retrying" if event.verdict == "retry" else "failed")
        step.not_before = event.retry_at or 0
        return
    if event.phase == "forward":
        step.last = "undispatched"
        if event.failure.error_class == "INDETERMINATE":
            step.last = "INDETERMINATE"
            step.late = Ref(event.path, event.phase, event.number)
        else:
            step.unsafe = False  # it was rejected, so no worker began it
    _after(model, step, event.verdict, event.retry_at)


def _probed(model: Model, seq: int, event: e.ProbeAnswered) -> None:
    step = model.step(event.path)
    _end_open(model, step)
    if event.answer in ("done", "not_done"):
        step.late = None
    if event.answer == "not_done":
        step.override = event.override
        step.guarded = True
        step.unsafe = False
        model.clearances[event.path] += 1
    match event.verdict:
        case "succeed":
            step.made(seq)
            _close(model, event.path, "succeeded")
        case "fail" | "skip":
            step.half_seq = 0
            _close(model, event.path, "skipped" if event.verdict == "skip" else "failed")
        case "again":
            step.not_before = event.again_at or 0
        case _:
            step.not_before = 0
            model.dues.set("reconcile", event.path, None)


def _close_nodes(model: Model, event: e.NodesClosed) -> None:
    for path in event.paths:
        step = model.steps.get(path)
        if step is not None:
            if step.is_unowned:
                step.unsafe = step.was_unsafe
            _end_open(model, step)
        status = {"reused": "succeeded", "marked": "skipped", "failed_upstream": "skipped"}
        if path in model.scopes:
            model.scopes[path].status = "closed"
        _close(model, path, status.get(event.status, event.status))


def _add_children(model: Model, event: e.ChildrenAdded) -> None:
    scope = model.scopes[event.scope]
    _end_planning(model, scope)
    scope.plan_losses = scope.plan_not_before = 0
    model.charged += event.charge
    model.superseded |= dict.fromkeys(event.superseded)
    documents: list[JSON] = msgspec.json.decode(event.specs)
    specs: list[Step | Scope] = [node_from_document(document) for document in documents]
    added = model.nodes.setdefault(event.scope, {})
    for spec in specs:
        added[spec.id] = Node(spec, scope.node, len(scope.node.children) + len(added))
        model.batches[event.scope, spec.id] = tuple(one.id for one in specs)


def _restart(model: Model, event: e.ScopeRestarted) -> None:
    scope = model.scopes[event.path]
    scope.begin_round()
    scope.not_before, scope.round = event.not_before, event.round
    model.budget = event.budget_left
    prefix = f"{event.path}/" if event.path else ""
    model.dues.new_round(prefix)
    timeout_ms = scope.node.scope.timeout_ms
    if event.path != ROOT and timeout_ms is not None:
        model.dues.set("scope", event.path, model.at + timeout_ms)
    for path, step in model.steps.items():
        if path.startswith(prefix):
            step.forget_round(keep=step.node.step.safety == "NOT_SAFE_TO_RETRY" or step.node.step.reusable)


def _open_run(model: Model, event: e.RunOpened) -> None:
    model.run, model.finished, model.cancel, model.undo = event.run, "", "", None
    model.dead_letters = 0
    model.admitted, model.hold, model.charged = event.admitted, event.hold, 0
    model.dues.new_round("")
    model.budget = model.plan.definition.policies.retry_budget
    scope = model.scopes[ROOT]
    scope.begin_round()
    scope.round, scope.not_before, scope.start = 1, 0, event.start
    redo = dict(event.redo)
    for path in redo:
        model.step(path)
    for path, step in model.steps.items():
        step.forget_round(keep=True)
        if path in redo:
            step.generation, step.done = redo[path], False
            model.touched[path] = step
        if event.reason != AUTOMATIC and not step.done:
            step.unsafe = False
            model.clearances[path] += 1


def _open_review(model: Model, event: e.ReviewOpened) -> None:
    model.reviews[event.id] = event
    model.dead_letters += event.kind == "dead_letter"
    if event.kind == "indeterminate":
        model.asked[event.path] = None
    if event.kind == "approval":
        _open(model, model.step(event.path).path)
    elif event.kind == "compensation" and model.undo is not None:
        _set_undo(model, model.step(event.path), "awaiting")
        model.undo.open[event.path] = None


def _resolve_review(model: Model, seq: int, event: e.ReviewResolved) -> None:
    review = model.reviews.pop(event.id)
    if review.kind == "dead_letter" or event.verdict == "close":
        return
    step = model.step(review.path)
    if step.undo in ("awaiting", "failed", "again"):
        _resolve_undo(model, step, event)
        return
    step.late = None
    match event.verdict:
        case "succeed":
            if review.kind != "approval":
                step.made(seq)
            step.done = True
            _close(model, review.path, "succeeded")
        case "retry":
            step.human += 1
            step.guarded = True
            step.unsafe = False
            step.not_before = 0
            model.dues.set("reconcile", review.path, None)
            model.clearances[review.path] += 1
            step.generation += event.again
        case "fail" | "undo" | "skip":
            if event.resolution == "not_completed":
                step.half_seq = 0
                step.unsafe = False
                model.clearances[review.path] += 1
            if event.verdict == "undo":
                step.half_made(seq)
            _close(model, review.path, "skipped" if event.verdict == "skip" else "failed")


def _resolve_undo(model: Model, step: ModelStep, event: e.ReviewResolved) -> None:
    assert model.undo is not None
    if event.verdict == "succeed":
        _undone(model, step)
    elif event.verdict == "skip":
        _set_undo(model, step, "skipped")
        step.spared = True
        step.half_seq = 0
    else:
        step.undo = "again"  # counts as failed for the rest of the rollback until it is granted
        step.undo_failures = step.undo_losses = 0
        step.undo_human += 1
        step.not_before = 0
    model.undo.open.pop(step.path, None)

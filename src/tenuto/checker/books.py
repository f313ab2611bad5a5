"""What a history says, read without the kernel's own state: one track for each step, one frame for each scope.

The books only note. Whether what they are told was allowed is asked by the families of invariants, before it is noted.
"""

from collections import Counter

import msgspec

from tenuto.kernel import events as e
from tenuto.kernel.address import ROOT, Ref, clone_path, fan_of, parent_of, step_id
from tenuto.kernel.definition import JSON, Scope, Step, node_from_document
from tenuto.kernel.plan import Node, Plan

from .dues import Dues
from .tracks import AUTOMATIC, Frame, Rollback, Track

HEARD = 1_000  # signals that ended a wait, and whose ids are known


class Books:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.tracks: dict[str, Track] = {}
        self.frames: dict[str, Frame] = {}
        self.nodes: dict[str, dict[str, Node]] = {}  # children that planners added, by scope
        self.batches: dict[tuple[str, str], tuple[str, ...]] = {}  # (scope, child) -> the ids it was added with
        self.superseded: dict[str, None] = {}
        self.layers: dict[str, dict[str, int]] = {}  # of layered scopes, worked out once
        self.reviews: dict[str, e.ReviewOpened] = {}
        self.paused_at: int | None = None
        self.dues = Dues()
        self.cancel: str = ""
        self.finished: str = ""
        self.admitted = True
        self.undo: Rollback | None = None
        self.run = 1
        self.hold = self.charged = 0
        self.budget = plan.definition.policies.retry_budget
        self.touched: dict[str, Track] = {}
        self.clearances: Counter[str] = Counter()  # reasons why an unsafe effect may be made once more, by path
        self.cut_off: list[Ref] = []  # unsafe attempts that somebody terminated
        self.asked: dict[str, None] = {}  # paths of which a person was asked what became of the effect
        self.kept: list[str] = []  # signals that wait for somebody who waits for them
        self.used: dict[str, None] = {}  # signals that ended a wait, the last ones
        self.open_refs: dict[Ref, None] = {}  # attempts that may still report
        self.finishes = 0
        self.dead_letters = 0  # opened in this run
        self.failure: e.Failure | None = None
        self.started: e.ExecutionStarted | None = None
        self.seq = self.at = self.epoch = 0

    # -- Looking up ----------------------------------------------------------------------------------------------------

    def node(self, path: str) -> Node:
        clone = fan_of(path)
        at = clone[0] if clone is not None else path
        return self.child(parent_of(at), step_id(at))

    def child(self, scope: str, id: str) -> Node:
        added = self.nodes.get(scope, {})
        return added[id] if id in added else self.frames[scope].node.by_id[id]

    def children(self, scope: str) -> list[Node]:
        return [*self.frames[scope].node.children, *self.nodes.get(scope, {}).values()]

    def replaced(self, scope: str) -> set[str]:
        """The ids of children that a planner has put others in the place of."""
        return {step_id(path) for path in self.superseded if parent_of(path) == scope}

    def track(self, path: str) -> Track:
        track = self.tracks.get(path)
        if track is None:
            track = self.tracks[path] = Track(path, self.node(path))
        self.touched[path] = track
        return track

    def status_of(self, path: str) -> str:
        """How a step or a clone was closed, or `open`."""
        clone = fan_of(path)
        if clone is not None:
            return self.frames[clone[0]].closed.get(str(clone[1]), "open")
        return self.frames[parent_of(path)].closed.get(step_id(path), "open")

    def ancestors(self, path: str) -> list[Frame]:
        """The fan-out and the scopes that this stands in, innermost first."""
        clone = fan_of(path)
        found = [self.frames[clone[0]]] if clone is not None else []
        while path != ROOT:
            path = parent_of(path)
            found.append(self.frames[path])
        return found

    def to_undo(self) -> dict[str, int]:
        return {path: seq for path, track in self.tracks.items() if (seq := track.to_undo)}

    # -- Applying ------------------------------------------------------------------------------------------------------

    def apply(self, entry: e.Entry) -> None:
        event = entry.event
        self.seq, self.at, self.epoch = entry.seq, entry.at, entry.epoch
        self.dues.note(event)
        match event:
            case e.ExecutionStarted():
                self.started = event
                self.frames[ROOT] = Frame(ROOT, self.plan.root)
                self.admitted, self.hold = event.admitted, event.hold
            case e.ExecutionAdmitted():
                self.admitted = True
            case e.RunOpened():
                self._open_run(event)
            case e.ExecutionFinished():
                self.finished, self.paused_at = event.status, None
                self.finishes += 1
                self.failure = event.error
            case e.Paused():
                self.paused_at = entry.at
            case e.Resumed():
                self.paused_at = None
            case e.CancelRequested():
                self.cancel = event.mode
            case e.ChildrenAdded():
                self._add_children(event)
            case e.ReviewOpened():
                self._open_review(event)
            case e.ReviewResolved():
                self._resolve_review(entry.seq, event)
            case e.CompensationStarted():
                self.undo = Rollback(event.cause, event.groups)
            case e.CompensationStopped() if self.undo is not None:
                self.undo.stopped = event.reason
            case _:
                if not self._apply_to_attempt(entry):
                    self._apply_to_node(entry)

    def _apply_to_attempt(self, entry: e.Entry) -> bool:
        event = entry.event
        match event:
            case e.AttemptBegun():
                track = self.track(event.path)
                track.begun = track.unsafe = True
                track.since = entry.at
            case e.AttemptSucceeded():
                self.charged += event.charge
                self._succeed(entry.seq, event)
            case e.AttemptFailed() | e.AttemptTimedOut():
                self.charged += event.charge
                self._fail(entry.seq, event)
            case e.AttemptLost():
                for loss in event.losses:
                    self._lose(entry.seq, loss)
            case e.AttemptsReturned():
                for ref in event.refs:
                    if ref.phase == "plan":
                        self.frames[ref.path].unasked = True
                    else:
                        self._return(self.track(ref.path))
            case e.AttemptAbandoned():
                for ref in event.refs:
                    self._end(ref)
                    unsafe = ref.phase == "forward" and self.track(ref.path).node.step.safety == "NOT_SAFE_TO_RETRY"
                    if unsafe and event.why == "terminated":
                        self.cut_off.append(ref)
            case e.AttemptDispatched():
                self.track(event.path).refusals = 0
                self.track(event.path).sent = True
            case e.AttemptAcked():
                self.track(event.path).sent = self.track(event.path).acked = True
            case e.DispatchFailed():
                self._dispatch_failed(event)
            case e.ProbeAnswered():
                self._probed(entry.seq, event)
            case _:
                return False
        return True

    def _return(self, track: Track) -> None:
        """Handed back: if it was to begin, it did not."""
        track.returned = True
        if track.begun:
            track.begun, track.unsafe = False, track.was_unsafe

    def _apply_to_node(self, entry: e.Entry) -> None:
        event = entry.event
        match event:
            case e.StepExpired():
                track = self.track(event.path)
                self._end_open(track)
                if event.verdict != "review":
                    self.close(event.path, "skipped" if event.verdict == "skip" else "timed_out")
            case e.StepRefused():
                self.close(event.path, "skipped" if event.verdict == "skip" else "failed")
            case e.BranchTaken():
                if self.decides(event):
                    self.close(event.path, "succeeded")
                self.frames[parent_of(event.path)].taken = event.target
            case e.Expanded():
                self.frames[event.path] = Frame(event.path, self.node(event.path), count=event.count)
                self.open(event.path)
            case e.NodesClosed():
                self._close_nodes(event)
            case e.ScopeOpened():
                self.frames[event.path] = self._frame(event)
                self.open(event.path)
                self.frames[parent_of(event.path)].running[event.path] = None
            case e.ScopeClosing():
                self.frames[event.path].status = "closing"
            case e.ScopeClosed():
                self.frames[event.path].status = "closed"
                self.close(event.path, event.outcome)
            case e.ScopeRepeated():
                self.frames[event.path].status = "closed"
                parent = self.frames[parent_of(event.path)]
                del parent.active[event.path]
                parent.running.pop(event.path, None)
            case e.ScopeRestarted():
                self._restart(event)
            case e.WaitOpened():
                self.open(self.track(event.path).path)
            case e.SignalKept():
                self.kept.append(event.id)
            case e.WaitEnded():
                if event.by in self.kept:
                    self.kept.remove(event.by)
                if event.by != "timer":
                    self._use(event.by)
                self.track(event.path).done = True
                self.close(event.path, "succeeded")

    def _use(self, signal: str) -> None:
        """Only the last ones: an id that is older than those is another signal's."""
        self.used[signal] = None
        if len(self.used) > HEARD:
            del self.used[next(iter(self.used))]

    def decides(self, event: e.BranchTaken) -> bool:
        """Whether a decision is made by it. The edge that a failure goes by is taken from what is closed."""
        node = self.node(event.path)
        is_decision = not node.is_scope and node.step.type == "decision"
        return is_decision and self.frames[parent_of(event.path)].last != event.path

    def _frame(self, event: e.ScopeOpened) -> Frame:
        frame = Frame(event.path, self.node(event.path), start=event.start)
        old = self.frames.get(event.path)
        if old is not None:  # what a planner added stays, and its attempts are numbered on
            frame.plan_number = old.plan_number
        return frame

    def grant(self, ref: Ref, entry: e.Entry) -> None:
        if ref.phase == "plan":
            frame = self.frames[ref.path]
            frame.planning, frame.plan_number = ref, ref.number
            frame.unasked = entry.epoch == 0 and frame.node.queue is None
            self.open_refs[ref] = None
            return
        track = self.track(ref.path)
        if track.open == ref:
            track.epoch, track.returned = entry.epoch, False
            return
        track.open, track.epoch, track.since = ref, entry.epoch, entry.at
        self.open_refs[ref] = None
        track.begun = track.returned = track.sent = track.acked = False
        track.numbers[ref.phase] = ref.number
        if ref.phase == "forward":
            self._give_time(track, entry.at)
            track.late = None
            track.guarded = False
            track.was_unsafe = track.unsafe
            track.unsafe = track.unsafe or track.node.outside  # a directive may leave as soon as it is granted
            self._run(track)
        elif ref.phase == "compensate":
            self._set_undo(track, "running")
            assert self.undo is not None
            self.undo.open[ref.path] = None

    def _give_time(self, track: Track, at: int) -> None:
        self.dues.set("ack", track.path, None)
        self.dues.set("result", track.path, None)
        if (timeout_ms := track.node.step.timeout_ms) is not None:
            self.dues.begin("deadline", track.path, at + timeout_ms)

    def _run(self, track: Track) -> None:
        clone = fan_of(track.path)
        if clone is not None:
            self.frames[clone[0]].running[track.path] = None
        else:
            self.open(track.path)
        self.frames[parent_of(track.path)].running[track.path] = None

    def open(self, path: str) -> None:
        self.frames[parent_of(path)].active[path] = None

    def close(self, path: str, status: str) -> None:
        """A child of a scope, or a clone, is closed."""
        track = self.tracks.get(path)
        if track is not None:
            track.late = None
            track.not_before = 0
            self.dues.set("reconcile", path, None)
        clone = fan_of(path)
        if clone is not None:
            self.frames[clone[0]].closed[str(clone[1])] = status
            return
        parent = self.frames[parent_of(path)]
        parent.active.pop(path, None)
        parent.running.pop(path, None)
        parent.closed[step_id(path)] = status
        parent.last, parent.taken = path, None

    # -- Attempts ------------------------------------------------------------------------------------------------------

    def _end(self, ref: Ref) -> None:
        if ref.phase == "plan":
            self._end_planning(self.frames[ref.path])
        else:
            self._end_open(self.track(ref.path))

    def _end_planning(self, frame: Frame) -> None:
        if frame.planning is not None:
            self.open_refs.pop(frame.planning, None)
        frame.planning = None

    def _set_undo(self, track: Track, status: str) -> None:
        track.undo = status
        if self.undo is not None:
            if status == "failed":
                self.undo.failed[track.path] = None
            else:
                self.undo.failed.pop(track.path, None)

    def _end_open(self, track: Track) -> None:
        if track.open is not None:
            self.open_refs.pop(track.open, None)
        if track.open is not None and track.open.phase == "forward":
            self.frames[parent_of(track.path)].running.pop(track.path, None)
            clone = fan_of(track.path)
            if clone is not None:
                self.frames[clone[0]].running.pop(track.path, None)
        if track.open is not None and track.open.phase == "compensate" and self.undo is not None:
            self.undo.open.pop(track.path, None)
        track.open = None

    def _succeed(self, seq: int, event: e.AttemptSucceeded) -> None:
        track = self.track(event.path)
        self._end_open(track)
        if event.phase == "compensate":
            self._undone(track)
        else:
            track.made(seq)
            self.close(event.path, "succeeded")

    def _undone(self, track: Track) -> None:
        self._set_undo(track, "done")
        track.undone_generation = track.generation
        track.unsafe = False  # it is as if it had never been made: it may be made again, under a new key
        self.clearances[track.path] += 1
        track.made_seq = track.half_seq = 0
        track.done = False

    def _fail(self, seq: int, event: e.AttemptFailed | e.AttemptTimedOut) -> None:
        if event.phase == "plan":
            frame = self.frames[event.path]
            self._end_planning(frame)
            frame.plan_not_before = event.retry_at or 0
            return
        track = self.track(event.path)
        timed_out = isinstance(event, e.AttemptTimedOut)
        self._end_open(track)
        if event.phase == "compensate":
            track.undo_failures += 1
            self._set_undo(track, "retrying" if event.verdict == "retry" else "failed")
            track.not_before = event.retry_at or 0
        elif event.phase == "forward":
            ref = Ref(event.path, event.phase, event.number)
            track.failures |= {event.number}
            track.last = "timed_out" if timed_out else event.failure.error_class
            track.late = ref if timed_out or event.failure.error_class == "INDETERMINATE" else None
            if event.half_done:
                track.half_made(seq)
            self._after(track, event.verdict, event.retry_at, timed_out=timed_out)
        else:
            track.not_before = event.retry_at or 0
            self._look_for(track, event.verdict)

    def _lose(self, seq: int, loss: e.Loss) -> None:
        if loss.phase == "plan":
            frame = self.frames[loss.path]
            self._end_planning(frame)
            frame.plan_losses += 1
            frame.plan_not_before = loss.retry_at or 0
            return
        track = self.track(loss.path)
        self._end_open(track)
        if loss.phase == "compensate":
            track.undo_losses += 1
            self._set_undo(track, "retrying" if loss.verdict == "retry" else "failed")
            track.not_before = loss.retry_at or 0
        elif loss.phase == "forward":
            track.losses += 1
            track.last = "lost"
            track.late = Ref(loss.path, loss.phase, loss.number)
            if loss.half_done:
                track.half_made(seq)
            self._after(track, loss.verdict, loss.retry_at)

    def _after(self, track: Track, verdict: str, retry_at: int | None, *, timed_out: bool = False) -> None:
        track.not_before = retry_at or 0
        self._look_for(track, verdict)
        if verdict in ("skip", "fail"):
            self.close(track.path, "skipped" if verdict == "skip" else "timed_out" if timed_out else "failed")

    def _look_for(self, track: Track, verdict: str) -> None:
        """What became of an effect is found out in its own time, however often somebody has to be asked."""
        if verdict == "probe":
            self.dues.begin("reconcile", track.path, self.at + track.node.step.reconcile_timeout_ms)

    def _dispatch_failed(self, event: e.DispatchFailed) -> None:
        track = self.track(event.path)
        self._end_open(track)
        track.refusals += 1
        if event.phase == "compensate":
            self._set_undo(track, "retrying" if event.verdict == "retry" else "failed")
            track.not_before = event.retry_at or 0
            return
        if event.phase == "forward":
            track.last = "undispatched"
            if event.failure.error_class == "INDETERMINATE":
                track.last = "INDETERMINATE"
                track.late = Ref(event.path, event.phase, event.number)
            else:
                track.unsafe = False  # it was refused: nobody began it
        self._after(track, event.verdict, event.retry_at)

    def _probed(self, seq: int, event: e.ProbeAnswered) -> None:
        track = self.track(event.path)
        self._end_open(track)
        if event.answer in ("done", "not_done"):
            track.late = None
        if event.answer == "not_done":
            track.guarded = True
            track.unsafe = False
            self.clearances[event.path] += 1
        match event.verdict:
            case "succeed":
                track.made(seq)
                self.close(event.path, "succeeded")
            case "fail" | "skip":
                track.half_seq = 0
                self.close(event.path, "skipped" if event.verdict == "skip" else "failed")
            case "again":
                track.not_before = event.again_at or 0
            case _:
                track.not_before = 0
                self.dues.set("reconcile", event.path, None)

    # -- Nodes ---------------------------------------------------------------------------------------------------------

    def _close_nodes(self, event: e.NodesClosed) -> None:
        for path in event.paths:
            track = self.tracks.get(path)
            if track is not None:
                if track.is_nobodys:
                    track.unsafe = track.was_unsafe
                self._end_open(track)
            status = {"reused": "succeeded", "marked": "skipped", "failed_upstream": "skipped"}
            if path in self.frames:
                self.frames[path].status = "closed"
            self.close(path, status.get(event.status, event.status))

    def _add_children(self, event: e.ChildrenAdded) -> None:
        frame = self.frames[event.scope]
        self._end_planning(frame)
        frame.plan_losses = frame.plan_not_before = 0
        self.charged += event.charge
        self.superseded |= dict.fromkeys(event.superseded)
        documents: list[JSON] = msgspec.json.decode(event.specs)
        specs: list[Step | Scope] = [node_from_document(document) for document in documents]
        added = self.nodes.setdefault(event.scope, {})
        for spec in specs:
            added[spec.id] = Node(spec, frame.node, len(frame.node.children) + len(added))
            self.batches[event.scope, spec.id] = tuple(one.id for one in specs)

    def _restart(self, event: e.ScopeRestarted) -> None:
        frame = self.frames[event.path]
        frame.begin_round()
        frame.not_before, frame.round = event.not_before, event.round
        self.budget = event.budget_left
        prefix = f"{event.path}/" if event.path else ""
        self.dues.new_round(prefix)
        timeout_ms = frame.node.scope.timeout_ms
        if event.path != ROOT and timeout_ms is not None:
            self.dues.set("scope", event.path, self.at + timeout_ms)
        for path, track in self.tracks.items():
            if path.startswith(prefix):
                track.forget_round(keep=track.node.step.safety == "NOT_SAFE_TO_RETRY" or track.node.step.reusable)

    def _open_run(self, event: e.RunOpened) -> None:
        self.run, self.finished, self.cancel, self.undo = event.run, "", "", None
        self.dead_letters = 0
        self.admitted, self.hold, self.charged = event.admitted, event.hold, 0
        self.dues.new_round("")
        self.budget = self.plan.definition.policies.retry_budget
        frame = self.frames[ROOT]
        frame.begin_round()
        frame.round, frame.not_before, frame.start = 1, 0, event.start
        redo = dict(event.redo)
        for path in redo:
            self.track(path)
        for path, track in self.tracks.items():
            track.forget_round(keep=True)
            if path in redo:
                track.generation, track.done = redo[path], False
                self.touched[path] = track
            if event.reason != AUTOMATIC and not track.done:
                track.unsafe = False
                self.clearances[path] += 1

    # -- People --------------------------------------------------------------------------------------------------------

    def _open_review(self, event: e.ReviewOpened) -> None:
        self.reviews[event.id] = event
        self.dead_letters += event.kind == "dead_letter"
        if event.kind == "indeterminate":
            self.asked[event.path] = None
        if event.kind == "approval":
            self.open(self.track(event.path).path)
        elif event.kind == "compensation" and self.undo is not None:
            self._set_undo(self.track(event.path), "awaiting")
            self.undo.open[event.path] = None

    def _resolve_review(self, seq: int, event: e.ReviewResolved) -> None:
        review = self.reviews.pop(event.id)
        if review.kind in ("dead_letter", "escalation") or event.verdict == "close":
            return
        track = self.track(review.path)
        if track.undo in ("awaiting", "failed", "again"):
            self._resolve_undo(track, event)
            return
        track.late = None
        match event.verdict:
            case "succeed":
                if review.kind != "approval":
                    track.made(seq)
                track.done = True
                self.close(review.path, "succeeded")
            case "retry":
                track.human += 1
                track.guarded = True
                track.unsafe = False
                track.not_before = 0
                self.dues.set("reconcile", review.path, None)
                self.clearances[review.path] += 1
                track.generation += event.again
            case "fail" | "undo" | "skip":
                if event.resolution == "not_completed":
                    track.half_seq = 0
                    track.unsafe = False
                    self.clearances[review.path] += 1
                if event.verdict == "undo":
                    track.half_made(seq)
                self.close(review.path, "skipped" if event.verdict == "skip" else "failed")

    def _resolve_undo(self, track: Track, event: e.ReviewResolved) -> None:
        assert self.undo is not None
        if event.verdict == "succeed":
            self._undone(track)
        elif event.verdict == "skip":
            self._set_undo(track, "skipped")
            track.spared = True
            track.half_seq = 0
        else:
            track.undo = "again"  # for the rest of the rollback it has failed until it is granted
            track.undo_failures = track.undo_losses = 0
            track.undo_human += 1
            track.not_before = 0
        self.undo.open.pop(track.path, None)


def refs_of(grant: e.Grant) -> list[Ref]:
    if grant.first < 0:
        return [Ref(grant.path, grant.phase, grant.number)]
    clones = range(grant.first, grant.last + 1)
    return [Ref(clone_path(grant.path, index), grant.phase, grant.number) for index in clones]

"""Which situations a decision is. Each entry is looked at before it is applied, by the model of a moment earlier."""

from tenuto.checker.model import AUTOMATIC, Model, refs_of
from tenuto.kernel import events as e
from tenuto.kernel import facts as f
from tenuto.kernel.address import fan_of
from tenuto.kernel.compensation import POLICIES
from tenuto.kernel.decide import Decision
from tenuto.kernel.retry import MATRIX
from tenuto.kernel.state import Execution

from .situations import Situations

ORDERS = {"reverse": "undone in reverse", "layers": "undone by layers", "all": "undone together"}


class Watcher:
    def __init__(self, situations: Situations, model: Model, shadow: Execution, now: int) -> None:
        self.saw = situations.sometimes
        self.model = model
        self.shadow = shadow
        self.now = now

    # -- Facts ---------------------------------------------------------------------------------------------------------

    def fact(self, fact: f.Fact, decision: Decision) -> None:
        saw, answer, model = self.saw, decision.answer, self.model
        match fact:
            case f.Reported():
                self._report(fact, answer)
            case f.Signal():
                saw("signal after the end", isinstance(answer, f.Refused) and answer.code == "terminal")
            case f.Decide():
                self._decision(fact, decision)
            case f.Taken():
                self._takeover(decision)
            case f.Retry():
                saw("retry refused", isinstance(answer, f.Refused) and model.finished == "failed")
                if answer == f.APPLIED:
                    saw("run retried from a step", fact.start is not None and not fact.again)
                    saw("run retried again with new keys", fact.start is not None and fact.again)
            case f.Cancel() if answer == f.APPLIED and any(
                isinstance(entry.event, e.CancelRequested) for entry in decision.entries
            ):
                saw("cancel before admission", not model.admitted)
                unknown = any(step.late is not None for step in model.steps.values())
                saw("cancel while an outcome is unknown", unknown)

    def _report(self, fact: f.Reported, answer: f.Answer) -> None:
        saw, ref = self.saw, fact.ref
        step = self.model.steps.get(ref.path)
        if isinstance(answer, f.Ignored):
            saw("answer after the end", answer.why == "terminal")
            saw("late answer stale", answer.why in ("stale_attempt", "duplicate"))
            saw("callback from an older attempt", answer.why == "stale_attempt" and fact.lease is not None)
            return
        saw("report while paused", self.model.paused_at is not None)
        if step is not None and step.late == ref:
            saw("late truth applied: success", isinstance(fact.outcome, f.Succeeded))
            saw("late truth applied: failure", isinstance(fact.outcome, f.Failed))

    def _decision(self, fact: f.Decide, decision: Decision) -> None:
        saw = self.saw
        review = self.shadow.reviews.get(fact.review or "")
        if review is None or review.kind != "approval":
            refused = isinstance(decision.answer, f.Refused) and decision.answer.code == "not_waiting"
            saw("approval decided twice", refused and review is None)
            return
        due = self.shadow.timers.get(("review", review.id))
        saw("approval while paused", self.model.paused_at is not None)
        if due is not None and due <= self.now:
            saw("approval won against its time-out", fact.at < due and decision.answer == f.APPLIED)
            saw("approval lost to its time-out", fact.at >= due)

    def _takeover(self, decision: Decision) -> None:
        for entry in decision.entries:
            for ref in (ref for grant in entry.grants for ref in refs_of(grant)):
                step = self.model.steps.get(ref.path)
                if step is not None and step.open == ref and not step.returned and ref.phase == "forward":
                    unsafe = step.node.step.safety == "NOT_SAFE_TO_RETRY" and step.epoch > 0
                    self.saw("lost NOT_SAFE before it began", unsafe)

    # -- Entries -------------------------------------------------------------------------------------------------------

    def entry(self, entry: e.Entry) -> None:
        saw, event = self.saw, entry.event
        match event:
            case e.AttemptFailed():
                self._failure(event, entry.at)
            case e.AttemptSucceeded() if event.phase == "compensate":
                self._undone(event.path)
            case e.AttemptTimedOut():
                kinds = {
                    "attempt": "attempt timed out",
                    "ack": "acknowledgement timed out",
                    "result": "result timed out",
                }
                saw(kinds[event.kind])
            case e.AttemptLost():
                for loss in event.losses:
                    self._loss(loss)
            case e.ProbeAnswered():
                self._probe(event)
            case e.DispatchFailed():
                capped = event.verdict not in ("retry", "probe") and event.failure.error_class != "NON_RETRYABLE"
                step = self.model.steps[event.path]
                saw("dispatch refused")
                saw("dispatch refused to its cap", capped and step.refusals >= 9)
            case e.AttemptAcked():
                saw("callback acknowledged")
            case _:
                if not self._structure(event) and not self._people(event):
                    self._end(event)

    def _failure(self, event: e.AttemptFailed, at: int) -> None:
        saw = self.saw
        error_class = event.failure.error_class
        if event.phase == "forward" and event.verdict in ("skip", "fail"):
            step = self.model.steps[event.path]
            saw("tries spent", MATRIX[error_class].retried and len(step.failures) + 1 > 1)
        if event.phase == "forward" and event.retry_at is not None:
            limited = error_class in ("RATE_LIMITED", "DEPENDENCY_FAILED")
            saw("retry-after honoured", limited and event.retry_at - at == 2_500)
        if event.phase == "compensate":
            saw("undo retried", event.verdict == "retry")
            saw("undo failed", event.verdict == "review")

    def _undone(self, path: str) -> None:
        undo = self.shadow.undo
        if undo is not None and undo.cursor == 0 and undo.group < len(undo.groups):
            self.saw("earlier undos waited for one tried again", path in undo.open and len(undo.open) > 1)

    def _loss(self, loss: e.Loss) -> None:
        saw = self.saw
        if loss.phase == "forward":
            unsafe = self.model.steps[loss.path].node.step.safety == "NOT_SAFE_TO_RETRY"
            saw("attempt lost and repeated", loss.verdict == "retry")
            saw("attempt lost to its bound", loss.verdict in ("skip", "fail") and not unsafe)
            saw("lost NOT_SAFE after it began", unsafe)
        else:
            names = {"compensate": "lost undo", "plan": "lost planner"}
            saw(names.get(loss.phase, "lost probe"))

    def _probe(self, event: e.ProbeAnswered) -> None:
        saw = self.saw
        if event.answer in ("done", "not_done"):
            saw(f"{event.phase} said {event.answer.replace('_', ' ')}")
        saw("probe pending", event.answer == "pending")
        saw("probe gave up", event.answer == "unknown")

    def _structure(self, event: e.Event) -> bool:
        saw = self.saw
        match event:
            case e.StepExpired():
                saw("step deadline passed", event.failure.code == "deadline")
                saw("reconcile time over", event.failure.code == "reconcile_timeout")
            case e.StepRefused():
                saw("expression failed", event.failure.code == "expression_failed")
                saw("estimate above what is left", event.failure.code == "credits_exhausted")
            case e.StepsReady():
                saw("concurrency limit reached", self.model.paused_at is None)
            case e.Expanded():
                foreach = self.model.node(event.path).step.foreach or ""
                saw("fan-out over an earlier result", foreach.startswith("steps."))
            case e.NodesClosed():
                self._closed(event)
            case e.ScopeClosing():
                self._closing(event)
            case e.ScopeRestarted():
                saw("scope round")
            case e.ScopeRepeated():
                saw("scope repeated itself")
            case e.BranchTaken() | e.ScopeOpened() | e.WaitOpened():
                saw("loop taken", event.path.endswith(("@2", "@3")))
            case e.ChildrenAdded():
                saw("planned", event.number == 1)
                saw("re-plan", bool(event.superseded))
            case _:
                return False
        return True

    def _closed(self, event: e.NodesClosed) -> None:
        saw = self.saw
        saw("effect marked as done before", event.status == "marked")
        saw("dependents of a failed step skipped", event.status == "failed_upstream")
        if event.status == "skipped":
            node = self.model.node(event.paths[0])
            saw("condition skipped a step", node.when is not None)
            saw("fan-out of nothing", not node.is_scope and node.when is None)
        if event.status == "reused":
            scope = self.model.scopes[""]
            saw("reused results in a new run", self.model.run > 1)
            saw("round kept a result", self.model.run == 1 or scope.round > 1)

    def _closing(self, event: e.ScopeClosing) -> None:
        saw = self.saw
        code = event.failure.code if event.failure is not None else ""
        saw("loop limit", code == "loop_limit")
        saw("output failed", not event.path and code == "expression_failed" and event.failure.path == "")  # type: ignore[union-attr]
        saw("scope timed out", code == "scope_timeout")
        saw("execution timed out", not event.path and code == "deadline")
        saw("pending too long", code == "pending_timeout")
        saw("credits exhausted", code == "credits_exhausted")
        scope = self.model.scopes[event.path]
        saw("clone failed", not scope.node.is_scope)
        if scope.node.is_scope and event.outcome == "failed" and scope.node.scope.failure_mode == "retry":
            saw("retry budget exhausted", self.model.budget == 0 and scope.round < scope.node.scope.max_rounds)

    def _people(self, event: e.Event) -> bool:
        saw, model = self.saw, self.model
        match event:
            case e.WaitEnded():
                saw("timer waited", event.by == "timer")
                kept = [signal.id for signals in self.shadow.signals.values() for signal in signals]
                saw("kept signal used", event.by in kept)
            case e.SignalKept():
                saw("signal kept")
            case e.ReviewOpened():
                if event.kind in ("indeterminate", "compensation", "compensation_failed"):
                    saw(f"review: {event.kind}")
                saw("escalation", event.kind == "escalation")
                saw("terminated under an unsafe attempt", event.reason.startswith("terminated"))
            case e.ReviewResolved():
                self._resolved(event)
            case e.Resumed():
                saw("paused and resumed", event.shift > 0 and not model.cancel)
                shifted = [
                    due for (kind, _), due in self.shadow.timers.items() if kind in ("deadline", "scope", "review")
                ]
                saw("pause over a deadline", any(due <= self.now for due in shifted))
            case e.CancelRequested():
                saw(f"cancel: {event.mode}")
                saw("pause limit", event.reason == "pause_limit")
                saw("cancel during compensation", model.undo is not None)
            case e.ExecutionAdmitted():
                saw("admitted late")
            case _:
                return False
        return True

    def _resolved(self, event: e.ReviewResolved) -> None:
        saw = self.saw
        review = self.model.reviews.get(event.id)
        if review is None or event.verdict == "close":
            return
        saw("approved", event.resolution == "approved")
        saw("rejected", event.resolution == "rejected")
        if review.kind in ("indeterminate", "compensation", "compensation_failed"):
            saw("review retried", event.verdict == "retry")
            saw("review completed", event.verdict == "succeed")
            saw("review dismissed", event.resolution == "dismiss")
            saw("review asked for undo", event.verdict == "undo")
            saw("review again with a new key", event.verdict == "retry" and event.again)
        if review.kind == "compensation_failed" and event.verdict == "retry":
            saw("two undos of one group tried again at once", self._others_tried_again(review.path))
        if review.kind == "compensation" and self.model.undo is not None:
            saw("manual undo approved", event.verdict == "retry")
            saw("manual undo refused", event.verdict == "skip")

    def _others_tried_again(self, path: str) -> bool:
        """Whether a person asked for another of its group, too, and it is not over."""
        undo = self.model.undo
        assert undo is not None
        group = undo.groups[undo.group_of[path]]
        steps = [self.model.steps[other] for other in group if other != path]
        return any(step.undo_human and step.undo in ("again", "running", "retrying") for step in steps)

    def _end(self, event: e.Event) -> None:
        saw, model = self.saw, self.model
        match event:
            case e.CompensationStarted():
                policy = POLICIES[model.plan.definition.policies.compensation]
                paths = [path for group in event.groups for path in group]
                saw(ORDERS[policy.order], len(paths) > 1)
                saw("clone undone", any(fan_of(path) is not None for path in paths))
                steps = [model.steps[path] for path in paths if path in model.steps]
                saw("half-done step undone", any(not step.made_seq for step in steps))
                saw("step of an earlier round undone", any(t.made_seq and not t.done for t in steps))
            case e.CompensationStopped():
                saw("breaker open", event.reason == "circuit_open")
                saw("undo stopped", event.reason == "failed")
            case e.RunOpened():
                saw("run retried", event.reason != AUTOMATIC)
                saw("automatic run after a granted hold", event.reason == AUTOMATIC)
                saw("flow begun again", event.start is not None)
                raised = [path for path, generation in event.redo if generation > 1]
                saw("undone step made again", any(model.step(path).undone_generation for path in raised))
            case e.HoldChanged():
                saw("hold refused", event.refused)
            case e.ExecutionFinished():
                saw("charged and refunded", event.charged > 0 and event.refunded > 0)

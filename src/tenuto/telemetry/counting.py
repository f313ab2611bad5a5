"""Counts recorded entries. The `Observer` sees every entry once, in the process that decided it."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final

from tenuto.kernel import events as e
from tenuto.kernel.address import Ref, step_id
from tenuto.kernel.evolve import find_step
from tenuto.kernel.plan import Plan
from tenuto.views.reading import Reading

from . import catalogue as c
from .tally import Counts, Histogram, StepTally


class Counting:
    """`steps` counts by saga and step; all other counters are keyed by metric and labels."""

    hears_starts = False  # attempts are counted when they end

    def __init__(self) -> None:
        self.counts: dict[c.Metric, Counts] = {
            metric: defaultdict(int) for metric in c.CATALOGUE if metric.kind == "counter"
        }
        self.finished: dict[str, Histogram] = {}
        self.orders: dict[str, Histogram] = {}
        self.steps: dict[str, dict[str, StepTally]] = {}
        self._told_apart = 0
        self._paths: dict[Plan, dict[str, StepTally]] = {}

    def started(self, reading: Reading, ref: Ref) -> None:
        """Ignored, because `hears_starts` is false."""

    def decided(self, reading: Reading, entries: Sequence[e.Entry]) -> None:
        for entry in entries:
            rule = _RULES.get(type(entry.event))
            if rule is not None:
                rule(self, reading, entry)

    def count(self, metric: c.Metric, *labels: str) -> None:
        self.counts[metric][labels] += 1

    # -- Steps ---------------------------------------------------------------------------------------------------------

    def _step(self, reading: Reading, path: str) -> StepTally:
        """Returns the counters of a step, cached by path. Clones and visits are numerous and are not cached."""
        plan = reading.program.plan
        paths = self._paths.get(plan)
        if paths is None:
            paths = self._paths[plan] = {}
        found = paths.get(path)
        if found is None:
            found = self._named(reading, path)
            if "#" not in path and "@" not in path:
                paths[path] = found
        return found

    def _named(self, reading: Reading, path: str) -> StepTally:
        saga, id = _saga(reading), step_id(path)
        known = self.steps.get(saga, {}).get(id)
        if known is not None and saga != c.OF_A_TENANT:
            return known
        step = find_step(reading.state, path)
        kind = step.node.spec.type if step is not None else "task"
        if saga == c.OF_A_TENANT:
            id = kind
        elif self._told_apart >= c.MAX_STEPS:
            saga, id = c.OTHER, f"{c.OTHER} {kind}s"
        of_saga = self.steps.setdefault(saga, {})
        if id not in of_saga:
            self._told_apart += 1
            of_saga[id] = StepTally(saga, id, kind, c.STEP_BOUNDS)
        return of_saga[id]

    def _succeeded(self, reading: Reading, entry: e.Entry) -> None:
        event = entry.event
        assert isinstance(event, e.AttemptSucceeded)
        if event.phase == "forward":
            step = self._step(reading, event.path)
            step.succeeded += 1
            step.durations.note(max(entry.at - event.started_at, 0))
        else:
            self.count(c.ATTEMPTS, event.phase, "succeeded")
            if event.phase == "compensate":
                self._move(reading, event.path, "compensated")
                self.count(c.COMPENSATIONS, "succeeded")

    def _failed(self, reading: Reading, entry: e.Entry) -> None:
        event = entry.event
        assert isinstance(event, e.AttemptFailed | e.AttemptTimedOut)
        timed_out = isinstance(event, e.AttemptTimedOut)
        self.count(c.ATTEMPTS, event.phase, "timed_out" if timed_out else "failed")
        if isinstance(event, e.AttemptTimedOut):
            self.count(c.TIMEOUTS, event.kind)
        if event.phase == "forward" and event.started_at:
            self._step(reading, event.path).durations.note(max(entry.at - event.started_at, 0))
        if event.verdict in ("retry", "probe"):
            self.count(c.RETRIES, event.failure.error_class)
        elif event.phase == "compensate":
            self._move(reading, event.path, "compensation_failed")
            self.count(c.COMPENSATIONS, "failed")
        elif event.verdict in ("fail", "skip"):
            self._fail(reading, event.path, event.failure, "timed_out" if timed_out else "failed")

    def _fail(self, reading: Reading, path: str, failure: e.Failure, to: str) -> None:
        self.count(c.FAILURES, failure.error_class)
        self._move(reading, path, to)

    def _undispatched(self, reading: Reading, entry: e.Entry) -> None:
        event = entry.event
        assert isinstance(event, e.DispatchFailed)
        self.count(c.ATTEMPTS, event.phase, "not_sent")
        if event.verdict == "retry":
            self.count(c.RETRIES, event.failure.error_class)
        elif event.verdict in ("fail", "skip"):
            self._fail(reading, event.path, event.failure, "failed")

    def _probed(self, reading: Reading, entry: e.Entry) -> None:
        event = entry.event
        assert isinstance(event, e.ProbeAnswered)
        self.count(c.ATTEMPTS, event.phase, event.answer)
        if event.verdict == "succeed":
            self._move(reading, event.path, "succeeded")
        elif event.verdict in ("fail", "skip") and event.failure is not None:
            self._fail(reading, event.path, event.failure, "failed")

    def _expired(self, reading: Reading, entry: e.Entry) -> None:
        event = entry.event
        assert isinstance(event, e.StepExpired)
        self.count(c.TIMEOUTS, "deadline")
        if event.verdict != "review":
            self._fail(reading, event.path, event.failure, "timed_out")

    def _refused(self, reading: Reading, entry: e.Entry) -> None:
        event = entry.event
        assert isinstance(event, e.StepRefused)
        self._fail(reading, event.path, event.failure, "failed")

    def _lost(self, reading: Reading, entry: e.Entry) -> None:
        event = entry.event
        assert isinstance(event, e.AttemptLost)
        self.counts[c.LOST][()] += len(event.losses)

    def _closed(self, reading: Reading, entry: e.Entry) -> None:
        event = entry.event
        assert isinstance(event, e.NodesClosed)
        self.counts[c.SKIPPED][event.status,] += len(event.paths)

    def _waited(self, reading: Reading, entry: e.Entry) -> None:
        event = entry.event
        assert isinstance(event, e.WaitEnded)
        self._move(reading, event.path, "succeeded")

    def _move(self, reading: Reading, path: str, to: str) -> None:
        self._step(reading, path).outcomes[to] += 1

    # -- People --------------------------------------------------------------------------------------------------------

    def _asked(self, reading: Reading, entry: e.Entry) -> None:
        event = entry.event
        assert isinstance(event, e.ReviewOpened)
        self.count(c.REVIEWS, event.kind)

    def _answered(self, reading: Reading, entry: e.Entry) -> None:
        event = entry.event
        assert isinstance(event, e.ReviewResolved)
        self.count(c.RESOLVED, event.resolution)
        asked = reading.history[int(event.id.rpartition(".")[2]) - 1]
        if isinstance(asked.event, e.ReviewOpened) and asked.event.kind == "approval":
            step = self._step(reading, asked.event.path)
            step.durations.note(max(entry.at - asked.at, 0))
            step.outcomes["succeeded" if event.verdict == "succeed" else "failed"] += 1

    def _stopped(self, reading: Reading, entry: e.Entry) -> None:
        event = entry.event
        assert isinstance(event, e.CompensationStopped)
        if event.reason == "circuit_open":
            self.count(c.CIRCUITS)

    # -- Executions ----------------------------------------------------------------------------------------------------

    def _started(self, reading: Reading, entry: e.Entry) -> None:
        self.count(c.STARTED)
        self.count(c.SAGA_MOVES, _saga(reading), "", "running")

    def _reopened(self, reading: Reading, entry: e.Entry) -> None:
        self.count(c.REOPENED)
        self.count(c.SAGA_MOVES, _saga(reading), "", "running")

    def _finished(self, reading: Reading, entry: e.Entry) -> None:
        event = entry.event
        assert isinstance(event, e.ExecutionFinished)
        status = event.status
        self.count(c.FINISHED, status)
        self.count(c.SAGA_MOVES, _saga(reading), "", status)
        took = max(entry.at - reading.history[0].at, 0)
        _noted(self.finished, status, took)
        target = reading.started.target
        if target is not None and target[0].lower() == "order":
            _noted(self.orders, status, took)


def _saga(reading: Reading) -> str:
    """Returns the `saga` label. Metrics must not reveal tenants or the names of their definitions."""
    name = reading.program.name
    return c.OF_A_TENANT if "/" in name else name


def _noted(histograms: dict[str, Histogram], status: str, took_ms: int) -> None:
    histogram = histograms.get(status)
    if histogram is None:
        histogram = histograms[status] = Histogram(c.EXECUTION_BOUNDS)
    histogram.note(took_ms)


# A table by event type, because a lookup is cheaper than a chain of checks.
_RULES: Final[dict[type, Callable[[Counting, Reading, e.Entry], None]]] = {
    e.ExecutionStarted: Counting._started,
    e.RunOpened: Counting._reopened,
    e.ExecutionFinished: Counting._finished,
    e.AttemptSucceeded: Counting._succeeded,
    e.AttemptFailed: Counting._failed,
    e.AttemptTimedOut: Counting._failed,
    e.AttemptLost: Counting._lost,
    e.DispatchFailed: Counting._undispatched,
    e.ProbeAnswered: Counting._probed,
    e.StepExpired: Counting._expired,
    e.StepRefused: Counting._refused,
    e.NodesClosed: Counting._closed,
    e.WaitEnded: Counting._waited,
    e.ReviewOpened: Counting._asked,
    e.ReviewResolved: Counting._answered,
    e.CompensationStopped: Counting._stopped,
}

"""Lists all attempts of an execution as rows."""

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from msgspec import Raw

from tenuto.kernel import events as e
from tenuto.kernel.address import Ref, clone_path, fan_of, idempotency_key, step_id
from tenuto.kernel.definition import JSON, Step
from tenuto.kernel.naming import clone_name, labels_in
from tenuto.kernel.state import Execution, StepStatus
from tenuto.kernel.step_override import StepOverride

from .shapes import KINDS, NOTHING_UNDER_WAY, Activity, AttemptRow, decoded, time_text


def attempt_rows(
    state: Execution, history: Sequence[e.Entry], activity: Activity = NOTHING_UNDER_WAY
) -> list[AttemptRow]:
    """Returns the rows of `GET /v1/executions/{id}/history`: one per attempt, ordered by end, open ones last."""
    rows = _Rows(state, activity)
    for entry in history:
        rows.read(entry)
    return rows.finish()


def last_trace(history: Sequence[e.Entry], path: str, until: int) -> str | None:
    """Where the last failed attempt at this path raised, up to this time."""
    for entry in reversed(history):
        event = entry.event
        if entry.at > until or not isinstance(event, e.AttemptFailed | e.ProbeAnswered | e.DispatchFailed):
            continue
        if event.path == path and event.trace:
            return event.trace
    return None


class _Open(NamedTuple):
    started_at: int
    run: int
    generation: int
    awaits_person: bool = False
    # known before the end only for steps that are not safe to retry, which record the worker that begins them
    worker: str = ""


class _Rows:
    """Reads a history once. An attempt is open from its grant (or its wait) until the event that ends it."""

    def __init__(self, state: Execution, activity: Activity) -> None:
        self.state = state
        self.activity = activity
        self.rows: list[AttemptRow] = []
        self.open: dict[Ref, _Open] = {}
        self.generations: dict[str, int] = {}
        self.labels: dict[str, Sequence[str]] = {}
        self.reviews: dict[str, e.ReviewOpened] = {}
        self.closing: Ref | None = None
        self.run = 1
        self.at = 0
        self.decisions = {node.id for node in state.plan.root.walk() if _is_decision(node.spec)}

    def read(self, entry: e.Entry) -> None:
        self.settle(entry.event)
        self.at = entry.at
        self.event(entry.event)
        for grant in entry.grants:
            if grant.first < 0:
                self.begin(Ref(grant.path, grant.phase, grant.number))
            for index in range(grant.first, grant.last + 1) if grant.first >= 0 else ():
                self.begin(Ref(clone_path(grant.path, index), grant.phase, grant.number))

    def event(self, event: e.Event) -> None:
        ended = len(self.rows)
        self.enter(event)
        if isinstance(event, _OVERRIDDEN) and event.override is not None and len(self.rows) > ended:
            self.rows[-1]["override"] = _override(event.override)

    def enter(self, event: e.Event) -> None:
        match event:
            case e.AttemptSucceeded():
                self.end(_ref(event), "succeeded", event.started_at, event.worker, result=event.result)
            case e.AttemptFailed():
                self.end(
                    _ref(event),
                    _failed(event.verdict),
                    event.started_at,
                    event.worker,
                    event.failure,
                    event.retry_at,
                    trace=event.trace,
                    look_up_at=self.look_up_at(event),
                )
            case e.AttemptTimedOut():
                status: StepStatus = "retrying" if event.verdict in ("retry", "probe") else "timed_out"
                said = (event.worker, event.failure, event.retry_at)
                self.end(_ref(event), status, event.started_at, *said, look_up_at=self.look_up_at(event))
            case e.ProbeAnswered():
                self.end(
                    _ref(event),
                    "succeeded",
                    event.started_at,
                    event.worker,
                    event.failure,
                    event.again_at,
                    event.result,
                    event.trace,
                    answer=event.answer,
                )
            case e.DispatchFailed():
                self.end(
                    _ref(event),
                    _failed(event.verdict),
                    0,
                    "",
                    event.failure,
                    event.retry_at,
                    trace=event.trace,
                    look_up_at=self.look_up_at(event),
                )
            case e.AttemptBegun():
                self.open[_ref(event)] = self.open[_ref(event)]._replace(started_at=self.at, worker=event.worker)
            case e.AttemptDispatched():
                self.open[_ref(event)] = self.open[_ref(event)]._replace(started_at=self.at)
            case e.AttemptLost():
                for loss in event.losses:
                    failure = e.Failure(
                        "TRANSIENT", "worker_lost", "the worker that ran this attempt is gone", loss.path
                    )
                    ref = Ref(loss.path, loss.phase, loss.number)
                    look_up_at = self.look_up_at(loss)
                    self.end(ref, _failed(loss.verdict), 0, "", failure, loss.retry_at, look_up_at=look_up_at)
            case e.AttemptAbandoned():
                for ref in event.refs:
                    self.end(ref, "timed_out" if event.why == "expired" else "canceled", 0, "")
            case e.ChildrenAdded():
                self.end(Ref(event.scope, "plan", event.number), "succeeded", event.started_at, event.worker)
            case e.Expanded():
                self.labels[event.path] = labels_in(self.state, event)
            case e.RunOpened():
                self.run = event.run
                self.generations.update(event.redo)
            case _:
                self.without_attempt(event)

    def look_up_at(self, end: e.AttemptFailed | e.AttemptTimedOut | e.DispatchFailed | e.Loss) -> int | None:
        """Returns when the outcome is looked up, if that is what follows. Without a time, at once."""
        if end.phase != "forward" or end.verdict != "probe":
            return None
        return self.at if end.retry_at is None else end.retry_at

    def without_attempt(self, event: e.Event) -> None:
        """Adds rows for steps without attempts: decisions, waits, approvals, and steps that never started."""
        match event:
            case e.StepRefused():
                self.begin(Ref(event.path, "forward", 1))
                self.end(Ref(event.path, "forward", 1), "failed", self.at, "", event.failure)
            case e.BranchTaken() if step_id(event.path) in self.decisions:
                self.begin(Ref(event.path, "forward", 1))
                self.end(Ref(event.path, "forward", 1), "succeeded", self.at, "")
            case e.WaitOpened():
                self.begin(Ref(event.path, "forward", 1))
            case e.WaitEnded():
                self.end(Ref(event.path, "forward", 1), "succeeded", 0, "", result=event.payload)
            case e.ReviewOpened():
                self.reviews[event.id] = event
                if event.kind == "approval":
                    self.begin(Ref(event.path, "forward", 1), awaits_person=True)
            case e.ReviewResolved():
                self.resolved(self.reviews.pop(event.id), event)
            case e.StepExpired():
                self.end(Ref(event.path, "forward", 1), "timed_out", 0, "", event.failure)
            case e.NodesClosed():
                for path in event.paths:
                    self.closed(path, event.status)
            case _:
                pass

    def resolved(self, review: e.ReviewOpened, event: e.ReviewResolved) -> None:
        if event.again:
            self.generations[review.path] = self.generations.get(review.path, 1) + 1
        if review.kind == "approval":
            ref = Ref(review.path, "forward", 1)
            statuses: dict[str, StepStatus] = {"succeed": "succeeded", "fail": "failed", "skip": "failed"}
            if event.verdict in statuses:
                self.end(ref, statuses[event.verdict], 0, "", event.failure, result=event.result)
            else:
                self.closing = ref

    def settle(self, event: e.Event | None = None) -> None:
        """Ends an approval that closed without an answer: canceled, unless the next event says that it expired."""
        if self.closing is not None and not (isinstance(event, e.StepExpired) and event.path == self.closing.path):
            self.end(self.closing, "canceled", 0, "")
        self.closing = None

    def closed(self, path: str, status: str) -> None:
        ref = Ref(path, "forward", 1)
        if status == "canceled":
            self.end(ref, "canceled", 0, "")
        elif status in ("skipped", "failed_upstream", "marked"):
            self.begin(ref)
            self.end(ref, "skipped", self.at, "")

    def begin(self, ref: Ref, *, awaits_person: bool = False) -> None:
        self.open[ref] = _Open(self.at, self.run, self.generations.get(ref.path, 1), awaits_person)

    def end(
        self,
        ref: Ref,
        status: StepStatus,
        started_at: int,
        worker: str,
        failure: e.Failure | None = None,
        retry_at: int | None = None,
        result: Raw | None = None,
        trace: str = "",
        look_up_at: int | None = None,
        answer: e.ProbeAnswer | None = None,
    ) -> None:
        open = self.open.pop(ref, None)
        if open is None and not started_at:
            return  # never opened, or its row already exists, because one event closed both
        row = self.row(ref, status, open, started_at, self.at, worker, failure, retry_at, result, trace)
        self.rows.append({**row, "look_up_at": time_text(look_up_at), "answer": answer})

    def row(
        self,
        ref: Ref,
        status: StepStatus,
        open: _Open | None,
        started_at: int,
        finished_at: int | None,
        worker: str = "",
        failure: e.Failure | None = None,
        retry_at: int | None = None,
        result: Raw | None = None,
        trace: str = "",
    ) -> AttemptRow:
        state = self.state
        generation = open.generation if open is not None else self.generations.get(ref.path, 1)
        started = started_at or (open.started_at if open is not None else 0)
        return {
            "step_execution_id": f"{state.id}/{ref.path}/{ref.phase}/{ref.number}",
            "execution_id": state.id,
            "step_id": self.name(ref.path),
            "path": ref.path,
            "kind": KINDS[ref.phase],
            "status": status,
            "attempt_number": ref.number,
            "generation": generation,
            "run": open.run if open is not None else self.run,
            "started_at": time_text(started or None),
            "finished_at": time_text(finished_at),
            "worker": worker or (open.worker if open is not None else ""),
            "error_class": failure.error_class if failure is not None else None,
            "error_code": failure.code if failure is not None else None,
            "error_summary": failure.summary if failure is not None else None,
            "retry_after_at": time_text(retry_at),
            "idempotency_key": idempotency_key(state.tenant, state.id, ref.path, ref.phase, generation),
            "result": decoded(result),
            "logs_ref": None,
            "error_trace": trace or None,
            "look_up_at": None,
            "answer": None,
            "override": None,
        }

    def name(self, path: str) -> str:
        """Returns the name of a step or clone, with the label that the clone had at the time."""
        clone = fan_of(path)
        return step_id(path) if clone is None else clone_name(*clone, self.labels.get(clone[0], ()))

    def finish(self) -> list[AttemptRow]:
        self.settle()
        still_open = [self.still_open(ref, open) for ref, open in self.open.items()]
        return [*self.rows, *still_open]

    def still_open(self, ref: Ref, open: _Open) -> AttemptRow:
        if open.awaits_person:
            return self.row(ref, "awaiting_approval", open, 0, None)
        if ref in self.activity.waiting:
            return self.row(ref, "pending", open._replace(started_at=0), 0, None)
        return self.row(ref, "running", open, 0, None)


def _is_decision(spec: object) -> bool:
    return isinstance(spec, Step) and spec.type == "decision"


def _ref(
    event: e.AttemptSucceeded
    | e.AttemptFailed
    | e.AttemptTimedOut
    | e.ProbeAnswered
    | e.DispatchFailed
    | e.AttemptBegun
    | e.AttemptDispatched,
) -> Ref:
    return Ref(event.path, event.phase, event.number)


def _failed(verdict: str) -> StepStatus:
    return "retrying" if verdict in ("retry", "probe") else "failed"


_OVERRIDDEN = (e.AttemptSucceeded, e.AttemptFailed, e.AttemptTimedOut, e.ProbeAnswered)


def _override(override: StepOverride) -> JSON:
    policy: dict[str, JSON] | None = None
    if override.retry_policy is not None:
        policy = msgspec.to_builtins(override.retry_policy)
        del policy["timeout_ms"]  # that of an attempt stands beside it
    limits: JSON = None if override.limits is None else list(override.limits)
    given: dict[str, JSON] = {"timeout_ms": override.timeout_ms, "retry_policy": policy, "limits": limits}
    return {name: value for name, value in given.items() if value is not None}

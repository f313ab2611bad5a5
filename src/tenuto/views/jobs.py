"""Jobs: executions of protocols, in the words of the command gateway, and their rows in the ledger. Pure.

A protocol is compiled to a definition whose steps are directives: callback steps on the queue of the bus. Two tables
map the kernel's states to those of jobs and steps.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, TypedDict

import msgspec
from msgspec import Raw, Struct

from tenuto.kernel import events as e
from tenuto.kernel import facts as f
from tenuto.kernel.address import Ref, lease_id
from tenuto.kernel.effects import DispatchAttempt
from tenuto.kernel.evolve import find_step
from tenuto.kernel.plan import Node
from tenuto.kernel.state import TERMINAL, Execution, ExecutionStatus, StepState, StepStatus
from tenuto.values.lanes import Mode, lane_of, routing_key

from .shapes import rfc3339, time_text

PROTOCOL_PREFIX: Final = "protocol."
BUS_QUEUE: Final = "tenuto.bus"
DIRECTIVE: Final = "tenuto.directive"
CALLBACK: Final = "callback:"  # before the id of a callback, as the cause of an entry

JobStatus = Literal["QUEUED", "IN_PROGRESS", "CANCELLING", "SUCCEEDED", "FAILED_FINAL", "CANCELLED"]
JobStepStatus = Literal["PENDING", "INITIATED", "PROCESSING", "SUCCEEDED", "FAILED_FINAL", "CANCELLED"]
JobAttemptStatus = Literal["INITIATED", "PROCESSING", "SUCCEEDED", "FAILED", "TIMED_OUT", "UNPUBLISHED", "WITHDRAWN"]
Verdict = Literal["applied", "duplicate", "stale_attempt", "stale_lease", "terminal", "unknown", "rejected"]

# While a job is live, its status depends on more than the execution's: see `job_status`.
JOB_STATUSES: Final[dict[ExecutionStatus, tuple[JobStatus, ...]]] = {
    "running": ("QUEUED", "IN_PROGRESS", "CANCELLING"),
    "paused": ("QUEUED", "IN_PROGRESS", "CANCELLING"),
    "waiting_approval": ("IN_PROGRESS", "CANCELLING"),
    "succeeded": ("SUCCEEDED",),
    "failed": ("FAILED_FINAL",),
    "canceled": ("CANCELLED",),
}
# A running step is INITIATED until its directive is acknowledged. A pending step of a job that ended is CANCELLED.
JOB_STEP_STATUSES: Final[dict[StepStatus, tuple[JobStepStatus, ...]]] = {
    "pending": ("PENDING", "CANCELLED"),
    "running": ("INITIATED", "PROCESSING"),
    "retrying": ("INITIATED",),
    "awaiting_approval": ("PROCESSING",),
    "succeeded": ("SUCCEEDED",),
    "failed": ("FAILED_FINAL",),
    "timed_out": ("FAILED_FINAL",),
    "skipped": ("CANCELLED",),
    "canceled": ("CANCELLED",),
}


def execution_statuses(status: JobStatus) -> tuple[ExecutionStatus, ...]:
    """Returns the statuses that the execution of a job with this status can have."""
    return tuple(known for known, shown in JOB_STATUSES.items() if status in shown)


def step_statuses(status: JobStepStatus) -> tuple[StepStatus, ...]:
    """Returns the kernel's statuses of a step that is shown with this status."""
    return tuple(known for known, shown in JOB_STEP_STATUSES.items() if status in shown)


class LedgerRow(Struct, frozen=True, kw_only=True):
    """A job, or the current state of one of its steps. `key` is `JOB` or `STEP:` and the step's id."""

    execution: str
    key: str
    tenant: str
    status: str
    protocol: str
    seq: int
    body: bytes
    created_at: int | None = None  # set by the row that creates it
    notify_at: int | None = None  # set by the row that ends a job whose end is to be announced


class LedgerAttempt(Struct, frozen=True, kw_only=True):
    """What is known of one attempt. A later row adds to an earlier one; fields that are None change nothing."""

    execution: str
    step: str
    attempt: int
    tenant: str
    seq: int
    status: str
    lease_id: str
    lane: int
    routing_key: str
    workspace_ref: str | None = None
    created_at: int | None = None
    dispatched_at: int | None = None
    acked_at: int | None = None
    ended_at: int | None = None
    error_class: str | None = None
    error_code: str | None = None


class CallbackRow(Struct, frozen=True, kw_only=True):
    """One callback that was received, and the verdict on it."""

    id: str
    execution: str
    tenant: str
    step: str
    kind: str
    attempt: int
    lease_id: str
    status: str
    error_class: str
    error_code: str
    verdict: str
    actor: str
    received_at: int


class JobInput(Struct):
    """The parts of a job's envelope that decide where its directives go, and what is shown of it."""

    request_type: str = ""
    mode: Mode = "DEFAULT"
    doc_id: str | None = None
    input_ref: str = ""
    output_ref: str = ""
    callback_urls: dict[str, str] | None = None


_INPUT = msgspec.json.Decoder(JobInput)


def is_job(state: Execution) -> bool:
    return state.plan.has_queues and state.plan.definition.name.startswith(PROTOCOL_PREFIX)


def protocol_id(definition: str) -> str:
    return definition.removeprefix(PROTOCOL_PREFIX)


def read_input(input: Raw) -> JobInput:
    """Reads an envelope. One that was not checked by the gateway may be anything, and has its defaults."""
    try:
        return _INPUT.decode(input)
    except msgspec.ValidationError:
        return JobInput()


def route(state: Execution) -> tuple[int, str]:
    """Returns the lane and the routing key of a job's directives."""
    given = read_input(state.input)
    key = routing_key(state.tenant, given.mode, given.doc_id)
    return lane_of(key), key


# -- States ------------------------------------------------------------------------------------------------------------


def job_status(state: Execution) -> JobStatus:
    if state.finished is not None:
        return JOB_STATUSES[state.finished][0]
    if state.cancel is not None:
        return "CANCELLING"
    return "IN_PROGRESS" if state.run > 1 or any(map(_has_left, _steps(state))) else "QUEUED"


def _steps(state: Execution) -> Iterator[StepState]:
    return (node for node in state.nodes.values() if isinstance(node, StepState))


def _has_left(step: StepState) -> bool:
    """Whether a directive of this step was published."""
    open = step.open
    sent = open is not None and bool(open.dispatched_at or open.acked)
    return sent or step.tries > 0 or step.status not in ("pending", "running", "retrying")


def job_step_status(state: Execution, step: StepState | None) -> JobStepStatus:
    if step is None or step.status == "pending":
        return JOB_STEP_STATUSES["pending"][state.status in TERMINAL]
    if step.status == "running":
        return JOB_STEP_STATUSES["running"][step.open is not None and step.open.acked]
    return JOB_STEP_STATUSES[step.status][0]


# -- Rows --------------------------------------------------------------------------------------------------------------


def ledger_rows(state: Execution, entries: Sequence[e.Entry]) -> list[LedgerRow]:
    """Returns the job's row, and those of the steps that these entries may have changed."""
    if not entries:
        return []
    lane, key = route(state)
    nodes = _directives(state)
    changed = _changed(nodes, entries)
    first = entries[0]
    created_at = first.at if isinstance(first.event, e.ExecutionStarted) else None
    body = _job_body(state, nodes, lane, key)
    ends = any(isinstance(entry.event, e.ExecutionFinished) for entry in entries)
    job = _row(state, "JOB", job_status(state), body, created_at)
    rows = [msgspec.structs.replace(job, notify_at=state.at) if ends and body["completed_url"] else job]
    for position, node in enumerate(nodes):
        if node.id in changed:
            status = job_step_status(state, find_step(state, node.id))
            body = _step_body(state, node, position, status, lane, key)
            rows.append(_row(state, f"STEP:{node.id}", status, body, created_at))
    return rows


def _directives(state: Execution) -> tuple[Node, ...]:
    return state.plan.root.children


def _changed(nodes: Sequence[Node], entries: Sequence[e.Entry]) -> set[str]:
    everything = {node.id for node in nodes}
    changed: set[str] = set()
    for entry in entries:
        event = entry.event
        changed.update(grant.path for grant in entry.grants)
        match event:
            case e.ExecutionStarted() | e.ExecutionFinished() | e.RunOpened() | e.NodesClosed():
                return everything
            case e.ReviewOpened() | e.ReviewResolved() | e.AttemptLost() | e.AttemptsReturned() | e.AttemptAbandoned():
                return everything
            case _:
                changed.add(getattr(event, "path", ""))
    return changed & everything


def _row(state: Execution, key: str, status: str, body: dict[str, Any], created_at: int | None) -> LedgerRow:
    return LedgerRow(
        execution=state.id,
        key=key,
        tenant=state.tenant,
        status=status,
        protocol=protocol_id(state.plan.definition.name),
        seq=state.seq,
        body=msgspec.json.encode(body),
        created_at=created_at,
    )


def _job_body(state: Execution, nodes: Sequence[Node], lane: int, key: str) -> dict[str, Any]:
    given = read_input(state.input)
    failure = state.failure
    return {
        "job_id": state.id,
        "tenant_id": state.tenant,
        "protocol_id": protocol_id(state.plan.definition.name),
        "protocol_version": state.plan.definition.version,
        "request_type": given.request_type,
        "status": job_status(state),
        "current_step_id": _current(state, nodes),
        "run": state.run,
        "updated_at": state.at,
        "ended_at": state.at if state.finished is not None else None,
        "correlation_id": state.correlation_id,
        "mode": given.mode,
        "doc_id": given.doc_id,
        "input_ref": given.input_ref,
        "output_ref": given.output_ref,
        "lane": lane,
        "routing_key_used": key,
        "completed_url": (given.callback_urls or {}).get("completed"),
        "blocked": _blocked(state),
        "error": None
        if failure is None or state.finished != "failed"
        else {"class": failure.error_class, "code": failure.code, "step_id": failure.path or None},
    }


def _current(state: Execution, nodes: Sequence[Node]) -> str | None:
    """Returns the first step that has begun and not ended; of a job that ended, the last one that began."""
    begun = [step for node in nodes if (step := find_step(state, node.id)) is not None and step.number > 0]
    live = [step for step in begun if step.status in _LIVE]
    if live or begun:
        return (live[0] if live else begun[-1]).node.id
    return nodes[0].id if nodes else None


_LIVE: Final[tuple[StepStatus, ...]] = ("running", "retrying", "awaiting_approval")


def _blocked(state: Execution) -> dict[str, str | None] | None:
    """Returns what the job waits for, in the words of `blocked.reason`."""
    if state.finished is not None:
        return None
    if state.pause is not None:
        return {"reason": "paused", "waiting_for": state.pause.reason or None}
    for key, effect in state.agenda.items():
        if isinstance(effect, DispatchAttempt) and isinstance(key, Ref):
            step = find_step(state, key.path)
            assert step is not None
            assert step.open is not None
            sent = step.open.dispatched_at or step.open.acked
            return {"reason": "callback" if sent else "bus", "waiting_for": step.node.id}
    for review in state.reviews.values():
        if review.kind != "dead_letter":
            return {"reason": "review", "waiting_for": review.path or None}
    for kind, path in state.timers:
        if kind == "retry":
            return {"reason": "retry", "waiting_for": path}
    return None


def _step_body(
    state: Execution, node: Node, position: int, status: JobStepStatus, lane: int, key: str
) -> dict[str, Any]:
    step = find_step(state, node.id)
    number = 0 if step is None else step.number
    given: Any = node.step.with_
    failure = None if step is None or status == "SUCCEEDED" else step.failure
    return {
        "job_id": state.id,
        "step_id": node.id,
        "step_type": given["step_type"],
        "service": given["service"],
        "position": position,
        "status": status,
        "attempt_no": number,
        "lease_id": lease_id(state.id, Ref(node.id, "forward", number)) if number else None,
        "lane": lane,
        "routing_key_used": key,
        "workspace_ref": ((step.workspace if step is not None else "") or (state.workspace if number else "")) or None,
        "error": None if failure is None else {"class": failure.error_class, "code": failure.code},
    }


def ledger_attempts(state: Execution, entries: Sequence[e.Entry]) -> list[LedgerAttempt]:
    """Returns what these entries say about attempts: one row per attempt."""
    lane, key = route(state)
    found: dict[tuple[str, int], dict[str, Any]] = {}

    def note(path: str, number: int, **fields: Any) -> None:
        found.setdefault((path, number), {}).update(fields)

    for entry in entries:
        event, at = entry.event, entry.at
        match event:
            case e.AttemptDispatched(phase="forward"):
                note(event.path, event.number, status="INITIATED", dispatched_at=at)
            case e.AttemptAcked(phase="forward"):
                workspace = event.workspace or None
                note(event.path, event.number, status="PROCESSING", acked_at=at, workspace_ref=workspace)
            case e.AttemptSucceeded(phase="forward"):
                note(event.path, event.number, status="SUCCEEDED", ended_at=at)
                if event.workspace:
                    note(event.path, event.number, workspace_ref=event.workspace)
            case (
                e.AttemptFailed(phase="forward")
                | e.AttemptTimedOut(phase="forward")
                | e.DispatchFailed(phase="forward")
            ):
                ended = _FAILED[type(event)]
                error = {"error_class": event.failure.error_class, "error_code": event.failure.code}
                note(event.path, event.number, status=ended, ended_at=at, **error)
            case e.AttemptAbandoned() | e.AttemptsReturned():
                for ref in event.refs:
                    if ref.phase == "forward":
                        note(ref.path, ref.number, status="WITHDRAWN", ended_at=at)
            case _:
                pass
        for grant in entry.grants:
            if grant.phase == "forward":
                note(grant.path, grant.number, status="INITIATED", created_at=at)
    return [
        LedgerAttempt(
            execution=state.id,
            step=path,
            attempt=number,
            tenant=state.tenant,
            seq=state.seq,
            lease_id=lease_id(state.id, Ref(path, "forward", number)),
            lane=lane,
            routing_key=key,
            **fields,
        )
        for (path, number), fields in found.items()
    ]


_FAILED: Final[dict[type, JobAttemptStatus]] = {
    e.AttemptFailed: "FAILED",
    e.AttemptTimedOut: "TIMED_OUT",
    e.DispatchFailed: "UNPUBLISHED",
}


def callback_row(state: Execution, fact: f.Fact, answer: f.Answer) -> CallbackRow | None:
    """Returns the row of a callback for its log; None if the fact is none."""
    if not isinstance(fact, f.Acked | f.Reported) or fact.cause is None or fact.lease is None:
        return None
    step = find_step(state, fact.ref.path)
    if fact.ref.phase != "forward" or (step is not None and step.node.step.completion != "callback"):
        return None
    status, failed = "", None
    if isinstance(fact, f.Reported):
        status = "SUCCEEDED" if isinstance(fact.outcome, f.Succeeded) else "FAILED"
        failed = fact.outcome if isinstance(fact.outcome, f.Failed) else None
    return CallbackRow(
        id=fact.cause.removeprefix(CALLBACK),
        execution=state.id,
        tenant=state.tenant,
        step=fact.ref.path,
        kind="ack" if isinstance(fact, f.Acked) else "result",
        attempt=fact.ref.number,
        lease_id=fact.lease,
        status=status,
        error_class="" if failed is None else failed.error_class,
        error_code="" if failed is None else failed.code,
        verdict=verdict_of(answer),
        actor=fact.actor or "",
        received_at=fact.at,
    )


def verdict_of(answer: f.Answer) -> Verdict:
    match answer:
        case f.Ignored():
            return answer.why
        case f.Refused():
            return "rejected"
        case _:
            return "applied"


# -- Documents ---------------------------------------------------------------------------------------------------------


class JobBlocked(TypedDict):
    reason: str
    waiting_for: str | None


class JobStepDocument(TypedDict):
    """The current state of a step."""

    job_id: str
    step_id: str
    step_type: str
    service: str
    status: JobStepStatus
    attempt_no: int
    lease_id: str | None
    lane: int
    routing_key_used: str
    workspace_ref: str | None
    error: dict[str, Any] | None


class JobSummary(TypedDict):
    """A job in a list."""

    job_id: str
    tenant_id: str
    protocol_id: str
    protocol_version: int
    request_type: str
    status: JobStatus
    current_step_id: str | None
    created_at: str | None
    updated_at: str | None
    ended_at: str | None
    correlation_id: str
    mode: str
    doc_id: str | None
    input_ref: str
    output_ref: str
    lane: int
    routing_key_used: str
    blocked: JobBlocked | None
    error: dict[str, Any] | None


class JobDocument(JobSummary):
    """A job with its steps."""

    steps: list[JobStepDocument]


class JobAttemptDocument(TypedDict):
    """One attempt of a step."""

    job_id: str
    step_id: str
    attempt_no: int
    lease_id: str
    status: JobAttemptStatus
    lane: int
    routing_key_used: str
    workspace_ref: str | None
    created_at: str | None
    published_at: str | None
    acked_at: str | None
    ended_at: str | None
    error: dict[str, Any] | None


class CallbackDocument(TypedDict):
    """One callback, and the verdict on it."""

    id: str
    job_id: str
    step_id: str
    kind: Literal["ack", "result"]
    attempt_no: int
    lease_id: str
    status: str
    error: dict[str, Any] | None
    verdict: Verdict
    actor: str
    received_at: str


def job_summary(row: LedgerRow) -> JobSummary:
    body: dict[str, Any] = msgspec.json.decode(row.body)
    fields = [name for name in JobSummary.__annotations__ if name not in ("created_at", "updated_at", "ended_at")]
    shown: Any = {name: body.get(name) for name in fields}
    shown["created_at"] = time_text(row.created_at)
    shown["updated_at"] = time_text(body.get("updated_at"))
    shown["ended_at"] = time_text(body.get("ended_at"))
    found: JobSummary = shown
    return found


def job_document(row: LedgerRow, steps: Sequence[LedgerRow]) -> JobDocument:
    bodies: list[dict[str, Any]] = sorted((msgspec.json.decode(step.body) for step in steps), key=_position)
    shown: Any = [{name: body.get(name) for name in JobStepDocument.__annotations__} for body in bodies]
    return {**job_summary(row), "steps": shown}


def _position(body: dict[str, Any]) -> int:
    position: int = body["position"]
    return position


def attempt_document(row: LedgerAttempt) -> JobAttemptDocument:
    status: Any = row.status
    return {
        "job_id": row.execution,
        "step_id": row.step,
        "attempt_no": row.attempt,
        "lease_id": row.lease_id,
        "status": status,
        "lane": row.lane,
        "routing_key_used": row.routing_key,
        "workspace_ref": row.workspace_ref,
        "created_at": time_text(row.created_at),
        "published_at": time_text(row.dispatched_at),
        "acked_at": time_text(row.acked_at),
        "ended_at": time_text(row.ended_at),
        "error": None if row.error_class is None else {"class": row.error_class, "code": row.error_code},
    }


def callback_document(row: CallbackRow) -> CallbackDocument:
    kind: Any = row.kind
    verdict: Any = row.verdict
    return {
        "id": row.id,
        "job_id": row.execution,
        "step_id": row.step,
        "kind": kind,
        "attempt_no": row.attempt,
        "lease_id": row.lease_id,
        "status": row.status,
        "error": {"class": row.error_class, "code": row.error_code} if row.error_class else None,
        "verdict": verdict,
        "actor": row.actor,
        "received_at": rfc3339(row.received_at),
    }

"""The shapes of documents and rows, in the vocabulary of the HTTP API."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Literal, NamedTuple, NotRequired, TypedDict

import msgspec
from msgspec import Raw

from tenuto.kernel import events as e
from tenuto.kernel.address import Phase, Ref
from tenuto.kernel.definition import JSON
from tenuto.kernel.naming import shown_step
from tenuto.kernel.state import Execution, ExecutionStatus, StepStatus

BlockedReason = Literal[
    "approval",
    "review",
    "compensation_required",
    "signal",
    "timer",
    "retry",
    "callback",
    "concurrency_key",
    "limit",
    "tenant_limit",
    "slot",
    "paused",
    "no_worker",
    "bus",
    "incompatible",
    "worker_lost",
    "reconcile",
]
AttemptKind = Literal["forward", "compensation", "guard", "reconcile", "plan"]
KINDS: dict[Phase, AttemptKind] = {
    "forward": "forward",
    "compensate": "compensation",
    "guard": "guard",
    "reconcile": "reconcile",
    "plan": "plan",
}


class Waiting(NamedTuple):
    """Why a granted attempt does not run: no slot, a limit, no handler, no bus, or an undecodable value."""

    reason: Literal["slot", "limit", "no_worker", "bus", "incompatible"]
    what: str = ""


@dataclass(frozen=True, slots=True)
class Activity:
    """What a runtime does for an execution: its running attempts, why others wait, and the progress of steps.

    If `set_aside` is true, no worker drives the execution, because its history cannot be written or read.
    """

    running: Collection[Ref] = ()
    waiting: Mapping[Ref, Waiting] = field(default_factory=dict)
    progress: Mapping[str, Raw] = field(default_factory=dict)
    set_aside: str = ""


NOTHING_UNDER_WAY = Activity()


class Blocked(TypedDict):
    reason: BlockedReason
    review_id: str | None
    since: str | None
    waiting_for: str | None
    next_check: str | None
    commands: list[str]


class ErrorDocument(TypedDict):
    error_class: str
    code: str
    summary: str
    step_id: str


class CloneCounts(TypedDict):
    total: int
    pending: int
    running: int
    succeeded: int
    failed: int
    skipped: int


class StepDocument(TypedDict):
    step_id: str
    path: str
    type: str
    status: StepStatus
    attempts: int
    error: ErrorDocument | None
    retry_at: str | None
    review_id: str | None
    compensation: str
    progress: JSON
    clones: CloneCounts | None


class CloneDocument(TypedDict):
    """One clone of a fan-out."""

    step_id: str
    path: str
    index: int
    status: StepStatus
    attempts: int
    error: ErrorDocument | None
    retry_at: str | None
    compensated: bool


class ExecutionDocument(TypedDict):
    execution_id: str
    definition_id: str
    definition_version: int
    status: ExecutionStatus
    phase: Literal["forward", "compensation", "finished"]
    tenant_id: str
    target_object_type: str | None
    target_object_id: str | None
    input: JSON
    output: JSON
    outcome: str
    error: ErrorDocument | None
    started_at: str
    completed_at: str | None
    cancelled_at: str | None
    duration_ms: int | None
    correlation_id: str
    idempotency_key: str | None
    attempt_count: int
    cancel_requested: bool
    pause_reason: str | None
    blocked: Blocked | None
    steps: list[StepDocument]


class ExecutionSummary(TypedDict):
    """An execution in a list. `blocked` is present only on request, because it requires reading each execution."""

    execution_id: str
    definition_id: str
    definition_version: int
    status: ExecutionStatus
    tenant_id: str
    target_object_type: str | None
    target_object_id: str | None
    correlation_id: str
    started_at: str
    completed_at: str | None
    error_class: str | None
    blocked: NotRequired[Blocked | None]


class WorkerRow(TypedDict):
    """A process that runs steps. If its heartbeat does not arrive by `expires_at`, other workers take over."""

    id: str
    worker: str
    build: str
    queues: list[str]
    started_at: str
    expires_at: str | None
    executions: int


class IdentityDocument(TypedDict):
    """Who is calling, and what the roles permit. `csrf_token` and `expires_at` are those of a sign-in session.

    The method is `none` for an engine in the caller's own process.
    """

    actor: str | None
    tenant: str | None
    roles: list[str]
    permissions: list[str]
    version: str
    csrf_token: str | None
    expires_at: str | None
    method: Literal["key", "token", "session", "none"]


class SessionDocument(TypedDict):
    """A sign-in session of the console. It ends at `expires_at` if it is not used again. `current`: of this request."""

    id: str
    actor: str
    roles: list[str]
    created_at: str
    last_used_at: str
    expires_at: str
    current: bool


class LimitRow(TypedDict):
    """A limit that steps name. `running` and `waiting` are as of the workers' last requests."""

    name: str
    rate: str | None
    concurrency: int | None
    running: int
    waiting: int


class TenantLimitRow(TypedDict):
    """A tenant's in-flight limit and its executions in flight."""

    tenant: str
    max_in_flight: int
    in_flight: int


class AttemptRow(TypedDict):
    step_execution_id: str
    execution_id: str
    step_id: str
    path: str
    kind: AttemptKind
    status: StepStatus
    attempt_number: int
    generation: int
    run: int
    started_at: str | None
    finished_at: str | None
    worker: str
    error_class: str | None
    error_code: str | None
    error_summary: str | None
    retry_after_at: str | None
    idempotency_key: str
    result: JSON
    logs_ref: str | None
    error_trace: str | None
    # Of a failed or lost attempt: when its outcome is looked up, before another attempt. Of a look-up: what it found.
    look_up_at: str | None
    answer: e.ProbeAnswer | None
    override: JSON  # what the settings of the deployment changed of the step


class RequestRow(TypedDict):
    """A request that waits for confirmation by a second person (`four_eyes`)."""

    kind: Literal["again", "unsafe_retry"]
    actor: str
    at: str
    reason: str


class ReviewRow(TypedDict):
    id: str
    kind: e.ReviewKind
    execution_id: str
    step_id: str
    path: str
    reason: str
    permission: str
    opened_at: str
    due_at: str | None
    state: Literal["open", "resolved"]
    requests: list[RequestRow]


class DeadLetterRow(TypedDict):
    id: str
    execution_id: str
    step_id: str
    path: str
    error_class: str
    error_summary: str
    attempts: int
    created_at: str
    state: Literal["open", "resolved"]
    requests: list[RequestRow]
    error_trace: NotRequired[str | None]  # of a single dead letter


class AuditDocument(TypedDict):
    """An audit row."""

    action: str
    actor: str
    at: str
    tenant: str
    object_type: str
    object_id: str
    reason: str
    hash: str


class AuditRecord(AuditDocument):
    """An audit row with its place in the hash chain. These fields are sufficient to verify it."""

    n: int


def rfc3339(ms: int) -> str:
    return f"{_second(ms // 1_000)}.{ms % 1_000:03d}Z"


@lru_cache(maxsize=256)  # events that are shown together often have the same time
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds").removesuffix("+00:00")


def time_text(ms: int | None) -> str | None:
    return None if ms is None else rfc3339(ms)


def error_document(state: Execution, failure: e.Failure | None) -> ErrorDocument | None:
    if failure is None:
        return None
    return {
        "error_class": failure.error_class,
        "code": failure.code,
        "summary": failure.summary,
        "step_id": shown_step(state, failure.path) if failure.path else "",
    }


def decoded(payload: Raw | None) -> JSON:
    value: JSON = None if payload is None else msgspec.json.decode(payload)
    return value

"""Definitions: a tree of steps and scopes with their policies, versioned and hashed.

Decorators, builder and JSON documents all produce a `Definition`. Field names in JSON are those of the document format.
`canonical` writes every default, so that a definition has exactly one text and one content hash.
"""

import hashlib
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeGuard, get_args

import msgspec
from msgspec import UNSET, Struct, UnsetType, field
from msgspec.structs import force_setattr

if TYPE_CHECKING:
    JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"
    Node: TypeAlias = "Step | Scope"
else:  # msgspec can express neither a recursive alias nor a union told apart by six tags: `from_document` does
    from typing import Any as JSON
    from typing import Any as Node

ErrorClass = Literal[
    "TRANSIENT",
    "RETRYABLE",
    "NON_RETRYABLE",
    "RATE_LIMITED",
    "DEPENDENCY_FAILED",
    "COMPENSATION_REQUIRED",
    "INDETERMINATE",
]
ERROR_CLASSES: tuple[ErrorClass, ...] = get_args(ErrorClass)
RETRIED_BY_DEFAULT: tuple[ErrorClass, ...] = ("TRANSIENT", "RETRYABLE", "RATE_LIMITED", "DEPENDENCY_FAILED")

StepType = Literal["task", "decision", "wait", "external_call", "notify", "human_approval"]
Safety = Literal["SAFE_TO_RETRY", "SAFE_TO_RETRY_WITH_GUARD", "NOT_SAFE_TO_RETRY"]
Mode = Literal["sequence", "parallel", "dag", "flow"]
Scheduling = Literal["layered", "eager"]
FailureMode = Literal["fail_fast", "continue", "retry"]
CancelMode = Literal["drain", "terminate", "compensate"]
CompensationOrder = Literal[
    "STRICT_SEQUENTIAL", "GROUPED_PARALLEL", "RETRY_WITH_BACKOFF", "CIRCUIT_BREAKER", "BEST_EFFORT_PARALLEL"
]
Backoff = Literal["fixed", "exponential"]
Priority = Literal["high", "normal"]

SUCCEED = "$succeed"
FAIL = "$fail"

SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

FAN_OUT_LIMIT = 100_000
PAYLOAD_LIMIT = 256 * 1024  # bytes of JSON of one value
GATHERED_LIMIT = 16 * PAYLOAD_LIMIT  # of a value that is made of many: items of a fan-out, an output
FAN_OUT_CONCURRENCY = 1_000
MAX_VISITS = 100
MAX_HISTORY_EVENTS = 1_000_000
MAX_HISTORY_BYTES = 256 * 1024 * 1024  # of payloads and texts
MAX_EARLY_SIGNALS = 1_000
MAX_EARLY_SIGNAL_BYTES = 1024 * 1024


class RetryPolicy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How failed attempts are repeated. Omitted delays are those of the error class (`retry.MATRIX`)."""

    max_attempts: int = 3
    backoff_strategy: Backoff = "exponential"
    initial_delay_ms: int | None = None
    max_delay_ms: int | None = None
    jitter: float = 0.1
    timeout_ms: int = 30 * SECOND
    retry_on_classes: tuple[ErrorClass, ...] = RETRIED_BY_DEFAULT

    def __post_init__(self) -> None:
        force_setattr(self, "jitter", float(self.jitter))  # 0 and 0.0 are one text


class Branch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    when: str
    next: str


class Step(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A leaf of the tree. One struct for all six types; `validate` rejects fields that a type does not have."""

    id: str = field(name="step_id")
    name: str = ""
    type: StepType = "task"
    handler: str | None = None
    with_: JSON = field(name="with", default=None)
    depends_on: tuple[str, ...] = ()
    when: str | None = None
    foreach: str | None = None
    suffix: str | None = None
    max_concurrency: int = 0
    failure_mode: Literal["fail_fast", "continue"] = "fail_fast"
    timeout_ms: int | None = None
    retry_policy: RetryPolicy = RetryPolicy()
    safety: Safety = field(name="idempotency_strategy", default="SAFE_TO_RETRY")
    guard_handler: str | None = None
    reconcile_handler: str | None = None
    reconcile_timeout_ms: int = 15 * MINUTE
    compensation_handler: str | None = None
    compensation_with: JSON = None
    compensation_policy: Literal["auto", "manual"] = "auto"
    compensation_max_attempts: int | None = None
    compensation_backoff_ms: int | None = None
    compensation_timeout_ms: int | None = None
    compensation_critical: bool = False
    partial_effect: bool = False
    reusable: bool = False
    on_success: str | None = None
    on_failure: str | None = None
    on_timeout: str | None = None
    branches: tuple[Branch, ...] = ()
    default: str | None = None
    max_visits: int = MAX_VISITS
    completion: Literal["handler", "callback"] = "handler"
    ack_timeout_ms: int | None = None
    result_timeout_ms: int | None = None
    permission: str | None = None
    output_schema: JSON = None
    queue: str | None = None
    limits: tuple[str, ...] = ()
    classify: dict[str, ErrorClass] = {}
    idempotency_key: str | None = None
    set_variable: str | None = None
    estimate: int = 0


class Scope(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An inner node: the order of its children, how many run at once, and the effect of a failed child."""

    id: str = field(name="step_id")
    name: str = ""
    type: Literal["scope"] = "scope"
    mode: Mode = "sequence"
    scheduling: Scheduling = "eager"
    children: tuple[Node, ...] = ()
    depends_on: tuple[str, ...] = ()
    when: str | None = None
    max_concurrency: int = 0
    failure_mode: FailureMode = "fail_fast"
    max_rounds: int = 3
    fail_if_empty: bool = False
    timeout_ms: int | None = None
    repeat_until: str | None = None
    max_visits: int = MAX_VISITS
    on_success: str | None = None
    on_failure: str | None = None
    on_timeout: str | None = None
    queue: str | None = None
    planner: str | None = None
    max_children: int = 10
    max_replans: int = 2
    reusable: bool = False
    input: JSON | UnsetType = UNSET  # of an agent: what its steps take instead of the execution's input


class Escalation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pauses the execution and asks a person when errors accumulate. None switches a trigger off."""

    errors: int | None = 5
    window_ms: int = 5 * MINUTE
    error_rate: float | None = 0.5
    min_sample: int = 10
    on_spent: bool | UnsetType = UNSET
    severity: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.error_rate is not None:
            force_setattr(self, "error_rate", float(self.error_rate))


class RunPolicies(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The policies that only runs have. A definition with them is a run: its first child holds the agents."""

    max_attempts: int = 3
    resume_timeout_ms: int = 5 * MINUTE
    retry_timeout_ms: int = DAY
    heartbeat_timeout_ms: int = MINUTE
    planner_retry: RetryPolicy = RetryPolicy()
    planner_estimate: int = 0


class Policies(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    timeout_ms: int | None = None
    pending_timeout_ms: int | None = None
    pause_limit_ms: int | None = 7 * DAY
    compensation: CompensationOrder = "STRICT_SEQUENTIAL"
    cancel: CancelMode = "drain"
    max_concurrency: int = 0
    failure_mode: FailureMode = "fail_fast"
    max_rounds: int = 3
    retry_budget: int = 20
    fail_if_empty: bool = False
    concurrency_key: str | None = None
    on_conflict: Literal["queue", "reject"] = "queue"
    planner: str | None = None
    max_children: int = 10
    max_replans: int = 2
    escalation: Escalation | None = None
    classify: dict[str, ErrorClass] = {}
    run: RunPolicies | UnsetType = UNSET


class Definition(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    version: int = 1
    description: str = ""
    mode: Mode = "flow"
    scheduling: Scheduling = "eager"
    input_schema: JSON = None
    output_schema: JSON = None
    output: JSON = None
    policies: Policies = Policies()
    steps: tuple[Node, ...] = ()


def run_policies(definition: Definition) -> RunPolicies | None:
    """Returns the policies of a run; None if the definition is not a run."""
    run = definition.policies.run
    return run if isinstance(run, RunPolicies) else None


def root_scope(definition: Definition) -> Scope:
    """Returns the definition as the root scope."""
    policies = definition.policies
    return Scope(
        id="",
        mode=definition.mode,
        scheduling=definition.scheduling,
        children=definition.steps,
        max_concurrency=policies.max_concurrency,
        failure_mode=policies.failure_mode,
        max_rounds=policies.max_rounds,
        fail_if_empty=policies.fail_if_empty,
        timeout_ms=policies.timeout_ms,
        planner=policies.planner,
        max_children=policies.max_children,
        max_replans=policies.max_replans,
    )


def canonical(definition: Definition) -> bytes:
    """Returns the canonical text of a definition: every default written, keys sorted, no spaces."""
    return msgspec.json.encode(definition, order="sorted")


def content_hash(definition: Definition) -> str:
    return hashlib.sha256(canonical(definition)).hexdigest()


def to_document(definition: Definition) -> JSON:
    document: JSON = msgspec.json.decode(canonical(definition))
    return document


def differences(old: JSON, new: JSON) -> list[str]:
    """Returns the differences of two documents as pointers that name steps by id.

    If only the order differs, all steps.
    """
    return _differences(old, new, "") or ["/steps"]


def _differences(old: JSON, new: JSON, at: str) -> list[str]:
    before, after = _parts(old), _parts(new)
    if before is None or after is None:
        return [] if old == new else [at]
    names = {**before, **after}
    return [found for name in names for found in _differences(before.get(name), after.get(name), f"{at}/{name}")]


def _parts(document: JSON) -> dict[str, JSON] | None:
    if isinstance(document, list):
        return {str(part["step_id"] if _is_node(part) else index): part for index, part in enumerate(document)}
    return document if isinstance(document, dict) else None


def _is_node(document: JSON) -> TypeGuard[dict[str, JSON]]:
    return isinstance(document, dict) and "step_id" in document


def owned_name(tenant: str, name: str) -> str:
    """Returns the global name of a tenant's own definition. Two tenants may use the same name."""
    return f"{tenant}/{name}"


def names_in_filter(name: str, tenant: str | None) -> list[str]:
    """Returns the global names that a name in a filter means: the tenant's own definition, and the shared one.

    Users never see the global name of a tenant's own definition.
    """
    if tenant is None:
        return [name]
    return [owned_name(tenant, name), *([] if "/" in name else [name])]


def owner_of(name: str) -> str | None:
    """Returns the tenant that owns a definition; None if it is shared."""
    return name.rpartition("/")[0] or None


def plain_name(name: str) -> str:
    """Returns the name as its author wrote it."""
    return name.rpartition("/")[2]


def from_document(document: dict[str, JSON]) -> Definition:
    """Converts a document of valid shape; raises `msgspec.ValidationError` otherwise."""
    return msgspec.convert({**document, "steps": _nodes(document.get("steps"))}, Definition)


def node_from_document(document: JSON) -> Node:
    if isinstance(document, dict) and document.get("type") == "scope":
        return msgspec.convert({**document, "children": _nodes(document.get("children"))}, Scope)
    return msgspec.convert(document, Step)


def _nodes(documents: JSON) -> tuple[Node, ...]:
    return tuple(node_from_document(child) for child in documents) if isinstance(documents, list) else ()

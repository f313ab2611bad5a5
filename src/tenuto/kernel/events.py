"""What is recorded. Every decision is in an event; nothing is decided again when a history is read.

Law 1: an event says what was decided, so that `evolve` needs no rule to apply it.
Law 2: an event type is never changed in a way that makes an old history read differently. New fields come last and
       have defaults; what is no longer written stays readable.

Events hold texts, numbers and raw JSON, and are never part of a cycle, so the garbage collector need not look at them.

An `Entry` is an event in its place: its number and time, who and what caused it, and the attempts that it starts.
"""

from typing import Literal, TypeAlias

from msgspec import Raw, Struct

from .address import Phase, Ref
from .definition import CancelMode, ErrorClass
from .step_override import StepOverride

Verdict = Literal["retry", "probe", "skip", "fail", "review"]
ScopeOutcome = Literal["succeeded", "failed", "timed_out", "skipped", "canceled", "retry"]
ReviewKind = Literal["approval", "compensation", "compensation_failed", "indeterminate", "dead_letter", "escalation"]
Resolution = Literal["approved", "rejected", "completed", "not_completed", "retry", "compensate", "dismiss"]
ProbeAnswer = Literal["done", "not_done", "pending", "unknown"]

NULL = Raw(b"null")
"""No value. Payloads are raw JSON and never absent; without a value they are null."""


class Failure(Struct, frozen=True, array_like=True, gc=False):
    """Why something failed. The summary is already redacted and bounded."""

    error_class: ErrorClass
    code: str
    summary: str = ""
    path: str = ""


class Grant(Struct, frozen=True, array_like=True, gc=False):
    """An attempt, or the attempts of a range of clones, that may start once the entry is committed."""

    path: str
    phase: Phase = "forward"
    number: int = 1
    first: int = -1
    last: int = -1


class Recorded(Struct, frozen=True, array_like=True, tag=True, gc=False):
    """An event."""


# The execution ----------------------------------------------------------------------------------------------------


class ExecutionStarted(Recorded, frozen=True, array_like=True, tag="started"):
    execution: str
    tenant: str
    definition: str
    version: int
    plan_hash: str
    rules: int
    input: Raw
    by_step: bool = False
    each: dict[str, int] = {}
    headers: dict[str, str] = {}
    variables: dict[str, Raw] = {}
    correlation_id: str = ""  # its own id if none was given
    target: tuple[str, str] | None = None
    priority: Literal["high", "normal"] = "normal"
    deadline: int | None = None
    pending_until: int | None = None
    concurrency_key: str | None = None
    admitted: bool = True
    hold: int = 0
    max_attempts: int = 0  # of a run; 0: as its definition says


class ExecutionAdmitted(Recorded, frozen=True, array_like=True, tag="admitted"):
    key: str


class RunOpened(Recorded, frozen=True, array_like=True, tag="run"):
    """An audited retry: completed effects are kept, undone ones are made again."""

    run: int
    reason: str
    start: str | None = None
    visits: dict[str, int] = {}
    redo: tuple[tuple[str, int], ...] = ()
    deadline: int | None = None
    pending_until: int | None = None
    admitted: bool = True
    hold: int = 0
    from_step: str | None = None
    again: bool = False
    owned: bool = True
    not_before: int = 0  # of a run: when its attempt is queued
    retry_until: int | None = None


class ExecutionFinished(Recorded, frozen=True, array_like=True, tag="finished"):
    status: Literal["succeeded", "failed", "canceled"]
    outcome: str = ""
    output: Raw = NULL
    error: Failure | None = None
    charged: int = 0
    refunded: int = 0
    retry_hold: int = 0
    output_seq: int = 0  # the entry with the output, if it is the last step's result
    retries: bool = False  # another attempt of the run follows by itself


class Paused(Recorded, frozen=True, array_like=True, tag="paused"):
    reason: str
    limit_at: int | None


class Resumed(Recorded, frozen=True, array_like=True, tag="resumed"):
    shift: int
    resume_until: int | None = None  # of a run without an owner: until when a worker has to claim it


class CancelRequested(Recorded, frozen=True, array_like=True, tag="cancel"):
    mode: CancelMode
    reason: str


class HoldChanged(Recorded, frozen=True, array_like=True, tag="hold"):
    run: int
    delta: int
    refused: bool = False


# Attempts ---------------------------------------------------------------------------------------------------------


class AttemptsGranted(Recorded, frozen=True, array_like=True, tag="granted"):
    """Contains only grants: a timer was due, a slot was freed, an execution was resumed or taken over."""


class AttemptBegun(Recorded, frozen=True, array_like=True, tag="begun"):
    path: str
    phase: Phase
    number: int
    worker: str
    build: str = ""


class AttemptDispatched(Recorded, frozen=True, array_like=True, tag="dispatched"):
    path: str
    phase: Phase
    number: int
    lane: int = -1
    routing_key: str = ""
    ack_due: int | None = None
    result_due: int | None = None


class DispatchFailed(Recorded, frozen=True, array_like=True, tag="undispatched"):
    path: str
    phase: Phase
    number: int
    failure: Failure
    verdict: Verdict
    retry_at: int | None = None
    retry_after_ms: int | None = None
    trace: str = ""


class AttemptAcked(Recorded, frozen=True, array_like=True, tag="acked"):
    path: str
    phase: Phase
    number: int
    workspace: str = ""
    result_due: int | None = None


class AttemptSucceeded(Recorded, frozen=True, array_like=True, tag="ok"):
    path: str
    phase: Phase
    number: int
    started_at: int
    worker: str
    result: Raw = NULL
    charge: int = 0
    variable: str | None = None
    key: str | None = None
    build: str = ""
    workspace: str = ""
    usage: int = 0  # as reported, in millionths; `charge` is the part that the hold covered
    tokens: int = 0
    override: StepOverride | None = None


class AttemptFailed(Recorded, frozen=True, array_like=True, tag="failed"):
    """`retry_after_ms` is what it asked for, and `retry_at` what was decided. `trace`: where the handler raised."""

    path: str
    phase: Phase
    number: int
    started_at: int
    worker: str
    failure: Failure
    verdict: Verdict
    retry_at: int | None = None
    half_done: bool = False
    charge: int = 0
    build: str = ""
    retry_after_ms: int | None = None
    trace: str = ""
    workspace: str = ""
    usage: int = 0
    tokens: int = 0
    override: StepOverride | None = None


class AttemptTimedOut(Recorded, frozen=True, array_like=True, tag="timeout"):
    path: str
    phase: Phase
    number: int
    started_at: int
    worker: str
    kind: Literal["attempt", "ack", "result"]
    failure: Failure
    verdict: Verdict
    retry_at: int | None = None
    half_done: bool = False
    charge: int = 0
    build: str = ""
    usage: int = 0
    tokens: int = 0
    override: StepOverride | None = None


class Loss(Struct, frozen=True, array_like=True, gc=False):
    path: str
    phase: Phase
    number: int
    verdict: Verdict
    retry_at: int | None = None
    half_done: bool = False


class AttemptLost(Recorded, frozen=True, array_like=True, tag="lost"):
    """The worker that had these attempts is dead: their outcome is unknown."""

    losses: tuple[Loss, ...]


class AttemptsReturned(Recorded, frozen=True, array_like=True, tag="returned"):
    """Attempts that no worker began: returned by their worker, or withdrawn from their queue.

    They do not count as tries. They are granted again to continue.
    """

    refs: tuple[Ref, ...]


class AttemptAbandoned(Recorded, frozen=True, array_like=True, tag="abandoned"):
    """Attempts that are no longer awaited: the execution was terminated, or the step was settled without them."""

    refs: tuple[Ref, ...]
    why: Literal["terminated", "settled", "expired"]


class ProbeAnswered(Recorded, frozen=True, array_like=True, tag="probed"):
    """A guard or reconcile handler answered what happened to an attempt with an unknown outcome."""

    path: str
    phase: Phase
    number: int
    answer: ProbeAnswer
    verdict: Literal["succeed", "retry", "again", "skip", "fail", "review"]
    started_at: int
    worker: str
    result: Raw = NULL
    again_at: int | None = None
    failure: Failure | None = None
    variable: str | None = None
    key: str | None = None
    trace: str = ""
    override: StepOverride | None = None


# Nodes ------------------------------------------------------------------------------------------------------------


class StepExpired(Recorded, frozen=True, array_like=True, tag="expired"):
    """The deadline of a step passed."""

    path: str
    verdict: Literal["skip", "fail", "review"]
    failure: Failure


class StepRefused(Recorded, frozen=True, array_like=True, tag="refused"):
    """A step could not be started: its expression failed, its fan-out is too large, the credits are spent."""

    path: str
    verdict: Literal["skip", "fail"]
    failure: Failure


class StepsReady(Recorded, frozen=True, array_like=True, tag="ready"):
    """Steps whose delay is over, but no slot is free: they queue for one."""

    paths: tuple[str, ...]


class BranchTaken(Recorded, frozen=True, array_like=True, tag="branch"):
    """The branch of a decision, or the edge that a failed or timed-out step of a flow takes."""

    path: str
    target: str


class Expanded(Recorded, frozen=True, array_like=True, tag="expanded"):
    path: str
    count: int
    items: Raw = NULL
    labels: tuple[str, ...] = ()


class ChildrenAdded(Recorded, frozen=True, array_like=True, tag="added"):
    """The answer of a planner: children that the definition did not have."""

    scope: str
    number: int
    specs: Raw
    count: int
    superseded: tuple[str, ...] = ()
    started_at: int = 0
    worker: str = ""
    charge: int = 0
    usage: int = 0
    tokens: int = 0


class NodesClosed(Recorded, frozen=True, array_like=True, tag="closed"):
    """Nodes closed without an attempt. `failed_upstream`: a result that they need will never come."""

    paths: tuple[str, ...]
    status: Literal["skipped", "failed_upstream", "canceled", "reused", "marked"]


class ScopeOpened(Recorded, frozen=True, array_like=True, tag="open"):
    path: str
    deadline: int | None = None
    start: str | None = None
    visits: dict[str, int] = {}


class ScopeClosing(Recorded, frozen=True, array_like=True, tag="closing"):
    """The outcome of a scope is known: nothing new starts, running children are awaited."""

    path: str
    outcome: ScopeOutcome
    failure: Failure | None = None


class ScopeClosed(Recorded, frozen=True, array_like=True, tag="scope"):
    path: str
    outcome: ScopeOutcome
    failure: Failure | None = None


class ScopeRepeated(Recorded, frozen=True, array_like=True, tag="repeat"):
    """A visit of a repeating scope is over, and its condition is not met yet."""

    path: str


class ScopeRestarted(Recorded, frozen=True, array_like=True, tag="round"):
    path: str
    round: int
    budget_left: int
    not_before: int


# Waits, signals and people ----------------------------------------------------------------------------------------


class WaitOpened(Recorded, frozen=True, array_like=True, tag="wait"):
    path: str
    kind: Literal["timer", "signal"]
    name: str = ""
    due_at: int | None = None
    deadline: int | None = None


class WaitEnded(Recorded, frozen=True, array_like=True, tag="waited"):
    """A wait ended. `by` is the id of the message.

    `signal` is the name of a signal that arrived just now; empty for a kept signal and for timers; None in entries of
    earlier releases.
    """

    path: str
    by: str
    payload: Raw = NULL
    variable: str | None = None
    signal: str | None = None


class SignalKept(Recorded, frozen=True, array_like=True, tag="signal"):
    name: str
    id: str
    payload: Raw


class ReviewOpened(Recorded, frozen=True, array_like=True, tag="review"):
    id: str
    kind: ReviewKind
    path: str
    reason: str = ""
    permission: str = ""
    due_at: int | None = None
    failure: Failure | None = None
    attempts: int = 0


class ReviewResolved(Recorded, frozen=True, array_like=True, tag="resolved"):
    id: str
    resolution: Resolution
    verdict: Literal["succeed", "retry", "fail", "undo", "skip", "close"]
    reason: str = ""
    result: Raw = NULL
    failure: Failure | None = None
    again: bool = False
    variable: str | None = None
    key: str | None = None


# Undo -------------------------------------------------------------------------------------------------------------


class CompensationStarted(Recorded, frozen=True, array_like=True, tag="undo"):
    """The steps to compensate, in groups: groups run one after another, the members of a group together."""

    cause: Literal["failed", "canceled"]
    groups: tuple[tuple[str, ...], ...]
    failure: Failure | None = None


class CompensationStopped(Recorded, frozen=True, array_like=True, tag="undo_stopped"):
    reason: Literal["failed", "circuit_open", "terminated"]
    pending: tuple[str, ...]


# Runs -------------------------------------------------------------------------------------------------------------


class RunEntered(Recorded, frozen=True, array_like=True, tag="entered"):
    """An attempt of a run was queued (`pending`), or claimed by a worker for the first time (`running`)."""

    status: Literal["pending", "running"]
    deadline: int | None = None
    pending_until: int | None = None


Event: TypeAlias = (
    ExecutionStarted
    | ExecutionAdmitted
    | RunOpened
    | ExecutionFinished
    | Paused
    | Resumed
    | CancelRequested
    | HoldChanged
    | AttemptsGranted
    | AttemptBegun
    | AttemptDispatched
    | DispatchFailed
    | AttemptAcked
    | AttemptSucceeded
    | AttemptFailed
    | AttemptTimedOut
    | AttemptLost
    | AttemptsReturned
    | AttemptAbandoned
    | ProbeAnswered
    | StepExpired
    | StepRefused
    | StepsReady
    | BranchTaken
    | Expanded
    | ChildrenAdded
    | NodesClosed
    | ScopeOpened
    | ScopeClosing
    | ScopeClosed
    | ScopeRepeated
    | ScopeRestarted
    | WaitOpened
    | WaitEnded
    | SignalKept
    | ReviewOpened
    | ReviewResolved
    | CompensationStarted
    | CompensationStopped
    | RunEntered
)


class Entry(Struct, frozen=True, array_like=True, gc=False):
    seq: int
    at: int
    epoch: int
    event: Event
    grants: tuple[Grant, ...] = ()
    cause: str | None = None
    actor: str | None = None

"""Facts: reports from outside the kernel. `decide` turns each into events and an answer.

`at` is when the fact arrived. Timers due at or before it fire first, however late it is handled.
"""

from typing import Literal, TypeAlias

from msgspec import Raw, Struct

from .address import Ref
from .definition import JSON, CancelMode, ErrorClass
from .events import NULL, Resolution


class Happened(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """A fact. `actor` (its sender) and `cause` (a message id, a ref, a timer) are recorded."""

    at: int
    actor: str | None = None
    cause: str | None = None


# Outcomes of an attempt ---------------------------------------------------------------------------------------------


class Succeeded(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    result: Raw = NULL
    usage: int = 0
    tokens: int = 0


class Failed(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    error_class: ErrorClass
    code: str
    summary: str = ""
    retry_after_ms: int | None = None
    partial_effect: bool = False
    usage: int = 0
    trace: str = ""
    tokens: int = 0


class TimedOut(Struct, frozen=True, kw_only=True, tag=True):
    usage: int = 0
    tokens: int = 0


class Done(Struct, frozen=True, kw_only=True, tag=True):
    result: Raw = NULL


class NotDone(Struct, frozen=True, kw_only=True, tag=True):
    pass


class Pending(Struct, frozen=True, kw_only=True, tag=True):
    retry_after_ms: int | None = None


class Unknown(Struct, frozen=True, kw_only=True, tag=True):
    reason: str = ""


class Planned(Struct, frozen=True, kw_only=True, tag=True):
    """A planner's answer: node documents (`definition.node_from_document`)."""

    children: tuple[JSON, ...]
    usage: int = 0
    tokens: int = 0


Outcome: TypeAlias = Succeeded | Failed | TimedOut | Done | NotDone | Pending | Unknown | Planned


# Facts ----------------------------------------------------------------------------------------------------------


class Start(Happened, frozen=True, kw_only=True, tag=True):
    """Starts an execution.

    With `owned`, the starting worker also owns it with epoch 1, so that it need not be claimed.
    """

    execution: str
    tenant: str
    input: Raw
    by_step: bool = False
    each: dict[str, int] = {}
    headers: dict[str, str] = {}
    variables: dict[str, Raw] = {}
    correlation_id: str = ""
    target: tuple[str, str] | None = None
    priority: Literal["high", "normal"] = "normal"
    concurrency_key: str | None = None
    admitted: bool = True
    owned: bool = True
    hold: int = 0
    max_attempts: int = 0


class Begun(Happened, frozen=True, kw_only=True, tag=True):
    """A worker has a slot for this attempt and is about to call its handler (NOT_SAFE_TO_RETRY only)."""

    ref: Ref
    worker: str
    build: str = ""


class Reported(Happened, frozen=True, kw_only=True, tag=True):
    """An attempt ended. `lease` is set by external receivers and must match the attempt.

    `workspace` is where an external receiver left its work; empty if it said nothing.
    """

    ref: Ref
    outcome: Outcome
    started_at: int = 0
    worker: str = ""
    build: str = ""
    lease: str | None = None
    workspace: str = ""


class Dispatched(Happened, frozen=True, kw_only=True, tag=True):
    ref: Ref
    lane: int = -1
    routing_key: str = ""


class DispatchRefused(Happened, frozen=True, kw_only=True, tag=True):
    ref: Ref
    failure: Failed


class Acked(Happened, frozen=True, kw_only=True, tag=True):
    ref: Ref
    lease: str
    workspace: str = ""


class Taken(Happened, frozen=True, kw_only=True, tag=True):
    """A takeover: local attempts granted under an older epoch are lost."""

    epoch: int
    lease_ms: int = 15_000


class Lost(Happened, frozen=True, kw_only=True, tag=True):
    """The task worker that had these attempts is dead."""

    refs: tuple[Ref, ...]
    lease_ms: int = 15_000


class Returned(Happened, frozen=True, kw_only=True, tag=True):
    """A worker shuts down and never began these attempts."""

    refs: tuple[Ref, ...]


class Tick(Happened, frozen=True, kw_only=True, tag=True):
    """Time passed."""


class Signal(Happened, frozen=True, kw_only=True, tag=True):
    name: str
    id: str
    payload: Raw


class Authority(Struct, frozen=True, kw_only=True):
    """What the sender of a decision is allowed to do, as its credential said when the decision was sent.

    `permissions` of None allow everything: the sender is an admin, or the program that embeds the engine. With
    `four_eyes`, the actor that started an execution may not decide its reviews.
    """

    permissions: tuple[str, ...] | None
    four_eyes: bool = False


class Decide(Happened, frozen=True, kw_only=True, tag=True):
    """A person's decision on a review, named by its id. Earlier releases named approvals by the path of their step.

    `authority` is None in messages of releases that did not send it; `kernel.decide.authority` says what those may
    decide.
    """

    resolution: Resolution
    review: str | None = None
    path: str | None = None
    reason: str = ""
    result: Raw = NULL
    again: bool = False
    authority: Authority | None = None


class Pause(Happened, frozen=True, kw_only=True, tag=True):
    reason: str = ""


class Resume(Happened, frozen=True, kw_only=True, tag=True):
    """`owned`: the process that decides this can run the execution's attempts."""

    owned: bool = True


class Cancel(Happened, frozen=True, kw_only=True, tag=True):
    mode: CancelMode | None = None
    reason: str = ""


class Fail(Happened, frozen=True, kw_only=True, tag=True):
    """Ends a run as failed, whatever is under way: its worker is gone, or an operator unsticks it."""

    code: Literal["heartbeat_timeout", "unstuck"]
    reason: str = ""


class Retry(Happened, frozen=True, kw_only=True, tag=True):
    """An audited retry of a failed execution. `again` repeats the effects from `start` on, under new keys."""

    reason: str
    start: str | None = None
    again: bool = False
    admitted: bool = True
    owned: bool = True
    hold: int = 0
    run: int = 0  # the failed run that its sender was allowed to retry; 0 for the last one, whichever it is


class Admitted(Happened, frozen=True, kw_only=True, tag=True):
    key: str
    run: int = 0  # the run that is admitted; 0 for the open one


class HoldGranted(Happened, frozen=True, kw_only=True, tag=True):
    amount: int
    admitted: bool = True


class HoldRefused(Happened, frozen=True, kw_only=True, tag=True):
    pass


Fact: TypeAlias = (
    Start
    | Begun
    | Reported
    | Dispatched
    | DispatchRefused
    | Acked
    | Taken
    | Lost
    | Returned
    | Tick
    | Signal
    | Decide
    | Pause
    | Resume
    | Cancel
    | Retry
    | Fail
    | Admitted
    | HoldGranted
    | HoldRefused
)


# Answers --------------------------------------------------------------------------------------------------------


class Applied(Struct, frozen=True, tag=True):
    """The fact changed the execution, or was already true of it."""


class Ignored(Struct, frozen=True, tag=True):
    """Nothing changed: the report came too late, twice, or from the wrong holder. The caller records it."""

    why: Literal["duplicate", "stale_attempt", "stale_lease", "terminal", "unknown"]


class Refused(Struct, frozen=True, tag=True):
    """A command that is not allowed now."""

    code: str
    message: str
    hint: str = ""


Answer: TypeAlias = Applied | Ignored | Refused
APPLIED = Applied()

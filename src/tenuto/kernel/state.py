"""The state of one execution: what its history folds to.

Law 1: state is a function of the history alone. Only `evolve` changes it.
Law 2: nothing here grows with the length of the history, and no operation walks all children: ready queues, counters
       and a timer heap are kept as things change. A fan-out has one byte and one number per clone, and an object only
       for clones that run, wait or failed.
Law 3: results are not here, only the number of the event that holds them. The exception is `payloads`: the few values
       that the plan's own expressions read.
Law 4: a terminal execution never changes, except that an audited retry opens its next run.
"""

import heapq
from array import array
from collections import deque
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from msgspec import Raw, Struct, field

from .address import Ref
from .definition import CancelMode
from .effects import Effect, EffectKey
from .events import NULL, Failure, ReviewKind, ScopeOutcome
from .plan import Node, Plan

if TYPE_CHECKING:
    Numbers: TypeAlias = "array[int]"
else:  # cannot be subscripted before Python 3.12
    Numbers = array

ExecutionStatus = Literal["running", "waiting_approval", "paused", "succeeded", "failed", "canceled"]
StepStatus = Literal[
    "pending",
    "running",
    "retrying",
    "awaiting_approval",
    "succeeded",
    "failed",
    "timed_out",
    "skipped",
    "canceled",
]
CompensationStatus = Literal["none", "pending", "running", "retrying", "awaiting_approval", "done", "failed", "skipped"]
ScopeStatus = Literal["open", "closing", "closed"]
ClosedStatus = Literal["succeeded", "failed", "timed_out", "skipped", "canceled"]
FanOutStatus = Literal["pending", "running", "succeeded", "failed", "skipped", "canceled"]

TERMINAL: tuple[ExecutionStatus, ...] = ("succeeded", "failed", "canceled")

CLOSED: tuple[ClosedStatus, ...] = get_args(ClosedStatus)

# One byte per clone of a fan-out. A clone that is `live` has an object in `FanState.live`.
CLONE_PENDING, CLONE_LIVE, CLONE_SUCCEEDED, CLONE_SKIPPED, CLONE_CANCELED, CLONE_UNDONE = range(6)

TimerKind = Literal[
    "retry", "probe", "round", "wait", "ack", "result", "deadline", "reconcile", "scope", "execution", "review",
    "pending", "pause", "opening", "retrying", "resuming",
]  # fmt: skip
TimerKey: TypeAlias = tuple[TimerKind, str]
# Deadlines shift by the length of a pause; what waits for a delay acts on resume; running attempts' timers go on.
SHIFTED_BY_PAUSE: tuple[TimerKind, ...] = (
    "deadline", "reconcile", "scope", "execution", "review", "pending", "retrying", "resuming",
)  # fmt: skip
HELD_BY_PAUSE: tuple[TimerKind, ...] = ("retry", "probe", "round", "wait", "opening")
GOING_ON_IN_PAUSE: tuple[TimerKind, ...] = ("ack", "result", "pause")


class OpenAttempt(Struct, gc=False):
    """The one attempt of a step that may still report. `epoch` 0: returned by its worker, and without an owner."""

    ref: Ref
    epoch: int
    granted_at: int
    begun_at: int = 0
    dispatched_at: int = 0
    acked: bool = False


class StepState(Struct, tag="step", gc=False):
    node: Node
    path: str
    status: StepStatus = "pending"
    open: OpenAttempt | None = None
    number: int = 0
    tries: int = 0
    tried: int = 0  # the last attempt that was counted as a try
    losses: int = 0
    refused_dispatches: int = 0
    generation: int = 1
    opened_at: int = 0
    # Of an attempt whose outcome is unknown: its own late answer still counts, and since when it is unknown.
    late: Ref | None = None
    unknown_since: int = 0
    done_seq: int = 0
    done: bool = False
    half_done: int = 0  # the event after which it may have been made in part
    spared: bool = False  # a person said to leave what it made as it is
    failure: Failure | None = None
    review: str | None = None
    in_slot: bool = False
    moving: bool = False
    waits_for: str | None = None
    workspace: str = ""
    guard_number: int = 0
    reconcile_number: int = 0
    undo: CompensationStatus = "none"
    undo_number: int = 0
    undo_tries: int = 0
    undo_losses: int = 0
    undo_seq: int = 0
    undo_failure: Failure | None = None


class FanState(Struct, tag="fan", gc=False):
    """A step run once for each item. Its clones are steps at `path#index`."""

    node: Node
    path: str
    status: FanOutStatus = "pending"
    count: int = 0
    marks: bytearray = bytearray()
    done_seq: Numbers = field(default_factory=lambda: array("I"))
    live: dict[int, StepState] = {}
    cursor: int = 0
    end: int = 0
    queue: deque[int] = field(default_factory=deque)
    active: int = 0
    busy: int = 0
    remaining: int = 0
    succeeded: int = 0
    skipped: int = 0
    closing: bool = False
    # What a compact clone cannot say: attempts beyond the first (of guard and reconcile: any), later generations,
    # effects of an earlier round that are still to be undone, effects that a person said to leave.
    numbers: dict[int, int] = {}
    probe_numbers: dict[int, tuple[int, int]] = {}
    undo_numbers: dict[int, int] = {}
    generations: dict[int, int] = {}
    owed: dict[int, int] = {}
    spared: dict[int, None] = {}
    failure: Failure | None = None
    kept: bool = False
    undone: bool = False
    labels: tuple[str, ...] = ()  # what its clones are called, where an expression says so


class ScopeState(Struct, tag="scope", gc=False):
    node: Node
    path: str
    status: ScopeStatus = "open"
    outcome: ScopeOutcome | None = None
    failure: Failure | None = None
    children: tuple[Node, ...] = ()
    by_id: dict[str, Node] = {}
    unmet: list[int] = []
    layer: int = 0
    layer_left: int = 0
    ready: deque[int] = field(default_factory=deque)
    fans: dict[str, None] = {}
    active: dict[str, None] = {}
    touched: dict[str, None] = {}
    poisoned: dict[int, None] = {}
    busy: int = 0
    remaining: int = 0
    succeeded: int = 0
    failed: int = 0
    skipped: int = 0
    round: int = 1
    waiting_round: bool = False
    in_slot: bool = False
    moving: bool = False
    kept: bool = False
    undone: bool = False
    # A flow has one child at a time: where it began, what was last closed, the edge that was chosen for it.
    start: str | None = None
    current: str | None = None
    last_failed: str | None = None
    taken: str | None = None
    visits: dict[str, int] = {}
    # Children that a planner added, as documents, and how often it was asked.
    added: list[Raw] = []
    open: OpenAttempt | None = None
    plan_number: int = 0
    plan_tries: int = 0
    plan_losses: int = 0
    inner_failed: int = 0
    superseded: dict[str, None] = {}
    replans: int = 0  # in this run


NodeState: TypeAlias = StepState | FanState | ScopeState


class Review(Struct, frozen=True):
    id: str
    kind: ReviewKind
    path: str
    opened_at: int
    due_at: int | None = None
    reason: str = ""
    permission: str = ""


class PauseState(Struct, frozen=True):
    since: int
    reason: str
    limit_at: int | None


class CancelState(Struct, frozen=True):
    mode: CancelMode
    reason: str


class KeptSignal(Struct, frozen=True):
    """A signal that arrived before a step waited for it."""

    id: str
    seq: int
    payload: Raw

    @property
    def size(self) -> int:
        return len(self.id) + len(self.payload)


class UndoState(Struct):
    """The rollback in progress: groups one after another, and the `open` members of the current group."""

    cause: Literal["failed", "canceled"]
    groups: tuple[tuple[str, ...], ...]
    failure: Failure | None = None
    group: int = 0
    cursor: int = 0
    open: dict[str, None] = {}
    failed: dict[str, None] = {}
    stopped: Literal["failed", "circuit_open", "terminated"] | None = None


_NOT_COUNTED: deque[int] = deque(maxlen=0)


class Execution:
    """The state of one execution. It is created empty; `ExecutionStarted` fills it."""

    __slots__ = (
        "admitted",
        "agenda",
        "at",
        "budget_left",
        "by_step",
        "cancel",
        "changed",
        "charged",
        "compensable",
        "concurrency_key",
        "correlation_id",
        "each",
        "epoch",
        "error_times",
        "failure",
        "finished",
        "heard",
        "hold",
        "id",
        "input",
        "last_done",
        "latest",
        "marks",
        "max_attempts",
        "moving",
        "nodes",
        "ok_times",
        "opens_at",
        "outcome",
        "pause",
        "payloads",
        "plan",
        "priority",
        "refunded",
        "retries",
        "retry_hold",
        "reviews",
        "rules",
        "run",
        "running_at",
        "seq",
        "set_aside",
        "signal_bytes",
        "signals",
        "size",
        "started_by",
        "tenant",
        "timer_heap",
        "timers",
        "tokens",
        "unclaimed",
        "undo",
        "usage",
        "variables",
        "waits",
        "workspace",
    )

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.id = ""
        self.tenant = ""
        self.rules = 0
        self.seq = 0
        self.at = 0
        self.epoch = 0
        self.started_by: str | None = None  # the actor of its first entry
        self.size = 0  # bytes of the payloads and texts in its history
        self.run = 1
        self.finished: Literal["succeeded", "failed", "canceled"] | None = None
        self.outcome = ""
        self.failure: Failure | None = None
        self.correlation_id = ""
        self.priority: Literal["high", "normal"] = "normal"
        self.input = NULL
        self.by_step = False
        self.each: dict[str, int] = {}
        self.variables: dict[str, Raw] = {}
        self.payloads: dict[int, Raw] = {}
        self.concurrency_key: str | None = None
        self.admitted = True
        self.cancel: CancelState | None = None
        self.pause: PauseState | None = None
        self.hold = 0
        self.charged = 0
        self.usage = 0  # of this run, as reported: `charged` is the part that the hold covered
        self.tokens = 0
        self.refunded = 0
        self.retry_hold = 0
        self.retries = False  # it failed, and its next run is requested
        self.set_aside = 0  # the estimates of open attempts
        # Of a run: what it waits for before a worker claims it, when its attempt is queued, when it was claimed first.
        self.unclaimed: Literal["", "start", "resume"] = ""
        self.opens_at = 0
        self.running_at: int | None = None
        self.max_attempts = 0
        self.budget_left = 0
        counts_errors = plan.definition.policies.escalation is not None
        self.error_times: deque[int] = deque(maxlen=64) if counts_errors else _NOT_COUNTED
        self.ok_times: deque[int] = deque(maxlen=64) if counts_errors else _NOT_COUNTED
        self.signals: dict[str, deque[KeptSignal]] = {}
        self.signal_bytes = 0  # of the signals that are kept
        self.heard: dict[str, None] = {}  # signals that ended a wait, the last thousand: the same id is one message
        self.waits: dict[str, dict[str, None]] = {}
        self.marks: dict[str, str] = {}
        self.nodes: dict[str, NodeState] = {}
        self.last_done = 0  # the event that holds the last result
        # Of the steps that expressions read: where each was last closed, in the whole execution (`id`) and in each
        # scope around it (`scope:id`, see `latest_key`).
        self.latest: dict[str, str] = {}
        self.workspace = ""  # where the last external receiver left its work
        self.compensable: dict[str, int] = {}  # completed steps that can be undone, in the order they completed
        self.undo: UndoState | None = None
        self.reviews: dict[str, Review] = {}
        self.moving = 0  # steps that can still go on by themselves: an attempt, a delay, a signal
        self.timers: dict[TimerKey, int] = {}
        self.timer_heap: list[tuple[int, TimerKind, str]] = []
        self.agenda: dict[EffectKey, Effect] = {}
        self.changed: list[EffectKey] = []  # agenda keys added or removed since the runtime last looked

    @property
    def root(self) -> ScopeState:
        root = self.nodes[""]
        assert isinstance(root, ScopeState)
        return root

    @property
    def status(self) -> ExecutionStatus:
        """Derived, never stored: terminal, paused, waiting for a person alone, or running."""
        if self.finished is not None:
            return self.finished
        if self.pause is not None:
            return "paused"
        if self.moving == 0 and self.admitted and any(r.kind != "dead_letter" for r in self.reviews.values()):
            return "waiting_approval"
        return "running"

    @property
    def wake_at(self) -> int | None:
        """When the earliest timer is due. While paused, timers that act on resume are left out."""
        heap = self.timer_heap
        while heap:
            due, kind, path = heap[0]
            if self.timers.get((kind, path)) != due:
                heapq.heappop(heap)
            elif self.pause is not None and kind not in GOING_ON_IN_PAUSE:
                return self._wake_while_paused()
            else:
                return due
        return None

    def _wake_while_paused(self) -> int | None:
        return min((due for (kind, _), due in self.timers.items() if kind in GOING_ON_IN_PAUSE), default=None)

"""The port of runtimes: what every one of them does, and the world that is given to it.

A runtime drives the kernel: it turns what happens into facts, keeps the entries that `decide` gives, and carries out
the agenda. Memory keeps executions in a dict; the durable runtime commits entries to a database before it acts, and
shares executions with other processes; Temporal keeps them in workflows. So everything here may wait, nothing here
hands out a state that somebody else goes on changing unnoticed (a `Reading` knows its own length), and facts for an
execution go to `tell`, which finds whoever owns it.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from tenuto.authoring.program import Handler, Program
from tenuto.kernel.address import Ref
from tenuto.kernel.definition import Definition, plain_name
from tenuto.kernel.events import Entry
from tenuto.kernel.facts import Answer, Fact
from tenuto.kernel.state import ExecutionStatus
from tenuto.storage.audit import Kept, Verified
from tenuto.storage.catalog import Catalog
from tenuto.storage.outbox import OutboxStore
from tenuto.storage.port import BacklogRow as BacklogRow
from tenuto.storage.port import Notice as Notice
from tenuto.storage.registry import AuditWanted, Registry
from tenuto.storage.reviews import ReviewsWanted, ShownReview
from tenuto.views import (
    AuditDocument,
    AuditRecord,
    DeadLetterRow,
    EventDocument,
    ExecutionDocument,
    ExecutionSummary,
    LimitRow,
    ReviewRow,
    TenantLimitRow,
    WorkerRow,
    rfc3339,
    time_text,
)
from tenuto.views.projections import AuditRow
from tenuto.views.reading import Reading

from .start_request import StartRequest

T = TypeVar("T")

Until = Literal["settled", "terminal"]
DefinitionStatus = Literal["draft", "published", "deprecated"]


class Observer(Protocol):
    """Told what was recorded and what begins, at once and in order. It must not fail and must not block."""

    @property
    def hears_starts(self) -> bool:
        """Whether it wants to know what begins: most of what is to be known is known at the end."""

    def decided(self, reading: Reading, entries: Sequence[Entry]) -> None: ...

    def started(self, reading: Reading, ref: Ref) -> None: ...


# -- What goes in and comes out ----------------------------------------------------------------------------------------


class Pruned(NamedTuple):
    """How much was removed. `notes` are those of consumers about messages that they met."""

    executions: int = 0
    messages: int = 0
    notes: int = 0


class Submitted(NamedTuple):
    """`as_started` is how it stood when its start was recorded, where reading that again would ask the database."""

    execution_id: str
    created: bool
    as_started: Callable[[], Awaitable[Reading]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """What of the executions, reviews or dead letters is wanted. What is None does not matter."""

    tenant: str | None = None
    status: ExecutionStatus | None = None
    definition: str | None = None
    correlation_id: str | None = None
    target_id: str | None = None
    since_ms: int | None = None
    before_ms: int | None = None
    active: bool = False  # those that are not over
    blocked: bool = False  # those that cannot go on; `before_ms` is then since when
    newest_first: bool = False
    error_class: str | None = None
    kind: str | None = None
    execution_id: str | None = None  # of reviews: whose

    def for_blocked(self) -> "Filter":
        """Those of which some may be blocked."""
        return replace(self, active=True, blocked=False, before_ms=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """An execution in a list."""

    execution_id: str
    tenant: str
    definition: str
    version: int
    status: ExecutionStatus
    correlation_id: str
    target: tuple[str, str] | None
    started_at: int
    ended_at: int | None = None
    error_class: str = ""


def execution_summary(summary: Summary) -> ExecutionSummary:
    """In the words of the HTTP surface."""
    target = summary.target or (None, None)
    return {
        "execution_id": summary.execution_id,
        "definition_id": plain_name(summary.definition),
        "definition_version": summary.version,
        "status": summary.status,
        "tenant_id": summary.tenant,
        "target_object_type": target[0],
        "target_object_id": target[1],
        "correlation_id": summary.correlation_id,
        "started_at": rfc3339(summary.started_at),
        "completed_at": time_text(summary.ended_at),
        "error_class": summary.error_class or None,
    }


def _step_of(row: ShownReview) -> str:
    """What it is called; rows of an earlier schema know only where it is."""
    return row.step or row.path.rpartition("/")[2].partition("@")[0]


def review_document(row: ShownReview) -> ReviewRow:
    kind: Any = row.kind
    return {
        "id": row.id,
        "kind": kind,
        "execution_id": row.execution,
        "step_id": _step_of(row),
        "path": row.path,
        "reason": row.reason,
        "permission": row.permission,
        "opened_at": rfc3339(row.opened_at),
        "due_at": time_text(row.due_at),
        "state": "open" if row.resolution is None else "resolved",
        "requests": list(row.requests),
    }


def dead_letter_document(row: ShownReview) -> DeadLetterRow:
    return {
        "id": row.id,
        "execution_id": row.execution,
        "step_id": _step_of(row),
        "path": row.path,
        "error_class": row.error_class,
        "error_summary": row.error_summary,
        "attempts": row.attempts,
        "created_at": rfc3339(row.opened_at),
        "state": "open" if row.resolution is None else "resolved",
        "requests": list(row.requests),
    }


class RefusedItem(NamedTuple):
    """One that was refused, and stays as it is."""

    id: str
    code: str
    detail: str


@dataclass(slots=True, kw_only=True)
class BulkResult:
    """What came of one command for many executions. `pending` were told, and their verdict is not known yet.

    `chosen` are those that it would have been, where nothing was to be done. `remaining` fit as well (no more than
    10,000 are counted, and fewer where that takes long), and are there for another call, with `next_cursor`: a call
    ends when its limit is reached, or after about 20 seconds.
    """

    done: list[str] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)
    refused: list[RefusedItem] = field(default_factory=list)
    chosen: list[str] = field(default_factory=list)
    remaining: int = 0
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: list[T]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A definition in its version, as the runtime keeps it."""

    definition: Definition
    status: DefinitionStatus
    plan_hash: str


class LaneLoad(NamedTuple):
    """Slots of one kind: how many there are, are in use, and are waited for."""

    size: int
    running: int
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """How a process stands, as it knows without asking anybody. What memory has not is as if it were well."""

    is_open: bool
    in_hand: int
    lanes: dict[str, LaneLoad]
    claims: bool = True  # the task that looks for work goes on
    visits: bool = True  # and so do those that take attempts from queues, and bring answers back
    may_start: bool = True  # the lease has not run out by this process's own clock
    renewed_ms: int = 0  # since the lease was last renewed
    uncommitted: int = 0  # decisions that wait for their commit
    committing_ms: int = 0  # how long the commit under way has taken so far
    commit_trouble: str = ""  # why nothing can be committed until somebody sees to it


# -- The port ----------------------------------------------------------------------------------------------------------


class Notices(Protocol):
    """What was sent, by its step's key: kept wherever executions are."""

    async def begin_notice(self, notice: Notice) -> Notice:
        """Notes that a notification is about to be sent, unless its key is known; gives what is kept."""

    async def end_notice(self, key: str, receipt: bytes) -> None:
        """It was taken. The first receipt stays."""

    async def notice(self, key: str) -> Notice | None: ...


class Runtime(Protocol):
    """Reads answer `NotFound` for what is not there, or is not this tenant's."""

    @property
    def notices(self) -> Notices: ...

    @property
    def registry(self) -> Registry:
        """What a service keeps beside the executions: keys, the audit, answers."""

    @property
    def outbox(self) -> OutboxStore:
        """Messages that have to leave."""

    def vitals(self) -> Vitals: ...

    def check_scope(self, tenant: str) -> None:
        """Raises unless one may act through it for this tenant, in a name of one's own."""

    async def check(self) -> None:
        """Raises `StorageError` unless executions can be kept: the database answers, and has the right schema."""

    async def backlog(self) -> list[BacklogRow]:
        """What waits, in all processes."""

    async def open(self) -> None: ...

    async def close(self, grace_ms: int) -> None:
        """Starts nothing more, waits for running handlers as long as allowed, then stops them."""

    def provide(self, program: Program) -> None:
        """From now on this process can run executions of this definition. No I/O: it is stored with the next start."""

    def provided(self, name: str, version: int) -> Program | None:
        """The program of that definition, with those handlers that this process has; None if it knows of none."""

    def provide_handler(self, handler: Handler) -> None:
        """A handler that JSON definitions call by name."""

    async def publish(self, program: Program, note: AuditRow | None = None) -> bool:
        """Stores the definition now. The same name and version with another plan is a `DefinitionError`.

        If that changes anything in a database, `note` is written into the audit in the same commit. Whether it was.
        """

    async def program(self, name: str, version: int | None) -> Program:
        """The program to start: what this process has, or the stored definition alone. None: the newest version."""

    async def definitions(self) -> list[Published]: ...

    @property
    def catalog(self) -> Catalog:
        """Where definitions are kept, drafts and all."""

    async def keep_definitions(self) -> None:
        """What this process provides is in the catalog, published."""

    def knows(self, name: str) -> bool:
        """Whether a version of it can be started, as far as this process knows without asking."""

    def note_definition(self, name: str, version: int, status: DefinitionStatus) -> None:
        """This version's status has just changed. Other processes find out by themselves."""

    def is_crowded(self, tenant: str, under_way: int = 0) -> bool:
        """Whether a start that is no repetition could only be refused, as far as this process knows without asking.

        `under_way`: so many others are on their way here, or here, and not answered.
        """

    async def submit(self, request: StartRequest) -> Submitted: ...

    def inbox(self, consumer: str, id: str, connection: object) -> AbstractAsyncContextManager[bool]:
        """Whether this consumer meets this id for the first time, as part of the caller's transaction."""

    async def prune(self, keep_ms: int) -> Pruned:
        """Removes what ended longer ago than this, except what waits for a person."""

    async def tell(self, tenant: str | None, execution_id: str, fact: Fact) -> Answer:
        """Brings a fact to its execution, wherever that is, and waits for the verdict."""

    async def read(self, tenant: str | None, execution_id: str) -> Reading: ...

    async def look(self, tenant: str | None, execution_id: str) -> Reading:
        """Where it stands, for those who do not ask how it came there: of an execution that is not over, the history
        may lack all but its first entry. It costs time in proportion to the state, not to the history."""

    async def read_all(self, tenant: str | None, ids: Sequence[str]) -> list[Reading]:
        """Those of them that there are, in no order, and without the progress of what runs elsewhere."""

    async def document(self, tenant: str | None, execution_id: str) -> ExecutionDocument:
        """Where it stands, as it is shown."""

    def follow(self, tenant: str | None, execution_id: str, after: int, every_ms: int) -> AsyncIterator[EventDocument]:
        """What is recorded after this number, as it happens; ends with the execution."""

    async def wait(self, tenant: str | None, execution_id: str, until: Until, timeout_ms: int | None) -> Reading:
        """Waits until the execution is terminal, or (`settled`) waits for a person; `ResultTimeout` after that time."""

    async def executions(self, wanted: Filter, cursor: str | None, limit: int) -> Page[Summary]: ...

    async def summaries(self, wanted: Filter, cursor: str | None, limit: int) -> Page[ExecutionSummary]:
        """The same as they are shown, and of blocked ones why."""

    async def count(self, wanted: Filter, by: Literal["status", "definition"]) -> dict[str, int]: ...

    async def act(self, verb: Literal["cancel", "retry"], wanted: Filter, body: Mapping[str, Any]) -> BulkResult | None:
        """Where executions are told elsewhere: what came of it for all that fit. None: they are told from here."""

    async def answer_letter(self, verb: Literal["reprocess", "discard"], id: str, reason: str) -> DeadLetterRow | None:
        """Where executions are told elsewhere: what became of a dead letter. None: it is answered from here."""

    async def reprocess(self, wanted: ReviewsWanted, body: Mapping[str, Any]) -> BulkResult | None:
        """The same of all dead letters that fit."""

    async def reviews(self, wanted: Filter, cursor: str | None, limit: int) -> Page[ReviewRow]: ...

    async def dead_letters(self, wanted: Filter, cursor: str | None, limit: int) -> Page[DeadLetterRow]: ...

    async def review_page(self, wanted: ReviewsWanted, cursor: str | None, limit: int) -> Page[ShownReview]: ...

    async def review(self, tenant: str | None, id: str) -> ShownReview:
        """One of them, open or resolved."""

    async def workers(self) -> list[WorkerRow]:
        """The processes that run steps, of those that share these executions."""

    async def statuses(self, tenant: str | None, ids: Sequence[str]) -> dict[str, ExecutionStatus]:
        """How these executions stand."""

    async def note(self, row: AuditRow) -> None:
        """Something was done that no execution's history tells."""

    async def audit(self, tenant: str, wanted: AuditWanted, cursor: str | None, limit: int) -> Page[AuditDocument]:
        """Who did what, newest first."""

    async def audit_chain(self, tenant: str, after: int, limit: int) -> list[AuditRecord]:
        """The same in the order of the chain, after this number."""

    async def verify_audit(self, tenant: str, kept: Kept | None) -> Verified:
        """Whether the chain of the audit holds, and has this head in it."""

    async def limit(
        self, name: str, *, rate: tuple[int, int] | None, concurrency: int | None, note: AuditRow | None = None
    ) -> None:
        """At most so many starts in so many milliseconds, and so many at once, of all steps that name this limit.

        `note` is written into the audit in the same commit, unless there was no limit to lift.
        """

    async def limits(self) -> list[LimitRow]: ...

    async def tenant_limit(self, tenant: str, max_in_flight: int | None, note: AuditRow | None = None) -> None:
        """How many executions of a tenant may be under way; what would be one more is refused with `TenantLimit`.

        `note` is written into the audit in the same commit, unless there was no limit to lift.
        """

    async def tenant_limits(self, tenant: str | None) -> list[TenantLimitRow]:
        """Of all tenants that have one, or of this one."""

    async def room(self, tenant: str) -> int | None:
        """Waits until the tenant may start something, and gives how many. None: as many as it likes."""

"""The storage port: what a durable runtime needs from a database, as one narrow protocol per kind of work.

The lease protocol.

A worker process opens a *session*: one row with an expiry, renewed by its own thread at a third of its time. An
execution that is being run points to the session that owns it and has an epoch, which every claim raises. Only the
owner appends to an execution's history, and only through `commit`.

`commit` first locks the session's row (shared) and finds it live, or writes nothing: that is the fence. Whoever finds a
session expired ends it (`reap`), which needs the same row exclusively: one that commits is left for the next time, and
of one that was ended every later commit is refused. With its end, and not before, its executions become nobody's, and
due. So between two owners of an execution there is always a moment at which the first one is known to have written its
last word, however long it was frozen. A claim locks the claimant's session in the same way.

What can go wrong, and what happens then:
- the owner is killed: its session expires, somebody reaps it, the execution is claimed with a higher epoch;
- the owner is frozen and wakes after its session was reaped: its commit is refused, it drops all it had in memory;
- the owner is frozen in the middle of a transaction: the server ends that after five seconds (PostgreSQL; on SQLite
  nobody can write until it wakes or is killed, and that is what SQLite's lock is);
- the owner cannot reach the database: its renewals fail; it stops starting attempts when its lease is over by its own
  monotonic clock, and goes on if the database comes back before anybody reaped it;
- a commit's outcome is unknown (the connection broke): the worker reads the batch back, and never assumes;
- a claim's outcome is unknown: the worker asks, and asks again, what it owns, and takes up what it did not know of;
- two processes reap or claim at once: each acts only on rows that its own statement returned;
- the database loses commits that it acknowledged (an asynchronous standby is promoted): every batch states the owner,
  the epoch and the last entry that each of its executions had (`Basis`). Where that is not what the database has,
  nothing of the execution is written; the worker drops it, and it is loaded and taken over from what is stored;
- an older backup is restored under a running worker: its session is not in it, or its row there is older than the last
  renewal that was acknowledged, or the incarnation of the database is another one. The session is over.
`(execution, seq)` is the primary key of events, and so the second fence.
"""

import threading
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Literal, NamedTuple, Protocol, TypeAlias

from msgspec import Struct

from tenuto.values.jitter import spread
from tenuto.views.projections import (
    AuditRow,
    OutboxRow,
    ReviewClosed,
    ReviewRow,
    Standing,
    TaskEnded,
    TaskRow,
    TaskWithdrawn,
)

from .catalog import DefinitionRow as DefinitionRow
from .catalog import StoredCatalog
from .notices import Notice as Notice
from .notices import Notices
from .operations import BacklogRow as BacklogRow
from .operations import Operations
from .operations import SessionRow as SessionRow
from .outbox import OutboxStore
from .permits import LimitStore
from .progress import Progress
from .progress import ProgressRow as ProgressRow
from .pruning import Pruning
from .registry import Registry
from .reviews import SqlReviews
from .tasks import TaskStore


class NewExecution(Struct, frozen=True, kw_only=True, gc=False):
    """A start. `owner` is the session that takes it at once, or None when any worker may."""

    id: str
    tenant: str
    definition: str
    version: int
    priority: int
    correlation_id: str
    target_type: str
    target_id: str
    key: str | None
    request_hash: str
    concurrency_key: str | None
    reject_conflict: bool
    created_at: int
    owner: str | None


class Append(Struct, frozen=True, gc=False):
    """The entries of one decision, as one row: the first one's number, how many, and their bytes."""

    execution: str
    seq: int
    count: int
    body: bytes


class Basis(Struct, frozen=True, gc=False):
    """The history that a decision was made on: the epoch of its owner, and the number of its last entry.

    A commit compares it with the database. If they differ, the execution has another owner (`not_owner`), or the
    database lost commits that it had acknowledged (`stale`): nothing of the execution is written.
    """

    epoch: int
    seq: int


class MailVerdict(Struct, frozen=True):
    execution: str
    id: str
    verdict: bytes


class SnapshotRow(Struct, frozen=True):
    execution: str
    seq: int
    body: bytes


class Batch(Struct, kw_only=True):
    """All that one commit writes. Nothing in it may be refused by the database for reasons of one execution."""

    session: str | None
    starts: list[NewExecution] = []
    bases: dict[str, Basis] = {}  # by execution, of everything that is not started here
    standings: dict[str, Standing] = {}
    appends: list[Append] = []
    reviews: list[ReviewRow] = []
    closed: list[ReviewClosed] = []
    mail: list[MailVerdict] = []
    snapshots: list[SnapshotRow] = []
    tasks: list[TaskRow] = []
    tasks_ended: list[TaskEnded] = []
    withdrawn: list[TaskWithdrawn] = []
    outbox: list[OutboxRow] = []
    audit: list[AuditRow] = []


Refusal = Literal["duplicate_key", "conflict", "tenant_limit", "not_owner", "stale"]


class Committed(Struct, frozen=True):
    """`fenced`: the session is no longer live and nothing was written. `refused`: these executions were left out.

    `room`: how many more executions may be in flight, of those tenants of its starts that have a limit.
    """

    now: int
    fenced: bool = False
    refused: dict[str, Refusal] = {}
    room: dict[str, int] = {}


class Claim(Struct, frozen=True):
    id: str
    epoch: int
    definition: str
    version: int


SESSIONS_KEPT_MS = 24 * 3_600_000  # ended sessions stay visible for a day
TENANTS_AT_ONCE = 100
MAIL_AT_ONCE = 1_000
PARKED_AT_ONCE = 10_000


class Turn(Struct, frozen=True, kw_only=True):
    """A claim by tenant: of tenants after this one that are not full, at most `each` per tenant and `limit` in all."""

    after: str
    full: Sequence[str]
    each: int
    limit: int


def renewal_s(lease_ms: int) -> float:
    """When to renew a lease next: within a third of it, with jitter."""
    return spread(lease_ms / 3_000, 0.75, 1)


def plan_pairs(plans: Sequence[str]) -> list[tuple[str, int]]:
    """Definition and version of each `name/version`; names of tenants' definitions have a stroke of their own."""
    parted = (plan.rpartition("/") for plan in plans)
    return [(name, int(version)) for name, _, version in parted]


def next_after(turn: Turn, tenants: Sequence[str], claimed: int) -> str:
    """Where the next one goes on. When there was no room for all, with the same tenants: those who came in are full."""
    if claimed >= turn.limit:
        return turn.after
    return tenants[-1] if len(tenants) == TENANTS_AT_ONCE else ""


class Loaded(Struct, frozen=True):
    """An execution as it is stored. `bodies` are its rows in order: all, or with a snapshot the first and the rest."""

    row: "ExecutionRow"
    snapshot: SnapshotRow | None
    bodies: list[bytes]


class ExecutionRow(Struct, frozen=True, kw_only=True):
    id: str
    tenant: str
    definition: str
    version: int
    status: str
    run: int
    seq: int
    epoch: int
    owner: str | None
    wake_at: int | None
    priority: int
    correlation_id: str
    target_type: str
    target_id: str
    key: str | None
    concurrency_key: str | None
    request_hash: str
    cancel_requested: bool
    error_class: str
    parked: str
    created_at: int
    ended_at: int | None


class Mail(Struct, frozen=True, kw_only=True):
    id: str
    execution: str
    body: bytes
    received_at: int


class Wanted(Struct, frozen=True, kw_only=True):
    """A filter. A field that is None matches everything."""

    tenant: str | None = None
    status: str | None = None
    definition: str | None = None
    correlation_id: str | None = None
    target_id: str | None = None
    since: int | None = None
    before: int | None = None
    active: bool = False
    newest_first: bool = False
    version: int | None = None
    error_class: str | None = None
    q: str | None = None  # an id or its beginning, or an idempotency key, a target or a correlation id


# What there may be for whoever hears of it: due executions that nobody owns, news of those that somebody waits for.
WORK = "work"
NEWS = "news"
Hints: TypeAlias = frozenset[str]
EVERYTHING: Hints = frozenset({"*"})  # there may be anything


def tasks_in(queue: str) -> str:
    """The hint that something waits for the workers of this queue."""
    return f"tasks:{queue}"


def mail_for(session: str) -> str:
    """The hint that there is mail for executions of this session."""
    return f"mail:{session}"


class Renewal(Struct, frozen=True):
    """`alive`: the session still holds what it had. `now`: the database's clock. The lease counts from `asked_at`."""

    now: int
    alive: bool
    asked_at: float


class Sessions(Protocol):
    """Sessions of worker processes: a lease each, which its owner renews."""

    async def open(self, id: str, worker: str, build: str, lease_ms: int, queues: Sequence[str] | None) -> int:
        """Opens a session, and returns the database's time.

        `queues` None: the process runs no steps. Empty: it runs only steps that are on no queue.
        """

    def keep_alive(self, id: str, lease_ms: int, tell: Callable[[Renewal], None], stop: threading.Event) -> None:
        """Renews the session at a third of its lease until `stop`, in the calling thread, on its own connection."""

    async def end(self, id: str) -> None: ...

    async def reap(self, own: str = "") -> int:
        """Ends expired sessions, except one's own. Their executions become due. Returns how many."""

    async def mark_restored(self) -> int:
        """Raises the database's incarnation, which ends every session opened before, and returns it."""


class Claims(Protocol):
    """Which session owns an execution."""

    async def claim(self, session: str, plans: Sequence[str], limit: int) -> list[Claim]:
        """Claims due executions of these plans (`name/version`), by priority and then by age."""

    async def claim_by_tenant(self, session: str, plans: Sequence[str], turn: Turn) -> tuple[list[Claim], str]:
        """Claims due executions tenant by tenant. Also returns the tenant to continue after; "" at the end.

        It costs one lookup per tenant, and none per waiting execution: a tenant with ten thousand of them does not
        delay the others. One call looks at `TENANTS_AT_ONCE` tenants.
        """

    async def claim_one(self, session: str, execution: str) -> Claim | None:
        """Claims this execution if it has no owner."""

    async def owned(self, session: str) -> list[Claim]:
        """The executions of this session: resolves a claim whose outcome is unknown."""

    async def park(
        self, session: str | None, execution: str, why: str, again_ms: int | None, epoch: int | None = None
    ) -> None:
        """Parks an execution with a reason. It is not claimed until the time is over or a command wakes it.

        Does nothing if another session owns it, or if an epoch is given and the execution has another one.
        """

    async def parked(self, plans: Sequence[str], within_ms: int) -> list[str]:
        """Parked executions of these plans that become due within that time, `PARKED_AT_ONCE` at most."""


class Mailbox(Protocol):
    """Messages to executions from other processes."""

    async def post(self, id: str, execution: str, body: bytes) -> tuple[int, str | None] | None:
        """Stores a message, once per id. Returns when it arrived and the owner; None if the execution is unknown.

        It also sets `wake_at`, even if the execution has an owner: if the owner releases it at this moment, the next
        one finds the message.
        """

    async def unread(self, session: str) -> list[Mail]:
        """Messages without a verdict to this session's executions, oldest first, `MAIL_AT_ONCE` at most."""

    async def verdicts(self, ids: Sequence[str]) -> dict[str, bytes]:
        """The verdicts on those of these messages that have one."""

    async def wake_unread(self) -> int:
        """Makes executions due that have unread messages, no owner and no due time. Returns how many: normally 0."""


class Executions(Protocol):
    """Reads of executions and their histories."""

    async def load(self, ids: Sequence[str], *, short: bool = False) -> list[Loaded]:
        """Executions with their histories, in no particular order. Unknown ones are left out.

        `short`: an execution with a snapshot comes with that, its first row, and the rows after the snapshot.
        """

    async def bodies(self, id: str, first: int, last: int) -> list[bytes]:
        """The rows that hold the entries first..last."""

    async def holding(self, id: str, seqs: Sequence[int]) -> list[bytes]:
        """The rows that hold these entries."""

    async def tails(self, after: Mapping[str, int]) -> dict[str, list[bytes]]:
        """For each execution the rows after this entry, in order. Executions without such rows are left out."""

    async def find(self, id: str) -> ExecutionRow | None: ...

    async def find_by_keys(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, str]]:
        """For pairs of a tenant and an idempotency key: the execution, and the hash of the request that started it."""

    async def page(self, wanted: Wanted, after: str | None, limit: int) -> list[ExecutionRow]:
        """One page, by default oldest first. `after`: the last id of the page before."""

    async def count(self, wanted: Wanted, by: str) -> dict[str, int]: ...

    async def statuses(self, ids: Sequence[str], tenant: str | None = None) -> dict[str, str]:
        """The status of these executions; only this tenant's, if one is given."""

    async def changed(self, known: Sequence[tuple[str, str]]) -> list[str]:
        """For pairs of an id and a status: the executions that have another status, or no longer exist."""


class TenantReads(NamedTuple):
    """Reads on behalf of a tenant. PostgreSQL shows them no other tenant's rows; on SQLite callers filter."""

    executions: Executions
    registry: Registry
    reviews: SqlReviews


class Store(Protocol):
    """A database: its connections, the commit, and a port for each kind of work.

    `commit` writes everything that one group commit of a worker holds.
    """

    @property
    def sessions(self) -> Sessions: ...

    @property
    def claims(self) -> Claims: ...

    @property
    def mailbox(self) -> Mailbox: ...

    @property
    def executions(self) -> Executions: ...

    @property
    def progress(self) -> Progress:
        """The progress that handlers report."""

    @property
    def notices(self) -> Notices:
        """Notifications that were sent."""

    @property
    def operations(self) -> Operations:
        """Figures about the running system."""

    @property
    def limits(self) -> LimitStore:
        """Rate limits and concurrency limits that all workers share."""

    @property
    def tasks(self) -> TaskStore:
        """Tasks on named queues."""

    @property
    def registry(self) -> Registry:
        """API keys, the audit log and stored responses of the service."""

    @property
    def outbox(self) -> OutboxStore:
        """Messages to publish."""

    @property
    def reviews(self) -> SqlReviews:
        """Steps that wait for a person, and decisions."""

    @property
    def catalog(self) -> StoredCatalog:
        """Definitions, including drafts."""

    @property
    def pruning(self) -> Pruning:
        """Deletes old executions."""

    def for_tenant(self, tenant: str | None) -> TenantReads:
        """Reads on behalf of this tenant. None: of all tenants."""

    async def open(self, *, migrate: bool) -> int:
        """Connects, migrates or checks the schema, and returns the database's time."""

    async def close(self) -> None: ...

    async def check(self) -> None:
        """Raises unless the database answers and has the schema that this program knows."""

    def listen(self, hear: Callable[[Hints], None]) -> None:
        """Calls `hear` when another process may have written something. Hints may be lost; readers poll as well."""

    def notify(self, hint: str) -> None:
        """Sends a hint to the other processes soon. Hints are batched, and never part of a commit."""

    async def commit(self, batch: Batch) -> Committed: ...

    async def written(self, appends: Sequence[Append]) -> list[bool]:
        """Which of these rows are stored, byte for byte: resolves a commit whose outcome is unknown."""

    async def blocked(self, batch: Batch) -> Set[str]:
        """Which executions of a batch that failed with `locked` another transaction holds. It does not wait."""

"""The storage port: what a durable runtime needs of a database, as one narrow protocol for each kind of work.

The lease protocol
------------------

A worker process opens a *session*: one row with an expiry, which a thread of the process renews at a third of the
lease. An execution that is running points to the session that owns it. It has an epoch, which every claim raises. Only
the owner appends to an execution's history, and only through `commit`.

`commit` first locks the session's row (shared). If the session has ended, `commit` writes nothing: that is the fence.
`reap` ends expired sessions, and needs the same row exclusively. It skips a session that is committing, and every later
commit of an ended session is refused. Only the end of a session makes its executions due and free to claim. So between
two owners of an execution there is always a moment at which the first one has made its last commit, however long it was
frozen. A claim locks the claimant's session in the same way.

`(execution, seq)` is the primary key of events, and so a second fence.

Failures and what happens then:

- The owner is killed. Its session expires, another process reaps it, and the execution is claimed with a higher epoch.
- The owner is frozen and wakes after its session was reaped. Its commit is refused, and it drops its executions.
- The owner is frozen in the middle of a transaction. PostgreSQL ends the transaction after five seconds. On SQLite, no
  process can write until the owner wakes or is killed: that is what SQLite's lock means.
- The owner cannot reach the database, so its renewals fail. When its lease is over by its own monotonic clock, it
  starts no more attempts. If the database comes back before the session is reaped, the owner continues.
- The outcome of a commit is unknown, because the connection broke. The worker reads the batch back and never assumes.
- The outcome of a claim is unknown. The worker reads what it owns until it knows.
- Two processes reap or claim at once. Each acts only on the rows that its own statement returned.
- The database loses acknowledged commits, for example when an asynchronous standby is promoted. Every batch states the
  owner, epoch and last entry of each of its executions (`Basis`). If the database disagrees, nothing of that execution
  is written. The worker drops it and loads it again from what is stored.
- An older backup is restored under a running worker. Its session is missing, or older than the last acknowledged
  renewal, or the incarnation of the database has changed. In each case the session is over.
"""

from collections.abc import Callable, Sequence, Set
from typing import Literal, NamedTuple, Protocol, TypeAlias

from msgspec import Struct

from tenuto.views.jobs import CallbackRow, LedgerAttempt, LedgerRow
from tenuto.views.ledger import CreditEntry, Reserve, Settlement
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
from .claims import PARKED_AT_ONCE as PARKED_AT_ONCE
from .claims import TENANTS_AT_ONCE as TENANTS_AT_ONCE
from .claims import Claim as Claim
from .claims import Claims as Claims
from .claims import Turn as Turn
from .claims import next_after as next_after
from .claims import plan_pairs as plan_pairs
from .credits import CreditStore
from .executions import ExecutionRow as ExecutionRow
from .executions import Executions as Executions
from .executions import Loaded as Loaded
from .executions import SnapshotRow as SnapshotRow
from .executions import Wanted as Wanted
from .jobs import JobStore
from .ledger.port import IndexRow
from .mailbox import MAIL_AT_ONCE as MAIL_AT_ONCE
from .mailbox import Mail as Mail
from .mailbox import Mailbox as Mailbox
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
from .runs import RunStore
from .sessions import SESSIONS_KEPT_MS as SESSIONS_KEPT_MS
from .sessions import Renewal as Renewal
from .sessions import Sessions as Sessions
from .sessions import renewal_s as renewal_s
from .status_changes import StatusChanges
from .tasks import TaskStore


class NewExecution(Struct, frozen=True, kw_only=True, gc=False):
    """A start. `owner` is the session that owns the execution from the start. None: any worker may claim it."""

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
    """The entries of one decision, stored as one row. `seq` is the number of the first."""

    execution: str
    seq: int
    count: int
    body: bytes


class Basis(Struct, frozen=True, gc=False):
    """The history that a decision was made on: the epoch of its owner, and the number of its last entry.

    A commit compares it with the database and writes nothing of the execution if they differ. Either another session
    owns it (`not_owner`), or the database lost acknowledged commits (`stale`).
    """

    epoch: int
    seq: int


class MailVerdict(Struct, frozen=True):
    execution: str
    id: str
    verdict: bytes


class Batch(Struct, kw_only=True):
    """Everything that one commit writes. An execution that cannot be written is left out; the others still are."""

    session: str | None
    starts: list[NewExecution] = []
    bases: dict[str, Basis] = {}  # by execution; starts have none
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
    ledger: list[LedgerRow] = []
    ledger_attempts: list[LedgerAttempt] = []
    job_index: list[IndexRow] = []
    callbacks: list[CallbackRow] = []
    credit_entries: list[CreditEntry] = []
    settlements: list[Settlement] = []
    reserves: list[Reserve] = []

    @property
    def is_about_jobs(self) -> bool:
        return bool(self.ledger or self.ledger_attempts or self.job_index or self.callbacks)


Refusal = Literal[
    "duplicate_key", "conflict", "tenant_limit", "not_owner", "stale", "insufficient_credits", "not_created"
]


class Committed(Struct, frozen=True):
    """`fenced`: the session is no longer live and nothing was written. `refused`: these executions were left out.

    `room`: how many more executions may be in flight, for each tenant of its starts that has a limit.
    """

    now: int
    fenced: bool = False
    refused: dict[str, Refusal] = {}
    room: dict[str, int] = {}


# Hints between processes: due executions without an owner, and changes of executions that callers wait for.
WORK = "work"
NEWS = "news"
Hints: TypeAlias = frozenset[str]
EVERYTHING: Hints = frozenset({"*"})  # anything may have changed


def tasks_in(queue: str) -> str:
    """The hint that a task waits in this queue."""
    return f"tasks:{queue}"


def mail_for(session: str) -> str:
    """The hint that this session's executions have mail."""
    return f"mail:{session}"


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
    def status_changes(self) -> StatusChanges:
        """Status changes of executions, for the feed."""

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
    def credits(self) -> CreditStore:
        """Accounts and the ledger of credits."""

    @property
    def runs(self) -> RunStore:
        """Runs as they were created."""

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

    @property
    def jobs(self) -> JobStore:
        """The ledger, the log of callbacks, and the embedded bus."""

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

"""The storage port: what a durable runtime asks of a database, in a dozen verbs.

The lease protocol, in prose.

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
from typing import Literal, Protocol, Self, TypeAlias

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

from .catalog import Catalog
from .catalog import DefinitionRow as DefinitionRow
from .outbox import OutboxStore
from .permits import LimitStore
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


class ProgressRow(Struct, frozen=True):
    """How far a step is, as its handler said."""

    execution: str
    path: str
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


SESSIONS_KEPT_MS = 24 * 3_600_000  # so long it can be seen who was there
TENANTS_AT_ONCE = 100
MAIL_AT_ONCE = 1_000
ASIDE_AT_ONCE = 10_000


class Turn(Struct, frozen=True, kw_only=True):
    """Whose executions are to be taken: those of tenants that come after this one and are not full.

    So many of each, and so many in all.
    """

    after: str
    full: Sequence[str]
    each: int
    limit: int


def renewal_s(lease_ms: int) -> float:
    """When to renew a lease next: in a third of it at most, and not all at once with those who began together."""
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


class Notice(Struct, frozen=True, kw_only=True):
    """A notification, under its step's key. `receipt` is None until the other side has taken it."""

    key: str
    tenant: str
    execution: str
    path: str
    channel: str
    begun_at: int = 0
    sent_at: int | None = None
    receipt: bytes | None = None


class BacklogRow(Struct, frozen=True):
    """How many of something there are, and since when the oldest has waited. `now` has the database's time there."""

    what: str  # reviews, due, owned, mail, tasks, outbox, sessions, now
    label: str
    count: int
    oldest: int | None = None


class Wanted(Struct, frozen=True, kw_only=True):
    """A filter. What is None does not matter."""

    tenant: str | None = None
    status: str | None = None
    definition: str | None = None
    correlation_id: str | None = None
    target_id: str | None = None
    since: int | None = None
    before: int | None = None
    active: bool = False
    newest_first: bool = False


class SessionRow(Struct, frozen=True, kw_only=True):
    """A live session, and how many executions it owns. `queues` is JSON, null of one that runs no steps."""

    id: str
    worker: str
    build: str
    queues: str
    started_at: int
    expires_at: int
    executions: int

    @property
    def works(self) -> bool:
        return self.queues != "null"


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


class Store(Protocol):
    @property
    def limits(self) -> LimitStore:
        """What is shared out among all workers."""

    @property
    def tasks(self) -> TaskStore:
        """What the workers of queues ask for."""

    @property
    def registry(self) -> Registry:
        """What a service keeps beside executions, in the same database."""

    @property
    def outbox(self) -> OutboxStore:
        """What relays ask for."""

    @property
    def reviews(self) -> SqlReviews:
        """What waits for a person, and what was decided."""

    @property
    def catalog(self) -> Catalog:
        """Definitions, drafts and all."""

    @property
    def pruning(self) -> Pruning:
        """Removing what is over."""

    def for_tenant(self, tenant: str | None) -> Self:
        """The same store for reading on behalf of a tenant: the database itself shows no other tenant's rows.

        What the dialect cannot keep apart is told apart by the caller alone. None: everybody's.
        """

    async def open(self, *, migrate: bool) -> int:
        """Connects, brings the schema up to date or checks it, and gives the database's time."""

    async def close(self) -> None: ...

    def listen(self, hear: Callable[[Hints], None]) -> None:
        """Calls `hear` when another process may have left something. Only a hint: what is stored is the truth."""

    def notify(self, hint: str) -> None:
        """Gives the other processes a hint, soon: hints are gathered, and never part of a commit."""

    async def commit(self, batch: Batch) -> Committed: ...

    async def open_session(self, id: str, worker: str, build: str, lease_ms: int, queues: Sequence[str] | None) -> int:
        """Without queues (None) a process runs no steps at all; with none of them (empty), only what is in no queue."""

    def keep_alive(self, id: str, lease_ms: int, tell: Callable[[Renewal], None], stop: threading.Event) -> None:
        """Renews the session at a third of its time until `stop`: in a thread and on a connection of its own."""

    async def claim_one(self, session: str, execution: str) -> Claim | None:
        """Takes this execution if nobody holds it: to decide a fact for it, and let go of it again."""

    async def end_session(self, id: str) -> None: ...

    async def mark_restored(self) -> int:
        """Raises the database's incarnation, and gives it: every session that was opened before is over."""

    async def sessions(self) -> list[SessionRow]:
        """Those that have not ended, oldest first."""

    async def reap(self, own: str = "") -> int:
        """Ends sessions that are over, except one's own; what they owned becomes due, and nobody's. Gives how many."""

    async def aside(self, plans: Sequence[str], within_ms: int) -> list[str]:
        """What was set aside of these plans, and is offered again within that time. At most `ASIDE_AT_ONCE`."""

    async def rouse(self) -> int:
        """Makes due what has mail, and is neither owned nor due. How many: it should be none, ever."""

    async def claim(self, session: str, plans: Sequence[str], limit: int) -> list[Claim]:
        """Takes due executions of these plans (`name/version`), the most urgent first."""

    async def claim_in_turn(self, session: str, plans: Sequence[str], turn: Turn) -> tuple[list[Claim], str]:
        """Takes due executions tenant by tenant. Also gives the tenant to go on after; none if all were looked at.

        It costs a look for each tenant, and none for each execution that waits: one with ten thousand of them does not
        hide the others. `TENANTS_AT_ONCE` are looked at in one call.
        """

    async def owned(self, session: str) -> list[Claim]:
        """What this session owns: the answer after a claim whose outcome is unknown."""

    async def progress(self, executions: Sequence[str]) -> list[ProgressRow]: ...

    async def keep_progress(self, rows: Sequence[ProgressRow], gone: Sequence[tuple[str, str]]) -> None:
        """Writes these, and deletes those of these executions and paths."""

    async def load(self, ids: Sequence[str], *, short: bool = False) -> list[Loaded]:
        """These executions as they are stored, in no particular order; those that are not there are left out.

        `short`: where there is a snapshot, it comes with the first row and those after it.
        """

    async def bodies(self, id: str, first: int, last: int) -> list[bytes]:
        """The rows that hold the entries first..last."""

    async def holding(self, id: str, seqs: Sequence[int]) -> list[bytes]:
        """The rows that hold these entries."""

    async def tails(self, after: Mapping[str, int]) -> dict[str, list[bytes]]:
        """For each execution the rows that follow this entry, in order; those that have none are left out."""

    async def post(self, id: str, execution: str, body: bytes) -> tuple[int, str | None] | None:
        """Puts mail into an execution's box, once per id. Gives when it arrived and the owner, None if unknown.

        It also sets `wake_at`, whoever owns the execution: an owner that lets go of it at this moment leaves that time
        in the row, and whoever claims it next finds the mail.
        """

    async def mail(self, session: str) -> list[Mail]:
        """Unread mail of the executions that this session owns, oldest first, `MAIL_AT_ONCE` at most."""

    async def verdicts(self, ids: Sequence[str]) -> dict[str, bytes]:
        """What was said to those of these letters that have been read."""

    async def by_keys(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], tuple[str, str]]:
        """Of these tenants and keys, those that are known: the execution, and the hash of what started it."""

    async def row(self, id: str) -> ExecutionRow | None: ...

    async def executions(self, wanted: Wanted, after: str | None, limit: int) -> list[ExecutionRow]:
        """Oldest first unless wanted otherwise; `after` is the last id of the page before."""

    async def count(self, wanted: Wanted, by: str) -> dict[str, int]: ...

    async def statuses(self, ids: Sequence[str], tenant: str | None = None) -> dict[str, str]:
        """How these executions stand; only this tenant's, if one is named."""

    async def moved(self, known: Sequence[tuple[str, str]]) -> list[str]:
        """Which of these executions stand otherwise than said, or are gone: pairs of an id and a status."""

    async def written(self, appends: Sequence[Append]) -> list[bool]:
        """Which of these rows are there, byte for byte: the answer after a commit whose outcome is unknown."""

    async def blocked(self, batch: Batch) -> Set[str]:
        """Which executions of a batch that was `locked` wait for a transaction of somebody else. It does not wait."""

    async def park(
        self, session: str | None, execution: str, why: str, again_ms: int | None, epoch: int | None = None
    ) -> None:
        """Sets an execution aside, visibly: nobody claims it before that time is over, or a command wakes it.

        Unless another session has it by now; or this one again, if an epoch is named.
        """

    async def check(self) -> None:
        """Raises unless the database answers and has the schema that this program knows."""

    async def backlog(self) -> list[BacklogRow]:
        """What waits, and for how long: from indexes that hold nothing else, so that it can be asked often."""

    async def begin_notice(self, notice: Notice) -> Notice:
        """Notes that a notification is about to be sent, unless its key is known; gives what is stored."""

    async def end_notice(self, key: str, receipt: bytes) -> None:
        """It was taken. The first receipt stays."""

    async def notice(self, key: str) -> Notice | None: ...

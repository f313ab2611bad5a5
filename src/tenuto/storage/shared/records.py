"""Everything that is stored, as records: for exports and for the checker.

Reading changes nothing and blocks no writer: it uses a read-only connection, and a transaction for each page. A page
shows one moment, and the next page a later one. So records that are compared with each other are read in one page, and
a record that counts others counts them in its own query.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from tenuto.storage.ledger.port import IndexRow
from tenuto.storage.permits import IN_FLIGHT
from tenuto.storage.port import DefinitionRow, ExecutionRow, SnapshotRow
from tenuto.storage.registry import AuditEntry
from tenuto.views.jobs import CallbackRow, LedgerAttempt, LedgerRow

T = TypeVar("T", bound=Struct)


# -- Of one execution --------------------------------------------------------------------------------------------------


class ExecutionRecord(ExecutionRow, frozen=True, kw_only=True):
    """With what is known of the session that owns it."""

    owner_expires_at: int | None = None
    owner_ended_at: int | None = None


class EventsRow(Struct, frozen=True, kw_only=True):
    execution: str
    seq: int
    count: int
    body: bytes


class MailRow(Struct, frozen=True, kw_only=True):
    id: str
    execution: str
    received_at: int
    body: bytes
    verdict: bytes | None


class UnreadMail(MailRow, frozen=True, kw_only=True):
    """For those who ask for nothing else: of what was read there is much."""


class ReviewRecord(Struct, frozen=True, kw_only=True):
    id: str
    execution: str
    tenant: str
    definition: str
    kind: str
    path: str
    step: str
    reason: str
    permission: str
    error_class: str
    error_summary: str
    attempts: int
    opened_at: int
    due_at: int | None
    resolution: str | None
    resolved_by: str | None
    resolved_at: int | None


class TaskRecord(Struct, frozen=True, kw_only=True):
    """With what is known of the session that has taken it."""

    execution: str
    path: str
    phase: str
    number: int
    tenant: str
    plan: str
    queue: str
    handler: str
    priority: int
    created_at: int
    session: str | None
    begun_at: int | None
    beat_at: int | None
    parked: str
    session_expires_at: int | None = None
    session_ended_at: int | None = None


class ProgressRecord(Struct, frozen=True, kw_only=True):
    execution: str
    path: str
    body: bytes


class AdmissionRow(Struct, frozen=True, kw_only=True):
    """A place in the line for a concurrency key. `ahead`: how many stand before it."""

    execution: str
    tenant: str
    definition: str
    key: str
    position: int
    ahead: int


class MessageRow(Struct, frozen=True, kw_only=True):
    execution: str
    seq: int
    tenant: str
    kind: str
    body: bytes
    created_at: int
    published_at: int | None
    session: str | None
    tries: int
    due_at: int
    error: str


class NoticeRecord(Struct, frozen=True, kw_only=True):
    """A notification that was begun, and perhaps sent."""

    key: str
    tenant: str
    execution: str
    path: str
    channel: str
    begun_at: int
    sent_at: int | None
    receipt: bytes | None


class ActRecord(AuditEntry, frozen=True, kw_only=True):
    """A row of the audit once more, beside the execution that it tells of."""

    execution: str


class BusRecord(Struct, frozen=True, kw_only=True):
    """A message of the embedded bus, without its directive."""

    id: str
    execution: str
    tenant: str
    topic: str
    service: str
    published_at: int
    deliveries: int
    dead_reason: str | None


# -- Of none -----------------------------------------------------------------------------------------------------------


class MigrationRecord(Struct, frozen=True, kw_only=True):
    number: int
    name: str
    applied_at: int


class SessionRecord(Struct, frozen=True, kw_only=True):
    id: str
    worker: str
    build: str
    queues: str
    handlers: str
    started_at: int
    expires_at: int
    ended_at: int | None


class LimitRecord(Struct, frozen=True, kw_only=True):
    name: str
    count: int | None
    period_ms: int | None
    concurrency: int | None
    spent: str


class HolderRecord(Struct, frozen=True, kw_only=True):
    """What a session holds of a limit. `session_ended_at` is 0 if the session is no longer stored."""

    name: str
    session: str
    held: int
    wanted: int
    asked_at: int
    served_at: int
    session_ended_at: int | None


class InboxRecord(Struct, frozen=True, kw_only=True):
    consumer: str
    id: str
    at: int


class HeadRecord(Struct, frozen=True, kw_only=True):
    """The end of a tenant's audit chain as it is noted, and the last row of that chain."""

    tenant: str
    n: int
    hash: str
    last_n: int | None
    last_hash: str | None


class AuditRecord(AuditEntry, frozen=True, kw_only=True):
    """`head`: where the chain of its tenant ends, as it is noted."""

    head: int | None


class DuplicateKey(Struct, frozen=True, kw_only=True):
    """Executions of one tenant with one idempotency key. There are none, unless the database was tampered with."""

    tenant: str
    key: str
    executions: int


class TenantLimitRow(Struct, frozen=True, kw_only=True):
    """`counted`: executions of this tenant that have not ended."""

    tenant: str
    max_in_flight: int
    in_flight: int
    counted: int


# -- Queries -----------------------------------------------------------------------------------------------------------

OF_NONE: tuple[type[Struct], ...] = (
    MigrationRecord, DefinitionRow, SessionRecord, DuplicateKey, TenantLimitRow, LimitRecord, HolderRecord, HeadRecord,
)  # fmt: skip
"""What belongs to no execution and is not long."""

OF_EXECUTION: tuple[type[Struct], ...] = (
    SnapshotRow, MessageRow, EventsRow, MailRow, ReviewRecord, TaskRecord, AdmissionRow, ProgressRecord, NoticeRecord,
    LedgerRow, LedgerAttempt, IndexRow, CallbackRow, BusRecord,
)  # fmt: skip
"""What belongs to one execution, in the order in which it is read."""

_MAIL = " UNION ALL ".join(  # each half has an index of its own
    f"SELECT id, execution, received_at, body, verdict FROM mailbox WHERE verdict IS {state}"
    for state in ("NULL", "NOT NULL")
)
_TABLES: dict[type[Struct], tuple[str, str]] = {  # the table as `t`, and what orders its rows
    MigrationRecord: ("tenuto_migrations t", "number"),
    DefinitionRow: ("definitions t", "name, version"),
    SessionRecord: ("sessions t", "id"),
    LimitRecord: ("limits t", "name"),
    HolderRecord: ("limit_holders t LEFT JOIN sessions s ON s.id = t.session", "name, session"),
    InboxRecord: ("inbox t", "consumer, id"),
    HeadRecord: ("audit_head t", "tenant"),
    AuditRecord: ("audit t LEFT JOIN audit_head h ON h.tenant = t.tenant", "t.tenant, t.n"),
    AuditEntry: ("audit t", "position"),
    ExecutionRecord: ("executions t LEFT JOIN sessions s ON s.id = t.owner", "t.id"),
    EventsRow: ("events t", "execution, seq"),
    SnapshotRow: ("snapshots t", "execution"),
    MailRow: (f"({_MAIL}) t", "execution, received_at, id"),
    UnreadMail: ("mailbox t", "execution, received_at, id"),
    ReviewRecord: ("reviews t", "execution, id"),
    TaskRecord: ("tasks t LEFT JOIN sessions s ON s.id = t.session", "execution, path, phase, number"),
    AdmissionRow: ("admissions t", "execution"),
    ProgressRecord: ("progress t", "execution, path"),
    MessageRow: ("outbox t", "execution, seq"),
    NoticeRecord: ("sent_notifications t", "execution, key"),
    LedgerRow: ("ledger t", "execution, key"),
    LedgerAttempt: ("ledger_attempts t", "execution, step, attempt"),
    IndexRow: ("job_index t", "execution"),
    CallbackRow: ("callbacks t", "execution, id"),
    BusRecord: ("bus_messages t", "execution, id"),
    TenantLimitRow: ("tenant_limits t", "tenant"),
    DuplicateKey: ("executions t WHERE key IS NOT NULL GROUP BY tenant, key HAVING count(*) > 1", "tenant, key"),
}
_LAST = "(SELECT a.{} FROM audit a WHERE a.tenant = t.tenant AND a.n IS NOT NULL ORDER BY a.n DESC LIMIT 1)"
_COMPUTED = {
    (ExecutionRecord, "owner_expires_at"): "s.expires_at",
    (ExecutionRecord, "owner_ended_at"): "s.ended_at",
    (TaskRecord, "session_expires_at"): "s.expires_at",
    (TaskRecord, "session_ended_at"): "s.ended_at",
    (HolderRecord, "session_ended_at"): "CASE WHEN s.id IS NULL THEN 0 ELSE s.ended_at END",
    (AuditRecord, "head"): "h.n",
    (HeadRecord, "last_n"): _LAST.format("n"),
    (HeadRecord, "last_hash"): _LAST.format("hash"),
    (AdmissionRow, "ahead"): (
        "(SELECT count(*) FROM admissions b WHERE b.tenant = t.tenant AND b.definition = t.definition "
        "AND b.key = t.key AND b.position < t.position)"
    ),
    (TenantLimitRow, "in_flight"): IN_FLIGHT,
    (TenantLimitRow, "counted"): (
        "(SELECT count(*) FROM executions e WHERE e.tenant = t.tenant AND e.ended_at IS NULL)"
    ),
    (DuplicateKey, "executions"): "count(*)",
}


def select(kind: type[Struct], where: str = "", *, limit: int | None = None, ordered: bool = True) -> str:
    """The query for records of a kind. Parameters are written `$1`, `$2`; the table is `t`.

    Where the order does not matter a database is free to use the index of the condition.
    """
    table, order = _TABLES[kind]
    columns = ", ".join(_COMPUTED.get((kind, name), f"t.{name}") for name in kind.__struct_fields__)
    condition = f" WHERE {where}" if where else ""
    sequence = f" ORDER BY {order}" if ordered else ""
    bound = f" LIMIT {limit}" if limit is not None else ""
    return f"SELECT {columns} FROM {table}{condition}{sequence}{bound}"


NOBODYS = (
    "NOT EXISTS (SELECT 1 FROM executions e WHERE e.id = t.execution) "
    "AND NOT EXISTS (SELECT 1 FROM leftovers l WHERE l.execution = t.execution)"
)
"""Selects rows of executions that do not exist and are not being pruned."""


class Reader(Protocol):
    """A connection that can only read."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def now(self) -> int:
        """The database's time."""

    def page(self) -> AbstractAsyncContextManager[None]:
        """Everything read inside is seen at one moment."""

    def rows(self, kind: type[T], query: str, *values: Any) -> AsyncIterator[T]:
        """Records in batches, so that a long table costs no more memory than a short one."""

"""All that is stored, as records: for exports, and for those who prove that what is stored is sound.

Reading changes nothing and blocks nobody: on a connection that may not write, in transactions of a page each. Within a
page everything is seen at one moment; a page later time has passed. So what must be compared with one another is read
in one page, and a record that counts others counts them in its own query.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from .store import DefinitionRow, ExecutionRow, SnapshotRow

T = TypeVar("T", bound=Struct)


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


class ReviewRecord(Struct, frozen=True, kw_only=True):
    id: str
    execution: str
    tenant: str
    definition: str
    kind: str
    path: str
    opened_at: int
    due_at: int | None
    resolution: str | None
    resolved_by: str | None
    resolved_at: int | None


class TaskRecord(Struct, frozen=True, kw_only=True):
    execution: str
    path: str
    phase: str
    number: int
    queue: str
    created_at: int
    session: str | None


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
    created_at: int
    published_at: int | None
    tries: int


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


OF_EXECUTION: tuple[type[Struct], ...] = (
    SnapshotRow, EventsRow, MailRow, ReviewRecord, TaskRecord, AdmissionRow, MessageRow,
)  # fmt: skip
"""What belongs to one execution, in the order in which it is read."""

_TABLES: dict[type[Struct], tuple[str, str]] = {  # the table as `t`, and what orders its rows
    DefinitionRow: ("definitions t", "name, version"),
    ExecutionRecord: ("executions t LEFT JOIN sessions s ON s.id = t.owner", "t.id"),
    EventsRow: ("events t", "execution, seq"),
    SnapshotRow: ("snapshots t", "execution"),
    MailRow: ("mailbox t", "execution, received_at, id"),
    ReviewRecord: ("reviews t", "execution, id"),
    TaskRecord: ("tasks t", "execution, path, phase, number"),
    AdmissionRow: ("admissions t", "position"),
    MessageRow: ("outbox t", "execution, seq"),
    TenantLimitRow: ("tenant_limits t", "tenant"),
    DuplicateKey: ("executions t WHERE key IS NOT NULL GROUP BY tenant, key HAVING count(*) > 1", "tenant, key"),
}
_COMPUTED = {
    (ExecutionRecord, "owner_expires_at"): "s.expires_at",
    (ExecutionRecord, "owner_ended_at"): "s.ended_at",
    (AdmissionRow, "ahead"): (
        "(SELECT count(*) FROM admissions b WHERE b.tenant = t.tenant AND b.definition = t.definition "
        "AND b.key = t.key AND b.position < t.position)"
    ),
    (TenantLimitRow, "counted"): (
        "(SELECT count(*) FROM executions e WHERE e.tenant = t.tenant AND e.ended_at IS NULL)"
    ),
    (DuplicateKey, "executions"): "count(*)",
}


def select(kind: type[Struct], where: str = "", *, limit: int | None = None) -> str:
    """The query for records of a kind. Parameters are written `$1`, `$2`; the table is `t`."""
    table, order = _TABLES[kind]
    columns = ", ".join(_COMPUTED.get((kind, name), f"t.{name}") for name in kind.__struct_fields__)
    condition = f" WHERE {where}" if where else ""
    bound = f" LIMIT {limit}" if limit is not None else ""
    return f"SELECT {columns} FROM {table}{condition} ORDER BY {order}{bound}"


NOBODYS = "NOT EXISTS (SELECT 1 FROM executions e WHERE e.id = t.execution)"
"""The condition on rows of executions that do not exist."""


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

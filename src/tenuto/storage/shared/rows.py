"""Rows as they are written: one statement for each kind, made from the fields of its struct.

Statements have `$1`, `$2`, … for values. PostgreSQL takes them so; SQLite takes `?1`, `?2`, ….
"""

from collections.abc import Container, Iterator
from typing import Any

from tenuto.storage.ledger.port import IndexRow
from tenuto.storage.port import Batch, ExecutionRow, NewExecution, SnapshotRow
from tenuto.views.jobs import CallbackRow, LedgerAttempt, LedgerRow
from tenuto.views.ledger import CreditEntry
from tenuto.views.projections import OutboxRow, ReviewRow, Standing, TaskRow

EXECUTION_COLUMNS = ExecutionRow.__struct_fields__


def insert(table: str, columns: tuple[str, ...], *, ignore: bool = False) -> str:
    """`ignore`: what is there already stays as it is."""
    marks = ", ".join(f"${number}" for number in range(1, len(columns) + 1))
    conflict = " ON CONFLICT DO NOTHING" if ignore else ""
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks}){conflict}"


# What is learned of an attempt after its first row.
_ADDED = (
    "workspace_ref", "created_at", "dispatched_at", "acked_at", "ended_at", "error_class", "error_code",
)  # fmt: skip


def _newer(table: str, columns: tuple[str, ...]) -> str:
    """An older row never replaces a newer one."""
    is_newer = f"CASE WHEN excluded.seq >= {table}.seq THEN excluded"
    return ", ".join(f"{name} = {is_newer}.{name} ELSE {table}.{name} END" for name in columns)


# What a batch seldom has, by the field of `Batch`.
_REST = {
    "reviews": insert("reviews", ReviewRow.__struct_fields__),
    "closed": "UPDATE reviews SET resolution = $3, resolved_by = $4, resolved_at = $5 WHERE execution = $1 AND id = $2",
    "mail": "UPDATE mailbox SET verdict = $3 WHERE execution = $1 AND id = $2 AND verdict IS NULL",
    "snapshots": insert("snapshots", SnapshotRow.__struct_fields__)
    + " ON CONFLICT (execution) DO UPDATE SET seq = excluded.seq, body = excluded.body",
    "tasks": insert("tasks", TaskRow.__struct_fields__, ignore=True),
    "tasks_ended": "DELETE FROM tasks WHERE execution = $1 AND path = $2 AND phase = $3 AND number = $4",
    "outbox": insert("outbox", OutboxRow.__struct_fields__),
    "job_index": insert("job_index", IndexRow.__struct_fields__, ignore=True),
    "ledger": insert("ledger", LedgerRow.__struct_fields__)
    + " ON CONFLICT (execution, key) DO UPDATE SET created_at = coalesce(ledger.created_at, excluded.created_at), "
    "notify_at = coalesce(excluded.notify_at, ledger.notify_at), " + _newer("ledger", ("status", "body", "seq")),
    "ledger_attempts": insert("ledger_attempts", LedgerAttempt.__struct_fields__)
    + " ON CONFLICT (execution, step, attempt) DO UPDATE SET "
    + ", ".join(f"{name} = coalesce(excluded.{name}, ledger_attempts.{name})" for name in _ADDED)
    + ", "
    + _newer("ledger_attempts", ("status", "seq")),
    "callbacks": insert("callbacks", CallbackRow.__struct_fields__, ignore=True),
    "credit_entries": insert("credit_ledger", CreditEntry.__struct_fields__),
}


def rest_of(batch: Batch, refused: Container[str]) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
    """The other rows of a batch, without refused executions. One order for all commits prevents deadlocks."""
    for field, query in _REST.items():
        rows = [values_of(row) for row in getattr(batch, field) if row.execution not in refused]
        if rows:
            yield query, rows if field == "credit_entries" else sorted(rows)  # its order is the order of its numbers


def values_of(row: Any) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in row.__struct_fields__)


def execution_values(start: NewExecution, standing: Standing) -> tuple[Any, ...]:
    """The row of a new execution, in the order of `EXECUTION_COLUMNS`."""
    return (
        start.id, start.tenant, start.definition, start.version, standing.status, standing.run,
        standing.seq, 1, None if standing.release else start.owner, standing.wake_at, start.priority,
        start.correlation_id, start.target_type, start.target_id, start.key, start.concurrency_key, start.request_hash,
        standing.cancel_requested, standing.error_class, standing.parked, start.created_at, standing.ended_at,
    )  # fmt: skip


def basis_values(batch: Batch) -> list[tuple[str, int, int]]:
    return [(id, basis.epoch, basis.seq) for id, basis in batch.bases.items()]


def move_values(standing: Standing) -> tuple[Any, ...]:
    """How an execution stands now, for its row: what it is found by first, and its epoch last."""
    return (
        standing.id, standing.status, standing.run, standing.seq, standing.wake_at, standing.release,
        standing.cancel_requested, standing.error_class, standing.parked, standing.ended_at, standing.epoch,
    )  # fmt: skip

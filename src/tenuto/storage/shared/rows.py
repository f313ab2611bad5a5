"""Rows as they are written: one statement for each kind, made from the fields of its struct.

Statements have `$1`, `$2`, … for values. PostgreSQL takes them so; SQLite takes `?1`, `?2`, ….
"""

from collections.abc import Container, Iterator
from typing import Any

from tenuto.storage.port import Batch, ExecutionRow, NewExecution, SnapshotRow
from tenuto.views.projections import OutboxRow, ReviewRow, Standing, TaskRow

EXECUTION_COLUMNS = ExecutionRow.__struct_fields__


def insert(table: str, columns: tuple[str, ...], *, ignore: bool = False) -> str:
    """`ignore`: what is there already stays as it is."""
    marks = ", ".join(f"${number}" for number in range(1, len(columns) + 1))
    conflict = " ON CONFLICT DO NOTHING" if ignore else ""
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks}){conflict}"


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
}


def rest_of(batch: Batch, refused: Container[str]) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
    """The other rows of a batch, without refused executions. One order for all commits prevents deadlocks."""
    for field, query in _REST.items():
        rows = [values_of(row) for row in getattr(batch, field) if row.execution not in refused]
        if rows:
            yield query, sorted(rows)


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

"""Rows as they are written: one statement for each kind, made from the fields of its struct.

Statements have `$1`, `$2`, … for values. PostgreSQL takes them so; SQLite takes `?1`, `?2`, ….
"""

from typing import Any

from tenuto.projection import Standing

from .store import ExecutionRow, NewExecution

EXECUTION_COLUMNS = ExecutionRow.__struct_fields__


def insert(table: str, columns: tuple[str, ...], *, ignore: bool = False) -> str:
    """`ignore`: what is there already stays as it is."""
    marks = ", ".join(f"${number}" for number in range(1, len(columns) + 1))
    conflict = " ON CONFLICT DO NOTHING" if ignore else ""
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks}){conflict}"


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

"""A database full of executions, written as rows: what lists look like after a year, without the year.

Most have succeeded; some failed, and of those half wait in the dead-letter queue; few are under way. Each has one
recorded event, so that none can be loaded by a worker: these databases are for reading lists alone.
"""

import time
from pathlib import Path

import apsw
import psycopg

BLOCK = 50_000
TENANT = "default"
RARE, COMMON = "rare", "common"

# {n} is the number of the row; the newest is the last. Both dialects understand what is not in braces.
_STATUS = (
    "CASE WHEN {n} % 20 = 0 THEN 'failed' WHEN {n} % 50 = 1 THEN 'running' WHEN {n} % 100 = 2 THEN 'waiting_approval' "
    "WHEN {n} % 1000 = 3 THEN 'paused' WHEN {n} % 1000 = 4 THEN 'canceled' ELSE 'succeeded' END"
)
_EXECUTION = {
    "id": "{id}",
    "tenant": f"CASE WHEN {{n}} % 10 = 9 THEN 'other' ELSE '{TENANT}' END",
    "definition": f"CASE WHEN {{n}} % 100000 = 7 THEN '{RARE}' WHEN {{n}} % 2 = 0 THEN '{COMMON}' "
    "ELSE 'def-' || ({n} % 50) END",
    "version": "1",
    "status": _STATUS,
    "run": "1",
    "seq": "1",
    "epoch": "1",
    "owner": "NULL",
    "wake_at": "NULL",
    "priority": "0",
    "correlation_id": "CASE WHEN {n} % 10 < 5 THEN 'batch-' || ({n} / 100000) ELSE 'c-' || {n} END",
    "target_type": "'Invoice'",
    "target_id": "'inv-' || ({n} / 3)",
    "key": "'k-' || {n}",
    "concurrency_key": "NULL",
    "request_hash": "''",
    "cancel_requested": "{false}",
    "error_class": "CASE WHEN {n} % 20 = 0 THEN 'NON_RETRYABLE' ELSE '' END",
    "parked": "''",
    "created_at": "{at}",
    "ended_at": "CASE WHEN {n} % 50 = 1 OR {n} % 100 = 2 OR {n} % 1000 = 3 THEN NULL ELSE {at} + 500 END",
}
_REVIEW = {
    "id": "{id} || '.9'",
    "execution": "{id}",
    "tenant": _EXECUTION["tenant"],
    "definition": _EXECUTION["definition"],
    "kind": "CASE WHEN {n} % 20 = 0 THEN 'dead_letter' ELSE 'approval' END",
    "path": "'pay'",
    "reason": "''",
    "permission": "''",
    "error_class": _EXECUTION["error_class"],
    "error_summary": "''",
    "attempts": "3",
    "opened_at": "{at}",
    "due_at": "NULL",
    "resolution": "CASE WHEN {n} % 40 = 0 THEN 'dismiss' ELSE NULL END",
    "resolved_by": "NULL",
    "resolved_at": "NULL",
}
_REVIEWED = "{n} % 20 = 0 OR {n} % 100 = 2"
EVERY_MS = 1_000
_NUMBERS = "SELECT {first} + value AS n FROM (WITH RECURSIVE c (value) AS (SELECT 0 UNION ALL SELECT value + 1 FROM c \
WHERE value < {last} - {first} - 1) SELECT value FROM c) AS numbers"


def fill(url: str, executions: int) -> None:
    """One execution for each second that has passed, the last of them now."""
    first_ms = time.time_ns() // 1_000_000 - executions * EVERY_MS
    if url.startswith("sqlite"):
        _fill_sqlite(url.removeprefix("sqlite:///"), executions, first_ms)
    else:
        _fill_postgres(url, executions, first_ms)


def _fill_sqlite(path: str, executions: int, first_ms: int) -> None:
    assert Path(path).exists()
    words = {"id": f"printf('%011x%011x', {first_ms} + n * {EVERY_MS}, n)", "false": "0"}
    connection = apsw.Connection(path)
    connection.set_busy_timeout(60_000)
    try:
        connection.execute("PRAGMA synchronous = OFF")
        for first in range(0, executions, BLOCK):
            for statement in _block(first, min(first + BLOCK, executions), first_ms, words):
                connection.execute(statement)
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    finally:
        connection.close()


def _fill_postgres(dsn: str, executions: int, first_ms: int) -> None:
    hexadecimal = "lpad(to_hex({}), 11, '0')"
    id = f"{hexadecimal.format(f'{first_ms} + n * {EVERY_MS}::bigint')} || {hexadecimal.format('n')}"
    words = {"id": f"({id})", "false": "false"}
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = off")
        for first in range(0, executions, BLOCK):
            for statement in _block(first, min(first + BLOCK, executions), first_ms, words):
                connection.execute(statement.encode())
        connection.execute("VACUUM ANALYZE")


def _block(first: int, last: int, first_ms: int, words: dict[str, str]) -> list[str]:
    words = {**words, "n": "n", "at": f"({first_ms} + n * {EVERY_MS})"}
    numbers = _NUMBERS.format(first=first, last=last)
    return [
        _insert("executions", _EXECUTION, numbers, "true", words),
        _insert("reviews", _REVIEW, numbers, _REVIEWED, words),
    ]


def _insert(table: str, columns: dict[str, str], numbers: str, where: str, words: dict[str, str]) -> str:
    values = ", ".join(value.format(**words) for value in columns.values())
    names = ", ".join(columns)
    return f"INSERT INTO {table} ({names}) SELECT {values} FROM ({numbers}) AS rows WHERE {where.format(**words)}"  # noqa: S608  (all of it is above)

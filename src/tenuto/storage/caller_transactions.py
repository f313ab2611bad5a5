"""Writes in a caller's transaction: the start of an execution, and the ids of received messages.

A start writes the row, the first events and everything that follows from them. Such an execution has no owner and is
due at once: after the caller's commit, the first worker claims it. Until then it is invisible, and if the caller rolls
back, it never existed.

Locks are taken in the order in which commits take them (concurrency key, tenant's limit, idempotency key), so that the
two cannot wait for one another. They are held until the caller's transaction ends, as all locks are.
"""

from typing import NamedTuple

from msgspec import Struct

from tenuto.errors import NotSupported, StorageError
from tenuto.views.projections import AuditRow, OutboxRow, ReviewRow, TaskRow

from .caller_connections import Caller, is_missing_table, savepoint
from .port import Append, Batch, DefinitionRow, NewExecution, Refusal
from .postgres.admissions import COUNT_CHANGES, LOCK_LIMITS
from .shared.admissions import admission, line_of, lock_name
from .shared.rows import EXECUTION_COLUMNS, execution_values, insert, values_of

_EXECUTION = insert("executions", EXECUTION_COLUMNS, ignore=True)
_EVENTS = insert("events", Append.__struct_fields__)
_REVIEW = insert("reviews", ReviewRow.__struct_fields__)
_TASK = insert("tasks", TaskRow.__struct_fields__)
_MESSAGE = insert("outbox", OutboxRow.__struct_fields__)
_AUDIT = insert("audit", AuditRow.__struct_fields__)
_MAIL = insert("mailbox", ("id", "execution", "body", "received_at"))
_ADMISSION = insert("admissions", ("tenant", "definition", "key", "execution"))
_RECEIVED = insert("inbox", ("consumer", "id", "at"), ignore=True)
_DEFINITION = insert("definitions", DefinitionRow.__struct_fields__, ignore=True)


class Existing(NamedTuple):
    """The execution that a key was used for."""

    id: str
    request_hash: str


class _Refused(Exception):
    def __init__(self, why: Refusal) -> None:
        self.why = why


async def start_within(caller: Caller, batch: Batch) -> Refusal | None:
    """Writes the one execution that the batch starts. If it may not be started it says why, and nothing is written."""
    (start,) = batch.starts
    try:
        async with savepoint(caller):
            await _check(caller, start, ends=batch.standings[start.id].ended_at is not None)
            await _write(caller, batch, start)
    except _Refused as refused:
        return refused.why
    return None


async def find_existing(caller: Caller, tenant: str, key: str) -> Existing | None:
    query = "SELECT id, request_hash FROM executions WHERE tenant = $1 AND key = $2"
    rows = await caller.fetch(query, tenant, key)
    return Existing(*rows[0]) if rows else None


async def save_definition(caller: Caller, row: DefinitionRow) -> tuple[str, bytes]:
    """The hash and the document that are stored under this name and version: these ones, unless they were taken."""
    await caller.change(_DEFINITION, *values_of(row))
    query = "SELECT hash, document FROM definitions WHERE name = $1 AND version = $2"
    ((hash, document),) = await caller.fetch(query, row.name, row.version)
    return hash, bytes(document)


async def _check(caller: Caller, start: NewExecution, *, ends: bool) -> None:
    if start.key is not None and await find_existing(caller, start.tenant, start.key) is not None:
        raise _Refused("duplicate_key")
    if (line := line_of(start)) is not None:
        await _lock(caller, *line)
        await _check_isolation(caller)
        query = "SELECT 1 FROM admissions WHERE tenant = $1 AND definition = $2 AND key = $3 LIMIT 1"
        if start.reject_conflict and await caller.fetch(query, *line):
            raise _Refused("conflict")
    if caller.dialect == "postgres" and await caller.fetch(LOCK_LIMITS, [start.tenant]):
        await caller.change(COUNT_CHANGES, [start.tenant])
    query = "UPDATE tenant_limits SET in_flight = in_flight + $2 WHERE tenant = $1 AND in_flight < max_in_flight"
    limited = "SELECT 1 FROM tenant_limits WHERE tenant = $1"
    number = 0 if ends else 1  # what begins and ends in one is never in flight
    if not await caller.change(query, start.tenant, number) and await caller.fetch(limited, start.tenant):
        raise _Refused("tenant_limit")
    if start.key is not None:
        # The unique index would do to keep two apart. By its name a worker sees the key in use, and does not wait.
        await _lock(caller, start.tenant, start.key)


async def _lock(caller: Caller, *name: str) -> None:
    if caller.dialect == "postgres":
        await caller.fetch("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))::text", lock_name(*name))


async def _check_isolation(caller: Caller) -> None:
    """Who stands first for a key must be seen as it is now, and not as it was when the transaction began."""
    if caller.dialect == "postgres":
        ((isolation,),) = await caller.fetch("SELECT current_setting('transaction_isolation')")
        if isolation != "read committed":
            raise NotSupported(
                f"An execution with a concurrency key cannot be started in a transaction that is {isolation}.",
                hint="start it in a transaction that is READ COMMITTED, or after your commit",
            )


async def _write(caller: Caller, batch: Batch, start: NewExecution) -> None:
    if not await caller.change(_EXECUTION, *execution_values(start, batch.standings[start.id])):
        raise _Refused("duplicate_key")  # of a transaction that was open when we looked, and is committed now
    for append in batch.appends:
        await caller.change(_EVENTS, *values_of(append))
    if batch.standings[start.id].admission == "request":
        await _queue_up(caller, start)
    rows: list[tuple[str, Struct]] = [
        *((_REVIEW, row) for row in batch.reviews),
        *((_TASK, row) for row in batch.tasks),
        *((_MESSAGE, row) for row in batch.outbox),
        *((_AUDIT, row) for row in batch.audit),
    ]
    for statement, row in rows:
        await caller.change(statement, *values_of(row))


async def _queue_up(caller: Caller, start: NewExecution) -> None:
    """Enters the queue of a concurrency key. The first execution gets a message, unless it already has one."""
    line = line_of(start)
    assert line is not None
    await caller.change(_ADMISSION, *line, start.id)
    query = (
        "SELECT execution FROM admissions WHERE tenant = $1 AND definition = $2 AND key = $3 ORDER BY position LIMIT 1"
    )
    ((first,),) = await caller.fetch(query, *line)
    if first == start.id:
        await caller.change(_MAIL, *admission(start.id, 1, line[2], start.created_at))
        await caller.change("UPDATE executions SET wake_at = $2 WHERE id = $1", start.id, start.created_at)


async def note_once(caller: Caller, consumer: str, id: str, now: int) -> bool:
    """Whether this consumer receives this id for the first time. Concurrent calls with the same id wait for each other.

    If the first transaction is rolled back, the second one is the first.
    """
    try:
        return await caller.change(_RECEIVED, consumer, id, now) == 1
    except Exception as error:
        if is_missing_table(error):
            raise StorageError(
                "The connection's database has no tenuto schema.",
                code="other_database",
                hint="connect to the database that the engine's URL names; with PostgreSQL, check the search_path too",
            ) from error
        raise

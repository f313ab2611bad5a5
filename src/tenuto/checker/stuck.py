"""Finds overdue work by queries on rows alone, cheap enough to run every minute."""

from collections.abc import AsyncGenerator, Collection

from msgspec import Struct

from tenuto.storage.shared.records import (
    AuditRecord,
    ExecutionRecord,
    MessageRow,
    Reader,
    SessionRecord,
    TaskRecord,
    UnreadMail,
    select,
)
from tenuto.storage.tasks import queues_of

from .audit import A1
from .findings import Finding, finding, show
from .invariants import Family, Invariant
from .messages import B2
from .projections import H1

SLACK_MS = 60_000
MOST = 1_000

family = Family("Progress and time")

L8 = family("L8", "Executions, tasks and limit permits of a dead process are taken over.", "at rest")
V5 = family("V5", "A due execution is claimed by a worker.", "at rest")
V6 = family("V6", "Mailbox messages are read.", "at rest")


class Question(Struct, frozen=True):
    """A query. `$1` is the time before which the work was due; `values` are further parameters."""

    invariant: Invariant
    kind: type[Struct]
    where: str
    detail: str
    values: tuple[str, ...] = ()

    @property
    def query(self) -> str:
        return select(self.kind, self.where, limit=MOST, ordered=False)


_LIVE = "t.ended_at IS NULL"
QUESTIONS = (
    Question(V5, ExecutionRecord, f"t.owner IS NULL AND t.wake_at < $1 AND {_LIVE}", "due, and no worker claimed it"),
    Question(L8, ExecutionRecord, f"s.ended_at < $1 AND {_LIVE}", "its owner is dead, and no process took over"),
    Question(
        L8,
        ExecutionRecord,
        f"s.ended_at IS NULL AND s.expires_at < $1 AND {_LIVE}",
        "the lease of its owner expired, and no process ended the session",
    ),
    Question(H1, ExecutionRecord, f"t.parked <> '' AND t.created_at < $1 AND {_LIVE}", "blocked: see its status"),
    Question(V6, UnreadMail, "t.verdict IS NULL AND t.received_at < $1", "unread message"),
    Question(
        L8,
        TaskRecord,
        "t.session IS NOT NULL AND (s.id IS NULL OR s.expires_at < $1 OR s.ended_at < $1)",
        "its task worker is dead, and no process took over",
    ),
    Question(B2, MessageRow, "t.published_at IS NULL AND t.created_at < $1", "not published"),
    Question(A1, AuditRecord, "t.n IS NULL AND t.at < $1", "an audit row that is not chained"),
)


def unserved(queues: Collection[str]) -> Question:
    """Returns the query for tasks on other queues.

    Names are compared here, because SQL dialects differ in list parameters.
    """
    marks = ", ".join(f"${number}" for number in range(2, len(queues) + 2))
    elsewhere = f" AND t.queue NOT IN ({marks})" if queues else ""
    where = f"t.session IS NULL AND t.created_at < $1{elsewhere}"
    return Question(V5, TaskRecord, where, "waiting for a queue that no worker serves", tuple(queues))


async def find_stuck(reader: Reader, slack_ms: int = SLACK_MS) -> AsyncGenerator[Finding]:
    """Yields at most a thousand findings of each kind. The reader is open."""
    before = await reader.now() - slack_ms
    async with reader.page():
        for question in (*QUESTIONS, unserved(await _served(reader, before))):
            async for row in reader.rows(question.kind, question.query, before, *question.values):
                yield finding(question.invariant, _execution_of(row), question.detail, show(row))


async def _served(reader: Reader, before: int) -> set[str]:
    """Returns the queues of live workers."""
    query = select(SessionRecord, "t.ended_at IS NULL AND t.expires_at >= $1", ordered=False)
    names = [queues_of(row.queues) async for row in reader.rows(SessionRecord, query, before)]
    return {name for each in names for name in each}


def _execution_of(row: Struct) -> str | None:
    id: str | None = row.id if isinstance(row, ExecutionRecord) else getattr(row, "execution", None)
    return id


def overdue(row: ExecutionRecord, before: int) -> tuple[Invariant, str] | None:
    """Applies the same rules to one row, for a check of the whole record."""
    if row.ended_at is not None:
        return None
    if row.owner is None:
        due = row.wake_at is not None and row.wake_at < before
        return (V5, f"due since {row.wake_at}, and no worker claimed it") if due else None
    gone = row.owner_ended_at is not None and row.owner_ended_at < before
    expired = row.owner_expires_at is None or row.owner_expires_at < before
    return (L8, "its owner is dead, and no process took over") if gone or expired else None


def is_abandoned(task: TaskRecord, before: int) -> bool:
    """Returns whether the worker that claimed the task is dead."""
    if task.session is None:
        return False
    gone = task.session_ended_at is not None and task.session_ended_at < before
    return gone or task.session_expires_at is None or task.session_expires_at < before

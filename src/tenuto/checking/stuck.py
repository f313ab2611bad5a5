"""What somebody should have done by now: asked of rows alone, so cheaply that it can be asked every minute."""

from collections.abc import AsyncIterator

from msgspec import Struct

from tenuto.storage.records import ExecutionRecord, MailRow, Reader, select

from .findings import Finding, finding, show
from .invariants import Family, Invariant

SLACK_MS = 60_000
MOST = 1_000

family = Family("Progress and time")

L8 = family("L8", "What the process that owned it left behind is taken over by another.", "at rest")
V5 = family("V5", "What is due is taken up by somebody.", "at rest")
V6 = family("V6", "Mail is read by somebody.", "at rest")


class _Question(Struct, frozen=True):
    invariant: Invariant
    kind: type[ExecutionRecord] | type[MailRow]
    where: str
    detail: str


_LIVE = "t.ended_at IS NULL AND t.parked = ''"
_QUESTIONS = (
    _Question(V5, ExecutionRecord, f"t.owner IS NULL AND t.wake_at < $1 AND {_LIVE}", "due, and nobody took it"),
    _Question(L8, ExecutionRecord, f"s.ended_at < $1 AND {_LIVE}", "its owner is gone, and nobody took over"),
    _Question(
        L8,
        ExecutionRecord,
        f"s.ended_at IS NULL AND s.expires_at < $1 AND {_LIVE}",
        "its owner's lease is over, and nobody ended the session",
    ),
    _Question(V6, MailRow, "t.verdict IS NULL AND t.received_at < $1", "unread mail"),
)


async def find_stuck(reader: Reader, slack_ms: int = SLACK_MS) -> AsyncIterator[Finding]:
    """At most a thousand of each kind. The reader is open."""
    before = await reader.now() - slack_ms
    async with reader.page():
        for question in _QUESTIONS:
            query = select(question.kind, question.where, limit=MOST)
            async for row in reader.rows(question.kind, query, before):
                execution = row.id if isinstance(row, ExecutionRecord) else row.execution
                yield finding(question.invariant, execution, question.detail, show(row))


def overdue(row: ExecutionRecord, now: int, slack_ms: int) -> tuple[Invariant, str] | None:
    """The same of one row, where a whole record is looked at."""
    if row.ended_at is not None or row.parked:
        return None
    before = now - slack_ms
    if row.owner is None:
        due = row.wake_at is not None and row.wake_at < before
        return (V5, f"due since {row.wake_at}, and nobody took it") if due else None
    gone = row.owner_ended_at is not None and row.owner_ended_at < before
    expired = row.owner_expires_at is None or row.owner_expires_at < before
    return (L8, "its owner is gone, and nobody took over") if gone or expired else None

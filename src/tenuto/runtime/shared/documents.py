"""The documents of executions, reviews and the audit, made from what a runtime reads."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Protocol, get_args

from msgspec import structs

from tenuto.errors import NotFound
from tenuto.kernel.definition import plain_name
from tenuto.kernel.events import Entry, ExecutionFinished, ReviewKind, RunOpened
from tenuto.kernel.state import ExecutionStatus
from tenuto.runtime.shared.filters import Filter
from tenuto.storage.audit import Kept, Verified, seal, verify
from tenuto.storage.registry import REQUESTED, VALID_MS, AuditEntry, AuditWanted, Registry
from tenuto.storage.reviews import ReviewsWanted, ShownReview, StoredReview
from tenuto.views import (
    AuditDocument,
    AuditRecord,
    DeadLetterRow,
    EventDocument,
    ExecutionDocument,
    ExecutionSummary,
    RequestRow,
    ReviewRow,
    blocked,
    event_document,
    execution_document,
    rfc3339,
    time_text,
)
from tenuto.views.bulk_results import BulkResult
from tenuto.views.pages import Page
from tenuto.views.projections import AuditRow
from tenuto.views.reading import Reading

from .pages import number_at

_ENDS: dict[type, bool] = {ExecutionFinished: True, RunOpened: False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """An execution in a list."""

    execution_id: str
    tenant: str
    definition: str
    version: int
    status: ExecutionStatus
    correlation_id: str
    target: tuple[str, str] | None
    started_at: int
    ended_at: int | None = None
    error_class: str = ""


def execution_summary(summary: Summary) -> ExecutionSummary:
    """In the words of the HTTP surface."""
    target = summary.target or (None, None)
    return {
        "execution_id": summary.execution_id,
        "definition_id": plain_name(summary.definition),
        "definition_version": summary.version,
        "status": summary.status,
        "tenant_id": summary.tenant,
        "target_object_type": target[0],
        "target_object_id": target[1],
        "correlation_id": summary.correlation_id,
        "started_at": rfc3339(summary.started_at),
        "completed_at": time_text(summary.ended_at),
        "error_class": summary.error_class or None,
    }


def _step_of(row: ShownReview) -> str:
    """What it is called; rows of an earlier schema know only where it is."""
    return row.step or row.path.rpartition("/")[2].partition("@")[0]


def review_document(row: ShownReview) -> ReviewRow:
    kind: Any = row.kind
    return {
        "id": row.id,
        "kind": kind,
        "execution_id": row.execution,
        "step_id": _step_of(row),
        "path": row.path,
        "reason": row.reason,
        "permission": row.permission,
        "opened_at": rfc3339(row.opened_at),
        "due_at": time_text(row.due_at),
        "state": "open" if row.resolution is None else "resolved",
        "requests": list(row.requests),
    }


def dead_letter_document(row: ShownReview) -> DeadLetterRow:
    return {
        "id": row.id,
        "execution_id": row.execution,
        "step_id": _step_of(row),
        "path": row.path,
        "error_class": row.error_class,
        "error_summary": row.error_summary,
        "attempts": row.attempts,
        "created_at": rfc3339(row.opened_at),
        "state": "open" if row.resolution is None else "resolved",
        "requests": list(row.requests),
    }


class Reads(Protocol):
    """What documents are made from."""

    async def read_all(self, tenant: str | None, ids: Sequence[str]) -> list[Reading]: ...

    async def look(self, tenant: str | None, execution_id: str) -> Reading: ...

    async def entries(
        self, tenant: str | None, execution_id: str, after: int, *, again: bool = False
    ) -> list[Entry]: ...

    async def executions(self, wanted: Filter, cursor: str | None, limit: int) -> Page[Summary]: ...

    async def review_rows(self, wanted: ReviewsWanted, cursor: str | None, limit: int) -> list[StoredReview]: ...

    async def review_row(self, tenant: str | None, id: str) -> StoredReview | None: ...


class Documents:
    """Turns readings and rows into documents. `registry` is the one that a tenant may read; None: the whole."""

    def __init__(self, reads: Reads, registry: Callable[[str | None], Registry], now_ms: Callable[[], int]) -> None:
        self._reads = reads
        self._registry = registry
        self._now = now_ms

    async def document(self, tenant: str | None, execution_id: str) -> ExecutionDocument:
        reading = await self._reads.look(tenant, execution_id)
        key = reading.idempotency_key
        return execution_document(reading.state, reading.history, reading.activity, idempotency_key=key)

    async def follow(
        self, tenant: str | None, execution_id: str, after: int, every_ms: int
    ) -> AsyncIterator[EventDocument]:
        """Polls."""
        over = (await self._reads.look(tenant, execution_id)).state.finished is not None
        again = False
        while True:
            entries = await self._reads.entries(tenant, execution_id, after, again=again)
            again = True
            for entry in entries:
                after = entry.seq
                over = _ENDS.get(type(entry.event), over)
                yield event_document(entry)
            if over:
                return
            await asyncio.sleep(every_ms / 1_000)

    async def act(self, verb: Literal["cancel", "retry"], wanted: Filter, body: Mapping[str, Any]) -> BulkResult | None:
        return None

    async def answer_letter(self, verb: Literal["reprocess", "discard"], id: str, reason: str) -> DeadLetterRow | None:
        return None

    async def reprocess(self, wanted: ReviewsWanted, body: Mapping[str, Any]) -> BulkResult | None:
        return None

    async def summaries(self, wanted: Filter, cursor: str | None, limit: int) -> Page[ExecutionSummary]:
        if not wanted.blocked:
            found = await self._reads.executions(wanted, cursor, limit)
            return Page([execution_summary(summary) for summary in found.items], found.next_cursor)
        return await self._blocked(wanted, cursor, limit)

    async def _blocked(self, wanted: Filter, cursor: str | None, limit: int) -> Page[ExecutionSummary]:
        """Why one is blocked is in no row: those that are not over are read. A page may hold fewer than `limit`."""
        found = await self._reads.executions(wanted.for_blocked(), cursor, limit)
        readings = await self._reads.read_all(wanted.tenant, [row.execution_id for row in found.items])
        why = {reading.state.id: blocked(reading.state, reading.activity) for reading in readings}
        items: list[ExecutionSummary] = []
        for row in found.items:
            reason = why.get(row.execution_id)
            if reason is not None and _is_before(reason["since"], wanted.before_ms):
                items.append({**execution_summary(row), "blocked": reason})
        return Page(items, found.next_cursor)

    # Reviews

    async def reviews(self, wanted: Filter, cursor: str | None, limit: int) -> Page[ReviewRow]:
        kinds = get_args(ReviewKind) if wanted.kind is None else (wanted.kind,)
        found = await self.review_page(_reviews_wanted(wanted, kinds), cursor, limit)
        return Page([review_document(row) for row in found.items], found.next_cursor)

    async def dead_letters(self, wanted: Filter, cursor: str | None, limit: int) -> Page[DeadLetterRow]:
        found = await self.review_page(_reviews_wanted(wanted, ("dead_letter",)), cursor, limit)
        return Page([dead_letter_document(row) for row in found.items], found.next_cursor)

    async def review_page(self, wanted: ReviewsWanted, cursor: str | None, limit: int) -> Page[ShownReview]:
        rows = await self._reads.review_rows(wanted, cursor, limit + 1)
        shown = await self._with_requests(wanted.tenant, rows[:limit])
        return Page(shown, rows[limit - 1].id if len(rows) > limit else None)

    async def review(self, tenant: str | None, id: str) -> ShownReview:
        row = await self._reads.review_row(tenant, id)
        if row is None or tenant not in (None, row.tenant):
            raise NotFound(f"There is no review {id!r}.")
        (shown,) = await self._with_requests(tenant, [row])
        return shown

    async def _with_requests(self, tenant: str | None, rows: Sequence[StoredReview]) -> list[ShownReview]:
        about = [row.id for row in rows if row.resolution is None]
        found = await self._registry(None).requests(tenant, about, self._now() - VALID_MS) if about else []
        return [
            ShownReview(
                **structs.asdict(row),
                requests=tuple(_request(note) for note in found if note.object_id == row.id),
            )
            for row in rows
        ]

    # The audit

    async def note(self, row: AuditRow) -> None:
        await self._registry(None).note(row)

    async def audit(self, tenant: str, wanted: AuditWanted, cursor: str | None, limit: int) -> Page[AuditDocument]:
        await seal(self._registry(None))
        before = None if cursor is None else number_at(cursor)
        rows = await self._registry(tenant).audit(tenant, wanted, before, limit + 1)
        more = str(rows[limit - 1].n) if len(rows) > limit else None
        return Page([_audit_document(row) for row in rows[:limit]], more)

    async def audit_chain(self, tenant: str, after: int, limit: int) -> list[AuditRecord]:
        await seal(self._registry(None))
        rows = await self._registry(tenant).chained(tenant, after, limit)
        return [{"n": row.n or 0, **_audit_document(row)} for row in rows]

    async def verify_audit(self, tenant: str, kept: Kept | None) -> Verified:
        await seal(self._registry(None))
        return await verify(self._registry(None), tenant, kept)


def _reviews_wanted(wanted: Filter, kinds: tuple[str, ...]) -> ReviewsWanted:
    return ReviewsWanted(
        tenant=wanted.tenant,
        kinds=kinds,
        definition=wanted.definition,
        execution=wanted.execution_id,
        error_class=wanted.error_class,
    )


def _request(note: AuditRow) -> RequestRow:
    kind: Any = note.action.removesuffix(REQUESTED)
    return {"kind": kind, "actor": note.actor, "at": rfc3339(note.at), "reason": note.reason}


def _is_before(since: str | None, before_ms: int | None) -> bool:
    if before_ms is None or since is None:
        return True
    return datetime.fromisoformat(since) < datetime.fromtimestamp(before_ms / 1_000, UTC)


def _audit_document(row: AuditEntry) -> AuditDocument:
    assert row.hash is not None
    return {
        "action": row.action,
        "actor": row.actor,
        "at": rfc3339(row.at),
        "tenant": row.tenant,
        "object_type": row.object_type,
        "object_id": row.object_id,
        "reason": row.reason,
        "hash": row.hash,
    }

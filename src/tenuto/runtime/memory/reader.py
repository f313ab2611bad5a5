"""Reads of the memory runtime."""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Literal

import msgspec

from tenuto.errors import NotFound
from tenuto.kernel.definition import names_in_filter
from tenuto.kernel.events import Entry
from tenuto.kernel.state import ExecutionStatus
from tenuto.runtime.executor.held_execution import Record
from tenuto.runtime.executor.worker import Worker
from tenuto.runtime.shared.executions import Summary
from tenuto.runtime.shared.filters import Filter
from tenuto.runtime.shared.overview import Figures
from tenuto.runtime.shared.pages import id_at, number_at
from tenuto.storage.operations import BacklogRow
from tenuto.storage.reviews import NEVER, ReviewsWanted, StoredReview, fits
from tenuto.views import Until, finished_at, has_reached
from tenuto.views.pages import Page
from tenuto.views.projections import ReviewRow as StoredRow
from tenuto.views.projections import reviews
from tenuto.views.reading import Reading

from .executions import MemoryExecutions


class MemoryReader:
    """Reads the executions that are held in memory."""

    def __init__(self, worker: Worker, executions: MemoryExecutions) -> None:
        self._worker = worker
        self._executions = executions
        self._awaited: dict[Record, None] = {}

    @property
    def is_awaited(self) -> bool:
        """Whether a caller waits for an execution."""
        self._awaited = {record: None for record in self._awaited if any(not w.done() for _, w in record.waiters)}
        return bool(self._awaited)

    async def read(self, tenant: str | None, execution_id: str) -> Reading:
        return self._executions.find(tenant, execution_id).reading()

    async def read_state(self, tenant: str | None, execution_id: str) -> Reading:
        return await self.read(tenant, execution_id)

    async def read_all(self, tenant: str | None, ids: Sequence[str]) -> list[Reading]:
        return [self._executions.find(tenant, id).reading() for id in ids]

    async def entries(self, tenant: str | None, execution_id: str, after: int, *, again: bool = False) -> list[Entry]:
        return self._executions.find(tenant, execution_id).history[after:]

    async def events(self, tenant: str | None, execution_id: str, after: int, limit: int) -> list[Entry]:
        return self._executions.find(tenant, execution_id).history[after : after + limit]

    async def tails(self, after: Mapping[str, int]) -> dict[str, list[Entry]]:
        records = self._executions.records
        return {id: records[id].history[seq:] for id, seq in after.items() if id in records}

    async def figures(self, tenant: str | None, soonest: int) -> Figures:
        records = [record for record in self._executions.in_order if tenant in (None, record.state.tenant)]
        statuses = Counter(record.state.status for record in records)
        reviews = [row for record in records for row in _stored_reviews(record) if row.resolution is None]
        kinds = Counter(row.kind for row in reviews)
        waiting = sorted(
            (row for row in reviews if row.kind != "dead_letter"), key=lambda row: (row.due_at or NEVER, row.id)
        )
        rows = [BacklogRow("executions", status, count) for status, count in statuses.items()]
        rows += [BacklogRow("reviews", kind, count) for kind, count in kinds.items()]
        serving = [sorted(self._worker.queues)] if self._worker.works else []
        return Figures([*rows, BacklogRow("now", "", 0, self._worker.now())], waiting[:soonest], serving)

    async def wait(self, tenant: str | None, execution_id: str, until: Until, timeout_ms: int | None) -> Reading:
        record = self._executions.find(tenant, execution_id)
        if has_reached(record.state, until):
            return record.reading()
        self._worker.check_open()
        if self._worker.on_idle is not None:
            self._awaited[record] = None
            self._worker.call_soon(self._worker.on_idle)
        return await record.wait(until, timeout_ms, self._worker.environment.clock)

    async def summaries(self, wanted: Filter, cursor: str | None, limit: int) -> Page[Summary]:
        last = len(self._executions.in_order) - 1
        if wanted.newest_first:
            positions = range(min(number_at(cursor), last) if cursor else last, -1, -1)
        else:
            positions = range(number_at(cursor) if cursor else 0, last + 1)
        found: list[Summary] = []
        for position in positions:
            record = self._executions.in_order[position]
            if _fits(record, wanted):
                if len(found) == limit:
                    return Page(found, str(position))
                found.append(_summary(record))
        return Page(found)

    async def count(self, wanted: Filter, by: Literal["status", "definition"]) -> dict[str, int]:
        counts: dict[str, int] = {}
        for record in self._executions.in_order:
            if _fits(record, wanted):
                group = record.state.status if by == "status" else record.performer.program.name
                counts[group] = counts.get(group, 0) + 1
        return counts

    async def review_rows(self, wanted: ReviewsWanted, cursor: str | None, limit: int) -> list[StoredReview]:
        cursor = id_at(cursor)
        rows = [row for record in self._executions.in_order for row in _stored_reviews(record) if fits(row, wanted)]
        return sorted((row for row in rows if cursor is None or row.id > cursor), key=lambda row: row.id)[:limit]

    async def review_row(self, tenant: str | None, id: str) -> StoredReview | None:
        with suppress(NotFound):
            for row in _stored_reviews(self._executions.find(tenant, id.rpartition(".")[0])):
                if row.id == id:
                    return row
        return None

    async def statuses(self, tenant: str | None, ids: Sequence[str]) -> dict[str, ExecutionStatus]:
        records = self._executions.records
        states = (records[id].state for id in ids if id in records)
        return {state.id: state.status for state in states if tenant in (None, state.tenant)}


def _stored_reviews(record: Record) -> list[StoredReview]:
    """The reviews as a database stores them."""
    found: dict[str, StoredReview] = {}
    for row in reviews(record.state, record.history):
        if isinstance(row, StoredRow):
            found[row.id] = StoredReview(**msgspec.structs.asdict(row))
        else:
            closed = {"resolution": row.resolution, "resolved_by": row.actor, "resolved_at": row.closed_at}
            found[row.id] = msgspec.structs.replace(found[row.id], **closed)
    return list(found.values())


def _fits(record: Record, wanted: Filter) -> bool:
    state = record.state
    started = record.payloads.started
    target = started.target[1] if started.target is not None else None
    return (
        wanted.tenant in (None, state.tenant)
        and wanted.status in (None, state.status)
        and (wanted.definition is None or started.definition in names_in_filter(wanted.definition, wanted.tenant))
        and wanted.correlation_id in (None, state.correlation_id)
        and wanted.target_id in (None, target)
        and (wanted.since_ms is None or record.history[0].at >= wanted.since_ms)
        and (wanted.before_ms is None or record.history[0].at < wanted.before_ms)
        and not (wanted.active and state.finished is not None)
        and not (wanted.names_failure and state.failure is None)
        and wanted.version in (None, started.version)
        and (
            wanted.error_class is None
            or (state.failure is not None and state.failure.error_class == wanted.error_class)
        )
        and (wanted.q is None or _is_found_by(record, wanted.q))
    )


def _is_found_by(record: Record, text: str) -> bool:
    state, target = record.state, record.payloads.started.target
    return (
        state.id.startswith(text)
        or text in (record.idempotency_key, state.correlation_id)
        or (target is not None and target[1] == text)
    )


def _summary(record: Record) -> Summary:
    state, started = record.state, record.payloads.started
    return Summary(
        execution_id=state.id,
        tenant=state.tenant,
        definition=started.definition,
        version=started.version,
        status=state.status,
        correlation_id=state.correlation_id,
        target=started.target,
        started_at=record.history[0].at,
        ended_at=finished_at(state, record.history),
        error_class="" if state.failure is None else state.failure.error_class,
    )

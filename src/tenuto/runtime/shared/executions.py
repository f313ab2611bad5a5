"""Executions as users see them: documents, events and lists, made from what a runtime reads."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, Protocol

from tenuto.kernel.definition import plain_name
from tenuto.kernel.events import Entry, ExecutionFinished, RunOpened
from tenuto.kernel.state import Execution, ExecutionStatus
from tenuto.runtime.shared.filters import Filter
from tenuto.views import (
    EventDocument,
    ExecutionDocument,
    ExecutionSummary,
    Until,
    blocked,
    error_document,
    event_document,
    execution_document,
    rfc3339,
    time_text,
)
from tenuto.views.pages import Page
from tenuto.views.reading import Reading

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


class ExecutionSource(Protocol):
    """What a runtime itself must be able to read."""

    async def read(self, tenant: str | None, execution_id: str) -> Reading: ...

    async def read_state(self, tenant: str | None, execution_id: str) -> Reading: ...

    async def read_all(self, tenant: str | None, ids: Sequence[str]) -> list[Reading]:
        """Reads those of these executions that exist, in no particular order."""

    async def entries(
        self, tenant: str | None, execution_id: str, after: int, *, again: bool = False
    ) -> list[Entry]: ...

    async def events(self, tenant: str | None, execution_id: str, after: int, limit: int) -> list[Entry]: ...

    async def wait(self, tenant: str | None, execution_id: str, until: Until, timeout_ms: int | None) -> Reading: ...

    async def summaries(self, wanted: Filter, cursor: str | None, limit: int) -> Page[Summary]: ...

    async def count(self, wanted: Filter, by: Literal["status", "definition"]) -> dict[str, int]: ...

    async def statuses(self, tenant: str | None, ids: Sequence[str]) -> dict[str, ExecutionStatus]: ...


class ExecutionReads:
    """Implements `Executions` on what a runtime reads."""

    def __init__(self, source: ExecutionSource) -> None:
        self._source = source
        self.read = source.read
        self.read_state = source.read_state
        self.events = source.events
        self.wait = source.wait
        self.count = source.count
        self.statuses = source.statuses

    async def document(self, tenant: str | None, execution_id: str) -> ExecutionDocument:
        reading = await self._source.read_state(tenant, execution_id)
        key = reading.idempotency_key
        return execution_document(reading.state, reading.history, reading.activity, idempotency_key=key)

    async def follow(
        self, tenant: str | None, execution_id: str, after: int, every_ms: int
    ) -> AsyncIterator[EventDocument]:
        """Polls for new events."""
        is_over = (await self._source.read_state(tenant, execution_id)).state.finished is not None
        again = False
        while True:
            entries = await self._source.entries(tenant, execution_id, after, again=again)
            again = True
            for entry in entries:
                after = entry.seq
                is_over = _ENDS.get(type(entry.event), is_over)
                yield event_document(entry)
            if is_over:
                return
            await asyncio.sleep(every_ms / 1_000)

    async def page(self, wanted: Filter, cursor: str | None, limit: int) -> Page[ExecutionSummary]:
        if wanted.blocked:
            return await self._blocked(wanted, cursor, limit)
        if wanted.names_failure:
            return await self._failed(wanted, cursor, limit)
        found = await self._source.summaries(wanted, cursor, limit)
        return Page([_document(summary) for summary in found.items], found.next_cursor)

    async def _blocked(self, wanted: Filter, cursor: str | None, limit: int) -> Page[ExecutionSummary]:
        """Reads the executions that are not finished, because no row tells why one is blocked.

        A page may hold fewer than `limit`.
        """
        found = await self._source.summaries(wanted.for_blocked(), cursor, limit)
        readings = await self._source.read_all(wanted.tenant, [row.execution_id for row in found.items])
        reasons = {reading.state.id: blocked(reading.state, reading.activity) for reading in readings}
        items: list[ExecutionSummary] = []
        for row in found.items:
            reason = reasons.get(row.execution_id)
            if reason is None or wanted.blocked_reason not in (None, reason["reason"]):
                continue
            if _is_before(reason["since"], wanted.before_ms):
                items.append({**_document(row), "blocked": reason})
        return Page(items, found.next_cursor)

    async def _failed(self, wanted: Filter, cursor: str | None, limit: int) -> Page[ExecutionSummary]:
        """Reads the executions that ended with an error, because no row tells its code and step.

        A page may hold fewer than `limit`.
        """
        found = await self._source.summaries(wanted, cursor, limit)
        readings = await self._source.read_all(wanted.tenant, [row.execution_id for row in found.items])
        chosen = {reading.state.id for reading in readings if _has_error(reading.state, wanted)}
        return Page([_document(row) for row in found.items if row.execution_id in chosen], found.next_cursor)


def _has_error(state: Execution, wanted: Filter) -> bool:
    error = error_document(state, state.failure)
    if error is None or wanted.error_code not in (None, error["code"]):
        return False
    step = error["step_id"]
    return wanted.failed_step in (None, step, step.partition("#")[0])


def _document(summary: Summary) -> ExecutionSummary:
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


def _is_before(since: str | None, before_ms: int | None) -> bool:
    if before_ms is None or since is None:
        return True
    return datetime.fromisoformat(since) < datetime.fromtimestamp(before_ms / 1_000, UTC)

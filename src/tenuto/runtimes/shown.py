"""What a runtime shows of its executions, put together from what it reads. One that asks another process asks it."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from tenuto.kernel.events import Entry, ExecutionFinished, RunOpened
from tenuto.projection import AuditRow
from tenuto.runtime import Acted, Filter, Page, Reading, Summary, execution_summary
from tenuto.storage.audit import Kept, Verified, seal, verify
from tenuto.storage.registry import AuditEntry, AuditWanted, Registry
from tenuto.view import (
    AuditDocument,
    AuditRecord,
    EventDocument,
    ExecutionDocument,
    ExecutionSummary,
    blocked,
    event_document,
    execution_document,
    rfc3339,
)

_ENDS: dict[type, bool] = {ExecutionFinished: True, RunOpened: False}


class Shown(ABC):
    """The part of a runtime that turns readings and rows into documents."""

    @abstractmethod
    async def read(self, tenant: str | None, execution_id: str) -> Reading: ...

    @abstractmethod
    async def read_all(self, tenant: str | None, ids: Sequence[str]) -> list[Reading]: ...

    @abstractmethod
    async def entries(
        self, tenant: str | None, execution_id: str, after: int, *, again: bool = False
    ) -> list[Entry]: ...

    @abstractmethod
    async def executions(self, wanted: Filter, cursor: str | None, limit: int) -> Page[Summary]: ...

    @property
    @abstractmethod
    def registry(self) -> Registry: ...

    def check_scope(self, tenant: str) -> None:  # noqa: B027  (there is nothing to forbid)
        """Whoever embeds it answers for that."""

    async def document(self, tenant: str | None, execution_id: str) -> ExecutionDocument:
        reading = await self.read(tenant, execution_id)
        key = reading.idempotency_key
        return execution_document(reading.state, reading.history, reading.activity, idempotency_key=key)

    async def follow(
        self, tenant: str | None, execution_id: str, after: int, every_ms: int
    ) -> AsyncIterator[EventDocument]:
        """Looks every so often."""
        over = (await self.read(tenant, execution_id)).state.finished is not None
        again = False
        while True:
            entries = await self.entries(tenant, execution_id, after, again=again)
            again = True
            for entry in entries:
                after = entry.seq
                over = _ENDS.get(type(entry.event), over)
                yield event_document(entry)
            if over:
                return
            await asyncio.sleep(every_ms / 1_000)

    async def act(self, verb: Literal["cancel", "retry"], wanted: Filter, body: Mapping[str, Any]) -> Acted | None:
        return None

    async def summaries(self, wanted: Filter, cursor: str | None, limit: int) -> Page[ExecutionSummary]:
        if not wanted.blocked:
            found = await self.executions(wanted, cursor, limit)
            return Page([execution_summary(summary) for summary in found.items], found.next_cursor)
        return await self._blocked(wanted, cursor, limit)

    async def _blocked(self, wanted: Filter, cursor: str | None, limit: int) -> Page[ExecutionSummary]:
        """Why one is blocked is in no row: those that are not over are read. A page may hold fewer than `limit`."""
        found = await self.executions(wanted.for_blocked(), cursor, limit)
        readings = await self.read_all(wanted.tenant, [row.execution_id for row in found.items])
        why = {reading.state.id: blocked(reading.state, reading.activity) for reading in readings}
        items: list[ExecutionSummary] = []
        for row in found.items:
            reason = why.get(row.execution_id)
            if reason is not None and _is_before(reason["since"], wanted.before_ms):
                items.append({**execution_summary(row), "blocked": reason})
        return Page(items, found.next_cursor)

    # The audit

    async def note(self, row: AuditRow) -> None:
        await self.registry.note(row)

    def _registry_of(self, tenant: str) -> Registry:
        """As this tenant may read it, where the database itself keeps tenants apart."""
        return self.registry

    async def audit(self, tenant: str, wanted: AuditWanted, cursor: str | None, limit: int) -> Page[AuditDocument]:
        await seal(self.registry)
        before = None if cursor is None else int(cursor)
        rows = await self._registry_of(tenant).audit(tenant, wanted, before, limit + 1)
        more = str(rows[limit - 1].n) if len(rows) > limit else None
        return Page([_audit_document(row) for row in rows[:limit]], more)

    async def audit_chain(self, tenant: str, after: int, limit: int) -> list[AuditRecord]:
        await seal(self.registry)
        rows = await self._registry_of(tenant).chained(tenant, after, limit)
        return [{"n": row.n or 0, **_audit_document(row)} for row in rows]

    async def verify_audit(self, tenant: str, kept: Kept | None) -> Verified:
        await seal(self.registry)
        return await verify(self.registry, tenant, kept)


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

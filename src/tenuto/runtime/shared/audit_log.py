"""The audit log of a registry."""

from collections.abc import Callable

from tenuto.storage.audit import Kept, Verified, seal, verify
from tenuto.storage.registry import AuditEntry, AuditWanted, Registry
from tenuto.views import AuditDocument, AuditRecord, rfc3339
from tenuto.views.pages import Page
from tenuto.views.projections import AuditRow

from .pages import number_at


class RegistryAuditLog:
    """Implements `AuditLog`. Rows are sealed into the chain before they are read."""

    def __init__(self, registry_of: Callable[[str | None], Registry]) -> None:
        """`registry_of` returns the registry that shows only this tenant's rows, or with None all rows."""
        self._registry_of = registry_of

    async def note(self, row: AuditRow) -> None:
        await self._registry_of(None).note(row)

    async def page(self, tenant: str, wanted: AuditWanted, cursor: str | None, limit: int) -> Page[AuditDocument]:
        await seal(self._registry_of(None))
        before = None if cursor is None else number_at(cursor)
        rows = await self._registry_of(tenant).audit(tenant, wanted, before, limit + 1)
        more = str(rows[limit - 1].n) if len(rows) > limit else None
        return Page([_document(row) for row in rows[:limit]], more)

    async def chain(self, tenant: str, after: int, limit: int) -> list[AuditRecord]:
        await seal(self._registry_of(None))
        rows = await self._registry_of(tenant).chained(tenant, after, limit)
        return [{"n": row.n or 0, **_document(row)} for row in rows]

    async def verify(self, tenant: str, kept: Kept | None) -> Verified:
        await seal(self._registry_of(None))
        return await verify(self._registry_of(None), tenant, kept)


def _document(row: AuditEntry) -> AuditDocument:
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

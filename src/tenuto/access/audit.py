"""The audit as it is read: who did what, to what, when and why."""

from collections.abc import AsyncIterator
from typing import TypedDict

from tenuto.runtime import Page
from tenuto.storage.audit import Kept, Verified, seal, verify
from tenuto.storage.registry import AuditEntry, AuditWanted, Registry
from tenuto.view import rfc3339

from .scope import Scope

PAGE = 100


class AuditDocument(TypedDict):
    """What somebody did."""

    action: str
    actor: str
    at: str
    tenant: str
    object_type: str
    object_id: str
    reason: str
    hash: str


class AuditRecord(AuditDocument):
    """A row with its place in the chain: with these, and nothing else, whoever has them can check it."""

    n: int


class Audit:
    """One tenant's audit."""

    def __init__(self, registry: Registry, scope: Scope) -> None:
        self._registry = registry
        self._scope = scope
        self._tenant = scope.tenant or "default"

    async def page(
        self,
        *,
        action: str | None = None,
        actor: str | None = None,
        object_id: str | None = None,
        cursor: int | None = None,
        limit: int = 50,
    ) -> Page[AuditDocument]:
        """Newest first."""
        self._scope.require("audit:read")
        await seal(self._registry)
        wanted = AuditWanted(action=action, actor=actor, object_id=object_id)
        rows = await self._registry.audit(self._tenant, wanted, cursor, limit + 1)
        return Page([_document(row) for row in rows[:limit]], str(rows[limit - 1].n) if len(rows) > limit else None)

    async def rows(
        self, *, action: str | None = None, actor: str | None = None, object_id: str | None = None
    ) -> AsyncIterator[AuditDocument]:
        """All that fit, newest first."""
        cursor: int | None = None
        while True:
            found = await self.page(action=action, actor=actor, object_id=object_id, cursor=cursor, limit=PAGE)
            for row in found.items:
                yield row
            if found.next_cursor is None:
                return
            cursor = int(found.next_cursor)

    async def verify(self, kept: Kept | None = None) -> Verified:
        """Whether the chain holds. A chain that is cut short, or written anew, holds too.

        So keep its head elsewhere, and give it here later: then it must be in the chain still.
        """
        self._scope.require("audit:read")
        await seal(self._registry)
        return await verify(self._registry, self._tenant, kept)

    async def export(self) -> AsyncIterator[AuditRecord]:
        """The whole chain, oldest first."""
        self._scope.require("audit:read")
        await seal(self._registry)
        n = 0
        while rows := await self._registry.chained(self._tenant, n, PAGE):
            for row in rows:
                assert row.n is not None
                n = row.n
                yield {"n": n, **_document(row)}


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

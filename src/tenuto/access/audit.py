"""The audit as it is read: who did what, to what, when and why."""

from collections.abc import AsyncIterator

from msgspec.structs import asdict

from tenuto.runtime.port import Runtime
from tenuto.runtime.shared.filters import check_filter
from tenuto.runtime.shared.pages import Paging
from tenuto.storage.audit import Kept, Verified
from tenuto.storage.registry import AuditWanted
from tenuto.values.names import DEFAULT_TENANT
from tenuto.views import AuditDocument, AuditRecord
from tenuto.views.pages import Page

from .scope import Scope

PAGE = 100


class Audit:
    """One tenant's audit."""

    def __init__(self, runtime: Runtime, scope: Scope) -> None:
        self._runtime = runtime
        self._scope = scope
        self._tenant = scope.tenant or DEFAULT_TENANT

    async def page(
        self,
        *,
        action: str | None = None,
        actor: str | None = None,
        object_id: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page[AuditDocument]:
        """Newest first."""
        self._scope.require("audit:read")
        check_filter(limit=limit, action=action, actor=actor, object_id=object_id)
        wanted = AuditWanted(action=action, actor=actor, object_id=object_id)
        paging = Paging("audit", {"tenant": self._tenant, **asdict(wanted)}, cursor)
        found = await self._runtime.audit(self._tenant, wanted, paging.after, limit)
        return paging.page(found.items, found.next_cursor)

    async def rows(
        self, *, action: str | None = None, actor: str | None = None, object_id: str | None = None
    ) -> AsyncIterator[AuditDocument]:
        """All that fit, newest first."""
        cursor: str | None = None
        while True:
            found = await self.page(action=action, actor=actor, object_id=object_id, cursor=cursor, limit=PAGE)
            for row in found.items:
                yield row
            if found.next_cursor is None:
                return
            cursor = found.next_cursor

    async def verify(self, kept: Kept | None = None) -> Verified:
        """Whether the chain holds. A chain that is cut short, or written anew, holds too.

        So keep its head elsewhere, and give it here later: then it must be in the chain still.
        """
        self._scope.require("audit:read")
        return await self._runtime.verify_audit(self._tenant, kept)

    async def export(self) -> AsyncIterator[AuditRecord]:
        """The whole chain, oldest first."""
        n = 0
        while rows := await self.chain(n, PAGE):
            for row in rows:
                n = row["n"]
                yield row

    async def chain(self, after: int, limit: int) -> list[AuditRecord]:
        """A part of it, after this number."""
        self._scope.require("audit:read")
        check_filter(after=after, limit=limit)
        return await self._runtime.audit_chain(self._tenant, after, limit)

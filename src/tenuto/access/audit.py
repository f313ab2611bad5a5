"""Reads the audit log: actor, action, object, time and reason."""

from collections.abc import AsyncIterator

from msgspec.structs import asdict

from tenuto.runtime.port import AuditLog
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
    """The audit log of one tenant."""

    def __init__(self, log: AuditLog, scope: Scope) -> None:
        self._log = log
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
        """Returns a page of rows, newest first."""
        self._scope.require("audit:read")
        check_filter(limit=limit, action=action, actor=actor, object_id=object_id)
        wanted = AuditWanted(action=action, actor=actor, object_id=object_id)
        paging = Paging("audit", {"tenant": self._tenant, **asdict(wanted)}, cursor)
        found = await self._log.page(self._tenant, wanted, paging.after, limit)
        return paging.page(found.items, found.next_cursor)

    async def rows(
        self, *, action: str | None = None, actor: str | None = None, object_id: str | None = None
    ) -> AsyncIterator[AuditDocument]:
        """Yields all matching rows, newest first."""
        cursor: str | None = None
        while True:
            found = await self.page(action=action, actor=actor, object_id=object_id, cursor=cursor, limit=PAGE)
            for row in found.items:
                yield row
            if found.next_cursor is None:
                return
            cursor = found.next_cursor

    async def verify(self, kept: Kept | None = None) -> Verified:
        """Verifies the hash chain.

        A truncated or rewritten chain is still consistent. To detect that, store the head of the chain elsewhere and
        pass it as `kept`: it must then still be part of the chain.
        """
        self._scope.require("audit:read")
        return await self._log.verify(self._tenant, kept)

    async def export(self) -> AsyncIterator[AuditRecord]:
        """Yields the whole chain, oldest first."""
        n = 0
        while rows := await self.chain(n, PAGE):
            for row in rows:
                n = row["n"]
                yield row

    async def chain(self, after: int, limit: int) -> list[AuditRecord]:
        """Returns a part of the chain, after this number."""
        self._scope.require("audit:read")
        check_filter(after=after, limit=limit)
        return await self._log.chain(self._tenant, after, limit)

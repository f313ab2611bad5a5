"""The audit log of the service."""

from tenuto.storage.audit import Kept, Verified
from tenuto.storage.registry import AuditWanted
from tenuto.views import AuditDocument, AuditRecord
from tenuto.views.pages import Page
from tenuto.views.projections import AuditRow

from .transport import Transport


class RemoteAuditLog:
    """Implements `AuditLog`. The credential decides whose audit log it is."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def note(self, row: AuditRow) -> None:
        """Does nothing: the service writes the audit log in the name of the credential."""

    async def page(self, tenant: str, wanted: AuditWanted, cursor: str | None, limit: int) -> Page[AuditDocument]:
        params = {"action": wanted.action, "actor": wanted.actor, "object_id": wanted.object_id}
        found = await self._transport.get("/v1/audit", {**params, "cursor": cursor, "limit": limit}, has="next_cursor")
        return Page(found["items"], found["next_cursor"])

    async def chain(self, tenant: str, after: int, limit: int) -> list[AuditRecord]:
        found = await self._transport.get("/v1/audit:export", {"after": after, "limit": limit}, has="items")
        rows: list[AuditRecord] = found["items"]
        return rows

    async def verify(self, tenant: str, kept: Kept | None) -> Verified:
        params = {} if kept is None else {"n": kept.n, "hash": kept.hash}
        return Verified(**await self._transport.get("/v1/audit:verify", params, has="broken_at"))

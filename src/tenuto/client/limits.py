"""The limits of the service."""

import asyncio
from typing import Final

from tenuto.values.rates import rate_text
from tenuto.views import LimitRow, TenantLimitRow
from tenuto.views.projections import AuditRow

from .transport import Transport, paged, quoted, quoted_name

CAPACITY_SECONDS: Final = 1.0


class RemoteLimits:
    """Implements `Limits`. The service writes the audit log itself, so `note` is ignored."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def set(
        self, name: str, rate: tuple[int, int] | None, concurrency: int | None, note: AuditRow | None = None
    ) -> None:
        path = f"/v1/limits/{quoted_name(name)}"
        if rate is None and concurrency is None:
            (await self._transport.send("DELETE", path, repeats=True)).nothing()
        else:
            body = {"rate": None if rate is None else rate_text(*rate), "concurrency": concurrency}
            (await self._transport.send("PUT", path, body=body, repeats=True)).nothing()

    async def all(self) -> list[LimitRow]:
        return [row async for row in paged(self._transport, "/v1/limits", {})]

    async def set_tenant(self, tenant: str, max_in_flight: int | None, note: AuditRow | None = None) -> None:
        path = f"/v1/tenant-limits/{quoted(tenant)}"
        if max_in_flight is None:
            (await self._transport.send("DELETE", path, repeats=True)).nothing()
        else:
            (await self._transport.send("PUT", path, body={"max_in_flight": max_in_flight}, repeats=True)).nothing()

    async def tenants(self, tenant: str | None) -> list[TenantLimitRow]:
        return [row async for row in paged(self._transport, "/v1/tenant-limits", {})]


class RemoteAdmission:
    """Implements `Admission`. Only the service knows whether a tenant is at its limit."""

    def refuses(self, tenant: str, in_flight: int = 0) -> bool:
        return False

    async def wait_for_capacity(self, tenant: str) -> int | None:
        """Waits a moment. The next start shows whether there is capacity."""
        await asyncio.sleep(CAPACITY_SECONDS)
        return 1

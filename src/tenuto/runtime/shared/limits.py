"""Limits in a store, which all its processes share."""

from collections.abc import Callable

from tenuto.runtime.executor.limits import limit_row
from tenuto.storage.permits import LimitStore, LimitUse, TenantUse
from tenuto.views import LimitRow, TenantLimitRow
from tenuto.views.projections import AuditRow


class StoredLimits:
    """Implements `Limits`. A runtime is called back when a limit was changed through it."""

    def __init__(
        self, store: LimitStore, on_change: Callable[[], None], on_tenant_change: Callable[[str], None]
    ) -> None:
        self._store = store
        self._on_change = on_change
        self._on_tenant_change = on_tenant_change

    async def set(
        self, name: str, rate: tuple[int, int] | None, concurrency: int | None, note: AuditRow | None = None
    ) -> None:
        await self._store.set(name, rate, concurrency, note)
        self._on_change()

    async def all(self) -> list[LimitRow]:
        return [_limit_row(use) for use in await self._store.all()]

    async def set_tenant(self, tenant: str, max_in_flight: int | None, note: AuditRow | None = None) -> None:
        await self._store.set_tenant(tenant, max_in_flight, note)
        self._on_tenant_change(tenant)

    async def tenants(self, tenant: str | None) -> list[TenantLimitRow]:
        return [_tenant_row(use) for use in await self._store.tenants(tenant)]


def _limit_row(use: LimitUse) -> LimitRow:
    rate = None if use.count is None or use.period_ms is None else (use.count, use.period_ms)
    return limit_row(use.name, rate, use.concurrency, use.running, use.waiting)


def _tenant_row(use: TenantUse) -> TenantLimitRow:
    return {"tenant": use.tenant, "max_in_flight": use.max_in_flight, "in_flight": use.in_flight}

"""The executions in flight of tenants that have a limit, counted in one process."""

import asyncio

from tenuto.errors import TenantLimit
from tenuto.views import TenantLimitRow


class InFlight:
    def __init__(self) -> None:
        self._most: dict[str, int] = {}
        self._now: dict[str, int] = {}
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    def limit(self, tenant: str, most: int | None, now: int) -> None:
        """Sets the limit. `now` is the number in flight at this moment. From here on, starts and ends are counted."""
        if most is None:
            self._most.pop(tenant, None)
            self._now.pop(tenant, None)
        else:
            self._most[tenant], self._now[tenant] = most, now
        self._tell(tenant)

    def check(self, tenant: str) -> None:
        if tenant in self._most and self._now[tenant] >= self._most[tenant]:
            raise tenant_is_full(tenant)

    def enter(self, tenant: str) -> None:
        if tenant in self._most:
            self._now[tenant] += 1

    def leave(self, tenant: str) -> None:
        if tenant in self._most:
            self._now[tenant] -= 1
            self._tell(tenant)

    def rows(self, tenant: str | None) -> list[TenantLimitRow]:
        return [
            {"tenant": name, "max_in_flight": most, "in_flight": self._now[name]}
            for name, most in sorted(self._most.items())
            if tenant in (None, name)
        ]

    async def wait_for_capacity(self, tenant: str) -> int | None:
        """Waits until the tenant may start executions, and returns how many. None: any number."""
        while (most := self._most.get(tenant)) is not None and self._now[tenant] >= most:
            freed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(tenant, []).append(freed)
            await freed
        return None if most is None else most - self._now[tenant]

    @property
    def is_awaited(self) -> bool:
        return any(not freed.done() for waiting in self._waiting.values() for freed in waiting)

    def _tell(self, tenant: str) -> None:
        for freed in self._waiting.pop(tenant, ()):
            if not freed.done():
                freed.set_result(None)


def tenant_is_full(tenant: str) -> TenantLimit:
    return TenantLimit(
        f"Tenant {tenant!r} has as many executions in flight as it may.",
        hint="start it again when one of them has ended, or have the limit raised",
    )

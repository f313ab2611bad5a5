"""The limits of the memory runtime."""

from collections.abc import Callable

from tenuto.runtime.executor.limits import LocalLimits
from tenuto.runtime.executor.worker import Worker
from tenuto.runtime.shared.in_flight import InFlight
from tenuto.views import LimitRow, TenantLimitRow
from tenuto.views.projections import AuditRow


class MemoryLimits:
    """Implements `Limits`."""

    def __init__(
        self,
        limits: LocalLimits,
        in_flight: InFlight,
        count_active: Callable[[str], int],
        note_now: Callable[[AuditRow], None],
    ) -> None:
        """`count_active` counts the executions of a tenant that are in flight."""
        self._limits = limits
        self._in_flight = in_flight
        self._count_active = count_active
        self._note_now = note_now

    async def set(
        self, name: str, rate: tuple[int, int] | None, concurrency: int | None, note: AuditRow | None = None
    ) -> None:
        is_removal = rate is None and concurrency is None
        is_change = not is_removal or any(row["name"] == name for row in self._limits.rows())
        self._limits.set(name, rate, concurrency)
        if note is not None and is_change:
            self._note_now(note)

    async def all(self) -> list[LimitRow]:
        return self._limits.rows()

    async def set_tenant(self, tenant: str, max_in_flight: int | None, note: AuditRow | None = None) -> None:
        is_change = max_in_flight is not None or bool(self._in_flight.rows(tenant))
        self._in_flight.limit(tenant, max_in_flight, self._count_active(tenant))
        if note is not None and is_change:
            self._note_now(note)

    async def tenants(self, tenant: str | None) -> list[TenantLimitRow]:
        return self._in_flight.rows(tenant)


class MemoryAdmission:
    """Implements `Admission`."""

    def __init__(self, worker: Worker, in_flight: InFlight) -> None:
        self._worker = worker
        self._in_flight = in_flight

    def refuses(self, tenant: str, in_flight: int = 0) -> bool:
        """Leaves the decision to the start, which costs no more than this question."""
        return False

    async def wait_for_capacity(self, tenant: str) -> int | None:
        self._worker.check_open()
        if self._worker.on_idle is not None:
            self._worker.call_soon(self._worker.on_idle)
        return await self._in_flight.wait_for_capacity(tenant)

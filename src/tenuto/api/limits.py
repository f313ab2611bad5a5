"""Limits of the deployment: rate and concurrency of steps, and in-flight executions of tenants."""

from tenuto.errors import InvalidInput, NotPermitted
from tenuto.storage.permits import UNCOUNTED
from tenuto.values.names import DEFAULT_TENANT, check_name
from tenuto.values.rates import parse_rate
from tenuto.views import LimitRow, TenantLimitRow
from tenuto.views.projections import AuditRow

from .context import EngineContext

MAX_CONCURRENCY = 2**31 - 1


class Limits:
    """Sets and reads limits. A change by a named actor is recorded in the audit log."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context

    async def limit(self, name: str, *, rate: str | None, concurrency: int | None) -> None:
        self._require_deployment()
        check_name(name, "name")
        if concurrency is not None and concurrency < 1:
            raise InvalidInput.at("/concurrency", "too_small", "must be at least 1")
        if concurrency is not None and concurrency > MAX_CONCURRENCY:
            raise InvalidInput.at("/concurrency", "too_large", f"must be at most {MAX_CONCURRENCY:,}")
        bound = ", ".join(text for text in (rate, concurrency and f"{concurrency} at once") if text)
        await self._context.backend.limits.set(
            name,
            rate=None if rate is None else parse_rate(rate),
            concurrency=concurrency,
            note=self._note("limit", name, bound),
        )

    async def limits(self) -> list[LimitRow]:
        self._context.scope.require("limits:write")
        return await self._context.backend.limits.all() if self._context.scope.is_deployment else []

    async def tenant_limit(self, tenant: str, *, max_in_flight: int | None) -> None:
        self._require_deployment()
        if max_in_flight is not None and max_in_flight < 0:
            raise InvalidInput.at("/max_in_flight", "too_small", "must be 0 or more; None removes the limit")
        if max_in_flight is not None and max_in_flight >= UNCOUNTED:
            raise InvalidInput.at(
                "/max_in_flight", "too_large", f"must be less than {UNCOUNTED:,}; None removes the limit"
            )
        bound = "" if max_in_flight is None else f"{max_in_flight} execution{'' if max_in_flight == 1 else 's'}"
        await self._context.backend.limits.set_tenant(tenant, max_in_flight, self._note("tenant_limit", tenant, bound))

    async def tenant_limits(self) -> list[TenantLimitRow]:
        scope = self._context.scope
        scope.require("limits:write")
        return await self._context.backend.limits.tenants(None if scope.is_deployment else scope.tenant)

    def _require_deployment(self) -> None:
        """Only the deployment, the tenant `default`, may set limits: they apply to all tenants."""
        self._context.scope.require("limits:write")
        if not self._context.scope.is_deployment:
            raise NotPermitted(
                "Limits apply to all tenants, so only the deployment may set them.",
                hint=f"use a key of the tenant `{DEFAULT_TENANT}` with the role admin",
            )

    def _note(self, kind: str, name: str, bound: str) -> AuditRow | None:
        """Returns the audit row of a change, or None without an actor."""
        scope = self._context.scope
        if scope.actor is None:
            return None
        return AuditRow(
            tenant=scope.tenant or DEFAULT_TENANT,
            at=self._context.now,
            actor=scope.actor,
            action=f"{kind}.set" if bound else f"{kind}.lifted",
            object_type=kind,
            object_id=name,
            reason=bound,
        )

"""Limits that the deployment sets: what steps may do at once or in a time, and how much tenants may have under way."""

from tenuto.errors import InvalidInput, NotPermitted
from tenuto.storage.permits import UNCOUNTED
from tenuto.values.names import DEFAULT_TENANT, check_name
from tenuto.values.rates import parse_rate
from tenuto.views import LimitRow, TenantLimitRow
from tenuto.views.projections import AuditRow

from .context import EngineContext

MOST_AT_ONCE = 2**31 - 1


class Limits:
    """What is done in somebody's name is in the audit. Whoever lifts a limit that is not there has done nothing."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context

    async def limit(self, name: str, *, rate: str | None, concurrency: int | None) -> None:
        self._require_deployment()
        check_name(name, "name")
        if concurrency is not None and concurrency < 1:
            raise InvalidInput.at("/concurrency", "too_small", "at least 1 at a time")
        if concurrency is not None and concurrency > MOST_AT_ONCE:
            raise InvalidInput.at("/concurrency", "too_large", f"at most {MOST_AT_ONCE:,} at a time")
        bound = ", ".join(text for text in (rate, concurrency and f"{concurrency} at once") if text)
        await self._context.runtime.limit(
            name,
            rate=None if rate is None else parse_rate(rate),
            concurrency=concurrency,
            note=self._note("limit", name, bound),
        )

    async def limits(self) -> list[LimitRow]:
        self._context.scope.require("limits:write")
        return await self._context.runtime.limits() if self._context.scope.is_deployment else []

    async def tenant_limit(self, tenant: str, *, max_in_flight: int | None) -> None:
        self._require_deployment()
        if max_in_flight is not None and max_in_flight < 0:
            raise InvalidInput.at("/max_in_flight", "too_small", "0 or more; None lifts the limit")
        if max_in_flight is not None and max_in_flight >= UNCOUNTED:
            raise InvalidInput.at("/max_in_flight", "too_large", f"less than {UNCOUNTED:,}; None lifts the limit")
        bound = "" if max_in_flight is None else f"{max_in_flight} executions"
        await self._context.runtime.tenant_limit(tenant, max_in_flight, self._note("tenant_limit", tenant, bound))

    async def tenant_limits(self) -> list[TenantLimitRow]:
        scope = self._context.scope
        scope.require("limits:write")
        return await self._context.runtime.tenant_limits(None if scope.is_deployment else scope.tenant)

    def _require_deployment(self) -> None:
        """Limits hold for all tenants: `default`, whose definitions are the deployment's own, sets them."""
        self._context.scope.require("limits:write")
        if not self._context.scope.is_deployment:
            raise NotPermitted(
                "Limits hold for all tenants, and are set by the deployment.",
                hint=f"use a key of the tenant `{DEFAULT_TENANT}` with the role admin",
            )

    def _note(self, kind: str, name: str, bound: str) -> AuditRow | None:
        """The audit row of a change, unless nobody is named who makes it."""
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

"""Endpoints for operators: workers, limits of steps, and limits of tenants."""

from typing import Annotated

from fastapi import Path
from starlette.responses import Response

from tenuto.service.http.caller import Called
from tenuto.service.http.endpoints import EndpointRouter
from tenuto.service.http.openapi import documented
from tenuto.service.http.request_models import LimitBody, TenantLimitBody
from tenuto.service.http.responses import Cursor, Limit, page_of_rows
from tenuto.values.names import TENANT

router = EndpointRouter(tags=["operations"])

Name = Annotated[str, Path(max_length=256)]
Tenant = Annotated[str, Path(pattern=f"^{TENANT.pattern}$")]


@router.operation(
    "GET",
    "/v1/workers",
    "executions:read",
    summary="List running workers",
    responses=documented({200: "[WorkerRow]"}, 422),
)
async def list_workers(caller: Called, cursor: Cursor = None, limit: Limit = 50) -> Response:
    return page_of_rows("workers", await caller.engine.workers(), "id", cursor, limit)


@router.operation(
    "GET",
    "/v1/limits",
    "limits:write",
    summary="List the limits of steps and their use",
    responses=documented({200: "[LimitRow]"}, 422),
)
async def list_limits(caller: Called, cursor: Cursor = None, limit: Limit = 50) -> Response:
    return page_of_rows("limits", await caller.engine.limits(), "name", cursor, limit)


@router.operation(
    "PUT",
    "/v1/limits/{name:whole}",
    "limits:write",
    status_code=204,
    summary="Set a limit that all workers share",
    responses=documented({}, 422),
)
async def set_limit(name: Name, body: LimitBody, caller: Called) -> Response:
    """The limit applies to all tenants, so this needs an admin of the tenant `default`."""
    await caller.engine.limit(name, rate=body.rate, concurrency=body.concurrency)
    return Response(status_code=204)


@router.operation(
    "DELETE",
    "/v1/limits/{name:whole}",
    "limits:write",
    status_code=204,
    summary="Remove a limit: steps that wait for it continue",
    responses=documented({}, 422),
)
async def lift_limit(name: Name, caller: Called) -> Response:
    await caller.engine.limit(name)
    return Response(status_code=204)


@router.operation(
    "GET",
    "/v1/tenant-limits",
    "limits:write",
    summary="List the in-flight limits of tenants and their use",
    responses=documented({200: "[TenantLimitRow]"}, 422),
)
async def list_tenant_limits(caller: Called, cursor: Cursor = None, limit: Limit = 50) -> Response:
    """An admin of the tenant `default` sees all tenants, others only their own."""
    return page_of_rows("tenant-limits", await caller.engine.tenant_limits(), "tenant", cursor, limit)


@router.operation(
    "PUT",
    "/v1/tenant-limits/{tenant:whole}",
    "limits:write",
    status_code=204,
    summary="Limit the executions in flight of a tenant",
    responses=documented({}, 422),
)
async def set_tenant_limit(tenant: Tenant, body: TenantLimitBody, caller: Called) -> Response:
    """Starts beyond the limit get 429. This needs an admin of the tenant `default`."""
    await caller.engine.tenant_limit(tenant, max_in_flight=body.max_in_flight)
    return Response(status_code=204)


@router.operation(
    "DELETE",
    "/v1/tenant-limits/{tenant:whole}",
    "limits:write",
    status_code=204,
    summary="Remove the in-flight limit of a tenant",
    responses=documented({}, 422),
)
async def lift_tenant_limit(tenant: Tenant, caller: Called) -> Response:
    await caller.engine.tenant_limit(tenant, max_in_flight=None)
    return Response(status_code=204)

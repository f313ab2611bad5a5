"""What those ask who run it: workers, and limits that steps and tenants have."""

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
    summary="The processes that run steps",
    responses=documented({200: "[WorkerRow]"}, 422),
)
async def list_workers(caller: Called, cursor: Cursor = None, limit: Limit = 50) -> Response:
    return page_of_rows("workers", await caller.engine.workers(), "id", cursor, limit)


@router.operation(
    "GET",
    "/v1/limits",
    "limits:write",
    summary="The limits that steps name, and how much of each is used",
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
    """It holds for all tenants, so it takes an admin of the tenant `default`."""
    await caller.engine.limit(name, rate=body.rate, concurrency=body.concurrency)
    return Response(status_code=204)


@router.operation(
    "DELETE",
    "/v1/limits/{name:whole}",
    "limits:write",
    status_code=204,
    summary="Lift a limit: what waits for it goes on",
    responses=documented({}, 422),
)
async def lift_limit(name: Name, caller: Called) -> Response:
    await caller.engine.limit(name)
    return Response(status_code=204)


@router.operation(
    "GET",
    "/v1/tenant-limits",
    "limits:write",
    summary="How many executions tenants may have under way, and have",
    responses=documented({200: "[TenantLimitRow]"}, 422),
)
async def list_tenant_limits(caller: Called, cursor: Cursor = None, limit: Limit = 50) -> Response:
    """For an admin of the tenant `default` those of all tenants, for others their own."""
    return page_of_rows("tenant-limits", await caller.engine.tenant_limits(), "tenant", cursor, limit)


@router.operation(
    "PUT",
    "/v1/tenant-limits/{tenant:whole}",
    "limits:write",
    status_code=204,
    summary="Deadline how many executions of a tenant may be under way",
    responses=documented({}, 422),
)
async def set_tenant_limit(tenant: Tenant, body: TenantLimitBody, caller: Called) -> Response:
    """A start beyond that is refused with 429. It takes an admin of the tenant `default`."""
    await caller.engine.tenant_limit(tenant, max_in_flight=body.max_in_flight)
    return Response(status_code=204)


@router.operation(
    "DELETE",
    "/v1/tenant-limits/{tenant:whole}",
    "limits:write",
    status_code=204,
    summary="Let a tenant have as many under way as it likes",
    responses=documented({}, 422),
)
async def lift_tenant_limit(tenant: Tenant, caller: Called) -> Response:
    await caller.engine.tenant_limit(tenant, max_in_flight=None)
    return Response(status_code=204)

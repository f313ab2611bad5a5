"""Who calls, and what they may do: every route says which permission it needs, and none is open by mistake."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import Request

from tenuto.access.permission import Permission
from tenuto.access.principal import Authenticator, Principal
from tenuto.engine import Engine
from tenuto.errors import NotAuthenticated
from tenuto.settings import Settings
from tenuto.storage.registry import Registry

from .rate import Buckets


@dataclass(frozen=True)
class Service:
    """What the routes of one application share."""

    engine: Engine
    settings: Settings
    registry: Registry
    authenticator: Authenticator
    by_credential: Buckets
    by_stranger: Buckets
    under_way: set[asyncio.Task[Any]]
    streams: set[object]


@dataclass(frozen=True)
class Caller:
    """Whoever made this request, and the engine as they may use it."""

    principal: Principal
    engine: Engine
    service: Service

    async def heard(self, command: Coroutine[Any, Any, object]) -> bool:
        """Whether the command's verdict came in time. If not, it goes on, and the answer is 202."""
        task = asyncio.create_task(command)
        self.service.under_way.add(task)
        task.add_done_callback(self.service.under_way.discard)
        await asyncio.wait([task], timeout=self.service.settings.verdict_seconds)
        if not task.done():
            task.add_done_callback(_retrieve)
            return False
        await task
        return True


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Nobody waits for it any more; what it raised was for its caller."""
    if not task.cancelled():
        task.exception()


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def authenticated(request: Request) -> Caller:
    service = service_of(request)
    try:
        principal = await service.authenticator.principal(request.headers.get("authorization"))
    except NotAuthenticated:
        service.by_stranger.spend(request.client.host if request.client is not None else "")
        raise
    service.by_credential.spend(principal.credential)
    engine = service.engine.scoped(
        tenant=principal.tenant,
        actor=principal.actor,
        roles=principal.roles,
        four_eyes=service.settings.four_eyes,
    )
    return Caller(principal, engine, service)


Called = Annotated[Caller, Depends(authenticated)]


def allow(permission: Permission) -> Callable[[Caller], Awaitable[None]]:
    """The dependency of a route that needs this permission."""

    async def check(caller: Called) -> None:
        caller.engine.scope.require(permission)

    return check


async def unless_closed(request: Request) -> None:
    """Of routes that tell nothing of any tenant: open, unless the settings close them."""
    if not service_of(request).settings.open_routes:
        await authenticated(request)


class Plain(StringConvertor):
    """A part of a path without a colon: what follows one is a verb."""

    regex = "[^/:]+"


register_url_convertor("plain", Plain())


class Face(APIRouter):
    """Routes, each with its permission. `{id:plain}` in a path is what precedes a verb."""

    def operation(
        self, method: str, path: str, permission: Permission, **options: Any
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def add(endpoint: Callable[..., Any]) -> Callable[..., Any]:
            extra = {"x-permission": permission, **options.pop("openapi_extra", {})}
            self.add_api_route(
                path,
                endpoint,
                methods=[method],
                operation_id=endpoint.__name__,
                dependencies=[Depends(allow(permission))],
                openapi_extra=extra,
                **options,
            )
            return endpoint

        return add

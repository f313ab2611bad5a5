"""Who calls, and what they may do: every route says which permission it needs, and none is open by mistake."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, TypeVar

from fastapi import APIRouter, Depends
from fastapi.routing import APIRoute
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from tenuto.access.permission import Permission
from tenuto.access.principal import Principal
from tenuto.api.engine import Engine
from tenuto.errors import NotAuthenticated
from tenuto.settings import Settings
from tenuto.storage.registry import Registry

from .authentication import PRINCIPAL, Admission, take
from .fast_path import FastRoute
from .headers import header
from .paths import Exact
from .query import known_parameters
from .refused_starts import RefusedStarts
from .request_limits import TAKEN, Room
from .shares import Shares
from .shutdown import shutdown_event_of

MAX_ENGINES = 1_000
MAX_STREAMS = 1_000
# Together less than a second, within which a revoked key ends what is open.
CONFIRM_SECONDS = 0.5
CONFIRMED_SECONDS = 0.3

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Service:
    """What the routes of one application share."""

    engine: Engine
    settings: Settings
    registry: Registry
    admission: Admission
    under_way: set[asyncio.Task[Any]]
    room: Room
    streams: Shares
    engines: dict[Principal, Engine]
    starting: set[tuple[str, str]]
    refused_starts: RefusedStarts

    def engine_for(self, principal: Principal) -> Engine:
        """The engine as this caller may use it; made once for each, because they call again and again."""
        found = self.engines.get(principal)
        if found is None:
            if len(self.engines) >= MAX_ENGINES:
                self.engines.clear()
            found = self.engines[principal] = self.engine.scoped(
                tenant=principal.tenant,
                actor=principal.actor,
                roles=principal.roles,
                four_eyes=self.settings.four_eyes,
            )
        return found


class Caller(NamedTuple):
    """Whoever made this request, and the engine as they may use it."""

    principal: Principal
    engine: Engine
    service: Service
    authorization: str | None
    shutdown: asyncio.Event  # of the server: nobody is kept on the line any longer

    def stream_slot(self) -> AbstractContextManager[None]:
        """For as long as somebody stays on the line. There are so many at once, and no more."""
        return self.service.streams.held(self.principal.tenant)

    async def confirm(self, max_age: float = 0.0) -> None:
        """Raises `NotAuthenticated` if the credential was revoked, has expired, or stands for other roles by now.

        Requests that stay open call this before they send anything, and every `CONFIRM_SECONDS` while they wait.
        """
        if await self.service.admission.authenticator.principal(self.authorization, max_age) != self.principal:
            raise NotAuthenticated("The credential has changed since the request began.", hint="send it again")

    async def wait(self, *awaited: asyncio.Future[Any]) -> None:
        """Waits for the first of them, or until the server ends. After `CONFIRM_SECONDS` without either, confirms."""
        ended = asyncio.ensure_future(self.shutdown.wait())
        try:
            futures = [*awaited, ended]
            done, _ = await asyncio.wait(futures, timeout=CONFIRM_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
        if not done:
            await self.confirm(CONFIRMED_SECONDS)

    async def wait_for(self, work: Coroutine[Any, Any, object]) -> None:
        """Waits for the work, which is given up when the server ends or the credential is not valid any more."""
        working = asyncio.ensure_future(work)
        try:
            while not (working.done() or self.shutdown.is_set()):
                await self.wait(working)
            if working.done():
                await working
        finally:
            working.cancel()

    async def heard(self, command: Coroutine[Any, Any, object]) -> bool:
        """Whether the command's verdict came in time. If not, it goes on, and the answer is 202."""
        task = asyncio.create_task(command)
        self.service.under_way.add(task)
        task.add_done_callback(self.service.under_way.discard)
        task.add_done_callback(_retrieve)
        await asyncio.wait([task], timeout=self.service.settings.verdict_seconds)
        if not task.done():
            return False
        await task
        return True


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Nobody may wait for it any more; what it raised was for its caller."""
    if not task.cancelled():
        task.exception()


def service_of(scope: Scope) -> Service:
    service: Service = scope["app"].state.service
    return service


async def authenticated(request: Request) -> Caller:
    return await _caller(request.scope)


async def _caller(scope: Scope) -> Caller:
    service = service_of(scope)
    principal = scope.get(PRINCIPAL) or await service.admission.admit(scope)
    taken: list[str] | None = scope.get(TAKEN)
    if taken is not None and not taken:
        take(scope, "share", service.room.shares.take, principal.tenant)
        taken.append(principal.tenant)
    authorization = header(scope, b"authorization")
    return Caller(principal, service.engine_for(principal), service, authorization, shutdown_event_of(scope))


Called = Annotated[Caller, Depends(authenticated)]


def allow(*permissions: Permission) -> Callable[[Caller], Awaitable[None]]:
    """The dependency of a route that needs one of these permissions."""

    async def check(caller: Called) -> None:
        caller.engine.scope.require(*permissions)

    return check


async def unless_closed(request: Request) -> None:
    """Of routes that tell nothing of any tenant: open, unless the settings close them."""
    if not service_of(request.scope).settings.open_routes:
        await authenticated(request)


class Plain(StringConvertor):
    """A part of a path without a colon: what follows one is a verb."""

    regex = "[^/:]+"


class Whole(StringConvertor):
    """A name that others chose, up to its verb or the end: it may have colons, slashes and lines in it."""

    regex = "(?s:.+)"


register_url_convertor("plain", Plain())
register_url_convertor("whole", Whole())


class EndpointRouter(APIRouter):
    """Routes, each with its permission. `{id:plain}` in a path is what precedes a verb."""

    def __init__(self, tags: list[str]) -> None:
        super().__init__(tags=[*tags], route_class=Exact)
        self.fast_routes: list[FastRoute[Any]] = []
        self._permissions: dict[Callable[..., Any], tuple[Permission, ...]] = {}

    def operation(self, method: str, path: str, *permissions: Permission, **options: Any) -> Callable[[F], F]:
        """Adds an endpoint, as the framework calls it. One of the permissions is enough to call it."""
        assert permissions, "every operation needs a permission"

        def add(endpoint: F) -> F:
            self._permissions[endpoint] = permissions
            extra = {"x-permission": " or ".join(permissions), **options.pop("openapi_extra", {})}
            self.add_api_route(
                path,
                endpoint,
                methods=[method],
                operation_id=endpoint.__name__,
                dependencies=[Depends(allow(*permissions)), Depends(known_parameters)],
                openapi_extra=extra,
                **options,
            )
            return endpoint

        return add

    def add_fast_path(
        self,
        operation: Callable[..., Any],
        read: Callable[[Scope], T | None],
        answer: Callable[[Caller, T], Awaitable[Response]],
    ) -> None:
        """Gives an operation that was added a short way: the same permission, and the same answer."""
        route = next(each for each in self.routes if isinstance(each, APIRoute) and each.endpoint is operation)
        permissions = self._permissions[operation]

        async def authorised(scope: Scope, given: T) -> Response:
            caller = await _caller(scope)
            caller.engine.scope.require(*permissions)
            return await answer(caller, given)

        method = next(iter(route.methods or ()))
        self.fast_routes.append(FastRoute(method, route.path_regex, route.path_format, read, authorised))

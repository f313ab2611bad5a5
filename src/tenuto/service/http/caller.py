"""The caller of a request: its principal, and the engine with the principal's permissions."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from fastapi import Depends
from starlette.requests import Request
from starlette.types import Scope

from tenuto.access.permission import Permission
from tenuto.access.principal import Credential, Principal
from tenuto.access.sign_in_sessions import Session, SignInSessions
from tenuto.api.engine import Engine
from tenuto.errors import NotAuthenticated
from tenuto.settings import Settings
from tenuto.storage.registry import Registry

from .authentication import PRINCIPAL, SESSION, Authentication
from .request_limits import RequestLimiter
from .shutdown import shutdown_event_of

MAX_ENGINES = 1_000
# Together less than a second, within which a revoked key ends open requests.
CONFIRM_SECONDS = 0.5
CONFIRMED_SECONDS = 0.3


@dataclass(frozen=True)
class Service:
    """The state that the routes of one application share."""

    engine: Engine
    settings: Settings
    registry: Registry
    authentication: Authentication
    sessions: SignInSessions
    limiter: RequestLimiter
    commands: set[asyncio.Task[Any]]  # whose verdict may come after the response
    engines: dict[Principal, Engine]
    starting: set[tuple[str, str]]  # tenants and idempotency keys
    gateway: object  # the command gateway, for its routes

    def engine_for(self, principal: Principal) -> Engine:
        """Returns the engine with this principal's permissions. It is kept, because a client sends many requests."""
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
    """The sender of a request, and the engine with its permissions."""

    principal: Principal
    engine: Engine
    service: Service
    credential: Credential
    session: Session | None  # that it signed in with
    shutdown: asyncio.Event  # of the server: streams and long polls end

    def stream_slot(self) -> AbstractContextManager[None]:
        """Holds a slot for a stream or long poll. Raises `RateExceeded` if none is left."""
        return self.service.limiter.streams.held(self.principal.tenant)

    async def confirm(self, max_age: float = 0.0) -> None:
        """Raises `NotAuthenticated` if the credential was revoked, has expired, or has other roles now.

        Open requests call it before they send anything, and every `CONFIRM_SECONDS` while they wait.
        """
        if await self.service.authentication.authenticator.confirm(self.credential, max_age) != self.principal:
            raise NotAuthenticated("The credential has changed since the request began.", hint="send the request again")

    async def wait(self, *awaited: asyncio.Future[Any]) -> None:
        """Waits for the first of them, or for shutdown. After `CONFIRM_SECONDS` without either, confirms the caller."""
        ended = asyncio.ensure_future(self.shutdown.wait())
        try:
            futures = [*awaited, ended]
            done, _ = await asyncio.wait(futures, timeout=CONFIRM_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
        if not done:
            await self.confirm(CONFIRMED_SECONDS)

    async def wait_for(self, work: Coroutine[Any, Any, object]) -> None:
        """Waits for the work. Cancels it at shutdown, or if the credential is no longer valid."""
        working = asyncio.ensure_future(work)
        try:
            while not (working.done() or self.shutdown.is_set()):
                await self.wait(working)
            if working.done():
                await working
        finally:
            working.cancel()

    async def has_verdict(self, command: Coroutine[Any, Any, object]) -> bool:
        """Whether the command's verdict arrived in time. If not, the command continues, and the response is 202."""
        task = asyncio.create_task(command)
        self.service.commands.add(task)
        task.add_done_callback(self.service.commands.discard)
        task.add_done_callback(_retrieve_exception)
        await asyncio.wait([task], timeout=self.service.settings.verdict_seconds)
        if not task.done():
            return False
        await task
        return True


def _retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Marks the exception as handled: the caller that it was meant for may be gone."""
    if not task.cancelled():
        task.exception()


def service_of(scope: Scope) -> Service:
    service: Service = scope["app"].state.service
    return service


async def authenticated(request: Request) -> Caller:
    return await caller_of(request.scope)


async def caller_of(scope: Scope) -> Caller:
    service = service_of(scope)
    principal = scope.get(PRINCIPAL) or await service.authentication.authenticate(scope)
    service.limiter.take_share(scope, principal.tenant)
    credential = service.authentication.credential(scope)
    engine, shutdown = service.engine_for(principal), shutdown_event_of(scope)
    return Caller(principal, engine, service, credential, scope.get(SESSION), shutdown)


Called = Annotated[Caller, Depends(authenticated)]


def allow(*permissions: Permission) -> Callable[[Caller], Awaitable[None]]:
    """Creates the dependency of a route that needs one of these permissions."""

    async def check(caller: Called) -> None:
        caller.engine.scope.require(*permissions)

    return check


async def unless_closed(request: Request) -> None:
    """The dependency of routes without tenant data: they are open unless the settings close them."""
    if not service_of(request.scope).settings.open_routes:
        await authenticated(request)

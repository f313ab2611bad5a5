"""Who is calling, what the roles permit, and the sign-in sessions of the console."""

from collections.abc import Callable, Iterable
from typing import Protocol, get_args

import tenuto
from tenuto.access.permission import Permission
from tenuto.access.scope import Scope
from tenuto.access.sign_in_sessions import Session, SignInSessions
from tenuto.client import RemoteRuntime
from tenuto.errors import NotSupported
from tenuto.runtime.port import Runtime
from tenuto.values.names import DEFAULT_TENANT
from tenuto.views import IdentityDocument, SessionDocument, rfc3339


class Identity(Protocol):
    """Where identities and sessions are known: in the database, or at a service."""

    async def me(self, scope: Scope) -> IdentityDocument: ...

    async def sessions(self, scope: Scope) -> list[SessionDocument]: ...

    async def revoke(self, scope: Scope, id: str) -> None: ...


def identity_of(runtime: Runtime, now_ms: Callable[[], int]) -> Identity:
    return runtime.identity if isinstance(runtime, RemoteRuntime) else LocalIdentity(runtime, now_ms)


class LocalIdentity:
    """Implements `Identity` on the runtime of this process."""

    def __init__(self, runtime: Runtime, now_ms: Callable[[], int]) -> None:
        self._sessions = SignInSessions(runtime.registry.sign_ins, now_ms)

    async def me(self, scope: Scope) -> IdentityDocument:
        return identity(scope)

    async def sessions(self, scope: Scope) -> list[SessionDocument]:
        own = own_sessions_of(scope)
        found = await self._sessions.list(scope.tenant)
        return [session_document(each) for each in found if own in (None, each.actor)]

    async def revoke(self, scope: Scope, id: str) -> None:
        await self._sessions.revoke(id, tenant=scope.tenant, actor=scope.actor or "engine", of=own_sessions_of(scope))


class Sessions:
    """The sign-in sessions of the console."""

    def __init__(self, runtime: Runtime, now_ms: Callable[[], int], scope: Scope) -> None:
        self._runtime = runtime
        self._now_ms = now_ms
        self._scope = scope

    async def list(self) -> list[SessionDocument]:
        """Returns the sessions in force, oldest first: with `sessions:write` all of the tenant, otherwise your own."""
        return await identity_of(self._runtime, self._now_ms).sessions(self._scope)

    async def revoke(self, id: str) -> None:
        """Ends a session. Its next request is refused, and its open streams end."""
        await identity_of(self._runtime, self._now_ms).revoke(self._scope, id)

    async def link_token(self, roles: Iterable[str] = ("admin",)) -> str:
        """Creates the token of a sign-in link: `https://…/#token=…`. It opens one session within ten minutes."""
        self._scope.require("sessions:write")
        if isinstance(self._runtime, RemoteRuntime):
            raise NotSupported(
                "A sign-in link is not available over HTTP.",
                code="not_over_http",
                hint="sign in with your API key, or create the link on the database of the service",
            )
        return await SignInSessions(self._runtime.registry.sign_ins, self._now_ms).make_link(
            tenant=self._scope.tenant or DEFAULT_TENANT, actor=self._scope.actor or "engine", roles=roles
        )


def identity(scope: Scope) -> IdentityDocument:
    """The identity behind an engine in this process."""
    permitted = get_args(Permission) if scope.permissions is None else scope.permissions
    return {
        "actor": scope.actor,
        "tenant": scope.tenant,
        "roles": sorted(scope.roles or ()),
        "permissions": sorted(permitted),
        "version": tenuto.__version__,
        "csrf_token": None,
        "expires_at": None,
        "method": "none",
    }


def own_sessions_of(scope: Scope) -> str | None:
    """The actor whose sessions the scope may see. None: those of the whole tenant."""
    return None if scope.permits("sessions:write") else scope.actor or ""


def session_document(session: Session, *, is_current: bool = False) -> SessionDocument:
    return {
        "id": session.id,
        "actor": session.actor,
        "roles": sorted(session.roles),
        "created_at": rfc3339(session.created_at),
        "last_used_at": rfc3339(session.last_used_at),
        "expires_at": rfc3339(session.expires_at),
        "current": is_current,
    }

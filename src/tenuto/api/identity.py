"""Who is calling, what the roles permit, and the sign-in sessions of the console."""

from collections.abc import Callable, Iterable
from typing import Protocol, get_args

import tenuto
from tenuto.access.permission import Permission
from tenuto.access.scope import Scope
from tenuto.access.sign_in_sessions import Session, SignInSessions
from tenuto.runtime.port import Operations
from tenuto.values.names import DEFAULT_TENANT
from tenuto.views import IdentityDocument, SessionDocument, rfc3339


class Identity(Protocol):
    """Where identities and sessions are known: in the database, or at a service."""

    def check_scope(self, tenant: str) -> None:
        """Raises unless an engine may be scoped to this tenant and to an actor of its choice."""

    async def me(self, scope: Scope) -> IdentityDocument: ...

    async def sessions(self, scope: Scope) -> list[SessionDocument]: ...

    async def revoke(self, scope: Scope, id: str) -> None: ...

    async def link_token(self, scope: Scope, roles: Iterable[str]) -> str: ...


class LocalIdentity:
    """Implements `Identity` on the database of this process."""

    def __init__(self, operations: Operations, now_ms: Callable[[], int]) -> None:
        self._operations = operations
        self._now_ms = now_ms

    def check_scope(self, tenant: str) -> None:
        """Permits every scope: the program that embeds the engine is trusted."""

    async def me(self, scope: Scope) -> IdentityDocument:
        return identity(scope)

    async def sessions(self, scope: Scope) -> list[SessionDocument]:
        own = own_sessions_of(scope)
        found = await self._sessions.list(scope.tenant)
        return [session_document(each) for each in found if own in (None, each.actor)]

    async def revoke(self, scope: Scope, id: str) -> None:
        await self._sessions.revoke(id, tenant=scope.tenant, actor=scope.actor or "engine", of=own_sessions_of(scope))

    async def link_token(self, scope: Scope, roles: Iterable[str]) -> str:
        return await self._sessions.make_link(
            tenant=scope.tenant or DEFAULT_TENANT, actor=scope.actor or "engine", roles=roles
        )

    @property
    def _sessions(self) -> SignInSessions:
        return SignInSessions(self._operations.registry.sign_ins, self._now_ms)


class Sessions:
    """The sign-in sessions of the console."""

    def __init__(self, identity: Identity, scope: Scope) -> None:
        self._identity = identity
        self._scope = scope

    async def list(self) -> list[SessionDocument]:
        """Returns the sessions in force, oldest first: with `sessions:write` all of the tenant, otherwise your own."""
        return await self._identity.sessions(self._scope)

    async def revoke(self, id: str) -> None:
        """Ends a session. Its next request is refused, and its open streams end."""
        await self._identity.revoke(self._scope, id)

    async def link_token(self, roles: Iterable[str] = ("admin",)) -> str:
        """Creates the token of a sign-in link: `https://…/#token=…`. It opens one session within ten minutes."""
        self._scope.require("sessions:write")
        return await self._identity.link_token(self._scope, roles)


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

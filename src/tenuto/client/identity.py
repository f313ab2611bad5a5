"""The identity of the credential, and the sign-in sessions of the service."""

from collections.abc import Iterable

from tenuto.access.scope import Scope
from tenuto.views import IdentityDocument, SessionDocument

from .refusals import refuse
from .transport import Transport, paged, quoted


class RemoteIdentity:
    """Asks the service. The credential decides who is asking, so the scope is ignored."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def check_scope(self, tenant: str) -> None:
        refuse("Another actor or tenant than that of the API key", "create a client with another API key")

    async def me(self, scope: Scope) -> IdentityDocument:
        found: IdentityDocument = await self._transport.get("/v1/me", has="permissions")
        return found

    async def sessions(self, scope: Scope) -> list[SessionDocument]:
        return [row async for row in paged(self._transport, "/v1/sessions", {})]

    async def revoke(self, scope: Scope, id: str) -> None:
        (await self._transport.send("POST", f"/v1/sessions/{quoted(id)}:revoke", body={})).nothing()

    async def link_token(self, scope: Scope, roles: Iterable[str]) -> str:
        refuse("A sign-in link", "sign in with your API key, or create the link on the database of the service")

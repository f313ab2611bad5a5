"""Whoever calls: a tenant, a name, and roles. All of it comes from the credential, nothing from the request."""

from typing import NamedTuple

from tenuto.errors import NotAuthenticated
from tenuto.storage.registry import KeyRow

from .keys import FRESH_S, PREFIX, Keyring
from .tokens import Tokens


class Principal(NamedTuple):
    tenant: str
    actor: str
    roles: frozenset[str]
    credential: str


class Authenticator:
    """Turns what follows `Authorization:` into a principal."""

    def __init__(self, keys: Keyring, tokens: Tokens) -> None:
        self._keys = keys
        self._tokens = tokens

    def is_new(self, authorization: str | None) -> bool:
        """Whether it takes a look into the database to know whose it is."""
        token = _token(authorization)
        return token.startswith(PREFIX) and self._keys.is_new(token)

    def known(self, authorization: str | None) -> Principal | None:
        """Whose key it is, if that was found a moment ago: nobody need be asked."""
        row = self._keys.known(_token(authorization))
        return None if row is None else _principal_of(row)

    async def principal(self, authorization: str | None, max_age: float = FRESH_S) -> Principal:
        """The caller, or `NotAuthenticated`. A key was looked up at most `max_age` seconds ago."""
        token = _token(authorization)
        if not token:
            raise NotAuthenticated(
                hint="send `Authorization: Bearer tnt_…`, or a JWT of a configured issuer; clients take TENUTO_API_KEY"
            )
        if token.startswith(PREFIX):
            return await self._of_key(token, max_age)
        claims = await self._tokens.verify(token)
        actor = f"user:{claims.subject}"
        if self._tokens.has_several:  # two of them may each have somebody of this name
            actor = f"{actor}@{claims.issuer}"
        return Principal(claims.tenant, actor, claims.roles, f"{claims.issuer} {claims.subject}")

    async def _of_key(self, token: str, max_age: float) -> Principal:
        row = await self._keys.find(token, max_age)
        if row is None:
            raise NotAuthenticated(await self._keys.refusal(token), hint="ask an administrator for a new one")
        return _principal_of(row)


def _principal_of(row: KeyRow) -> Principal:
    actor = f"key:{row.name}:{row.id}" if row.name else f"key:{row.id}"
    return Principal(row.tenant, actor, frozenset(row.roles), row.id)


def _token(authorization: str | None) -> str:
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""

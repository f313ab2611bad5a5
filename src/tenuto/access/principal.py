"""The caller of the API: tenant, actor and roles. All of it comes from the credential, nothing from the request."""

from collections.abc import Callable
from typing import NamedTuple

from tenuto.errors import NotAuthenticated
from tenuto.storage.registry import KeyRow

from .callback_tokens import CallbackTokens, Claims
from .keys import FRESH_S, PREFIX, Keyring, actor_of
from .sign_in_sessions import Session, SignInSessions
from .tokens import Tokens


class Principal(NamedTuple):
    """`service` is the platform service that it answers for. `callback`: what its callback token is bound to."""

    tenant: str
    actor: str
    roles: frozenset[str]
    credential: str
    service: str | None = None
    callback: Claims | None = None


class Credential(NamedTuple):
    """The credential of a request: its `Authorization` header, or the token of a sign-in session."""

    authorization: str | None = None
    session: str | None = None


class Authenticator:
    """Turns the credential of a request into a principal."""

    def __init__(
        self,
        keys: Keyring,
        tokens: Tokens,
        sessions: SignInSessions | None = None,
        callbacks: CallbackTokens | None = None,
        now_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        self._keys = keys
        self._tokens = tokens
        self._sessions = sessions
        self._callbacks = callbacks
        self._now = now_ms

    def is_new(self, authorization: str | None) -> bool:
        """Returns whether authentication requires a database lookup of an API key that was not seen before."""
        token = _token(authorization)
        return token.startswith(PREFIX) and self._keys.is_new(token)

    def known(self, authorization: str | None) -> Principal | None:
        """Returns the principal of an API key that was looked up a moment ago, without a database query."""
        row = self._keys.known(_token(authorization))
        return None if row is None else _principal_of(row)

    async def confirm(self, credential: Credential, max_age: float) -> Principal:
        """The caller of an open request, or `NotAuthenticated`. This is no new use of a session."""
        if credential.session is None or self._sessions is None:
            return await self.principal(credential.authorization, max_age)
        session = await self._sessions.find(credential.session, max_age)
        if session is None:
            raise _signed_out()
        return _signed_in(session)

    async def sign_in(self, token: str) -> tuple[Principal, Session]:
        """The caller of a new request with a session, or `NotAuthenticated`."""
        session = None if self._sessions is None else await self._sessions.use(token)
        if session is None:
            raise _signed_out()
        return _signed_in(session), session

    async def principal(self, authorization: str | None, max_age: float = FRESH_S) -> Principal:
        """Returns the caller, or raises `NotAuthenticated`. An API key was looked up at most `max_age` seconds ago."""
        token = _token(authorization)
        if not token:
            raise NotAuthenticated(
                hint="send `Authorization: Bearer tnt_…`, or a JWT of a configured issuer; clients take TENUTO_API_KEY"
            )
        if token.startswith(PREFIX):
            return await self._of_key(token, max_age)
        if self._callbacks is not None and self._callbacks.is_token(token):
            return _principal_of_callback(self._callbacks.verify(token, self._now()))
        claims = await self._tokens.verify(token)
        actor = f"user:{claims.subject}"
        if self._tokens.has_several:  # two issuers may use the same subject
            actor = f"{actor}@{claims.issuer}"
        return Principal(claims.tenant, actor, claims.roles, f"{claims.issuer} {claims.subject}")

    async def _of_key(self, token: str, max_age: float) -> Principal:
        row = await self._keys.find(token, max_age)
        if row is None:
            raise NotAuthenticated(await self._keys.refusal(token), hint="ask an administrator for a new one")
        return _principal_of(row)


def _principal_of(row: KeyRow) -> Principal:
    return Principal(row.tenant, actor_of(row), frozenset(row.roles), row.id, row.service)


def _principal_of_callback(claims: Claims) -> Principal:
    """The receiver of one directive: it may answer that, and nothing else."""
    actor = f"service:{claims.service}"
    return Principal(claims.tenant, actor, frozenset({"worker"}), f"callback {claims.job}", claims.service, claims)


def _signed_in(session: Session) -> Principal:
    return Principal(session.tenant, session.actor, frozenset(session.roles), f"session:{session.id}")


def _signed_out() -> NotAuthenticated:
    return NotAuthenticated("The sign-in session has ended.", code="signed_out", hint="sign in again")


def _token(authorization: str | None) -> str:
    scheme, _, token = (authorization or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""

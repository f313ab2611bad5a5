"""Authentication and rate limits by the head of a request. The body is read only after both have passed."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from starlette.types import Scope

from tenuto.access.principal import Authenticator, Credential, Principal
from tenuto.errors import NotAuthenticated, RateExceeded
from tenuto.settings import Settings

from .client_address import TrustedProxies
from .headers import header
from .rate_limits import TokenBuckets
from .request_limits import count_rejection
from .session_cookie import SessionCookies, check_same_origin

T = TypeVar("T")

PRINCIPAL = "tenuto.principal"  # in a request's scope, once it is authenticated
SESSION = "tenuto.session"  # in a request's scope: its sign-in session, if it authenticated with one


class Authentication:
    """Finds the principal of a request and takes its tokens: by credential, by tenant, and by address if unknown."""

    def __init__(self, authenticator: Authenticator, cookies: SessionCookies, settings: Settings) -> None:
        self.authenticator = authenticator
        self.cookies = cookies
        self._by_credential = TokenBuckets(settings.rate_per_second, settings.rate_burst)
        tenant_rate = settings.tenant_rate_per_second if settings.rate_per_second else 0
        self._by_tenant = TokenBuckets(tenant_rate, settings.tenant_rate_burst)
        self._by_unknown_client = TokenBuckets(settings.rate_per_second, settings.rate_burst)
        self._proxies = TrustedProxies(settings.trusted_proxies)
        # Bounds the lookups of new credentials, so that they do not flood a slow database.
        self._lookups = asyncio.Semaphore(max(1, settings.max_requests // 4))

    def credential(self, scope: Scope) -> Credential:
        """What a request authenticates with. A cookie counts only without an `Authorization` header."""
        authorization = header(scope, b"authorization")
        return Credential(authorization, None if authorization is not None else self.cookies.read(scope))

    def count_unknown(self, scope: Scope) -> None:
        """Counts a request that needs no credential by its address."""
        count_rejection(scope, "rate", self._by_unknown_client.take, self._proxies.client_of(scope))

    async def authenticate(self, scope: Scope) -> Principal:
        """Authenticates and counts a request once. Raises `NotAuthenticated` or `RateExceeded`."""
        known: Principal | None = scope.get(PRINCIPAL)
        if known is None:
            known = scope[PRINCIPAL] = await self._principal(scope)
            self._take_tokens(scope, known)
        return known

    def _take_tokens(self, scope: Scope, principal: Principal) -> None:
        """If the tenant has no token left, the credential keeps its own: another credential may have used them up."""
        count_rejection(scope, "rate", self._by_credential.take, principal.credential)
        try:
            count_rejection(scope, "tenant_rate", self._by_tenant.take, principal.tenant)
        except RateExceeded:
            self._by_credential.give_back(principal.credential)
            raise

    async def _principal(self, scope: Scope) -> Principal:
        """Failed attempts take a token of the client's address."""
        authorization, token = self.credential(scope)
        if token is not None:
            check_same_origin(scope, token)
            found, scope[SESSION] = await self._look_up(scope, partial(self.authenticator.sign_in, token))
            return found
        if (principal := self.authenticator.known(authorization)) is not None:
            return principal
        if self.authenticator.is_new(authorization):
            return await self._look_up(scope, partial(self.authenticator.principal, authorization))
        try:
            return await self.authenticator.principal(authorization)
        except NotAuthenticated:
            self.count_unknown(scope)
            raise

    async def _look_up(self, scope: Scope, look_up: Callable[[], Awaitable[T]]) -> T:
        """A lookup is a database query, so it takes a token of the client's address until the credential is found."""
        self.count_unknown(scope)
        try:
            async with self._lookups:
                found = await look_up()
        except NotAuthenticated:
            raise
        except BaseException:  # the lookup itself failed: that says nothing about the client
            self._by_unknown_client.give_back(self._proxies.client_of(scope))
            raise
        self._by_unknown_client.give_back(self._proxies.client_of(scope))
        return found

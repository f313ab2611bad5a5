"""Authentication and rate limits by the head of a request. The body is read only after both have passed."""

import asyncio

from starlette.types import Scope

from tenuto.access.principal import Authenticator, Principal
from tenuto.errors import NotAuthenticated, RateExceeded
from tenuto.settings import Settings

from .client_address import TrustedProxies
from .headers import header
from .rate_limits import TokenBuckets
from .request_limits import count_rejection

PRINCIPAL = "tenuto.principal"  # in a request's scope, once it is authenticated


class Authentication:
    """Finds the principal of a request and takes its tokens: by credential, by tenant, and by address if unknown."""

    def __init__(self, authenticator: Authenticator, settings: Settings) -> None:
        self.authenticator = authenticator
        self._by_credential = TokenBuckets(settings.rate_per_second, settings.rate_burst)
        tenant_rate = settings.tenant_rate_per_second if settings.rate_per_second else 0
        self._by_tenant = TokenBuckets(tenant_rate, settings.tenant_rate_burst)
        self._by_unknown_client = TokenBuckets(settings.rate_per_second, settings.rate_burst)
        self._proxies = TrustedProxies(settings.trusted_proxies)
        # Bounds the lookups of new credentials, so that they do not flood a slow database.
        self._lookups = asyncio.Semaphore(max(1, settings.max_requests // 4))

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
        """Failed attempts take a token of the client's address. So does a new credential until it is found, because its
        lookup is a database query."""
        authorization = header(scope, b"authorization")
        if (principal := self.authenticator.known(authorization)) is not None:
            return principal
        address = self._proxies.client_of(scope)
        if not self.authenticator.is_new(authorization):
            try:
                return await self.authenticator.principal(authorization)
            except NotAuthenticated:
                count_rejection(scope, "rate", self._by_unknown_client.take, address)
                raise
        count_rejection(scope, "rate", self._by_unknown_client.take, address)
        try:
            async with self._lookups:
                principal = await self.authenticator.principal(authorization)
        except NotAuthenticated:
            raise
        except BaseException:  # the lookup itself failed: that says nothing about the client
            self._by_unknown_client.give_back(address)
            raise
        self._by_unknown_client.give_back(address)
        return principal

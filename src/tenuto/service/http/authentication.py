"""Who is let in, by the head of a request alone. Its body is read for those who are, and for nobody else."""

import asyncio
from collections.abc import Callable

from starlette.types import Scope

from tenuto.access.principal import Authenticator, Principal
from tenuto.errors import NotAuthenticated, RateExceeded
from tenuto.settings import Settings

from .client_address import TrustedProxies
from .headers import header
from .rate_limits import TokenBuckets
from .request_limits import REFUSED

PRINCIPAL = "tenuto.principal"  # in a request's scope, once it is known who sent it


class Admission:
    """Finds out who calls, and how often they may: a credential, its tenant, and strangers by address."""

    def __init__(self, authenticator: Authenticator, settings: Settings) -> None:
        self.authenticator = authenticator
        self._by_credential = TokenBuckets(settings.rate_per_second, settings.rate_burst)
        tenant_rate = settings.tenant_rate_per_second if settings.rate_per_second else 0
        self._by_tenant = TokenBuckets(tenant_rate, settings.tenant_rate_burst)
        self._by_stranger = TokenBuckets(settings.rate_per_second, settings.rate_burst)
        self._proxies = TrustedProxies(settings.trusted_proxies)
        # Of those who are not known yet, so many are looked for at once: a slow database has enough to do.
        self._looking = asyncio.Semaphore(max(1, settings.max_requests // 4))

    async def admit(self, scope: Scope) -> Principal:
        """Raises `NotAuthenticated` or `RateExceeded`. A request is asked, and counted, once."""
        known: Principal | None = scope.get(PRINCIPAL)
        if known is None:
            known = scope[PRINCIPAL] = await self._principal(scope)
            self._spend(scope, known)
        return known

    def _spend(self, scope: Scope, principal: Principal) -> None:
        """What the tenant may not is not taken from the credential: another one of it may have used that up."""
        take(scope, "rate", self._by_credential.spend, principal.credential)
        try:
            take(scope, "tenant_rate", self._by_tenant.spend, principal.tenant)
        except RateExceeded:
            self._by_credential.give_back(principal.credential)
            raise

    async def _principal(self, scope: Scope) -> Principal:
        """A stranger has so many tries. A key that was not seen before counts as one until it is found, because to look
        for it is a question to the database."""
        authorization = header(scope, b"authorization")
        if (principal := self.authenticator.known(authorization)) is not None:
            return principal
        address = self._proxies.client_of(scope)
        if not self.authenticator.is_new(authorization):
            try:
                return await self.authenticator.principal(authorization)
            except NotAuthenticated:
                take(scope, "rate", self._by_stranger.spend, address)
                raise
        take(scope, "rate", self._by_stranger.spend, address)
        try:
            async with self._looking:
                principal = await self.authenticator.principal(authorization)
        except NotAuthenticated:
            raise
        except BaseException:  # the database did not say: nobody is a stranger for that
            self._by_stranger.give_back(address)
            raise
        self._by_stranger.give_back(address)
        return principal


def take(scope: Scope, reason: str, of: Callable[[str], None], who: str) -> None:
    """Of what there is so much of: where there is no more, the request is turned away, and that is counted."""
    try:
        of(who)
    except RateExceeded:
        scope[REFUSED] = reason
        raise

"""Verifies JWTs of configured issuers. Keys come from the settings; key hints inside a token are ignored."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import jwt

from tenuto.errors import NotAuthenticated
from tenuto.settings import Issuer, check_issuers
from tenuto.values.http_responses import ACCEPTED, read_body
from tenuto.values.names import TENANT

from .permission import GRANTS, is_own_word

ALGORITHMS = ["RS256", "ES256", "EdDSA"]
TYPES = ("jwt", "at+jwt", "application/at+jwt")
LEEWAY_SECONDS = 30
KEYS_KEPT_SECONDS = 600
REFRESH_SECONDS = 60  # shortest interval between reloads because of an unknown key id
FETCH_SECONDS = 5
PATIENCE_SECONDS = 0.25
MAX_TOKEN = 8_192
MAX_KEYS = 1024 * 1024  # bytes of a JWKS
LONGEST_SUBJECT = 255  # characters, as in OpenID Connect
_REQUIRED = ["exp", "iat", "iss", "sub", "aud"]


class Claims(NamedTuple):
    issuer: str
    subject: str
    tenant: str
    roles: frozenset[str]


class Tokens:
    """Verifies tokens. The caller does not learn which check failed."""

    def __init__(self, issuers: Sequence[Issuer], monotonic: Callable[[], float] = time.monotonic) -> None:
        check_issuers(issuers)
        self._issuers = {issuer.issuer: (issuer, Keys(issuer, monotonic)) for issuer in issuers}

    @property
    def has_several(self) -> bool:
        return len(self._issuers) > 1

    async def verify(self, token: str) -> Claims:
        try:
            return await self._verify(token)
        except (jwt.PyJWTError, KeyError, ValueError, TypeError, RecursionError):
            raise NotAuthenticated("The token is not valid.", hint="get a new one from your issuer") from None

    async def _verify(self, token: str) -> Claims:
        if len(token) > MAX_TOKEN:
            raise ValueError("too long")
        header = jwt.get_unverified_header(token)
        if header["alg"] not in ALGORITHMS or str(header.get("typ", "JWT")).lower() not in TYPES:
            raise ValueError("algorithm or type")
        unverified = jwt.decode(token, options={"verify_signature": False})
        issuer, keys = self._issuers[unverified["iss"]]
        claims = jwt.decode(
            token,
            await keys.get(header.get("kid")),
            algorithms=ALGORITHMS,
            audience=issuer.audience,
            issuer=issuer.issuer,
            leeway=LEEWAY_SECONDS,
            options={"require": _REQUIRED},
        )
        return _claims(issuer, claims)


def _claims(issuer: Issuer, claims: dict[str, Any]) -> Claims:
    tenant, roles = issuer.tenant or claims[issuer.tenant_claim], claims.get(issuer.roles_claim, [])
    if not isinstance(tenant, str) or not TENANT.fullmatch(tenant):
        raise ValueError("tenant")
    if not issuer.tenant and not issuer.accepts(tenant):
        raise ValueError("another's tenant")
    subject = str(claims["sub"])
    if not 0 < len(subject) <= LONGEST_SUBJECT or not subject.isprintable():
        raise ValueError("subject")
    words = roles.split() if isinstance(roles, str) else roles
    if not isinstance(words, list):
        raise ValueError("roles")
    known = frozenset(word for word in words if isinstance(word, str) and (word in GRANTS or is_own_word(word)))
    return Claims(issuer.issuer, subject, tenant, known & frozenset(issuer.roles))


def _is_for_signatures(key: Any) -> bool:
    """Returns whether a key may verify signatures. Keys published for encryption may not."""
    if not isinstance(key, dict):
        return False
    operations = key.get("key_ops", ["verify"])
    return key.get("use", "sig") == "sig" and isinstance(operations, list) and "verify" in operations


class Keys:
    """The public keys of one issuer, cached."""

    def __init__(self, issuer: Issuer, monotonic: Callable[[], float]) -> None:
        self._issuer = issuer
        self._now = monotonic
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._fetched_at: float | None = None
        self._refreshing: asyncio.Task[None] | None = None

    async def get(self, id: str | None) -> jwt.PyJWK:
        age = None if self._fetched_at is None else self._now() - self._fetched_at
        if age is None or age > KEYS_KEPT_SECONDS or (id not in self._keys and age > REFRESH_SECONDS):
            self._refresh()
        if self._refreshing is not None and not self._refreshing.done():
            # If the key is already known, the caller does not wait long for a slow issuer.
            await asyncio.wait([self._refreshing], timeout=None if id not in self._keys else PATIENCE_SECONDS)
        return self._keys[id]

    def _refresh(self) -> None:
        if self._refreshing is None or self._refreshing.done():
            self._fetched_at = self._now()
            self._refreshing = asyncio.create_task(self._replace())

    async def _replace(self) -> None:
        try:
            published = json.loads(await self._fetch())["keys"]
            found = jwt.PyJWKSet([key for key in published if _is_for_signatures(key)])
        except (
            httpx2.HTTPError,
            OSError,
            jwt.PyJWTError,
            ValueError,
            TypeError,
            AttributeError,
            LookupError,
            RecursionError,
        ):
            return  # the cached keys stay valid; without any, every token is rejected
        self._keys = {key.key_id: key for key in found.keys}

    async def _fetch(self) -> str:
        issuer = self._issuer
        if issuer.jwks_file:
            return await asyncio.to_thread(Path(issuer.jwks_file).read_text, encoding="utf-8")
        async with (
            httpx2.AsyncClient(follow_redirects=False, timeout=FETCH_SECONDS, trust_env=False) as client,
            client.stream("GET", issuer.jwks_url, headers={"Accept-Encoding": ACCEPTED}) as answer,
        ):
            answer.raise_for_status()
            content, is_cut = await read_body(answer, MAX_KEYS)
        if is_cut:
            raise ValueError("too long")
        return content.decode()

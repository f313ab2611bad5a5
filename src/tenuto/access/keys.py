"""API keys: `tnt_<id>_<secret>`. The secret is shown once; only its SHA-256 is stored."""

import asyncio
import hashlib
import hmac
import re
import secrets
import string
import time
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from tenuto.errors import InvalidInput, NotFound
from tenuto.storage.registry import KeyRow, Registry
from tenuto.values.names import TENANT, check_name
from tenuto.views import rfc3339
from tenuto.views.projections import AuditRow

from .permission import check_roles

PREFIX: Final = "tnt_"
SECRET_BYTES = 32
DAY_MS = 86_400_000
MOST_DAYS = 36_500
LONGEST_NAME = 128  # characters; name and id together are the actor in the audit log
USED_EVERY_MS = 60_000  # resolution of the time of last use
FRESH_S = 1.0  # a lookup older than this is not trusted, because another process may have revoked the key
REFRESH_S = 0.5  # after this long, one request looks the key up again while others use the cached row
KEPT = 10_000  # cached keys; the least recently used one is evicted

ANY_TENANT: Final = "*"
SERVICE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_ALPHABET: Final = string.digits + string.ascii_letters
_SECRET_LENGTH = 43  # 32 bytes in base 62
_CHECK_LENGTH = 6
_FORM = re.compile(rf"tnt_([0-9A-Za-z]{{10}})_([0-9A-Za-z]{{{_SECRET_LENGTH}}})([0-9A-Za-z]{{{_CHECK_LENGTH}}})")


class NewKey(NamedTuple):
    """A new key. `token` is the complete credential and cannot be retrieved again."""

    token: str
    row: KeyRow


def check_key(tenant: str, roles: Iterable[str], service: str | None = None) -> tuple[str, ...]:
    """Checks the tenant, the roles and the service of a key; returns the roles."""
    known = check_roles(roles)
    if tenant == ANY_TENANT:
        if known != ("worker",) or service is None:
            text = "only a key with the role `worker` alone and a service can be for all tenants"
            raise InvalidInput.at("/tenant", "not_for_all", text)
    elif not TENANT.fullmatch(tenant):
        raise InvalidInput.at("/tenant", "bad_name", "letters, digits, `_`, `-` and `.`, at most 128")
    if service is not None and known != ("worker",):
        raise InvalidInput.at("/service", "not_a_worker", "only a key with the role `worker` alone has a service")
    if service is not None and not SERVICE.fullmatch(service):
        raise InvalidInput.at("/service", "bad_name", "letters, digits, `_` and `-`, at most 64")
    return known


class Keyring:
    """The API keys of a database. Revocation takes effect here at once, and in other processes after a second."""

    def __init__(
        self, registry: Registry, now_ms: Callable[[], int], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._registry = registry
        self._lookups = _Lookups(registry)
        self._now = now_ms
        self._monotonic = monotonic  # for the age of lookups, because the wall clock may be set back
        self._used: dict[str, int] = {}
        self._fresh: OrderedDict[str, tuple[KeyRow, float]] = OrderedDict()  # with the time of the lookup
        self._proven: dict[bytes, str] = {}  # key ids by the hash of the whole token

    async def create(
        self,
        *,
        tenant: str,
        roles: Iterable[str],
        name: str = "",
        days: int | None = None,
        actor: str = "system",
        service: str | None = None,
    ) -> NewKey:
        """Creates a key. With `days` of None or 0, it does not expire.

        A key with a `service` belongs to a platform worker: it answers for that service alone. Its tenant may be `*`.
        """
        known = check_key(tenant, roles, service)
        check_name(name or None, "name", LONGEST_NAME)
        if days is not None and days < 0:
            raise InvalidInput.at("/days", "too_small", "days from now")
        if days is not None and days > MOST_DAYS:
            raise InvalidInput.at("/days", "too_large", f"at most {MOST_DAYS:,}; 0 is never")
        now = self._now()
        id = _random(10)
        secret = _base62(int.from_bytes(secrets.token_bytes(SECRET_BYTES)), _SECRET_LENGTH)
        row = KeyRow(
            id=id,
            tenant=tenant,
            name=name,
            roles=known,
            secret_hash=_hash(secret),
            created_at=now,
            created_by=actor,
            expires_at=now + days * DAY_MS if days else None,
            service=service,
        )
        await self._registry.add_key(row, self._noted(row, "key.created", actor, ", ".join(row.roles)))
        return NewKey(f"{PREFIX}{id}_{secret}{_check(id, secret)}", row)

    def is_new(self, token: str) -> bool:
        """Returns whether a token has the form of a key and was not seen before."""
        return _digest(token) not in self._proven and _parts(token) is not None

    def known(self, token: str) -> KeyRow | None:
        """Returns the key of a token that was looked up so recently that neither a query nor an update is needed."""
        id = self._proven.get(_digest(token))
        if id is None or id not in self._fresh:
            return None
        (row, at), now = self._fresh[id], self._now()
        is_noted = now - self._used.get(id, row.last_used_at or 0) < USED_EVERY_MS
        is_fresh = self._monotonic() - at < REFRESH_S
        return row if is_fresh and is_noted and is_in_force(row, now) else None

    async def find(self, token: str, max_age: float = FRESH_S) -> KeyRow | None:
        """Returns the key of a token if it exists, is valid and has this secret.

        It was looked up at most `max_age` seconds ago; with 0, by a query that starts after this call.
        """
        digest = _digest(token)
        id = self._proven.get(digest)
        row = await self._prove(token, digest, max_age) if id is None else await self._row(id, max_age)
        now = self._now()
        if row is None or not is_in_force(row, now):
            return None
        if now - self._used.get(row.id, row.last_used_at or 0) >= USED_EVERY_MS:
            self._used[row.id] = now
            await self._registry.use_key(row.id, now)
        return row

    async def refusal(self, token: str) -> str:
        """Returns why `find` rejected a token. Details are given only if the secret is correct."""
        parts = _parts(token)
        row = await self._row(parts[0], 0.0) if parts is not None else None
        if parts is None or row is None or not hmac.compare_digest(row.secret_hash, _hash(parts[1])):
            return "The API key is not valid."
        if row.revoked_at is not None:
            return f"The API key was revoked at {rfc3339(row.revoked_at)}."
        if row.expires_at is not None and row.expires_at <= self._now():
            return f"The API key expired at {rfc3339(row.expires_at)}."
        return "The API key is not valid."

    async def _prove(self, token: str, digest: bytes, max_age: float) -> KeyRow | None:
        """Returns the key if the token has its secret. Secrets never change, so the comparison is cached."""
        parts = _parts(token)
        if parts is None:
            return None
        row = await self._row(parts[0], max_age)
        if row is None or not hmac.compare_digest(row.secret_hash, _hash(parts[1])):
            return None
        if len(self._proven) >= KEPT:
            self._proven.clear()
        self._proven[digest] = row.id
        return row

    async def _row(self, id: str, max_age: float) -> KeyRow | None:
        """Looks a key up. Only existing keys are cached, so that random tokens cannot fill the cache."""
        now = self._monotonic()
        if id in self._fresh:
            known, at = self._fresh[id]
            if now - at < min(max_age, REFRESH_S) or (now - at < max_age and self._lookups.is_under_way(id)):
                return known
        row = await self._lookups.key(id)
        self._fresh.pop(id, None)
        if row is not None:
            self._fresh[id] = (row, now)
        if len(self._fresh) > KEPT:
            self._fresh.popitem(last=False)
        return row

    async def list(self, tenant: str | None = None) -> list[KeyRow]:
        return await self._registry.keys(tenant)

    async def revoke(self, id: str, *, tenant: str | None = None, actor: str = "system") -> None:
        row = await self._registry.key(id)
        if row is None or tenant not in (None, row.tenant):
            raise NotFound(f"There is no key {id!r}.")
        await self._registry.revoke_key(id, tenant, self._now(), self._noted(row, "key.revoked", actor, ""))
        self._fresh.pop(id, None)

    def _noted(self, row: KeyRow, action: str, actor: str, reason: str) -> AuditRow:
        return AuditRow(
            tenant=row.tenant,
            at=self._now(),
            actor=actor,
            action=action,
            object_type="key",
            object_id=row.id,
            reason=reason,
        )


class _Lookups:
    """Looks keys up, with one query at a time for each key.

    Callers that arrive during a query share the next one, so each gets the result of a query that started after its
    call.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._running: dict[str, asyncio.Task[KeyRow | None]] = {}
        self._next: dict[str, asyncio.Task[KeyRow | None]] = {}

    def is_under_way(self, id: str) -> bool:
        return id in self._running or id in self._next

    async def key(self, id: str) -> KeyRow | None:
        task = self._next.get(id)
        if task is None:
            task = self._next[id] = asyncio.create_task(self._look_up(id, self._running.get(id)))
            task.add_done_callback(_retrieve)
        return await asyncio.shield(task)

    async def _look_up(self, id: str, running: asyncio.Task[KeyRow | None] | None) -> KeyRow | None:
        if running is not None:
            await asyncio.wait([running])
        self._running[id] = self._next.pop(id)
        try:
            return await self._registry.key(id)
        finally:
            del self._running[id]


def _retrieve(task: asyncio.Task[KeyRow | None]) -> None:
    """Retrieves the exception of a task whose callers were all cancelled."""
    if not task.cancelled():
        task.exception()


def actor_of(row: KeyRow) -> str:
    """Who acts with this key, as histories and the audit log record it."""
    return f"key:{row.name}:{row.id}" if row.name else f"key:{row.id}"


def is_in_force(row: KeyRow, now: int) -> bool:
    return row.revoked_at is None and (row.expires_at is None or now < row.expires_at)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _hash(secret: str) -> str:
    """Hashes a secret. A random secret of 256 bits needs no slow hash, because it cannot be guessed."""
    return hashlib.sha256(secret.encode()).hexdigest()


def _parts(token: str) -> tuple[str, str] | None:
    """Splits a token into id and secret; None if it does not have the form of a key."""
    form = _FORM.fullmatch(token)
    return None if form is None or form[3] != _check(form[1], form[2]) else (form[1], form[2])


def _check(id: str, secret: str) -> str:
    """Returns a checksum, which detects mistyped keys and false matches of scanners without a database query."""
    return _base62(zlib.crc32(f"{id}_{secret}".encode()), _CHECK_LENGTH)


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def _base62(number: int, length: int) -> str:
    digits = []
    for _ in range(length):
        number, rest = divmod(number, len(_ALPHABET))
        digits.append(_ALPHABET[rest])
    return "".join(reversed(digits))

"""Sign-in sessions of the console: opened with an API key or a sign-in link, and held by a cookie.

The token is random and shown once, to the browser; the database holds its SHA-256. Every request looks its session up.
So signing out, a revoked key or changed roles take effect with the next request.
"""

import hashlib
import secrets
import string
import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from tenuto.errors import NotAuthenticated, NotFound
from tenuto.storage.registry import KeyRow
from tenuto.storage.sign_ins import LinkRow, SignInRow, SignIns
from tenuto.views.projections import AuditRow

from .keys import actor_of
from .permission import check_roles

LINK_MS: Final = 10 * 60_000
IDLE_MS: Final = 30 * 60_000
MAX_AGE_MS: Final = 12 * 3_600_000
TOKEN_BYTES: Final = 32
USES_PER_IDLE: Final = 30  # how exactly the time of last use is stored: to a thirtieth of the idle time
KEPT: Final = 1_000  # sessions that were looked up for open streams

_ALPHABET: Final = string.digits + string.ascii_letters


class Session(NamedTuple):
    """A session in force. `expires_at` is when it ends if it is not used again."""

    id: str
    tenant: str
    actor: str
    roles: tuple[str, ...]
    created_at: int
    last_used_at: int
    expires_at: int


class NewSession(NamedTuple):
    """A session that was just opened. `token` cannot be read again."""

    token: str
    session: Session


class SignInSessions:
    """The sign-in sessions of a database."""

    def __init__(
        self,
        store: SignIns,
        now_ms: Callable[[], int],
        *,
        idle_ms: int = IDLE_MS,
        max_age_ms: int = MAX_AGE_MS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._now = now_ms
        self._idle_ms = idle_ms
        self._max_age_ms = max_age_ms
        self._monotonic = monotonic
        self._recent: dict[str, tuple[SignInRow, float]] = {}

    async def make_link(self, *, tenant: str, actor: str, roles: Iterable[str]) -> str:
        """Creates a token that opens one session within ten minutes."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        row = LinkRow(
            token_hash=_hash(token),
            tenant=tenant,
            actor=actor,
            roles=check_roles(roles),
            expires_at=self._now() + LINK_MS,
        )
        await self._store.add_link(row, self._note(row.tenant, actor, "session.link_created", "", ", ".join(row.roles)))
        return token

    async def open_with_key(self, key: KeyRow) -> NewSession:
        return await self._open(key.tenant, actor_of(key), key.roles, key)

    async def open_with_link(self, token: str) -> NewSession:
        row = await self._store.take_link(_hash(token))
        if row is None or row.expires_at <= self._now():
            raise NotAuthenticated(
                "The sign-in link was used before, or has expired.",
                code="sign_in_link_invalid",
                hint="run `tenuto console` for a new one",
            )
        return await self._open(row.tenant, row.actor, row.roles, None)

    async def _open(self, tenant: str, actor: str, roles: tuple[str, ...], key: KeyRow | None) -> NewSession:
        token, now = secrets.token_urlsafe(TOKEN_BYTES), self._now()
        row = SignInRow(
            id="".join(secrets.choice(_ALPHABET) for _ in range(10)),
            tenant=tenant,
            actor=actor,
            roles=roles,
            key=None if key is None else key.id,
            token_hash=_hash(token),
            created_at=now,
            last_used_at=now,
            idle_ms=self._idle_ms,
            expires_at=now + self._max_age_ms,
        )
        await self._store.add(row, self._note(tenant, actor, "session.opened", row.id))
        return NewSession(token, _session(row))

    async def use(self, token: str) -> Session | None:
        """The session of a request, if it is in force. It is looked up, and now used."""
        row, now = await self._find(token, 0.0), self._now()
        if row is None:
            return None
        if now - row.last_used_at >= row.idle_ms / USES_PER_IDLE:
            await self._store.use(row.id, now)
        return _session(row)._replace(expires_at=min(now + row.idle_ms, row.expires_at))

    async def find(self, token: str, max_age: float) -> Session | None:
        """The session, if it is in force. It was looked up at most `max_age` seconds ago, and is not used by this."""
        row = await self._find(token, max_age)
        return None if row is None else _session(row)

    async def _find(self, token: str, max_age: float) -> SignInRow | None:
        digest, asked_at = _hash(token), self._monotonic()
        row, at = self._recent.get(digest, (None, 0.0))
        if row is None or asked_at - at >= max_age:
            row = await self._store.find(digest)
            self._recent.pop(digest, None)
            if row is not None:
                if len(self._recent) >= KEPT:
                    self._recent.clear()
                self._recent[digest] = (row, asked_at)
        return row if row is not None and row.is_in_force(self._now()) else None

    async def list(self, tenant: str | None = None) -> list[Session]:
        """The sessions in force, oldest first."""
        now = self._now()
        return [_session(row) for row in await self._store.list(tenant) if row.is_in_force(now)]

    async def end(self, session: Session) -> None:
        """Signs out."""
        await self._end(session, "session.closed", session.actor)

    async def revoke(self, id: str, *, tenant: str | None, actor: str, of: str | None = None) -> None:
        """Ends a session by its id. `of`: only if it is this actor's."""
        found = [each for each in await self.list(tenant) if each.id == id and of in (None, each.actor)]
        if not found or not await self._end(found[0], "session.revoked", actor):
            raise NotFound(f"There is no sign-in session {id!r}.", hint="`tenuto sessions ls` lists them")

    async def _end(self, session: Session, action: str, actor: str) -> bool:
        self._recent.clear()
        return await self._store.end(session.id, self._note(session.tenant, actor, action, session.id))

    def _note(self, tenant: str, actor: str, action: str, id: str, reason: str = "") -> AuditRow:
        return AuditRow(
            tenant=tenant,
            at=self._now(),
            actor=actor,
            action=action,
            object_type="session",
            object_id=id,
            reason=reason,
        )


def _session(row: SignInRow) -> Session:
    roles = row.roles if row.key_roles is None else row.key_roles
    return Session(row.id, row.tenant, row.actor, roles, row.created_at, row.last_used_at, row.ends_at)


def _hash(token: str) -> str:
    """A random token of 256 bits needs no slow hash: there is nothing to guess."""
    return hashlib.sha256(token.encode()).hexdigest()

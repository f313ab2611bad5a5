"""Sign-in sessions of the console, and links that open one. Written once for both dialects."""

import json
from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct, structs

from tenuto.views.projections import AuditRow

from .statements import Statements, marks, noting


class SignInRow(Struct, frozen=True, kw_only=True):
    """A session. With a `key`, its roles are those of that API key."""

    id: str
    tenant: str
    actor: str
    roles: tuple[str, ...]
    key: str | None
    token_hash: str
    created_at: int
    last_used_at: int
    idle_ms: int
    expires_at: int
    key_roles: tuple[str, ...] | None = None
    key_revoked_at: int | None = None
    key_expires_at: int | None = None

    @property
    def ends_at(self) -> int:
        """When it ends if it is not used again."""
        return min(self.last_used_at + self.idle_ms, self.expires_at)

    def is_in_force(self, now: int) -> bool:
        return now < self.ends_at and (self.key is None or self._has_key(now))

    def _has_key(self, now: int) -> bool:
        if self.key_roles is None or self.key_revoked_at is not None:
            return False
        return self.key_expires_at is None or now < self.key_expires_at


class LinkRow(Struct, frozen=True, kw_only=True):
    token_hash: str
    tenant: str
    actor: str
    roles: tuple[str, ...]
    expires_at: int


class SignIns(Protocol):
    async def add(self, row: SignInRow, note: AuditRow) -> None: ...

    async def find(self, token_hash: str) -> SignInRow | None: ...

    async def list(self, tenant: str | None) -> list[SignInRow]:
        """The sessions of a tenant, or of all, oldest first, also those that have expired."""

    async def use(self, id: str, at: int) -> None: ...

    async def end(self, id: str, note: AuditRow) -> bool:
        """False if there is no such session."""

    async def add_link(self, row: LinkRow, note: AuditRow) -> None: ...

    async def take_link(self, token_hash: str) -> LinkRow | None:
        """Removes a link and returns it: it can be used once."""

    async def forget(self, before: int) -> None:
        """Removes sessions and links that expired before this time."""


_STORED = SignInRow.__struct_fields__[:-3]
_LINK = LinkRow.__struct_fields__
_SESSIONS = (
    f"SELECT {', '.join(f's.{name}' for name in _STORED)}, k.roles, k.revoked_at, k.expires_at "
    "FROM signin_sessions s LEFT JOIN api_keys k ON k.id = s.key"
)


class SqlSignIns:
    """Implements `SignIns` on a store's database."""

    def __init__(self, statements: Statements) -> None:
        self._sql = statements

    async def add(self, row: SignInRow, note: AuditRow) -> None:
        values = [_stored(getattr(row, name)) for name in _STORED]
        query = f"INSERT INTO signin_sessions ({', '.join(_STORED)}) VALUES ({marks(len(values))}) RETURNING id"
        await self._sql.run_all([(query, values), *noting(note)])

    async def find(self, token_hash: str) -> SignInRow | None:
        rows = await self._sql.fetch(f"{_SESSIONS} WHERE s.token_hash = $1", (token_hash,))
        return _session(rows[0]) if rows else None

    async def list(self, tenant: str | None) -> list[SignInRow]:
        where, values = ("", ()) if tenant is None else ("WHERE s.tenant = $1", (tenant,))
        rows = await self._sql.fetch(f"{_SESSIONS} {where} ORDER BY s.created_at, s.id", values)
        return [_session(row) for row in rows]

    async def use(self, id: str, at: int) -> None:
        query = "UPDATE signin_sessions SET last_used_at = $2 WHERE id = $1 AND last_used_at < $2"
        await self._sql.run(query, (id, at))

    async def end(self, id: str, note: AuditRow) -> bool:
        return await self._sql.run_all(
            [("DELETE FROM signin_sessions WHERE id = $1 RETURNING id", (id,)), *noting(note)]
        )

    async def add_link(self, row: LinkRow, note: AuditRow) -> None:
        values = [_stored(value) for value in structs.astuple(row)]
        query = f"INSERT INTO signin_links ({', '.join(_LINK)}) VALUES ({marks(len(values))}) RETURNING tenant"
        await self._sql.run_all([(query, values), *noting(note)])

    async def take_link(self, token_hash: str) -> LinkRow | None:
        query = f"DELETE FROM signin_links WHERE token_hash = $1 RETURNING {', '.join(_LINK)}"
        rows = await self._sql.run(query, (token_hash,))
        if not rows:
            return None
        named = dict(zip(_LINK, rows[0], strict=True))
        return LinkRow(**{**named, "roles": _roles(named["roles"])})

    async def forget(self, before: int) -> None:
        for table in ("signin_sessions", "signin_links"):
            await self._sql.run(f"DELETE FROM {table} WHERE expires_at < $1", (before,))


def _stored(value: object) -> object:
    return json.dumps(value) if isinstance(value, tuple) else value


def _roles(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))


def _session(row: Sequence[Any]) -> SignInRow:
    named = dict(zip(SignInRow.__struct_fields__, row, strict=True))
    key_roles = None if named["key_roles"] is None else _roles(named["key_roles"])
    return SignInRow(**{**named, "roles": _roles(named["roles"]), "key_roles": key_roles})

"""Row-level security on PostgreSQL: requests read as a role that sees the rows of one tenant only."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from tenuto.errors import StorageError

# PostgreSQL 16 and newer have a privilege of their own for SET ROLE; before, members of a role may.
HAS_ROW_SECURITY = (
    "SELECT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'tenuto_request' AND pg_has_role(oid, "
    "CASE WHEN current_setting('server_version_num')::integer < 160000 THEN 'MEMBER' ELSE 'SET' END)) "
    "AND EXISTS (SELECT 1 FROM pg_policies WHERE policyname = 'own_rows' AND schemaname = current_schema())"
)
NO_ROW_SECURITY = "PostgreSQL does not keep tenants apart by itself: its user may not act as the role `tenuto_request`."
# Queries of requests are short. The server stops longer ones even if the client is gone.
READING = {"default_transaction_read_only": "on", "statement_timeout": "10s", "lock_timeout": "2s"}
# The role is set and verified in one statement: some servers and poolers ignore settings made at connection time.
_SHOW = (
    "SELECT set_config('role', 'tenuto_request', false), set_config('tenuto.tenant', $1, false), "
    "current_user = 'tenuto_request' AS is_walled"
)


async def keep_settings(connection: object) -> None:
    """Resets nothing between uses: `TenantConnection` tracks its own settings, and a reset costs a round trip."""


class TenantConnection(asyncpg.Connection):
    """A connection with the role `tenuto_request`. It sees the rows of one tenant, or none."""

    _shown: str | None = None

    async def show(self, tenant: str) -> None:
        """Switches to this tenant, unless the connection already shows it, which is the usual case."""
        if self._shown != tenant:
            self._shown = None  # unknown until the server answers
            row = await self.fetchrow(_SHOW, tenant)
            if row is None or not row["is_walled"]:
                raise StorageError(
                    "PostgreSQL did not take the role `tenuto_request`, so that it would show the rows of all tenants",
                    code="no_wall",
                    hint="connect to the server itself, or with a pooler that keeps a session to one client",
                )
            self._shown = tenant


class TenantPool:
    """A pool whose connections see one tenant's rows only, by row-level security."""

    def __init__(self, pool: asyncpg.Pool, tenant: str) -> None:
        self._pool = pool
        self._tenant = tenant

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Any]:
        async with self._pool.acquire() as connection:
            await connection.show(self._tenant)  # type: ignore[attr-defined]  # the pool makes `TenantConnection`s
            yield connection

    async def fetch(self, query: str, *values: object) -> list[Any]:
        async with self.acquire() as connection:
            found: list[Any] = await connection.fetch(query, *values)
        return found

    async def fetchrow(self, query: str, *values: object) -> Any:
        rows = await self.fetch(query, *values)
        return rows[0] if rows else None

"""The second wall on PostgreSQL: requests read as a role to which the server shows one tenant's rows alone."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from tenuto.errors import StorageError

# Whether one may become a role is a question of its own since 16; before, members may.
HAS_WALL = (
    "SELECT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'tenuto_request' AND pg_has_role(oid, "
    "CASE WHEN current_setting('server_version_num')::integer < 160000 THEN 'MEMBER' ELSE 'SET' END)) "
    "AND EXISTS (SELECT 1 FROM pg_policies WHERE policyname = 'own_rows' AND schemaname = current_schema())"
)
NO_WALL = "PostgreSQL does not keep tenants apart by itself: its user may not act as the role `tenuto_request`."
# What a request asks for is little, or wrong: the server stops it, also when nobody is there to tell it so.
READING = {"default_transaction_read_only": "on", "statement_timeout": "10s", "lock_timeout": "2s"}
# The role is asked for and seen in one: what is said when a connection is made is not heard by every server and pooler.
_SHOW = (
    "SELECT set_config('role', 'tenuto_request', false), set_config('tenuto.tenant', $1, false), "
    "current_user = 'tenuto_request' AS is_walled"
)


async def leave_as_it_is(connection: object) -> None:
    """What is changed beyond a transaction is known here (`Walled`): asking for it would cost a turn."""


class Walled(asyncpg.Connection):
    """A connection behind the wall. It shows nothing, or the rows of one tenant, until it is turned to another."""

    _shown: str | None = None

    async def show(self, tenant: str) -> None:
        """Most tenants ask again and again, so that mostly there is nothing to do."""
        if self._shown != tenant:
            self._shown = None  # until it is answered nobody knows
            row = await self.fetchrow(_SHOW, tenant)
            if row is None or not row["is_walled"]:
                raise StorageError(
                    "PostgreSQL did not take the role `tenuto_request`, so that it would show the rows of all tenants",
                    code="no_wall",
                    hint="connect to the server itself, or with a pooler that keeps a session to one client",
                )
            self._shown = tenant


class Wall:
    """A pool for reading in a tenant's name: as a role to which row-level security shows that tenant's rows alone."""

    def __init__(self, pool: asyncpg.Pool, tenant: str) -> None:
        self._pool = pool
        self._tenant = tenant

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Any]:
        async with self._pool.acquire() as connection:
            await connection.show(self._tenant)  # type: ignore[attr-defined]  # it stands for a `Walled`
            yield connection

    async def fetch(self, query: str, *values: object) -> list[Any]:
        async with self.acquire() as connection:
            found: list[Any] = await connection.fetch(query, *values)
        return found

    async def fetchrow(self, query: str, *values: object) -> Any:
        rows = await self.fetch(query, *values)
        return rows[0] if rows else None

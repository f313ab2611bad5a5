"""Connections to a PostgreSQL database: one that commits, a pool for the rest, and one for reads of one tenant."""

import asyncio
import copy
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

import asyncpg

from tenuto.errors import StorageError
from tenuto.storage.migrations import MIGRATIONS_TABLE, NO_SCHEMA, Migration, migrations, missing
from tenuto.storage.shared.database import Dialect
from tenuto.storage.statements import Statement
from tenuto.values.jitter import spread

from .errors import translated
from .privileges import check_rights
from .row_security import HAS_ROW_SECURITY, NO_ROW_SECURITY, READING, TenantConnection, TenantPool, keep_settings
from .statements import NOW

MIGRATION_LOCK = 7_311_004_225
CLOSE_SECONDS = 5.0
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0
LOCK_MS = 300  # how long a commit waits for locks of other transactions
MIGRATE_SECONDS = 1.0
# What is committed, claimed and loaded is looked up in indexes, whatever the statistics say of tables that have just
# grown: a hash join over all executions or events for each batch is what the planner would choose instead.
_BY_INDEX = {"enable_hashjoin": "off", "enable_mergejoin": "off", "enable_seqscan": "off"}
# A bitmap would look at every note of `tenant_changes` that was counted and is not vacuumed yet; an index forgets them.
_COMMITTING = {**_BY_INDEX, "enable_bitmapscan": "off", "plan_cache_mode": "force_generic_plan"}
# Where a page may be read from several indexes, the one that fits best, and not the one whose rows lie side by side.
_BY_ROW = {**_BY_INDEX, "random_page_cost": "1.1"}
_BOUNDED = {"statement_timeout": f"{ANSWER_SECONDS:.0f}s"}  # no query takes longer
DIALECT = Dialect(
    name="postgres",
    mark="$",
    among="= ANY($1)",
    plans="(SELECT p ->> 0 AS definition, (p ->> 1)::int AS version FROM jsonb_array_elements($1::jsonb) AS p)",
)

logger = logging.getLogger("tenuto.storage")

_OWNS = (
    "This process could rewrite what happened: it has the rights of the schema's owner. See `tenuto migrate --role`."
)
_MIGRATION_WAITS = "The schema is not up to date yet: another transaction locks a table. Trying again."
# Of a process that is frozen, or whose host is gone: the server lets go of what its transaction holds.
_SHORT_TRANSACTIONS = {"idle_in_transaction_session_timeout": "5s"}


async def _durably(connection: asyncpg.Connection) -> dict[str, str]:
    """What is answered is on disk, also where the server or the role says `off`. Only the URL may say so."""
    query = "SELECT setting, source FROM pg_settings WHERE name = 'synchronous_commit'"
    row = await connection.fetchrow(query)
    is_weak = row is not None and row["setting"] == "off" and row["source"] != "client"
    return {"synchronous_commit": "on"} if is_weak else {}


async def _applied(connection: asyncpg.Connection) -> dict[int, str]:
    rows = await connection.fetch("SELECT number, checksum FROM tenuto_migrations")
    return {row["number"]: row["checksum"] for row in rows}


class PostgresDatabase:
    """Implements `Database`."""

    dialect = DIALECT

    def __init__(self, dsn: str, *, read_only: bool = False) -> None:
        self.dsn = dsn
        self.has_row_security = False
        self.pool: asyncpg.Pool
        self.tenant_pool: asyncpg.Pool
        self.committer: asyncpg.Connection
        self._read_only = read_only
        self._settings: dict[str, str] = {}

    def for_tenant(self, tenant: str | None) -> Self:
        """The same database, on which reads see this tenant's rows alone. None: all rows."""
        if tenant is None or not self.has_row_security:
            return self
        other = copy.copy(self)
        other.pool = TenantPool(self.tenant_pool, tenant)  # type: ignore[assignment]  # it has what reads need
        return other

    async def open(self, *, migrate: bool) -> int:
        async with translated():
            connection = await asyncpg.connect(self.dsn, timeout=CONNECT_SECONDS, server_settings=_SHORT_TRANSACTIONS)
            try:
                await self._migrate(connection, apply=migrate)
                self._settings = {**_SHORT_TRANSACTIONS, **await _durably(connection)}
                if self._read_only:
                    self._settings["default_transaction_read_only"] = "on"
            finally:
                await connection.close()
            self.committer = await self._connect_committer()
            try:
                self.pool = await self._make_pool(min_size=1)
                self.tenant_pool = await self._make_pool(
                    min_size=0, connection_class=TenantConnection, settings=READING
                )
                try:
                    return await self._inspect()
                except BaseException:
                    self.pool.terminate()
                    raise
            except BaseException:
                self.committer.terminate()
                raise
        raise AssertionError("translated() does not swallow")

    async def _make_pool(
        self,
        min_size: int,
        connection_class: type[asyncpg.Connection] = asyncpg.Connection,
        settings: Mapping[str, str] = {},
    ) -> asyncpg.Pool:
        return await asyncpg.create_pool(
            self.dsn,
            min_size=min_size,
            max_size=8,
            connection_class=connection_class,
            timeout=CONNECT_SECONDS,
            command_timeout=ANSWER_SECONDS,
            server_settings={**_BY_ROW, **_BOUNDED, **self._settings, **settings},
            reset=keep_settings,
        )

    async def _inspect(self) -> int:
        if await check_rights(self.committer):
            logger.info(_OWNS, extra={"action": "runs_as_owner"})
        self.has_row_security = await self.committer.fetchval(HAS_ROW_SECURITY)
        if not self.has_row_security:
            logger.warning(NO_ROW_SECURITY, extra={"action": "no_second_wall"})
        now: int = await self.committer.fetchval(f"SELECT {NOW}")
        return now

    async def _connect_committer(self) -> asyncpg.Connection:
        connection = await self.connect()
        for setting, value in {**_COMMITTING, "lock_timeout": LOCK_MS}.items():
            await connection.execute(f"SET {setting} = {value}")
        return connection

    async def connect(self) -> asyncpg.Connection:
        """A connection that gives up on a server which no longer answers: TCP alone would wait for hours."""
        return await asyncpg.connect(
            self.dsn, timeout=CONNECT_SECONDS, command_timeout=ANSWER_SECONDS, server_settings=self._settings
        )

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Any]:
        async with translated(), self.pool.acquire() as connection:
            yield connection

    async def _migrate(self, connection: asyncpg.Connection, *, apply: bool) -> None:
        known = migrations("postgres")
        has_table = await connection.fetchval("SELECT to_regclass('tenuto_migrations') IS NOT NULL")
        if not apply and not has_table:
            raise StorageError("the database has no tenuto schema", code="no_schema", hint=NO_SCHEMA)
        if has_table and not missing(known, await _applied(connection)):
            return  # the usual case, which takes no lock
        if not apply:
            raise StorageError("the schema is out of date", code="old_schema", hint="run `tenuto migrate`")
        try:
            while not await _migrated(connection, known):
                logger.warning(_MIGRATION_WAITS, extra={"action": "migration_waits"})
                await asyncio.sleep(spread(MIGRATE_SECONDS))
        except (asyncpg.InsufficientPrivilegeError, asyncpg.InvalidSchemaNameError):
            raise StorageError(
                f"the {'schema is out of date' if has_table else 'database has no tenuto schema'}, "
                "and this user may not change that",
                code="old_schema" if has_table else "no_schema",
                hint="run `tenuto migrate` as the owner of the schema",
            ) from None

    async def close(self) -> None:
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.pool.close()
                await self.tenant_pool.close()
                await self.committer.close()
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, TimeoutError):
            self.pool.terminate()
            self.tenant_pool.terminate()
            self.committer.terminate()

    async def reconnect_committer(self) -> None:
        self.committer = await self._connect_committer()

    async def check(self) -> None:
        rows = await self.fetch("SELECT number, checksum FROM tenuto_migrations", ())
        if missing(migrations("postgres"), {row["number"]: row["checksum"] for row in rows}):
            raise StorageError("the schema is out of date", code="old_schema", hint="run `tenuto migrate`")

    def listed(self, values: Sequence[str]) -> object:
        return list(values)

    def clock(self) -> str:
        return NOW

    async def fetch(self, query: str, values: Sequence[object]) -> list[Any]:
        async with translated():
            found: list[Any] = await self.pool.fetch(query, *values)
            return found
        raise AssertionError("translated() does not swallow")

    async def run(self, query: str, values: Sequence[object]) -> list[Any]:
        return await self.fetch(query, values)

    async def run_all(self, statements: Sequence[Statement]) -> bool:
        first, *rest = statements
        async with translated(), self.pool.acquire() as connection, connection.transaction():
            if not await connection.fetch(first[0], *first[1]):
                return False
            for query, values in rest:
                await connection.execute(query, *values)
            return True
        raise AssertionError("translated() does not swallow")

    async def run_many(self, statements: Sequence[tuple[str, Sequence[Sequence[object]]]]) -> None:
        async with translated(), self.pool.acquire() as connection, connection.transaction():
            for query, rows in statements:
                await connection.executemany(query, rows)


async def _migrated(connection: asyncpg.Connection, known: list[Migration]) -> bool:
    """Or not yet: tables that others hold are waited for in short pieces, because every commit waits behind it."""
    try:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
            await connection.execute(f"SET LOCAL lock_timeout = {LOCK_MS}")
            await connection.execute(MIGRATIONS_TABLE)
            for migration in missing(known, await _applied(connection)):
                await connection.execute(migration.sql)
                await connection.execute(
                    f"INSERT INTO tenuto_migrations VALUES ($1, $2, $3, {NOW})",
                    migration.number, migration.name, migration.checksum,
                )  # fmt: skip
    except asyncpg.LockNotAvailableError:
        return False
    return True

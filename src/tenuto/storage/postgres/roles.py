"""A role for services on PostgreSQL that owns nothing: the schema has an owner, who migrates; services run as others.

Then even an attacker with a service's credentials cannot rewrite history: entries are only appended, rows of the audit
log are numbered once, and triggers and tables cannot be changed.

All privileges of a role count, including those of roles that it is a member of, and those of PUBLIC.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import asyncpg

from tenuto.errors import NotSupported, StorageError

from .database import CONNECT_SECONDS, MIGRATION_LOCK
from .errors import translated
from .privileges import GRANTS, IS_HELD, listed

_WORDS: Final = ("INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER")
_WALL: Final = "tenuto_request"
_VERSION: Final = "current_setting('server_version_num')::integer"

_PLACE = """
SELECT relnamespace::regnamespace::text AS schema, pg_has_role(relowner, 'USAGE') AS is_own
FROM pg_class WHERE oid = 'tenuto_migrations'::regclass"""
# What guards the rows is to look at our tables, and compare as the database does, whatever its caller calls so.
_GUARDS = """
SELECT p.oid::regprocedure::text FROM pg_proc p JOIN pg_class c ON c.relnamespace = p.pronamespace
WHERE c.oid = 'tenuto_migrations'::regclass AND p.proname LIKE 'tenuto%'"""
# $1 the role; $2 and $3 tables with what is not to be done to them; $4 tables that are not updated as a whole, and
# $5 the columns that may be. To be a member is enough: such a one may become the other, or let himself.
_EXCESS = f"""
WITH reach AS (SELECT r.* FROM pg_roles r WHERE pg_has_role($1::name, r.oid, 'MEMBER')),
place AS (SELECT relnamespace AS oid FROM pg_class WHERE oid = 'tenuto_migrations'::regclass),
columns AS (
    SELECT t.place, a.attname FROM unnest($4::text[]) AS t (place), pg_attribute a
    WHERE a.attrelid = t.place::regclass AND a.attnum > 0 AND NOT a.attisdropped
        AND t.place || '.' || a.attname <> ALL($5::text[])
)
SELECT rolname || ' ' || what FROM (
    SELECT 1 AS rank, rolname, 'is a superuser' AS what FROM reach WHERE rolsuper
    UNION SELECT 2, rolname, 'is not held by row-level security' FROM reach WHERE rolbypassrls
    UNION SELECT 3, rolname, 'may become any other role (CREATEROLE)' FROM reach
        WHERE rolcreaterole AND {_VERSION} < 160000
    UNION SELECT 4, rolname, 'may write files of the server' FROM reach
        WHERE rolname IN ('pg_execute_server_program', 'pg_write_server_files')
    UNION SELECT 5, rolname, 'owns the database' FROM reach JOIN pg_database d ON d.datdba = reach.oid
        WHERE d.datname = current_database()
    UNION SELECT 6, rolname, 'owns the schema' FROM reach JOIN pg_namespace n ON n.nspowner = reach.oid
        JOIN place ON place.oid = n.oid
    UNION SELECT 7, rolname, 'owns ' || c.relname FROM reach JOIN pg_class c ON c.relowner = reach.oid
        JOIN place ON place.oid = c.relnamespace WHERE c.relkind = 'r'
    UNION SELECT 8, rolname, 'owns the function ' || p.proname FROM reach JOIN pg_proc p ON p.proowner = reach.oid
        JOIN place ON place.oid = p.pronamespace WHERE p.proname LIKE 'tenuto%'
    UNION SELECT 9, rolname, 'may create things in the schema' FROM reach, place
        WHERE has_schema_privilege(reach.oid, place.oid, 'CREATE')
    UNION SELECT 9, rolname, 'may create schemas, which may come before ours' FROM reach
        WHERE has_database_privilege(reach.oid, current_database(), 'CREATE')
    UNION SELECT 9, rolname, 'may switch triggers off (session_replication_role)' FROM reach
        WHERE has_parameter_privilege(reach.oid, 'session_replication_role', 'SET')
    UNION SELECT 10, rolname, 'may ' || f.word || ' ' || f.place FROM reach,
        unnest($2::text[], $3::text[]) AS f (place, word) WHERE has_table_privilege(reach.oid, f.place, f.word)
    UNION SELECT 10, rolname, 'may UPDATE ' || columns.place FROM reach, columns
        WHERE has_column_privilege(reach.oid, columns.place, columns.attname, 'UPDATE')
) AS found ORDER BY rank, rolname <> $1, rolname, what"""


async def grant(dsn: str, role: str, *, prunes: bool) -> None:
    """Gives a role that is there what a service needs. One that could do more is refused, and is given nothing."""
    async with _connected(dsn) as connection, connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", MIGRATION_LOCK)
        await _grant(connection, role, prunes=prunes)
        if found := await _excess(connection, role, prunes=prunes):
            raise NotSupported(
                f"The role {role!r} could do more than a service does: {listed(found)}.",
                code="role_too_strong",
                hint="take that from it, or make another: CREATE ROLE tenuto_service LOGIN PASSWORD '…'",
            )


async def own_excess(dsn: str) -> str:
    """What the user of this URL could do beyond what a service does that prunes; nothing, if all is well."""
    async with _connected(dsn) as connection:
        user = await connection.fetchval("SELECT current_user")
        return listed(await _excess(connection, user, prunes=True))
    raise AssertionError("translated() does not swallow")


@asynccontextmanager
async def _connected(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    async with translated():
        connection = await asyncpg.connect(dsn, timeout=CONNECT_SECONDS)
        try:
            yield connection
        finally:
            await connection.close()


async def _excess(connection: Any, role: str, *, prunes: bool) -> list[str]:
    """What a role can do beyond what a service does, by itself or as a member of others. Best none."""
    forbidden = [
        (table, word)
        for table, rights in GRANTS.items()
        for word in _WORDS
        if word not in rights.of(prunes=prunes) and not (word == "UPDATE" and rights.changes)
    ]
    tables = [table for table, rights in GRANTS.items() if "UPDATE" not in rights.words]
    columns = [f"{table}.{column}" for table, rights in GRANTS.items() for column in rights.changes]
    values = ([table for table, _ in forbidden], [word for _, word in forbidden], tables, columns)
    return [row[0] for row in await connection.fetch(_EXCESS, role, *values)]


async def _grant(connection: Any, role: str, *, prunes: bool) -> None:
    name = await connection.fetchval("SELECT quote_ident(rolname) FROM pg_roles WHERE rolname = $1", role)
    if name is None:
        raise StorageError(
            f"there is no role {role!r}", code="no_role", hint=f"make it first: CREATE ROLE {role} LOGIN PASSWORD '…'"
        )
    row = await connection.fetchrow(_PLACE)
    if not row["is_own"]:  # PostgreSQL itself would warn, and go on without it
        raise StorageError(
            f"this user may not give {role!r} what a service needs",
            code="not_permitted",
            hint="run it as the owner of the schema",
        )
    await connection.execute(f"GRANT USAGE ON SCHEMA {row['schema']} TO {name}")
    for table, rights in GRANTS.items():
        words = ", ".join(rights.of(prunes=prunes))
        words += f", UPDATE ({', '.join(rights.changes)})" if rights.changes else ""
        await connection.execute(f"REVOKE ALL ON {row['schema']}.{table} FROM {name}")
        await connection.execute(f"GRANT {words} ON {row['schema']}.{table} TO {name}")
    for (guard,) in await connection.fetch(_GUARDS):
        await connection.execute(f"ALTER FUNCTION {guard} SET search_path = pg_catalog, {row['schema']}, pg_temp")
    await _let_through_the_wall(connection, role, name)


async def _let_through_the_wall(connection: Any, role: str, name: str) -> None:
    """It may become the role that requests read as, and is not held by its wall itself."""
    if not await connection.fetchval("SELECT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = $1)", _WALL):
        return
    is_old = await connection.fetchval(f"SELECT {_VERSION} < 160000")
    statement = f"GRANT {_WALL} TO {name}{'' if is_old else ' WITH INHERIT FALSE, SET TRUE'}"
    may_become = f"SELECT pg_has_role($1::name, '{_WALL}', '{'MEMBER' if is_old else 'SET'}')"
    is_held = f"SELECT {IS_HELD} FROM pg_roles me WHERE me.rolname = $1"
    try:
        if not await connection.fetchval(may_become, role) or await connection.fetchval(is_held, role):
            async with connection.transaction():
                await connection.execute(statement)
    except asyncpg.InsufficientPrivilegeError:
        raise StorageError(
            f"this user may not let {role!r} act as `{_WALL}`, as which requests read",
            code="not_permitted",
            hint=f"as a superuser: {statement}; then run it again",
        ) from None
    if await connection.fetchval(is_held, role):
        raise NotSupported(
            f"The role {role!r} would be held by the wall for requests, and see nothing: it inherits from `{_WALL}`.",
            code="role_walled",
            hint=f"ALTER ROLE {name} NOINHERIT" if is_old else f"as a superuser: REVOKE {_WALL} FROM {name}",
        )

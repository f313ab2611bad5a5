"""A migration that is cut off leaves the database as it was, and the next one does it."""

import asyncio
from pathlib import Path

import apsw
import asyncpg
import pytest

from tenuto.errors import StorageError
from tenuto.storage import make_store
from tenuto.storage.migrations import MIGRATIONS_TABLE, migrations
from tenuto.storage.sqlite.database import SqliteDatabase

pytestmark = pytest.mark.empty_database

PATIENCE = 120
TABLE = "SELECT to_regclass('events')"


class _Killed(Exception):
    pass


async def test_sqlite_is_migrated_although_it_was_killed_at_every_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SqliteDatabase.connect
    file = tmp_path / "x.db"
    statements = left = 0

    def connect(self: SqliteDatabase, *, read_only: bool = False) -> apsw.Connection:
        connection = real(self, read_only=read_only)

        def count(_: apsw.Cursor, statement: str, __: object) -> bool:
            nonlocal left
            left -= 1
            if not left:
                raise _Killed
            return True

        connection.exec_trace = None if read_only else count
        return connection

    monkeypatch.setattr(SqliteDatabase, "connect", connect)
    while True:
        statements += 1
        left = statements
        store = make_store(f"sqlite:///{file}")
        try:
            await store.open(migrate=True)
        except _Killed:
            looked = apsw.Connection(str(file))
            if looked.execute("SELECT count(*) FROM sqlite_master").get:  # killed when all was committed
                applied = looked.execute("SELECT count(*) FROM tenuto_migrations").get
                assert applied == len(migrations("sqlite"))
            looked.close()
            continue
        break
    left = 0  # from here on nobody is killed
    await store.close()
    assert statements > 50  # or the trace saw nothing


async def test_postgres_is_migrated_although_its_connection_was_killed_in_the_middle(postgres_url: str) -> None:
    """Somebody else makes a table of that name, and has not said yet whether he keeps it: the migration waits there."""
    other = await asyncpg.connect(postgres_url)
    await other.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    transaction = other.transaction()
    await transaction.start()
    await other.execute("CREATE TABLE events (id int)")
    store = make_store(postgres_url)
    opening = asyncio.create_task(store.open(migrate=True))
    watch = await asyncpg.connect(postgres_url)
    waits = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    while (waiting := await watch.fetchval(waits)) is None:
        assert not opening.done()
    await watch.execute("SELECT pg_terminate_backend($1)", waiting)
    with pytest.raises(StorageError):
        await opening
    await transaction.rollback()
    assert await watch.fetchval(TABLE) is None
    again = make_store(postgres_url)
    await again.open(migrate=True)
    assert await watch.fetchval(TABLE) == "events"
    await again.close()
    await watch.close()
    await other.close()


async def test_postgres_holds_nobody_up_while_a_migration_waits(postgres_url: str) -> None:
    """A caller has a transaction open, with a start in it. The old release goes on writing."""
    caller, other = [await asyncpg.connect(postgres_url) for _ in range(2)]
    older = [migration for migration in migrations("postgres") if migration.number < 3]  # the third needs this table
    await caller.execute(MIGRATIONS_TABLE)
    for migration in older:
        await caller.execute(migration.sql)
        await caller.execute("INSERT INTO tenuto_migrations VALUES ($1, $2, $3, 1)", *migration[:2], migration.checksum)
    await caller.execute("BEGIN")
    await caller.execute("UPDATE executions SET seq = 1 WHERE id = 'nobody'")
    store = make_store(postgres_url)
    opening = asyncio.create_task(store.open(migrate=True))
    while not await other.fetchval("SELECT EXISTS (SELECT 1 FROM pg_locks WHERE NOT granted)"):
        assert not opening.done()
    await asyncio.wait_for(other.execute("UPDATE executions SET seq = 1 WHERE id = 'nobody'"), PATIENCE)
    assert not opening.done()
    await caller.execute("COMMIT")
    await asyncio.wait_for(opening, PATIENCE)
    await store.close()
    for connection in (caller, other):
        await connection.close()

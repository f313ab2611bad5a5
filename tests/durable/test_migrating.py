"""A migration that is cut off leaves the database as it was, and the next one does it."""

import asyncio
from pathlib import Path

import apsw
import asyncpg
import pytest

from tenuto.errors import StorageError
from tenuto.storage import make_store
from tenuto.storage.migrations import migrations
from tenuto.storage.sqlite import SqliteStore

TABLE = "SELECT to_regclass('events')"


class _Killed(Exception):
    pass


async def test_sqlite_is_migrated_although_it_was_killed_at_every_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SqliteStore._connect
    file = tmp_path / "x.db"
    statements = left = 0

    def connect(self: SqliteStore, *, read_only: bool = False) -> apsw.Connection:
        connection = real(self, read_only=read_only)

        def count(_: apsw.Cursor, statement: str, __: object) -> bool:
            nonlocal left
            left -= 1
            if not left:
                raise _Killed
            return True

        connection.exec_trace = None if read_only else count
        return connection

    monkeypatch.setattr(SqliteStore, "_connect", connect)
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

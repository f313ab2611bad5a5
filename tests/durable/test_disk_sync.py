"""What is acknowledged is on disk: databases are told so, whatever their defaults, unless a URL says otherwise."""

import os
from pathlib import Path

import pytest

from tenuto.errors import NotSupported
from tenuto.storage import make_reader, make_store
from tenuto.storage.postgres.store import PostgresStore
from tenuto.storage.sqlite.store import SqliteStore

FULL, NORMAL = 2, 1


@pytest.mark.parametrize(
    ("options", "expected"), [("", FULL), ("?synchronous=full", FULL), ("?synchronous=normal", NORMAL)]
)
async def test_sqlite_syncs_every_commit_unless_told_otherwise(tmp_path: Path, options: str, expected: int) -> None:
    store = make_store(f"sqlite:///{tmp_path}/x.db{options}")
    assert isinstance(store, SqliteStore)
    await store.open(migrate=True)
    found = await store.database.in_writer(
        lambda: store.database.write_connection.execute("PRAGMA synchronous").fetchone()
    )
    await store.close()
    assert found == (expected,)
    assert os.listdir(tmp_path) == ["x.db"]


@pytest.mark.parametrize("options", ["?synchronous=off", "?synchronous", "?sync=full"])
def test_other_options_are_refused(options: str) -> None:
    for make in (make_store, make_reader):
        with pytest.raises(NotSupported) as refused:
            make(f"sqlite:///x.db{options}")
        assert "synchronous=normal" in str(refused.value.hint)


@pytest.mark.parametrize(("options", "expected"), [("", "on"), ("?synchronous_commit=off", "off")])
async def test_postgresql_syncs_every_commit_though_its_server_would_not(
    postgres_url: str, options: str, expected: str
) -> None:
    """The server of these tests is started with `synchronous_commit=off`."""
    store = make_store(f"{postgres_url}{options}")
    assert isinstance(store, PostgresStore)
    await store.open(migrate=True)
    alone = await store.database.connect()
    try:
        assert await store.database.committer.fetchval("SHOW synchronous_commit") == expected
        assert (await store.database.fetch("SHOW synchronous_commit", ()))[0][0] == expected
        assert await alone.fetchval("SHOW synchronous_commit") == expected
    finally:
        await alone.close()
        await store.close()

"""Bad surroundings get a clear error, and lose nothing."""

import asyncio
import os
import stat
import subprocess
import sys
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import apsw
import asyncpg
import pytest

from tenuto import Engine, SagaBuilder
from tenuto.errors import StorageError
from tenuto.storage import make_store
from tenuto.storage.port import Batch
from tenuto.storage.postgres import database as postgres
from tenuto.storage.sqlite.file_watch import Watch
from tenuto.storage.sqlite.store import SqliteStore
from tests.durable.rows import append, started
from tests.seams import sqlite_store_of


async def _open(url: str) -> str:
    with pytest.raises(StorageError) as caught:
        async with Engine(url):
            raise AssertionError("it opened")
    assert caught.value.hint
    return caught.value.code


async def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("not a database, and long enough not to be taken for an empty one" * 20)
    assert await _open(f"sqlite:///{file}") == "not_a_database"
    assert file.read_text().startswith("not a database")


async def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert await _open(f"sqlite:///{tmp_path}/missing/x.db") == "unreachable"


async def test_a_server_that_is_not_there() -> None:
    assert await _open("postgresql://postgres@127.0.0.1:1/x") == "unreachable"


@pytest.mark.empty_database
async def test_what_fails_to_open_leaves_no_connection(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "HAS_ROW_SECURITY", "SELECT 1 / 0")
    with pytest.raises(StorageError):
        await make_store(postgres_url).open(migrate=True)
    connection = await asyncpg.connect(postgres_url)
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    async with asyncio.timeout(60):
        while await connection.fetchval(query):
            pass
    await connection.close()


async def test_a_log_that_is_out_of_reach_for_a_while_ends_no_hints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody took the right to look into the folder away, and gave it back."""
    versions = count()
    heard = asyncio.Event()
    asked = asyncio.Event()

    stat = os.stat

    def refuse(path: str, **options: Any) -> os.stat_result:
        if not str(path).endswith("-wal"):
            return stat(path, **options)
        asked.set()
        raise PermissionError(13, "not yours", path)

    async def version() -> int:
        return next(versions)

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", refuse)
        watching = Watch(str(tmp_path / "x.db"), version, lambda hints: heard.set())
        async with asyncio.timeout(60):
            await asked.wait()
    (tmp_path / "x.db-wal").touch()
    async with asyncio.timeout(60):
        await heard.wait()
    await watching.close()


async def test_a_database_that_is_not_there(postgres_url: str) -> None:
    url = postgres_url.rpartition("/")[0] + "/nowhere"
    assert await _open(url) == "no_database"


async def test_a_database_that_may_only_be_read(postgres_url: str) -> None:
    async with Engine(postgres_url):
        pass
    connection = await asyncpg.connect(postgres_url)
    name = postgres_url.rpartition("/")[2]
    await connection.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    await connection.close()
    assert await _open(postgres_url) == "read_only"


def test_a_file_that_may_only_be_read() -> None:
    """In a process of somebody who may not write it: root may write everything."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "x.db"
        command = [sys.executable, "-c", _OPEN, f"sqlite:///{file}"]
        subprocess.run(command, check=True)
        file.chmod(0o444)
        Path(folder).chmod(0o555)
        told = subprocess.run([*command, "nobody"], capture_output=True, text=True, check=False)
        Path(folder).chmod(0o755)
    assert told.stdout.strip() == "read_only", told.stderr


_OPEN = """
import asyncio, os, pwd, sys
from tenuto import Engine
from tenuto.errors import StorageError

async def main(url):
    try:
        async with Engine(url):
            pass
    except StorageError as error:
        print(error.code)

if len(sys.argv) > 2 and os.geteuid() == 0:
    asyncio.run(main(sys.argv[1] + ".other"))  # loads what the other user may not be able to read
    os.setuid(pwd.getpwnam(sys.argv[2]).pw_uid)
asyncio.run(main(sys.argv[1]))
"""


async def test_a_file_that_another_program_has_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import apsw

    from tenuto.storage.sqlite import database as sqlite

    async with Engine(f"sqlite:///{tmp_path}/x.db"):
        pass
    monkeypatch.setattr(sqlite, "BUSY_MS", 10)
    other = apsw.Connection(f"{tmp_path}/x.db")
    other.execute("BEGIN EXCLUSIVE")
    assert await _open(f"sqlite:///{tmp_path}/x.db") == "busy"
    other.execute("ROLLBACK")
    async with Engine(f"sqlite:///{tmp_path}/x.db"):
        pass


@pytest.mark.unchecked("its rows are made up")
async def test_a_full_disk_loses_nothing_page_by_page(tmp_path: Path) -> None:
    """A commit is written whole or refused whole, wherever the space ends."""
    store = SqliteStore(f"{tmp_path}/x.db")
    await store.open(migrate=True)
    await store.sessions.open("s1", "worker", "build", 60_000, ())
    await store.commit(started())
    pages = await _pages(store)
    refused: list[str] = []
    for seq in range(2, 62):
        body = bytes([65 + seq % 26]) * 2_500
        await _limit(store, pages)
        while why := await _refusal(store, Batch(session="s1", appends=[append(seq=seq, body=body)])):
            refused.append(why)
            assert not await store.executions.bodies("x1", seq, seq)
            pages += 1
            await _limit(store, pages)
        assert await store.executions.bodies("x1", seq, seq) == [body]
    assert set(refused) == {"full"}
    await store.close()


async def _refusal(store: SqliteStore, batch: Batch) -> str | None:
    try:
        await store.commit(batch)
    except StorageError as error:
        return error.code
    return None


async def _pages(store: SqliteStore) -> int:
    count: int = await store.database.in_writer(
        lambda: store.database.write_connection.execute("PRAGMA page_count").get
    )
    return count


async def _limit(store: SqliteStore, pages: int) -> None:
    """As if the disk had room for so many pages: SQLite's own way to run out of space."""
    await store.database.in_writer(
        lambda: store.database.write_connection.execute(f"PRAGMA max_page_count = {pages}").get
    )


async def test_an_engine_on_a_full_disk_goes_on_when_there_is_space(tmp_path: Path) -> None:
    async def long() -> str:
        return "x" * 3_000

    async with Engine(f"sqlite:///{tmp_path}/x.db") as engine:
        engine.register(SagaBuilder("long", output="b").step("a", long).step("b", long, depends_on=["a"]))
        await engine.execute("long")
        store = sqlite_store_of(engine)  # the limit is one connection's
        await _limit(store, await _pages(store))
        starting = [asyncio.ensure_future(engine.start("long")) for _ in range(20)]
        await asyncio.wait(starting, return_when=asyncio.FIRST_COMPLETED, timeout=1)
        await _limit(store, 1_000_000)
        handles = [await one for one in starting]
        assert {(await handle.result()).output for handle in handles} == {"x" * 3_000}


async def test_a_closed_engine_leaves_one_file(tmp_path: Path) -> None:
    async def one() -> int:
        return 1

    async with Engine(f"sqlite:///{tmp_path}/x.db") as engine:
        engine.register(SagaBuilder("one").step("a", one))
        for _ in range(20):
            await engine.execute("one")
    assert os.listdir(tmp_path) == ["x.db"]
    store = make_store(f"sqlite:///{tmp_path}/x.db")
    await store.open(migrate=False)
    await store.close()


async def test_the_file_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "private.db"
    before = os.umask(0o022)
    try:
        async with Engine(f"sqlite:///{path}"):
            found = {name: stat.S_IMODE(os.stat(tmp_path / name).st_mode) for name in os.listdir(tmp_path)}
    finally:
        os.umask(before)
    assert found == dict.fromkeys(("private.db", "private.db-wal", "private.db-shm"), 384)


async def test_a_connection_is_on_its_guard(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "guarded.db"))
    await store.open(migrate=True)
    try:
        for connection in (store.database.write_connection, store.database.read_connection):
            assert connection.execute("PRAGMA cell_size_check").get == 1
            assert connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, -1) == 1
    finally:
        await store.close()

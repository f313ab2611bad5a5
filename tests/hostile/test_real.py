"""Real databases that fail: PostgreSQL behind a hostile store and a proxy that cuts commits, SQLite on a full disk."""

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import apsw
import pytest

import tenuto.api.connection
from tenuto.errors import StorageError
from tenuto.storage import Store, make_store
from tenuto.storage.port import Batch, Committed
from tenuto.storage.sqlite.store import SqliteStore
from tests.checking.soundness import assert_sound
from tests.servers.databases import database
from tests.servers.postgres import Server

from .conflicts import Conflicts
from .faults import Rates
from .loop import pause
from .proxy import CUTS, EVENTS, OTHERS, Cut, Proxy
from .real import RealWorld
from .situations import FAULTS
from .store import hostile

EXECUTIONS = 24
# What is applied only after its error is the proxy's part: two statements at once on a connection are no fault of a
# database.
ALL = Rates(fails_before=0.05, applied_but_error=0.08, busy=0.05, slow=0.05, stale=0.05)
T = TypeVar("T")
OUTAGES = ("read-only", "full", "out of reach")


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL")


@pytest.fixture
def postgres_url(postgres_server: Server) -> Iterator[str]:
    with database(postgres_server) as url:
        yield url


@pytest.mark.parametrize("seed", range(2))
async def test_postgres_behind_a_hostile_store(postgres_url: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = RealWorld(postgres_url, seed, ALL)

    def hostile_store(url: str, *, read_only: bool = False, serializable: bool = False) -> Store:
        return hostile(make_store(url, read_only=read_only, serializable=serializable), world)

    monkeypatch.setattr(tenuto.api.connection, "make_store", hostile_store)
    world.hostile = False  # until both are open: whoever opens an engine is told of errors
    async with world.engine() as engine, world.engine() as other:
        world.hostile = True
        handles = []
        for number in range(EXECUTIONS):
            handles.append(await world.start(engine if number % 2 else other, number))
            world.outage = OUTAGES[number % 3]
            await pause(0.1)
            world.outage = None
        await world.calm(engine, handles)
    world.check()
    assert [fault for fault in FAULTS if not world.counts[fault]] == ["applied after the error"]
    await assert_sound(postgres_url)


@pytest.mark.parametrize("at", [{EVENTS: "events"}, OTHERS], ids=["events", "others"])
@pytest.mark.parametrize("cut", CUTS)
async def test_a_connection_that_is_cut_at_a_commit(
    postgres_url: str, postgres_server: Server, cut: Cut, at: dict[bytes, str]
) -> None:
    world = RealWorld(postgres_url, 7, Rates())
    rng = random.Random(7)
    hostile_phase = True

    def wanted() -> Cut | None:
        return cut if hostile_phase and rng.random() < 0.15 else None

    async with Proxy(postgres_server.port, wanted, at) as proxy:
        database = urlsplit(postgres_url).path
        url = f"postgresql://postgres@127.0.0.1:{proxy.port}{database}?sslmode=disable"
        async with world.engine(url) as engine:
            handles = [await world.start(engine, number) for number in range(EXECUTIONS)]
            await world.until(engine, handles, lambda: set(proxy.cuts) == set(at.values()))
            hostile_phase = False
            await world.calm(engine, handles)
    world.check()
    await assert_sound(postgres_url)


async def test_postgres_takes_transactions_back(postgres_url: str) -> None:
    """What the server answers to those that deadlock or cannot be put in order is not the end of anything."""
    world = RealWorld(postgres_url, 5, Rates())
    async with world.engine() as engine, world.engine() as other:
        conflicts = Conflicts(postgres_url)
        conflicts.begin()
        handles = [await world.start(engine if number % 2 else other, number) for number in range(EXECUTIONS)]
        await world.until(engine, handles, lambda: all(conflicts.counts().values()))
        conflicts.end()
        await world.calm(engine, handles)
        conflicts.close()
    world.check()
    await assert_sound(postgres_url)


async def test_postgres_whose_disk_is_full_says_so_and_goes_on_when_there_is_room(
    postgres_url: str, postgres_server: Server
) -> None:
    """Whoever starts something meanwhile waits. Whoever asks is told why, and what was acknowledged is there."""
    world = RealWorld(postgres_url, 11, Rates())
    async with Proxy(postgres_server.port, lambda: None) as proxy:
        url = f"postgresql://postgres@127.0.0.1:{proxy.port}{urlsplit(postgres_url).path}?sslmode=disable"
        async with world.engine(url) as engine:
            handles = [await world.start(engine, number) for number in range(EXECUTIONS // 2)]
            proxy.is_full = True
            starting = asyncio.gather(*(world.start(engine, number) for number in range(EXECUTIONS // 2, EXECUTIONS)))
            while proxy.refused < 10:
                await pause(0.01)
            assert not starting.done()
            health = await engine.ready()
            proxy.is_full = False
            handles += await starting
            await world.calm(engine, handles)
    assert "commits: full: the database's disk is full" in str(health)
    world.check()
    await assert_sound(postgres_url)


async def test_a_disk_that_is_full_page_by_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file grows by one page when one was missing, and never otherwise."""
    url = f"sqlite:///{tmp_path}/x.db"
    world = RealWorld(url, 3, Rates())
    stores: list[Narrow] = []

    def narrow(url: str, *, read_only: bool = False, serializable: bool = False) -> Store:
        stores.append(Narrow(url.removeprefix("sqlite:///"), synchronous="OFF"))
        return stores[-1]

    monkeypatch.setattr(tenuto.api.connection, "make_store", narrow)
    async with world.engine() as engine:
        (store,) = stores
        pages: int = store.database.write_connection.execute("PRAGMA page_count").get
        store.database.write_connection.execute(f"PRAGMA max_page_count = {pages}")
        growing = asyncio.create_task(store.grow_when_full())
        handles = await asyncio.gather(*(world.start(engine, number) for number in range(EXECUTIONS)))
        await world.calm(engine, handles)
        growing.cancel()
        await asyncio.wait([growing])
    assert store.pages_missed >= 5
    world.check()
    await assert_sound(url)


class Narrow(SqliteStore):
    """On a disk without room. What could not be written for that is told by this store, and by no other."""

    pages_missed = 0

    def __init__(self, path: str, *, synchronous: str) -> None:
        super().__init__(path, synchronous=synchronous)
        self._write = self.database.in_writer
        vars(self.database)["in_writer"] = self._noted

    async def commit(self, batch: Batch) -> Committed:
        with self._noting():
            return await super().commit(batch)
        raise AssertionError("it does not swallow")

    async def _noted(self, work: Callable[[], T]) -> T:
        with self._noting():
            return await self._write(work)
        raise AssertionError("it does not swallow")

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except StorageError as error:
            if error.code == "full":
                self.missed.set()
            raise

    @cached_property
    def missed(self) -> asyncio.Event:
        return asyncio.Event()

    async def grow_when_full(self) -> None:
        while True:
            await self.missed.wait()
            self.missed.clear()
            self.pages_missed += 1
            await self._noted(lambda: _grow(self))


def _grow(store: SqliteStore) -> int:
    connection: apsw.Connection = store.database.write_connection
    pages: int = connection.execute("PRAGMA max_page_count").get
    grown: int = connection.execute(f"PRAGMA max_page_count = {pages + 1}").get
    return grown

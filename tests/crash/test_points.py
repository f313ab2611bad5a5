"""Crash points are around every commit that is made, and around nothing else."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import asyncpg
import pytest

from tenuto.storage import Store, make_store
from tenuto.storage.sqlite import database as sqlite_module
from tenuto.views.projections import AuditRow
from tests.servers.databases import database
from tests.servers.postgres import Server

from .points import VERBS, Point, Trap, set_trap

GONE_MS = -1_000  # a lease that was over before it began
NOTE = AuditRow(tenant="t", at=1, actor="user:ann", action="a", object_type="execution", object_id="x")


class Passed(Trap):
    """One that kills nobody, and tells what was passed."""

    def __init__(self) -> None:
        super().__init__(None)
        self.passed: list[Point] = []

    def reach(self, point: Point) -> None:
        self.passed.append(point)

    def since(self, number: int) -> int:
        """How many commits there were since there had been this many. Each was passed before and after, in its turn."""
        assert self.passed == self.points()
        return self.commits - number


@pytest.fixture
def trap(monkeypatch: pytest.MonkeyPatch) -> Passed:
    """Whatever is set is taken back afterwards."""
    for verb in VERBS:
        monkeypatch.setattr(asyncpg.Connection, verb, getattr(asyncpg.Connection, verb))
    monkeypatch.setattr(sqlite_module, "apsw", vars(sqlite_module)["apsw"])
    return Passed()


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/x.db"
    else:
        server: Server = request.getfixturevalue("postgres_server")
        with database(server) as place:
            yield place


@asynccontextmanager
async def _opened(url: str, trap: Passed) -> AsyncIterator[Store]:
    store = make_store(url)
    await store.open(migrate=True)
    await store.close()
    set_trap(url, trap)
    store = make_store(url)
    await store.open(migrate=False)
    try:
        yield store
    finally:
        await store.close()


async def test_a_commit_is_passed_before_and_after(url: str, trap: Passed) -> None:
    """Whether a statement stands alone, gives rows, or is one of several in a transaction.

    On SQLite a statement that changes nothing is committed, too: it has locked the file to look.
    """
    looked = 1 if url.startswith("sqlite") else 0
    async with _opened(url, trap) as store:
        counts = [trap.commits]
        await store.sessions.open("a", "w", "0", GONE_MS, None)
        counts.append(trap.commits)
        assert await store.registry.ask("t", "digest", "user:ann", 1, 0, NOTE) is False
        counts.append(trap.commits)
        assert await store.registry.ask("t", "digest", "user:bob", 1, 0, NOTE) is True
        counts.append(trap.commits)
    assert [after - before for before, after in pairwise(counts)] == [1, looked + 1, 1]
    assert trap.since(0)


async def test_what_wrote_nothing_is_no_commit(url: str, trap: Passed) -> None:
    async with _opened(url, trap) as store:
        await store.sessions.open("a", "w", "0", 60_000, None)
        before = trap.commits
        assert await store.operations.sessions()
        assert await store.sessions.reap("a") == 0
        assert trap.since(before) == 0
        assert await store.claims.claim("a", ["none/1"], 10) == []
        assert trap.since(before) == 0


async def test_each_transaction_of_several_is_a_commit(postgres_server: Server, trap: Passed) -> None:
    """As they are on PostgreSQL; on SQLite these are one."""
    with database(postgres_server) as url:
        async with _opened(url, trap) as store:
            before = trap.commits
            await store.limits.set_tenant("t", 3)
            assert trap.since(before) == 2
            for id in ("a", "b", "c"):
                await store.sessions.open(id, "w", "0", GONE_MS, None)
            before = trap.commits
            assert await store.sessions.reap("") == 3
            assert trap.since(before) == 3

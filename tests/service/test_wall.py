"""The second wall on PostgreSQL: the database itself shows a request its own tenant's rows alone."""

from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

from tenuto import Engine, SagaBuilder
from tenuto.errors import StorageError
from tenuto.storage.postgres import PostgresStore
from tenuto.storage.store import Wanted
from tests.servers import postgres
from tests.servers.databases import database

TABLES = ("executions", "events", "snapshots", "reviews", "audit")


@pytest.fixture
def dsn(postgres_server: postgres.Server) -> Iterator[str]:
    with database(postgres_server) as place:
        yield place


@pytest.fixture
async def ids(dsn: str) -> dict[str, str]:
    """An execution of each tenant, waiting for a person."""
    async with Engine(dsn, shutdown_grace="1s") as engine:
        engine.register(SagaBuilder("asks").approval("ok"))
        made = {}
        for tenant in ("acme", "other"):
            handle = await engine.scoped(tenant=tenant, actor="a").start("asks")
            await handle.result()
            made[tenant] = handle.id
        return made


@pytest.fixture
async def store(dsn: str, ids: dict[str, str]) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(dsn)
    await store.open(migrate=True)
    yield store
    await store.close()


async def test_a_query_without_a_condition_shows_the_tenants_own(store: PostgresStore, ids: dict[str, str]) -> None:
    acme = store.seen_by("acme")
    for table in ("executions", "reviews", "audit"):
        rows = await acme.fetch(f"SELECT DISTINCT tenant FROM {table}", ())  # noqa: S608  (names of this test)
        assert [row[0] for row in rows] == ["acme"], table
    rows = await acme.fetch("SELECT DISTINCT execution FROM events", ())
    assert [row[0] for row in rows] == [ids["acme"]]


async def test_what_forgets_the_tenant_does_not_find_it(store: PostgresStore, ids: dict[str, str]) -> None:
    acme = store.seen_by("acme")
    assert await acme.row(ids["other"]) is None
    assert await acme.load([ids["other"]]) == []
    assert await acme.bodies(ids["other"], 1, 100) == []
    assert [row.id for row in await acme.executions(Wanted(), None, 10)] == [ids["acme"]]
    assert await acme.row(ids["acme"]) is not None
    assert (await store.row(ids["other"])) is not None, "whoever commits and sweeps sees all"


async def test_a_request_cannot_write(store: PostgresStore) -> None:
    for table in TABLES:
        with pytest.raises((asyncpg.InsufficientPrivilegeError, StorageError), match=r"permission denied|read-only"):
            await store.seen_by("acme").fetch(f"DELETE FROM {table}", ())  # noqa: S608  (as above)


async def test_the_role_may_not_write_either(store: PostgresStore, dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    await connection.execute("SET ROLE tenuto_request")
    for table in TABLES:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(f"DELETE FROM {table}")  # noqa: S608  (as above)
    for secret in ("api_keys", "answers", "mailbox"):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await connection.execute(f"SELECT * FROM {secret}")  # noqa: S608  (as above)
    assert await connection.fetchval("SELECT count(*) FROM executions") == 0, "without a tenant there is nothing to see"
    await connection.close()


async def test_the_connection_forgets_whom_it_served(store: PostgresStore, ids: dict[str, str]) -> None:
    for tenant in ("acme", "other", "acme"):
        rows = await store.seen_by(tenant).executions(Wanted(), None, 10)
        assert [row.id for row in rows] == [ids[tenant]]
        assert len(await store.executions(Wanted(), None, 10)) == 2

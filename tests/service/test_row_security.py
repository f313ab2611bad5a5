"""The second wall on PostgreSQL: the database itself shows a request its own tenant's rows alone."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import asyncpg
import pytest

from tenuto import Engine, SagaBuilder
from tenuto.cli.doctor import checks
from tenuto.errors import StorageError
from tenuto.settings import Settings
from tenuto.storage.port import Wanted
from tenuto.storage.postgres import row_security as postgres_wall
from tenuto.storage.postgres.store import PostgresStore
from tests.seams import ignore_request_role
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
    acme = store.database.for_tenant("acme")
    for table in ("executions", "reviews", "audit"):
        rows = await acme.fetch(f"SELECT DISTINCT tenant FROM {table}", ())  # noqa: S608  (names of this test)
        assert [row[0] for row in rows] == ["acme"], table
    rows = await acme.fetch("SELECT DISTINCT execution FROM events", ())
    assert [row[0] for row in rows] == [ids["acme"]]


async def test_what_forgets_the_tenant_does_not_find_it(store: PostgresStore, ids: dict[str, str]) -> None:
    acme = store.for_tenant("acme").executions
    assert await acme.find(ids["other"]) is None
    assert await acme.load([ids["other"]]) == []
    assert await acme.bodies(ids["other"], 1, 100) == []
    assert [row.id for row in await acme.page(Wanted(), None, 10)] == [ids["acme"]]
    assert await acme.find(ids["acme"]) is not None
    assert (await store.executions.find(ids["other"])) is not None, "whoever commits and sweeps sees all"


async def test_a_request_cannot_write(store: PostgresStore) -> None:
    for table in TABLES:
        with pytest.raises((asyncpg.InsufficientPrivilegeError, StorageError), match=r"permission denied|read-only"):
            await store.database.for_tenant("acme").fetch(f"DELETE FROM {table}", ())  # noqa: S608  (as above)


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


async def test_a_connection_that_served_one_tenant_shows_the_next_his_own(
    store: PostgresStore, ids: dict[str, str]
) -> None:
    for tenant in ("acme", "other", "acme"):
        rows = await store.for_tenant(tenant).executions.page(Wanted(), None, 10)
        assert [row.id for row in rows] == [ids[tenant]]
        assert len(await store.executions.page(Wanted(), None, 10)) == 2


async def test_tenants_who_ask_at_once_are_each_shown_their_own(store: PostgresStore, ids: dict[str, str]) -> None:
    tenants = ["acme", "other", "nobody"] * 20
    found = await asyncio.gather(*(store.for_tenant(tenant).executions.page(Wanted(), None, 10) for tenant in tenants))
    for tenant, rows in zip(tenants, found, strict=True):
        assert [row.id for row in rows] == ([ids[tenant]] if tenant in ids else [])


def _cancel(task: asyncio.Task[object], turns: int) -> None:
    """After so many turns of the loop."""
    if turns:
        asyncio.get_running_loop().call_soon(_cancel, task, turns - 1)
    else:
        task.cancel()


async def test_who_goes_away_in_the_middle_leaves_no_tenant_behind(store: PostgresStore, ids: dict[str, str]) -> None:
    """Wherever a request is given up, the next one on that connection is shown its own tenant's rows."""
    for turns in range(0, 100, 8):
        gone = asyncio.create_task(store.for_tenant("other").executions.page(Wanted(), None, 10))
        _cancel(gone, turns)
        await asyncio.wait([gone])
        rows = await store.for_tenant("acme").executions.page(Wanted(), None, 10)
        assert [row.id for row in rows] == [ids["acme"]]


async def test_who_asks_again_asks_once(store: PostgresStore, dsn: str) -> None:
    """Whose rows are shown is said when that changes: a read is one statement, and no transaction round it."""
    asked: list[str] = []
    acme = store.for_tenant("acme").executions
    async with store.database.tenant_pool.acquire() as connection:
        connection.add_query_logger(lambda query: asked.append(query.query))
    await acme.page(Wanted(), None, 10)
    assert [query.split("(")[0] for query in asked[:1]] == ["SELECT set_config"]
    asked.clear()
    await acme.find("unknown")
    assert len(asked) == 1


async def test_the_audit_is_read_behind_the_wall(dsn: str, ids: dict[str, str]) -> None:
    """Were the condition forgotten, the database would still show the tenant's own rows alone."""
    async with Engine(dsn, worker=False) as engine:
        acme = engine.scoped(tenant="acme", actor="a")
        assert {row["tenant"] async for row in acme.audit.rows()} == {"acme"}
        async with connecting(dsn) as connection:
            await connection.execute("DROP POLICY own_rows ON audit")
            await connection.execute("CREATE POLICY own_rows ON audit AS RESTRICTIVE TO tenuto_request USING (false)")
        assert [row async for row in acme.audit.rows()] == []
        assert [row async for row in acme.audit.export()] == []


# -- Users of all kinds ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own_server() -> Iterator[postgres.Server]:
    """Roles belong to a whole server: here nobody has made ours yet."""
    with postgres.running() as server:
        yield server


@asynccontextmanager
async def connecting(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


async def owned_database(server: postgres.Server, user: str, rights: str) -> str:
    async with connecting(server.dsn()) as connection:
        await connection.execute(f"CREATE ROLE {user} LOGIN {rights}")
        await connection.execute(f"CREATE DATABASE {user} OWNER {user}")
    return server.dsn(user).replace("postgres@", f"{user}@")


async def seen(dsn: str) -> list[list[str]]:
    """Whose rows each of two tenants is shown by a query without a condition; and that is all for others."""
    async with Engine(dsn, worker=False) as engine:
        engine.register(SagaBuilder("asks").approval("ok"))
        for tenant in ("acme", "other"):
            await engine.scoped(tenant=tenant, actor="a").start("asks")
    store = PostgresStore(dsn)
    await store.open(migrate=False)
    query = "SELECT DISTINCT tenant FROM executions ORDER BY 1"
    found = [
        [row[0] for row in await store.database.for_tenant(tenant).fetch(query, ())] for tenant in ("acme", "other")
    ]
    await store.close()
    return found


async def test_a_user_who_may_make_roles_builds_the_wall_and_others_are_told(
    own_server: postgres.Server, caplog: pytest.LogCaptureFixture
) -> None:
    maker = await owned_database(own_server, "maker", "CREATEROLE")
    assert await seen(maker) == [["acme"], ["other"]]
    assert not [record for record in caplog.records if record.levelname == "WARNING"]

    # The role is there now, and belongs to the first user: the second may neither make it nor become it.
    plain = await owned_database(own_server, "plain", "")
    assert await seen(plain) == [["acme", "other"]] * 2, "the first wall, the queries, stands alone"
    assert "no_second_wall" in {getattr(record, "action", "") for record in caplog.records}
    found = {check.name: check async for check in checks(Settings(url=plain))}
    assert not found["tenants"].ok
    assert "GRANT tenuto_request TO" in found["tenants"].found

    async with connecting(own_server.dsn()) as connection:
        await connection.execute("GRANT tenuto_request TO plain")
    assert await seen(plain) == [["acme"], ["other"]]
    found = {check.name: check async for check in checks(Settings(url=plain))}
    assert found["tenants"].ok


async def test_a_server_that_does_not_take_the_role_shows_nothing(
    store: PostgresStore, ids: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ignore_request_role(monkeypatch)
    with pytest.raises(StorageError) as refused:
        await store.for_tenant("acme").executions.find(ids["acme"])
    assert refused.value.code == "no_wall"


async def test_what_takes_too_long_in_a_tenants_name_is_stopped(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the server. What is committed is not: it may have to wait, and is known to the end."""
    monkeypatch.setitem(postgres_wall.READING, "statement_timeout", "50ms")
    store = PostgresStore(dsn)
    await store.open(migrate=True)
    try:
        with pytest.raises(StorageError) as caught:
            await store.database.for_tenant("acme").fetch("SELECT pg_sleep(3600)", ())
        assert caught.value.code == "too_slow"
        assert [row[0] for row in await store.database.for_tenant("acme").fetch("SELECT 1", ())] == [1]
        assert [row[0] for row in await store.database.fetch("SHOW statement_timeout", ())] == ["30s"]
        assert await store.database.committer.fetchval("SHOW statement_timeout") == "0"
    finally:
        await store.close()

"""A service on PostgreSQL whose role owns nothing: it does all of its work, and cannot rewrite what happened.

That it does all of its work is shown by the contract suite too, which runs under such a role on PostgreSQL.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from uuid import uuid4

import asyncpg
import pytest

from tenuto import Engine, SagaBuilder
from tenuto.checker import check_database, export_lines, find_stuck_in
from tenuto.cli import main
from tenuto.cli.doctor import Check, checks
from tenuto.errors import NonRetryableError, NotSupported, StorageError, TenutoError
from tenuto.settings import Settings
from tenuto.storage import grant
from tenuto.storage.postgres.privileges import GRANTS
from tests.checking.soundness import assert_sound
from tests.servers import postgres
from tests.servers.databases import database


@pytest.fixture
def owner(postgres_server: postgres.Server) -> Iterator[str]:
    with database(postgres_server) as place:
        yield place


@asynccontextmanager
async def connected(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def a_role(owner: str, rights: str = "") -> AsyncIterator[str]:
    """Roles are the server's, and others may use it at the same time."""
    name = f"role_{uuid4().hex[:12]}"
    async with connected(owner) as db:
        await db.execute(f"CREATE ROLE {name} LOGIN {rights}")
        try:
            yield name
        finally:
            await db.execute(f"REASSIGN OWNED BY {name} TO postgres")
            await db.execute(f"DROP OWNED BY {name}")
            await db.execute(f"DROP ROLE {name}")


def as_role(owner: str, role: str) -> str:
    return owner.replace("postgres@", f"{role}@")


@pytest.fixture
async def role(owner: str) -> AsyncIterator[str]:
    async with a_role(owner, "NOINHERIT") as name:
        yield name


@pytest.fixture
async def service(owner: str, role: str) -> str:
    """The database as its service reaches it."""
    await grant(owner, role, prunes=False)
    return as_role(owner, role)


async def refuse() -> None:
    raise NonRetryableError("no")


async def fine() -> int:
    return 1


SAGAS = (
    SagaBuilder("fails").step("a", fine, compensate=fine).step("b", refuse, depends_on=["a"]),
    SagaBuilder("asks").step("a", fine, queue="gpu").approval("ok", depends_on=["a"]),
    SagaBuilder("limited").step("a", fine, limits=["ses"]),
)


@pytest.mark.requirement("K6")
async def test_a_service_that_owns_nothing_does_its_work(service: str) -> None:
    async with Engine(service, queues=("default", "gpu"), messages=["*"], shutdown_grace="1s") as engine:
        engine.register(*SAGAS)
        await engine.limit("ses", concurrency=1)
        await engine.tenant_limit("default", max_in_flight=100)
        ann = engine.scoped(tenant="default", actor="ann", roles=["admin"])
        asks = await ann.start("asks", idempotency_key="k", concurrency_key="c")
        await asks.result()
        assert [row["step_id"] async for row in ann.reviews()] == ["ok"]  # behind the wall
        await asks.approve("ok")
        assert (await asks.result()).succeeded
        assert (await engine.execute("limited")).succeeded
        fails = await ann.start("fails")
        assert (await fails.result()).status == "failed"
        await fails.retry(reason="mended")
        await fails.result()
        await ann.keys.create(tenant="default", roles=["viewer"])
        assert (await ann.audit.verify()).broken_at is None
        await engine.limit("ses")
        await engine.tenant_limit("default", max_in_flight=None)
        with pytest.raises(StorageError) as refused:
            await engine.prune(older_than="0s")
        assert refused.value.code == "not_permitted"
    await assert_sound(service)


REFUSED = [
    "UPDATE events SET body = ''",
    "DELETE FROM events",
    "TRUNCATE events",
    "DROP TABLE events",
    "ALTER TABLE events DISABLE TRIGGER ALL",
    "ALTER TABLE events RENAME TO others",
    "DROP TRIGGER events_are_append_only ON events",
    "CREATE TRIGGER mine BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION tenuto_refuse()",
    "UPDATE audit SET actor = 'nobody'",
    "UPDATE audit SET actor = 'nobody', n = 1",
    "DELETE FROM audit",
    "TRUNCATE audit",
    "DROP TABLE audit",
    "ALTER TABLE audit DISABLE TRIGGER ALL",
    "DELETE FROM audit_head",
    "ALTER TABLE executions DISABLE ROW LEVEL SECURITY",
    "DROP POLICY own_rows ON executions",
    "DELETE FROM executions",
    "DELETE FROM reviews",
    "UPDATE reviews SET kind = 'escalation'",
    "UPDATE mailbox SET body = ''",
    "UPDATE outbox SET body = ''",
    "DELETE FROM definitions",
    "UPDATE definitions SET name = 'other'",
    "UPDATE api_keys SET roles = '[\"admin\"]'",
    "UPDATE inbox SET consumer = ''",
    "UPDATE tenuto_migrations SET checksum = ''",
    "CREATE OR REPLACE FUNCTION tenuto_refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END'",
    "SET session_replication_role = replica",
    "SET ROLE postgres",
    "CREATE TABLE mine (id int)",
    "DROP SCHEMA public CASCADE",
]


@pytest.mark.parametrize("statement", REFUSED)
async def test_it_cannot_rewrite_what_happened(service: str, statement: str) -> None:
    async with connected(service) as db:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await db.execute(statement)


async def test_one_that_prunes_removes_what_is_over(owner: str, role: str, service: str) -> None:
    await grant(owner, role, prunes=True)
    async with Engine(service, shutdown_grace="1s") as engine:
        engine.register(*SAGAS)
        await engine.execute("limited")
        async with connected(service) as db:
            await db.execute("CREATE TEMP TABLE executions (id text)")  # what guards the events looks at ours
            with pytest.raises(asyncpg.PostgresError, match="append-only"):
                await db.execute("DELETE FROM events")
        assert (await engine.prune(older_than="0s")).executions == 1
    await grant(owner, role, prunes=False)
    async with connected(service) as db:
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await db.execute("DELETE FROM events")


async def test_every_table_has_its_rights(owner: str) -> None:
    async with connected(owner) as db:
        rows = await db.fetch("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
    assert {row["tablename"] for row in rows} == GRANTS.keys()


# -- Who is refused ----------------------------------------------------------------------------------------------------


async def refused(owner: str, role: str) -> TenutoError:
    with pytest.raises((NotSupported, StorageError)) as found:
        await grant(owner, role, prunes=False)
    async with connected(owner) as db:  # and it was given nothing
        query = (
            "SELECT count(*) FROM information_schema.role_table_grants WHERE grantee = $1 AND table_name = 'sessions'"
        )
        assert role == "postgres" or await db.fetchval(query, role) == 0
    return found.value


@pytest.mark.parametrize("rights", ["SUPERUSER", "BYPASSRLS"])
async def test_a_role_that_may_do_everything_anyway_is_refused(owner: str, rights: str) -> None:
    async with a_role(owner, rights) as strong:
        assert (await refused(owner, strong)).code == "role_too_strong"


TOO_MUCH = {
    "ALTER SCHEMA public OWNER TO {}": "owns the schema",
    "ALTER TABLE answers OWNER TO {}": "owns answers",
    "ALTER FUNCTION tenuto_refuse OWNER TO {}": "owns the function tenuto_refuse",
    "GRANT CREATE ON SCHEMA public TO {}": "may create things in the schema",
    "GRANT CREATE ON DATABASE {database} TO {}": "may create schemas",
    "GRANT SET ON PARAMETER session_replication_role TO {}": "may switch triggers off",
    "GRANT pg_write_all_data TO {}": "pg_write_all_data may DELETE",
    "GRANT pg_write_server_files TO {}": "may write files",
}


@pytest.mark.parametrize("member", [False, True], ids=["itself", "as a member"])
@pytest.mark.parametrize("statement", TOO_MUCH)
async def test_what_a_role_could_do_beyond_a_service_is_named(
    owner: str, role: str, statement: str, *, member: bool
) -> None:
    async with a_role(owner) as other, connected(owner) as db:
        database = await db.fetchval("SELECT current_database()")
        await db.execute(statement.format(other if member else role, database=database))
        if member:
            await db.execute(f"GRANT {other} TO {role}")  # whether or not it inherits: it may become the other
        error = await refused(owner, role)
    assert (error.code, TOO_MUCH[statement] in error.message) == ("role_too_strong", True), error.message


@pytest.mark.parametrize("word", ["DELETE", "TRUNCATE", "TRIGGER", "UPDATE (body)"])
async def test_what_everybody_may_do_counts(owner: str, role: str, word: str) -> None:
    async with connected(owner) as db:
        await db.execute(f"GRANT {word} ON events TO PUBLIC")
    assert f"{word.partition(' ')[0]} events" in (await refused(owner, role)).message


async def test_the_owner_and_nobody_are_no_roles_for_services(owner: str) -> None:
    assert (await refused(owner, "postgres")).code == "role_too_strong"
    nobody = await refused(owner, "nobody at all")
    assert (nobody.code, "CREATE ROLE" in (nobody.hint or "")) == ("no_role", True)


async def test_only_the_owner_may_grant(owner: str, role: str, service: str) -> None:
    async with a_role(owner) as other:
        with pytest.raises(StorageError) as found:
            await grant(service, other, prunes=False)
    assert (found.value.code, "owner" in (found.value.hint or "")) == ("not_permitted", True)


async def test_sqlite_has_no_roles() -> None:
    with pytest.raises(NotSupported):
        await grant("sqlite:///x.db", "service", prunes=False)


# -- What a process is told --------------------------------------------------------------------------------------------


async def opened(dsn: str) -> StorageError:
    with pytest.raises(StorageError) as found:
        async with Engine(dsn, worker=False):
            pass
    return found.value


async def test_a_process_that_may_not_do_its_work_does_not_start(owner: str, role: str, service: str) -> None:
    async with connected(owner) as db:
        await db.execute(f"REVOKE UPDATE (n, hash) ON audit FROM {role}")
    error = await opened(service)
    assert (error.code, error.hint) == (
        "not_permitted", f"as the owner of the schema, run `tenuto migrate --role {role}`",
    )  # fmt: skip
    assert "UPDATE on audit" in error.message


async def test_rights_that_are_taken_away_later_are_told(owner: str, role: str, service: str) -> None:
    async with Engine(service, worker=False) as engine, connected(owner) as db:
        await db.execute(f"REVOKE ALL ON limits FROM {role}")
        with pytest.raises(StorageError) as found:
            await engine.limits()
    assert (found.value.code, "permission denied for table limits" in found.value.message) == ("not_permitted", True)


async def test_commits_that_are_no_longer_permitted_are_told_and_go_on_when_they_are(
    owner: str, role: str, service: str
) -> None:
    async with Engine(service, shutdown_grace="1s") as engine, connected(owner) as db:
        engine.register(*SAGAS)
        assert (await engine.execute("limited")).succeeded
        await db.execute(f"REVOKE INSERT ON events FROM {role}")
        waiting = asyncio.create_task(engine.execute("limited"))
        while "commits: not_permitted" not in (told := str(await engine.ready())):
            assert not waiting.done(), told
        await grant(owner, role, prunes=False)
        assert (await waiting).succeeded
        assert (await engine.ready()).ok


async def test_one_that_the_wall_would_hold_does_not_start(owner: str, role: str, service: str) -> None:
    """It would see no rows, and say nothing."""
    async with connected(owner) as db:
        await db.execute(f"ALTER ROLE {role} INHERIT")
        await db.execute(f"GRANT tenuto_request TO {role}")
        version = await db.fetchval("SELECT current_setting('server_version_num')::integer")
        if version >= 160_000:
            await db.execute(f"GRANT tenuto_request TO {role} WITH INHERIT TRUE")
    assert "tenuto_request" in (await opened(service)).message
    if version >= 160_000:
        await grant(owner, role, prunes=False)
        async with Engine(service, worker=False):
            pass
    else:
        with pytest.raises(NotSupported) as walled:
            await grant(owner, role, prunes=False)
        assert walled.value.code == "role_walled"


async def test_a_schema_that_is_old_is_the_owners_to_change(owner: str, service: str) -> None:
    async with connected(owner) as db:
        await db.execute("DELETE FROM tenuto_migrations WHERE number = 3")
    error = await opened(service)
    assert (error.code, "owner" in (error.hint or "")) == ("old_schema", True)


async def test_a_schema_that_is_not_there_is_the_owners_to_make(owner: str, role: str) -> None:
    async with connected(owner) as db:
        await db.execute("DROP SCHEMA public CASCADE")
    error = await opened(as_role(owner, role))
    assert (error.code, "owner" in (error.hint or "")) == ("no_schema", True)


async def of_doctor(url: str) -> Check:
    return {check.name: check async for check in checks(Settings(url=url))}["rights"]


async def test_whoever_runs_as_the_owner_is_told(owner: str, service: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tenuto.storage")
    async with Engine(service, worker=False):
        pass
    assert "runs_as_owner" not in {getattr(record, "action", "") for record in caplog.records}
    async with Engine(owner, worker=False):
        pass
    assert "runs_as_owner" in {getattr(record, "action", "") for record in caplog.records}
    found = [await of_doctor(url) for url in (owner, service)]
    assert [check.ok for check in found] == [True, True]
    assert ["tenuto migrate --role" in check.found for check in found] == [True, False]
    assert [check.warns for check in found] == [True, False]


def test_a_warning_is_not_ticked_off(
    owner: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TENUTO_URL", owner)
    main(["migrate"])
    main(["doctor"])
    told = capsys.readouterr().out
    assert "! rights: this user could rewrite what happened" in told
    assert "✓ database: " in told


# -- A role that only reads --------------------------------------------------------------------------------------------


async def test_a_role_that_may_only_read_checks_and_exports(owner: str) -> None:
    async with Engine(owner, shutdown_grace="1s") as engine:
        engine.register(*SAGAS)
        await engine.execute("limited")
        async with a_role(owner) as role, connected(owner) as db:
            await db.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
            reads = as_role(owner, role)
            assert await check_database(reads) == []
            assert [found async for found in find_stuck_in(reads)] == []
            assert len([line async for line in export_lines(reads, "1")]) > 2


async def test_a_role_that_may_not_read_all_is_told_what_lets_it(owner: str) -> None:
    async with Engine(owner, worker=False):
        pass
    async with a_role(owner) as role, connected(owner) as db:
        reads = as_role(owner, role)
        for readable in ("tenuto_migrations", "executions"):
            with pytest.raises(StorageError) as caught:
                await check_database(reads)
            assert caught.value.code == "not_permitted"
            assert "GRANT SELECT" in str(caught.value.hint)
            assert "migrate --role" not in str(caught.value.hint)
            await db.execute(f"GRANT SELECT ON {readable} TO {role}")

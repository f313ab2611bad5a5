"""The database loses commits that it acknowledged: a standby that lags is promoted, or an older backup is restored."""

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import apsw
import psycopg
import pytest

from tenuto import Engine, SagaBuilder, SagaContext
from tenuto.errors import NotFound
from tenuto.storage import make_store
from tests.checking.soundness import assert_sound
from tests.seams import durable_runtime, session_of, stored_definitions
from tests.servers import postgres, sqlite

LEASE = "60s"  # nobody is taken for dead because a machine is busy
MANY = 12


class Gates:
    """A saga of three steps, each of which waits in its handler until a test lets it pass."""

    def __init__(self) -> None:
        self.reached: dict[tuple[str, str], asyncio.Event] = {}
        self.open: dict[str, asyncio.Event] = {step: asyncio.Event() for step in "abc"}

    def saga(self) -> SagaBuilder:
        async def pass_through(ctx: SagaContext) -> str:
            self._at(ctx.execution_id, ctx.step_id).set()
            await self.open[ctx.step_id].wait()
            return ctx.step_id

        builder = SagaBuilder("gates", output="c").step("a", pass_through)
        return builder.step("b", pass_through, depends_on=["a"]).step("c", pass_through, depends_on=["b"])

    def _at(self, execution: str, step: str) -> asyncio.Event:
        return self.reached.setdefault((execution, step), asyncio.Event())

    async def all_at(self, executions: list[str], step: str) -> None:
        for execution in executions:
            await self._at(execution, step).wait()


@pytest.fixture
def pair() -> Iterator[tuple[postgres.Server, postgres.Server]]:
    with postgres.running(durable=True) as primary:
        with psycopg.connect(primary.dsn(), autocommit=True) as connection:
            connection.execute("CREATE DATABASE shop")
        with postgres.standby(primary) as standby:
            yield primary, standby


def _stop_streaming(primary: postgres.Server, standby: postgres.Server) -> None:
    """From here on the standby receives nothing; before that, all that was committed."""
    with psycopg.connect(primary.dsn(), autocommit=True) as connection:
        at = connection.execute("SELECT pg_current_wal_lsn()").fetchone()
    assert at is not None
    with psycopg.connect(standby.dsn(), autocommit=True) as connection:
        while connection.execute("SELECT pg_last_wal_replay_lsn() < %s::pg_lsn", at).fetchone() == (True,):
            pass
        connection.execute("ALTER SYSTEM SET primary_conninfo = ''")
        connection.execute("SELECT pg_reload_conf()")
        while connection.execute("SELECT 1 FROM pg_stat_wal_receiver").fetchone() is not None:
            pass


def _fail_over(primary: postgres.Server, standby: postgres.Server) -> None:
    primary.kill()
    with psycopg.connect(standby.dsn(), autocommit=True) as connection:
        connection.execute("SELECT pg_promote()")


def _logged(caplog: pytest.LogCaptureFixture, action: str) -> list[str]:
    return [record.execution_id for record in caplog.records if getattr(record, "action", "") == action]  # type: ignore[attr-defined]


async def test_after_a_failover_that_lost_commits_every_execution_goes_on_from_what_is_stored(
    pair: tuple[postgres.Server, postgres.Server], caplog: pytest.LogCaptureFixture
) -> None:
    """The worker is connected to the primary, outlives it, and finds a standby without the last commits."""
    primary, standby = pair
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    url = f"postgresql://postgres@{hosts}/shop?target_session_attrs=read-write"
    gates = Gates()
    with caplog.at_level(logging.ERROR, "tenuto.durable"):
        async with Engine(url, lease=LEASE) as engine:
            engine.register(gates.saga())
            kept = [await engine.start("gates") for _ in range(MANY)]
            ids = [handle.id for handle in kept]
            await gates.all_at(ids, "a")
            await asyncio.to_thread(_stop_streaming, primary, standby)
            gates.open["a"].set()
            await gates.all_at(ids, "b")  # which the standby never hears of
            lost = await engine.start("gates")
            await gates.all_at([lost.id], "b")
            await asyncio.to_thread(_fail_over, primary, standby)
            gates.open["b"].set()
            gates.open["c"].set()
            assert {(await handle.result()).output for handle in kept} == {"c"}
            with pytest.raises(NotFound):
                await lost.result()
    assert set(_logged(caplog, "commits_lost")) == set(ids)
    await assert_sound(standby.dsn("shop"))


# -- An older backup ---------------------------------------------------------------------------------------------------


class Backup:
    """All rows of a database as they were, put back under whoever uses it."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._copy = apsw.Connection(str(folder / "backup"))

    def take(self) -> None:
        with self._copy.backup("main", sqlite.connect(self._url), "main") as copying:
            copying.step()

    def restore(self) -> None:
        live = sqlite.connect(self._url)
        with live.backup("main", self._copy, "main") as copying:
            copying.step()
        live.close()


async def _until_reopened(engine: Engine, former: str) -> None:
    runtime = durable_runtime(engine)
    while session_of(runtime).session.id == former or not session_of(runtime).session.alive:
        await asyncio.to_thread(lambda: None)


async def test_a_worker_finds_out_by_itself_that_an_older_backup_was_restored(tmp_path: Path) -> None:
    """Its session is in the backup, and is as live there as it was: but it was renewed since."""
    url = f"sqlite:///{tmp_path}/x.db"
    gates = Gates()
    async with Engine(url, lease="2s") as engine:
        engine.register(gates.saga())
        runtime = durable_runtime(engine)
        handle = await engine.start("gates")
        await gates.all_at([handle.id], "a")
        former = session_of(runtime).session.id
        backup = Backup(url, tmp_path)
        await asyncio.to_thread(backup.take)
        renewed = _renewals(url, former)
        while _renewals(url, former) < renewed + 2:
            await asyncio.to_thread(lambda: None)
        await asyncio.to_thread(backup.restore)
        await _until_reopened(engine, former)
        for gate in gates.open.values():
            gate.set()
        assert (await handle.result()).output == "c"


def _renewals(url: str, session: str) -> int:
    connection = sqlite.connect(url)
    found: int = connection.execute("SELECT renewals FROM sessions WHERE id = ?", (session,)).get
    connection.close()
    return found


async def test_raising_the_incarnation_ends_every_session(url: str) -> None:
    """What an operator does after a restore: whatever the backup says of sessions, nobody goes on under them."""
    gates = Gates()
    async with Engine(url, lease="2s") as engine:
        engine.register(gates.saga())
        runtime = durable_runtime(engine)
        handle = await engine.start("gates")
        await gates.all_at([handle.id], "a")
        former = session_of(runtime).session.id
        other = make_store(url)
        await other.open(migrate=False)
        first = await other.sessions.mark_restored()
        assert await other.sessions.mark_restored() > first
        await other.close()
        await _until_reopened(engine, former)
        for gate in gates.open.values():
            gate.set()
        assert (await handle.result()).output == "c"


async def test_definitions_that_a_restored_database_does_not_have_are_stored_again(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    gates = Gates()
    for gate in gates.open.values():
        gate.set()
    backup = Backup(url, tmp_path)
    async with Engine(url):
        await asyncio.to_thread(backup.take)
    async with Engine(url, lease="2s") as engine:
        engine.register(gates.saga())
        assert (await (await engine.start("gates")).result()).output == "c"
        runtime = durable_runtime(engine)
        former = session_of(runtime).session.id
        await asyncio.to_thread(backup.restore)
        await _until_reopened(engine, former)
        while stored_definitions(runtime):
            await asyncio.to_thread(lambda: None)
        assert (await (await engine.start("gates")).result()).output == "c"

"""Makes a fixture of the present engine's, once: `python -m tests.upgrade.make SCHEMA`.

A worker brings every execution into its state and is killed; a client leaves mail and one more start behind. Then what
belongs to later schemas than SCHEMA is taken away. What is there already is not made again.
"""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import apsw
import psycopg

from tenuto import Engine, Handle
from tenuto.kernel.address import Ref, lease_id
from tenuto.storage import make_store
from tenuto.storage.migrations import migrations
from tests.durable.sessions import expire_now
from tests.servers import postgres

from .contents import DEPRECATED, DRAFT, LATER_SINCE, RARER_SINCE, documents
from .schema_3 import LOST
from .states import FAR, LIMIT, Handlers

FIXTURES = Path(__file__).parent.parent / "fixtures"
LEASE = "60s"  # nobody takes over while the fixture is made
CLIENT_S = 1.0
QUIET_S = 0.3
SET_ASIDE_MS = 60_000
EXPIRE = "UPDATE sessions SET expires_at = started_at + 15000"  # and afterwards it is as if it had been the usual one


# -- The executions ----------------------------------------------------------------------------------------------------


BY_THE_CLIENT = ("mail", "not-taken", "set-aside")


def lose(url: str, schema: int) -> None:
    """The first worker: what it has in hand is lost when it is killed."""
    vars(socket)["gethostname"] = lambda: "earlier"
    asyncio.run(_lose(url, schema))


async def _lose(url: str, schema: int) -> None:
    async with Engine(url, lease=LEASE, messages=["execution.*"]) as engine:
        Handlers(mended=False).provide(engine)
        for document in documents(schema):
            if document["name"] in LOST:
                await engine.apply(document)
        engine = engine.scoped(tenant="default", actor="user:ann")
        for name in LOST:
            await _until(engine, await _start(engine, name), name)
        os.kill(os.getpid(), signal.SIGKILL)


def work(url: str, schema: int) -> None:
    vars(socket)["gethostname"] = lambda: "earlier"
    asyncio.run(_work(url, schema))


async def _work(url: str, schema: int) -> None:
    async with Engine(url, lease=LEASE, messages=["execution.*"]) as engine, _guest(url) as guest:
        handlers = Handlers(mended=False)
        handlers.provide(engine)
        handlers.provide(guest)
        names = [document["name"] for document in documents(schema)]
        for document in documents(schema):
            await engine.apply(document)
        await engine.limit(LIMIT, concurrency=1)
        await engine.tenant_limit("default", max_in_flight=1_000)
        if schema >= LATER_SINCE:  # whoever has a name is in the audit
            await engine.keys.create(tenant="default", roles=["viewer"], name="kept", actor="cli:ann")
            engine = engine.scoped(tenant="default", actor="user:ann")
        handles = {name: await _start(engine, name) for name in names if name not in BY_THE_CLIENT}
        handles["second in line"] = await engine.start("key", idempotency_key="second in line", concurrency_key="one")
        handles["mail"] = await _start(engine, "mail")
        await _bring_about(engine, handles)
        await asyncio.gather(*(_until(engine, handle, name) for name, handle in handles.items()))
        if schema >= LATER_SINCE:
            assert (await engine.audit.verify()).rows  # which numbers what is there
        if schema >= RARER_SINCE:
            await engine.catalog.draft(DRAFT)
            await engine.catalog.deprecate(DEPRECATED, 1)
        os.kill(os.getpid(), signal.SIGKILL)


def _guest(url: str) -> Engine:
    """Takes tasks of a queue, and dies with them in hand."""
    return Engine(url, lease=LEASE, queues=(FAR,), messages=["execution.*"])


async def _start(engine: Engine, name: str) -> Handle[Any]:
    return await engine.start(name, idempotency_key=name, concurrency_key="one" if name == "key" else None)


async def _bring_about(engine: Engine, handles: dict[str, Handle[Any]]) -> None:
    await _until(engine, handles["approval"], "approval")
    await handles["paused"].pause(reason="for the upgrade")
    await handles["canceled"].cancel("compensate")
    await _until(engine, handles["running"], "running")
    await handles["draining"].cancel("drain")
    await handles["second-run"].result()
    await handles["second-run"].retry(reason="once more")
    if "loop" in handles:
        await _until(engine, handles["loop"], "loop")
        await handles["loop"].approve("ok")
        await _until(engine, handles["canceled-in-rollback"], "canceled-in-rollback")
        await handles["canceled-in-rollback"].cancel("drain")
    if "resumed" in handles:
        await _bring_about_what_is_rare(engine, handles)


async def _bring_about_what_is_rare(engine: Engine, handles: dict[str, Handle[Any]]) -> None:
    await asyncio.gather(*(_until(engine, handles[name], name) for name in ("acked", "kept-signal", "resumed")))
    await handles["kept-signal"].signal("go", id="only")
    await handles["resumed"].pause(reason="for a moment")
    await handles["resumed"].resume()
    ref = Ref("r", "forward", 1)
    answered = await handles["acked"].acknowledge("r", attempt=1, lease=lease_id(handles["acked"].id, ref))
    assert answered == "applied"
    await _until(engine, handles["terminated"], "running")
    await handles["terminated"].cancel("terminate", reason="at once")


STANDING = {
    "succeeded": "succeeded", "failed": "failed", "canceled": "canceled", "paused": "paused",
    "approval": "waiting_approval", "unknown": "waiting_approval", "long": "waiting_approval",
    "asks-to-undo": "waiting_approval", "undo-failed": "waiting_approval", "escalated": "paused",
    "timed-out": "waiting_approval", "skipped": "waiting_approval", "loop": "waiting_approval",
    "expired": "waiting_approval", "expired-payment": "waiting_approval", "refused": "waiting_approval",
    "kept-signal": "waiting_approval", "resumed": "waiting_approval", "deprecated": "waiting_approval",
    "terminated": "canceled", "undo-stopped": "waiting_approval", "breaker-open": "waiting_approval",
}  # fmt: skip


async def _until(engine: Engine, handle: Handle[Any], name: str) -> None:
    """As far as it goes by itself: until its status is the one that is wanted, or nothing more is recorded."""
    wanted = STANDING.get(name, "running")
    seen = -1
    while True:
        status = await handle.status()
        rows = await handle.history()
        if status["status"] == wanted and len(rows) == seen:
            return
        seen = len(rows)
        await asyncio.to_thread(threading.Event().wait, QUIET_S)


async def _visit(url: str, schema: int) -> None:
    """A client: one start that nobody has taken up, a signal that nobody has read, and what is set aside."""
    async with Engine(url, worker=False, lease=LEASE) as engine:
        for document in documents(schema):
            await engine.apply(document)
        waiting = await engine.start("mail", idempotency_key="mail")
        await engine.start("not-taken", idempotency_key="not-taken")
        with suppress(TimeoutError):
            await asyncio.wait_for(waiting.signal("go", id="only"), CLIENT_S)
        if schema >= LATER_SINCE:
            await _set_aside(url, await engine.start("set-aside", idempotency_key="set-aside"))


async def _set_aside(url: str, handle: Handle[Any]) -> None:
    """As a worker does that cannot read a record."""
    store = make_store(url)
    await store.open(migrate=False)
    await store.claims.park(None, handle.id, "incompatible", SET_ASIDE_MS)
    await store.close()


def fill(url: str, schema: int) -> None:
    if schema >= RARER_SINCE:
        expire_now(url, _killed(lose, url, schema))
    _killed(work, url, schema)
    vars(socket)["gethostname"] = lambda: "earlier"
    asyncio.run(_visit(url, schema))


def _killed(target: Callable[[str, int], None], url: str, schema: int) -> int:
    """The process that it was."""
    process = get_context("spawn").Process(target=target, args=(url, schema))
    process.start()
    process.join()
    if process.exitcode != -signal.SIGKILL or process.pid is None:
        raise SystemExit(f"the worker ended with {process.exitcode}")
    return process.pid


# -- The schema --------------------------------------------------------------------------------------------------------


def make_sqlite(schema: int, to: Path) -> None:
    """The file as it is, without the tables and indexes of later migrations."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "x.db"
        fill(f"sqlite:///{file}", schema)
        connection = apsw.Connection(str(file))
        known = _names_of(schema)
        for kind in ("table", "index"):  # what a table has goes with it
            there = connection.execute("SELECT name FROM sqlite_master WHERE type = ?", (kind,)).fetchall()
            for name in {str(name) for (name,) in there if not str(name).startswith("sqlite_")} - known:
                connection.execute(f'DROP {kind} "{name}"')
        connection.execute("DELETE FROM tenuto_migrations WHERE number > ?", (schema,))
        connection.execute(EXPIRE)
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("VACUUM")
        connection.close()
        shutil.copyfile(file, to)


def _names_of(schema: int) -> set[str]:
    connection = apsw.Connection(":memory:")
    for migration in migrations("sqlite")[:schema]:
        connection.execute(migration.sql)
    names = connection.execute("SELECT name FROM sqlite_master").fetchall()
    return {"tenuto_migrations", *(str(name) for (name,) in names)}


def make_postgres(schema: int, to: Path) -> None:
    """A database that only the earlier migrations were applied to, with the rows of one that has all."""
    with postgres.running() as server:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("CREATE DATABASE present")
            connection.execute("CREATE DATABASE earlier")
        fill(server.dsn("present"), schema)
        with psycopg.connect(server.dsn("earlier"), autocommit=True) as connection:
            for migration in migrations("postgres")[:schema]:
                connection.execute(migration.sql.encode())
            connection.execute(
                "CREATE TABLE tenuto_migrations (number INTEGER PRIMARY KEY, name TEXT NOT NULL, "
                "checksum TEXT NOT NULL, applied_at BIGINT NOT NULL)"
            )
            names = [
                name for (name,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
            ]
            if "incarnation" in names:  # its one row is the migration's
                connection.execute("DELETE FROM incarnation")
        tables = [part for name in sorted(names) for part in ("-t", name)]
        rows = _dump(server, "present", "--data-only", *tables)
        _psql(server, "earlier", rows)
        with psycopg.connect(server.dsn("earlier"), autocommit=True) as connection:
            connection.execute("DELETE FROM tenuto_migrations WHERE number > %s", (schema,))
            connection.execute(EXPIRE)
        to.write_text(_dump(server, "earlier"))


def _dump(server: postgres.Server, database: str, *options: str) -> str:
    command = [str(postgres.binaries() / "pg_dump"), "--inserts", "--no-owner", *options, server.dsn(database)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    kept = [line for line in lines if line and not line.startswith(("--", "\\"))]
    return "\n".join([*kept, ""])


def _psql(server: postgres.Server, database: str, text: str) -> None:
    with psycopg.connect(server.dsn(database), autocommit=True) as connection:
        connection.execute(text.encode())


def main() -> None:
    schema = int(sys.argv[1])
    FIXTURES.mkdir(exist_ok=True)
    for make, name in ((make_sqlite, f"schema-{schema}.db"), (make_postgres, f"schema-{schema}.sql")):
        to = FIXTURES / name
        if to.exists():
            sys.stdout.write(f"{to} is there, and stays as it is\n")
        else:
            make(schema, to)
            sys.stdout.write(f"{to}: {to.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main()

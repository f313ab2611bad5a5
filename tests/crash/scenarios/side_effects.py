"""What goes with an execution: messages, limits, notices, a caller's own transaction, the audit, and pruning."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from tenuto.storage.sqlite import database as sqlite_module
from tests.crash.client import Client
from tests.crash.scenario import UNSAFE, scenario, task
from tests.servers.sqlite import PATIENCE_MS

from .control import pause_and_resume

LIMIT = "bank"
MESSAGES: dict[str, Any] = {"messages": ["*"]}


async def _all_told(client: Client) -> None:
    while (await client.engine.outbox()).waiting:
        await client.pause()


async def _until_told(client: Client) -> None:
    """To the end, and until everything about it has left."""
    await client.finish(*[await client.start(f"k{n}") for n in range(2)])
    await _all_told(client)


scenario("messages", task("a", undo="ok"), task("b", "transient", "ok"), script=_until_told, options=MESSAGES)
scenario(
    "messages of a rollback",
    task("a", undo="ok"),
    task("b", "refused"),
    script=_until_told,
    options=MESSAGES,
    ends="failed",
)


async def _behind_a_limit(client: Client) -> None:
    await client.engine.limit(LIMIT, concurrency=1)
    await client.finish(*[await client.start(f"k{n}") for n in range(3)])


scenario("limit", task("a", "dwells", limits=[LIMIT]), task("b"), script=_behind_a_limit)

scenario("escalated", task("a", "transient", "transient", "ok", tries=5), task("b"), escalation={"errors": 1})

# An attempt that began to send and was lost is not sent again: the row is asked, and then a person.
scenario("notice", task("mail", safety=UNSAFE, handler="notify", reconcile_handler="sent", timeout=200), task("b"))


# -- In somebody's name ------------------------------------------------------------------------------------------------


scenario(
    "in a name",
    task("a", "transient", "ok", undo="ok"),
    {"step_id": "ok", "type": "human_approval"},
    task("b", "refused"),
    script=pause_and_resume,
    actor="user:ann",
    ends="failed",
)
scenario("messages and the audit", task("a"), task("b"), script=_until_told, options=MESSAGES, actor="user:ann")


# -- A caller's transaction --------------------------------------------------------------------------------------------

ORDERS = "CREATE TABLE IF NOT EXISTS orders (key TEXT PRIMARY KEY, execution TEXT NOT NULL)"


@asynccontextmanager
async def _own(url: str) -> AsyncIterator[tuple[Any, Any]]:
    """A connection of the caller's, in a transaction, and how to ask it. On SQLite its commits are points, too."""
    if url.startswith("sqlite"):
        file = vars(sqlite_module)["apsw"].Connection(url.removeprefix("sqlite:///"))
        file.set_busy_timeout(PATIENCE_MS)

        async def ask(query: str, *values: object) -> list[Any]:
            return list(file.execute(query.replace("$", "?"), values))

        file.execute("BEGIN IMMEDIATE")
        yield file, ask
        file.execute("COMMIT")
        file.close()
    else:
        connection = await asyncpg.connect(url)
        async with connection.transaction():
            yield connection, connection.fetch
        await connection.close()


async def _place(client: Client) -> None:
    """An order and its execution are one transaction: whoever comes after a crash finds both, or neither."""
    url = client.engine.url
    async with _own(url) as (_, ask):
        await ask(ORDERS)
    for key in ("k1", "k2"):
        async with _own(url) as (connection, ask):
            placed = [row[0] for row in await ask("SELECT execution FROM orders ORDER BY key")]
            started = [found["execution_id"] async for found in client.engine.summaries()]
            if sorted(placed) != sorted(started):
                client.world.note("wrong", why=f"orders of {placed}, and executions {started}")
            handle = await client.engine.start(client.name, idempotency_key=key, connection=connection)
            await ask("INSERT INTO orders VALUES ($1, $2) ON CONFLICT DO NOTHING", key, handle.id)
        client.world.note("acknowledged", x=handle.id, key=key)
    await client.finish(*[await client.start(key) for key in ("k1", "k2")])


scenario("a caller's transaction", task("a"), task("b"), script=_place)


# -- Pruning -----------------------------------------------------------------------------------------------------------


async def _prune(client: Client) -> None:
    """What is over is removed, with all that belongs to it; what comes afterwards is not touched."""
    for key in ("old", "older"):
        await client.finish(await client.engine.start(client.name, idempotency_key=key))
    await client.engine.prune(older_than="1ms")
    await client.finish(await client.start("new"))
    await _all_told(client)


scenario("pruned", task("a"), task("b"), script=_prune, options={"messages": ["execution.*"]}, pruned=True)

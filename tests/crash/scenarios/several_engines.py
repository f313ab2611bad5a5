"""More than one engine: commands by mail, steps of a queue."""

from typing import Any

from tenuto import Engine
from tests.crash.client import Client
from tests.crash.scenario import scenario, task, unsafe

LEASE = "1s"


async def _by_mail(client: Client) -> None:
    """Whoever commands is not who runs it."""
    async with Engine(client.engine.url, worker=False, lease=LEASE) as other:
        caller = Client(other, client.world, client.name)
        handle = await caller.start()
        await caller.until_began("a")
        await caller.command(handle.pause())
        await caller.command(handle.resume())
        await caller.command(handle.signal("go", id="s1"))
        await caller.finish(handle)


scenario(
    "commands by mail",
    task("a", "transient", "ok"),
    {"step_id": "w", "type": "wait", "with": {"signal": "go"}},
    {"step_id": "ok", "type": "human_approval"},
    task("b"),
    script=_by_mail,
)

QUEUES: dict[str, Any] = {"queues": ("default", "gpu")}

scenario("queue", task("a"), task("b", "transient", "ok", queue="gpu"), task("c", queue="gpu"), options=QUEUES)
scenario("payment on a queue", unsafe("pay", queue="gpu", timeout=200), task("b"), options=QUEUES)
scenario(
    "rollback on a queue",
    task("a", queue="gpu", undo="ok"),
    task("b", "refused", queue="gpu"),
    options=QUEUES,
    ends="failed",
)


async def _two_workers(client: Client) -> None:
    """Both serve the queue: either may have a task when it dies."""
    async with Engine(client.engine.url, lease=LEASE, **QUEUES) as other:
        client.world.provide(other)
        handles = [await client.start(f"k{n}") for n in range(3)]
        await client.finish(*handles)


scenario("two workers", task("a", queue="gpu"), task("b"), task("c", queue="gpu"), script=_two_workers, options=QUEUES)

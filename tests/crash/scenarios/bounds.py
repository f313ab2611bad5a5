"""What is bounded: how many a tenant has in flight, how often something is called, how long an execution may take."""

from tests.crash.client import Client
from tests.crash.scenario import scenario, task

from .people import wait

TENANT = "default"
BATCH = 5


async def _batch(client: Client) -> None:
    """Many at a stroke, of which two may be in flight. Whoever repeats it gets the same ones."""
    await client.engine.tenant_limit(TENANT, max_in_flight=2)
    await client.engine.start_many(client.name, range(BATCH), key=str)
    found = [row["execution_id"] async for row in client.engine.summaries()]
    if len(found) != BATCH:
        client.world.note("wrong", why=f"{len(found)} executions of a batch of {BATCH}")
    await client.finish(*map(client.engine.get, found))


scenario("a batch of a tenant with a limit", task("a", undo="ok"), task("b", "transient", "ok"), script=_batch)


async def _limited(client: Client) -> None:
    """The limit is set, changed and taken away while executions come and go: what it counts is what there is."""
    for limit, keys in ((3, ("k1", "k2")), (4, ("k3", "k4")), (None, ("k5",))):
        await client.engine.tenant_limit(TENANT, max_in_flight=limit)
        await client.finish(*[await client.start(key) for key in keys])


scenario("a tenant's limit", task("a"), task("b"), script=_limited)


async def _rated(client: Client) -> None:
    await client.engine.limit("bank", rate="50/s", concurrency=1)
    await client.finish(*[await client.start(f"k{n}") for n in range(3)])


scenario(
    "a rate, on a queue and off it",
    task("a", limits=["bank"]),
    task("b", queue="gpu", limits=["bank"]),
    script=_rated,
    options={"queues": ("default", "gpu")},
)

# Once the time is over nothing is tried again: what an attempt that was lost may have made is undone by its key.
scenario(
    "deadline of an execution",
    task("a", undo="ok", partial_effect=True),
    task("b", "hangs", undo="ok", partial_effect=True),
    ends="failed",
    timeout_ms=400,
)


async def _pause_for_long(client: Client) -> None:
    handle = await client.start()
    await client.until_began("a")
    await client.command(handle.pause())
    await handle.result(return_when="terminal")


scenario(
    "paused for too long",
    task("a", undo="ok", partial_effect=True),
    wait("w", duration_ms=300),
    task("b"),
    script=_pause_for_long,
    ends="canceled succeeded",
    pause_limit_ms=150,
    cancel="compensate",
)

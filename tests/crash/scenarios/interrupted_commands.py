"""What takes several commits, and what is left when its process dies between two of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import uuid4

from tenuto import Engine, Handle
from tenuto.errors import NotPermitted
from tenuto.storage import make_store, pruning
from tenuto.storage.port import Store
from tenuto.storage.registry import ANSWERS_KEPT_MS, Answer
from tenuto.storage.tasks import Beginning, Task
from tenuto.values.names import DEFAULT_TENANT
from tenuto.views.projections import AuditRow
from tests.crash.client import TERMINAL, Client
from tests.crash.scenario import Script, scenario, task, unsafe
from tests.seams import runtime_of

from .people import wait
from .several_engines import LEASE, QUEUES

# -- A tenant's limit --------------------------------------------------------------------------------------------------


async def _set_once(client: Client) -> None:
    """Whoever comes after him who set it, or changed it, or died over that, leaves it as it is."""
    handles = [await client.start(f"k{n}") for n in range(2)]
    for limit in (2, 3):
        if not client.world.lines(f"limit {limit}"):
            client.world.note(f"limit {limit}")
            await client.engine.tenant_limit(DEFAULT_TENANT, max_in_flight=limit)
    await _go_on(client, handles)
    await _go_on(client, [await client.start(f"k{n}") for n in range(2, 4)])


async def _go_on(client: Client, handles: list[Handle[object]]) -> None:
    for handle in handles:
        await client.command(handle.signal("go", id="s"))
    await client.finish(*handles)


scenario("a limit that nobody sets again", wait("w", signal="go"), task("a"), script=_set_once)


async def _again(client: Client) -> None:
    """Of keys that are known none takes up room, though they stand before those that are not."""
    await client.finish(*[await client.start(f"k{n}") for n in range(3)])
    async with Engine(client.engine.url, worker=False, lease=LEASE) as other:  # so that who starts does not know of it
        await other.tenant_limit(DEFAULT_TENANT, max_in_flight=4)
    await client.finish(*await asyncio.gather(*(client.start(f"k{n}") for n in range(7))))


scenario("a limit, and keys that are known", task("a"), script=_again)


# -- The dead ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _store(client: Client) -> AsyncIterator[Store]:
    store = make_store(client.engine.url)
    await store.open(migrate=False)
    yield store
    await store.close()


async def _about_to_die(store: Store) -> str:
    """A session that nobody renews."""
    id = f"dead-{uuid4()}"
    await store.sessions.open(id, "dead", "0", 300, ("gpu",))
    return id


async def _claim(client: Client, store: Store, handle: Handle[object]) -> None:
    """One that waits is taken, each by another who dies over it."""
    await client.until(handle, lambda found: found["blocked"] and found["blocked"]["reason"] == "signal")
    while (await handle.status())["status"] not in TERMINAL:
        if await store.claims.claim_one(await _about_to_die(store), handle.id):
            return
        await client.pause()


async def _take(client: Client, store: Store, handles: list[Handle[object]]) -> list[Task]:
    """What waits in the queue, unless somebody had it before."""
    taken: list[Task] = []
    session = await _about_to_die(store)
    while len(taken) < len(handles) and not client.world.lines("served"):
        found = await store.tasks.take(session, "gpu", ["*/act"], len(handles))
        if not found:
            session = await _about_to_die(store)
            await client.pause()
        taken += found
    if taken:
        await store.tasks.begin(session, [Beginning(each.taking, marks=True) for each in taken[::2]])
    return taken


async def _others_died(client: Client) -> None:
    """Two who owned an execution each, then one who had taken tasks, and had begun half of them."""
    handles = [await client.start(f"k{n}") for n in range(2)]
    async with _store(client) as store:
        for handle in handles:
            if not client.world.lines("signalled"):
                await _claim(client, store, handle)
        client.world.note("signalled")
        for handle in handles:
            await client.command(handle.signal("go", id="s"))
        await _take(client, store, handles)
        client.world.note("served")
    async with Engine(client.engine.url, lease=LEASE, **QUEUES) as other:
        client.world.provide(other)
        await client.finish(*handles)


scenario("others died", wait("w", signal="go"), task("a", queue="gpu"), task("b"), script=_others_died)


# -- Queues ------------------------------------------------------------------------------------------------------------


async def _at_once(client: Client) -> None:
    await client.finish(*[await client.start(f"k{n}") for n in range(4)])


scenario(
    "many on a queue", task("a", queue="gpu"), unsafe("pay", queue="gpu", timeout=400), script=_at_once, options=QUEUES
)


# -- What goes when its time is over -----------------------------------------------------------------------------------


def _prune(entries: int) -> Script:
    """So little at a time that executions do not go together; or that not even the history of one does."""

    async def script(client: Client) -> None:
        vars(pruning)["ENTRIES_AT_ONCE"] = entries
        for key in ("old", "older", "oldest"):
            await client.finish(await client.engine.start(client.name, idempotency_key=key))
        await client.engine.prune(older_than="1ms")
        await client.finish(await client.start("new"))
        await client.engine.prune(older_than="1h")  # finishes what was left, and takes nothing else

    return script


for name, entries in (("one by one", 12), ("in pieces", 4)):
    scenario(f"pruned {name}", task("a", "transient", "ok"), task("b"), script=_prune(entries), pruned=True)


async def _forget(client: Client) -> None:
    """What a service keeps for a day, of another day: an answer, and a request that waited for a second person."""
    registry = runtime_of(client.engine).operations.registry
    long_ago = 1
    await registry.begin_answer("default", "x", "k", Answer(request_hash="h", created_at=long_ago))
    note = AuditRow(
        tenant="default",
        at=long_ago,
        actor="user:ann",
        action="again.requested",
        object_type="execution",
        object_id="x",
    )
    await registry.ask("default", "d", "user:ann", long_ago, long_ago - ANSWERS_KEPT_MS, note)
    async with Engine(client.engine.url, lease=LEASE):
        await client.finish(await client.start())


scenario("answers of another day", task("a"), script=_forget)


# -- Two persons -------------------------------------------------------------------------------------------------------


async def _two_persons(client: Client) -> None:
    """The first is refused and noted, the second does it. One who was killed may have been the first, or the second."""
    handle = await client.start()
    if (await handle.result()).status == "failed":
        for name in ("ann", "bob", "ann", "bob"):
            scoped = client.engine.scoped(tenant="default", actor=f"user:{name}", four_eyes=["again", "unsafe_retry"])
            try:
                await client.command(scoped.get(handle.id).retry(reason="once more"))
            except NotPermitted:
                continue
            break
    await client.finish(handle)


scenario("for two persons", task("a"), unsafe("b", "refused", "ok"), script=_two_persons)

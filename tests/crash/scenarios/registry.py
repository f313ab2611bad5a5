"""What is kept beside executions: definitions from their draft to their end, keys, and the audit that tells of both.

Whoever comes after a crash repeats what he was not told of, as a caller does who had no answer. In the end everything
that is there was told of once by the audit, and everything that the audit tells of is there.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from tenuto.api.definitions import Definitions
from tenuto.errors import DefinitionConflict, NotFound
from tests.crash.client import Client
from tests.crash.scenario import Document, scenario, task

ACTOR = "user:ann"
NAME, VERSION = "drafted", 1
FIRST: Document = {"name": NAME, "version": VERSION, "mode": "sequence", "steps": [task("a")]}
SECOND: Document = {**FIRST, "steps": [task("a"), task("b")]}
STAGES = ("not there", "drafted", "changed", "published", "deprecated")


def _wrong(client: Client, why: str) -> None:
    client.world.note("wrong", why=why)


async def _audited(client: Client, type: str) -> Counter[tuple[str, str]]:
    rows = [row async for row in client.engine.audit.export() if row["object_type"] == type]
    return Counter((row["object_id"], row["action"]) for row in rows)


# -- Definitions -------------------------------------------------------------------------------------------------------


async def _stage(catalog: Definitions) -> int:
    try:
        found = await catalog.get(NAME, VERSION)
    except NotFound:
        return 0
    if found["status"] == "draft":
        return 2 if len(found["steps"]) == len(SECOND["steps"]) else 1
    if len(found["steps"]) != len(SECOND["steps"]):
        return 0  # what was published is not what was drafted last
    return STAGES.index(found["status"])


async def _publish(client: Client) -> None:
    catalog = client.engine.catalog
    acts: tuple[Callable[[], Awaitable[Any]], ...] = (
        lambda: catalog.draft(FIRST),
        lambda: catalog.replace(NAME, VERSION, SECOND),
        lambda: catalog.publish(NAME, VERSION),
        lambda: catalog.deprecate(NAME, VERSION),
    )
    told = max((line["stage"] for line in client.world.lines("told")), default=0)
    found = await _stage(catalog)
    if found < told:
        _wrong(client, f"it was told to be {STAGES[told]}, and is {STAGES[found]}")
    for stage in range(told, len(acts)):
        if STAGES[stage] == "published":
            await _run_it(client)
        try:
            await acts[stage]()
        except DefinitionConflict as error:
            if found <= stage:
                _wrong(client, f"it is {STAGES[found]}, and could not be {STAGES[stage + 1]}: {error}")
        client.world.note("told", stage=stage + 1)
    await _is_refused(client)
    await client.finish(await client.start("other"))
    _check_acts(client, await _audited(client, "definition"))


async def _run_it(client: Client) -> None:
    """Unless whoever was killed had run it, and deprecated it, too."""
    try:
        handle = await client.engine.start(NAME, version=VERSION, idempotency_key="of a draft")
    except DefinitionConflict:
        if await _stage(client.engine.catalog) != STAGES.index("deprecated"):
            raise
    else:
        client.world.note("acknowledged", x=handle.id, key="of a draft")
        await client.finish(handle)


async def _is_refused(client: Client) -> None:
    try:
        await client.engine.start(NAME, version=VERSION, idempotency_key="too late")
    except DefinitionConflict:
        return
    _wrong(client, "what is deprecated was started")


def _check_acts(client: Client, audited: Counter[tuple[str, str]]) -> None:
    """To change a draft twice is two acts. All else is done once, however often it is asked for."""
    for act in STAGES[1:]:
        times = audited[f"{NAME}/{VERSION}", f"definition.{act}"]
        if times != 1 and not (act == "changed" and times):
            _wrong(client, f"that it was {act} is in the audit {times} times")


scenario("a definition's life", task("a"), script=_publish, actor=ACTOR)


# -- Keys --------------------------------------------------------------------------------------------------------------


async def _keys(client: Client) -> None:
    """One is made, used and revoked; whoever was not given his makes another."""
    keys = client.engine.keys
    made = client.world.lines("key made")
    if not made:
        new = await keys.create(tenant="default", roles=["viewer"], name="a", actor=ACTOR)
        client.world.note("key made", id=new.row.id, token=new.token)
        made = client.world.lines("key made")
    id, token = made[0]["id"], made[0]["token"]
    if not client.world.lines("key revoked"):
        await _use(client, id, token)
        await keys.revoke(id, actor=ACTOR)
        client.world.note("key revoked", id=id)
    if await keys.find(token) is not None:
        _wrong(client, "a key that was revoked is in force")
    await client.finish(await client.start())
    await _check_keys(client)


async def _use(client: Client, id: str, token: str) -> None:
    """It may have been revoked by who was killed before he could say so."""
    revoked = {row.id for row in await client.engine.keys.list() if row.revoked_at is not None}
    if await client.engine.keys.find(token) is None and id not in revoked:
        _wrong(client, "a key that was given to somebody is not in force")


async def _check_keys(client: Client) -> None:
    rows = await client.engine.keys.list()
    expected = Counter((row.id, "key.created") for row in rows)
    expected.update((row.id, "key.revoked") for row in rows if row.revoked_at is not None)
    audited = await _audited(client, "key")
    if audited != expected:
        _wrong(client, f"of keys the audit tells {dict(audited)}, and there is {dict(expected)}")


scenario("a key's life", task("a"), script=_keys, actor=ACTOR)

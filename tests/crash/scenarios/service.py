"""What the service answers: a process that serves is killed, and its callers ask again.

Every request is made twice. One that takes effect once says so to the second who makes it, whichever process he asks.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from tests.crash.client import Client
from tests.crash.scenario import Document, Script, scenario, task
from tests.crash.web import Web, served

from .people import approval, wait

Call = Callable[[Client, Web], Awaitable[None]]

OVER = ((409, "invalid_transition"), (409, "terminal"))
DECIDED = ((409, "not_waiting"), (409, "not_open"), (409, "invalid_transition"))


def _served(call: Call, *, apart: bool) -> Script:
    async def script(client: Client) -> None:
        async with served(client, apart=apart) as web:
            await call(client, web)

    return script


async def _audited(web: Web, type: str) -> Counter[tuple[str, str]]:
    found = await web.get("/v1/audit:export", limit=100)
    rows = [row for row in found["items"] if row["object_type"] == type]
    return Counter((row["object_id"], row["action"]) for row in rows)


# -- Starting ----------------------------------------------------------------------------------------------------------


async def _start(client: Client, web: Web) -> None:
    """One key is one execution; and nothing is written for who has another request under it."""
    ids = []
    for number in range(2):
        key, body = f"k{number}", {"definition": client.name, "input": number}
        ids.append(await web.start(key, body))
        if await web.start(key, body) != ids[-1]:
            web.wrong(f"one key, two executions: {key}")
        changed = {**body, "input": "another"}
        words = ((422, "idempotency_conflict"),)
        await web.expect(f"other {key}", "/v1/executions", changed, key=key, words=words)
    listed = [row["execution_id"] for row in (await web.get("/v1/executions"))["items"]]
    if sorted(listed) != sorted(ids):
        web.wrong(f"started {ids}, and there are {listed}")
    await client.finish(*map(client.engine.get, ids))
    started = [x for (x, action), times in (await _audited(web, "execution")).items() if action == "execution.started"]
    if sorted(started) != sorted(ids):
        web.wrong(f"started {ids}, and the audit tells of {started}")


for apart in (True, False):
    scenario(
        f"HTTP start, served {'apart' if apart else 'by the worker'}",
        task("a"),
        script=_served(_start, apart=apart),
    )


# -- Commands ----------------------------------------------------------------------------------------------------------


async def _command(client: Client, web: Web) -> None:
    """Paused, resumed and cancelled, each twice. What is said again when all is over is refused, and harms nobody."""
    id = await web.start("k", {"definition": client.name})
    handle = client.engine.get(id)
    await client.until(handle, _is_there)
    for verb in ("pause", "resume", "cancel"):
        body = {"mode": "compensate"} if verb == "cancel" else None
        for _ in range(2):
            await web.expect(verb, f"/v1/executions/{id}:{verb}", body, words=(200, *OVER))
    await client.finish(handle)
    if (await web.get(f"/v1/executions/{id}"))["status"] != "canceled":
        web.wrong("what was cancelled is not")


def _is_there(found: Any) -> bool:
    """It waits for the signal, or is paused or undone already by whoever was killed."""
    blocked = found["blocked"]
    return found["phase"] == "compensation" or bool(blocked and blocked["reason"] in ("signal", "paused"))


scenario(
    "HTTP commands",
    task("a", undo="ok"),
    wait("w", signal="go"),
    task("b"),
    script=_served(_command, apart=True),
    ends="canceled",
)


async def _approve(client: Client, web: Web) -> None:
    """Of all who are told that they decided, there is one; and what he said is the result."""
    id = await web.start("k", {"definition": client.name})
    handle = client.engine.get(id)
    await client.blocked(handle, "approval")
    at = f"/v1/executions/{id}/steps/ok"
    await web.expect("decide", f"{at}:approve", {"data": "yes"}, words=(200, *DECIDED))
    await web.expect("decide", f"{at}:approve", {"data": "yes"}, words=DECIDED)
    await web.expect("decide", f"{at}:reject", {"comment": "too late"}, words=DECIDED)
    if sum(line["status"] == 200 for line in web.earlier("decide")) > 1:
        web.wrong("two were told that they had decided")
    await client.finish(handle)
    decided = await _recorded(web, id, "resolved")
    if [each["resolution"] for each in decided] != ["approved"]:
        web.wrong(f"approved once, and recorded is {decided}")


async def _recorded(web: Web, id: str, kind: str) -> list[Any]:
    events = (await web.get(f"/v1/executions/{id}/history", view="events"))["items"]
    return [event["data"] for event in events if event["type"] == kind]


for apart in (True, False):
    scenario(
        f"HTTP approval, served {'apart' if apart else 'by the worker'}",
        approval("ok"),
        task("b"),
        script=_served(_approve, apart=apart),
    )


# -- Signals -----------------------------------------------------------------------------------------------------------


async def _signal(client: Client, web: Web) -> None:
    """Two with the same name, each sent twice under its key: each is heard once, the first one first."""
    id = await web.start("k", {"definition": client.name})
    at = f"/v1/executions/{id}/signals/go"
    for number in (1, 2):
        body = {"payload": number}
        for _ in range(2):
            await web.expect(f"signal {number}", at, body, key=f"s{number}", words=(200,))
        words = ((422, "idempotency_conflict"),)
        await web.expect(f"other {number}", at, {"payload": 0}, key=f"s{number}", words=words)
    await client.finish(client.engine.get(id))
    heard = [(each["by"], each["payload"]) for each in await _recorded(web, id, "waited")]
    if heard != [("go:s1", 1), ("go:s2", 2)]:
        web.wrong(f"s1 and s2 were sent, and heard was {heard}")


scenario(
    "HTTP signals",
    task("a"),
    wait("first", signal="go"),
    wait("second", signal="go"),
    task("b"),
    script=_served(_signal, apart=True),
)


# -- Definitions -------------------------------------------------------------------------------------------------------

NAME, VERSION = "posted", 1
AT = f"/v1/definitions/{NAME}/{VERSION}"
POSTED: Document = {"name": NAME, "version": VERSION, "mode": "sequence", "steps": [task("a")]}
STATUSES = ("", "draft", "published", "deprecated")
CONFLICTS = ((409, "definition_deprecated"), (409, "definition_published"))


async def _define(client: Client, web: Web) -> None:
    """Drafted, published and deprecated, each twice: whatever was answered is so from then on."""
    await _is_no_less(web, "before anything")
    for _ in range(2):
        await web.expect("draft", "/v1/definitions", POSTED, key="draft", words=(200, 201))
    for _ in range(2):
        await web.expect("published", f"{AT}:publish", words=(200, (409, "definition_deprecated")))
        await _is_no_less(web, "published")
    if not web.earlier("deprecated") and (await web.get(AT))["status"] == "published":
        id = await web.start("posted", {"definition": NAME, "version": VERSION})
        await client.finish(client.engine.get(id))
    for _ in range(2):
        await web.expect("deprecated", f"{AT}:deprecate", words=(200,))
        await _is_no_less(web, "deprecated")
    refused = await web.ask("late", "/v1/executions", {"definition": NAME, "version": VERSION}, key="late")
    if refused.status_code != 409:
        web.wrong(f"a start of what is deprecated was answered with {refused.status_code}")
    told = await _audited(web, "definition")
    for act in ("drafted", "published", "deprecated"):
        if (times := told[f"{NAME}/{VERSION}", f"definition.{act}"]) != 1:
            web.wrong(f"that it was {act} is in the audit {times} times")
    await client.finish(await client.start())


async def _is_no_less(web: Web, when: str) -> None:
    """It stands where the last answer said, or further: whoever was killed may have gone on."""
    told = [STATUSES.index(status) for status in STATUSES[1:] if any(e["status"] < 300 for e in web.earlier(status))]
    found = await web.get(AT)
    stands = STATUSES.index(found["status"]) if found else 0
    if stands < max(told, default=0):
        web.wrong(f"{when}: told to be {STATUSES[max(told)]}, and is {STATUSES[stands] or 'not there'}")


scenario("HTTP definitions", task("a"), script=_served(_define, apart=False))


# -- Dead letters ------------------------------------------------------------------------------------------------------


async def _dead_letters(client: Client, web: Web) -> None:
    """One is reprocessed, one discarded, the others are reprocessed at a stroke. None is tried a third time.

    Whoever is killed under a step that is refused leaves it to the next, and there it may succeed: then there is none.
    """
    ids = {key: await web.start(key, {"definition": client.name}) for key in ("one", "gone", "many1", "many2")}
    for id in ids.values():
        await client.engine.get(id).result(return_when="terminal")
    for key, verb in (("one", "reprocess"), ("gone", "discard")):
        for _ in range(2):
            if letter := await _letter(web, client, ids[key], key):
                await web.expect(key, f"/v1/dlq/{letter}:{verb}", {"reason": "looked at it"}, words=(200, *DECIDED))
    body = {"definition": client.name, "limit": 10, "reason": "all of them"}
    for _ in range(2):
        await web.expect("many", "/v1/dlq:reprocess", body, key="many", words=(200,))
    await client.finish(*(client.engine.get(id) for key, id in ids.items() if key != "gone"))
    for key, id in ids.items():
        await _is_tried(web, key, id)


async def _letter(web: Web, client: Client, id: str, key: str) -> str | None:
    """Its first dead letter, which is the one that is decided, however often that is asked for."""
    known = [line["letter"] for line in web.world.lines("letter") if line["of"] == key]
    if not known:
        found = await web.get(f"/v1/dlq/{id}")
        if found is None:
            return None
        web.world.note("letter", of=key, letter=found["id"])
        known = [found["id"]]
    return str(known[0])


async def _is_tried(web: Web, key: str, id: str) -> None:
    attempts = (await web.get(f"/v1/executions/{id}/history"))["items"]
    runs = max(row["run"] for row in attempts)
    status = (await web.get(f"/v1/executions/{id}"))["status"]
    failed = bool([row for row in attempts if row["status"] == "failed"])
    if failed and (status, runs) != (("failed", 1) if key == "gone" else ("succeeded", 2)):
        web.wrong(f"{key} is {status} in run {runs}")


scenario(
    "HTTP dead letters",
    task("b", "refused", "ok"),
    script=_served(_dead_letters, apart=True),
    ends="succeeded failed",
)

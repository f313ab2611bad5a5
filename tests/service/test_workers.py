"""What a service that runs nothing says of executions that somebody else is to run."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx2
import pytest

from tenuto import SagaBuilder
from tenuto.runtime.durable import reader as reading
from tenuto.storage import Store, make_store
from tests.service.conftest import MakeSite, until
from tests.service.documents import simple

LEASE = 600_000


async def double(number: int) -> int:
    return 2 * number


DOUBLE = SagaBuilder("double", output="double").step("double", double)
OWN = ["double/1/double.double"]


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    """The same database, for sessions of workers that live and take up nothing: all of their slots are taken."""
    opened = make_store(url)
    await opened.open(migrate=True)
    yield opened
    await opened.close()


async def live(store: Store, handlers: Sequence[str], *, lease_ms: int = LEASE, works: bool = True) -> None:
    await store.sessions.open("w1", "worker", "build", lease_ms, ("default",) if works else None)
    await store.tasks.serve("w1", handlers)


async def start(client: httpx2.AsyncClient, definition: str = "double") -> Any:
    started = await client.post("/v1/executions", json={"definition": definition, "input": 21})
    assert started.status_code == 201, started.text
    return started.json()


async def test_what_a_live_worker_can_run_is_not_told_as_nobodys(make_site: MakeSite, store: Store) -> None:
    client = await (await make_site(DOUBLE, worker=False)).client()
    await live(store, OWN)
    document = await start(client)
    assert (document["status"], document["blocked"]) == ("running", None)
    found = await client.get(f"/v1/executions/{document['execution_id']}")
    assert found.json()["blocked"] is None


async def test_what_is_not_taken_up_for_a_while_waits_for_a_slot(
    make_site: MakeSite, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "TAKEN_MS", -1)
    client = await (await make_site(DOUBLE, worker=False)).client()
    await live(store, OWN)
    document = await start(client)
    assert (document["blocked"]["reason"], document["blocked"]["waiting_for"]) == ("slot", "double")
    listed = await client.get("/v1/executions", params={"blocked": True})
    assert [row["blocked"]["reason"] for row in listed.json()["items"]] == ["slot"]


@pytest.mark.parametrize(
    "session",
    [
        {"handlers": []},
        {"handlers": ["double/2/double.double", "triple/1/double.double"]},
        {"handlers": OWN, "lease_ms": -1},
        {"handlers": OWN, "works": False},
    ],
    ids=["has nothing", "has other versions", "is over", "only serves"],
)
async def test_it_is_nobodys_if_no_live_worker_can_run_it(
    make_site: MakeSite, store: Store, session: dict[str, Any]
) -> None:
    client = await (await make_site(DOUBLE, worker=False)).client()
    await live(store, **session)
    document = await start(client)
    assert (document["blocked"]["reason"], document["blocked"]["waiting_for"]) == ("no_worker", "double.double")
    found = await client.get(f"/v1/executions/{document['execution_id']}")
    assert found.json()["blocked"]["reason"] == "no_worker"


async def test_a_handler_by_its_name_runs_any_definition_that_calls_it(make_site: MakeSite, store: Store) -> None:
    site = await make_site(worker=False)
    client = await site.client()
    await site.engine.apply(simple("paid", handler="pay"))
    await site.engine.apply(simple("sent", handler="send"))
    await live(store, ["*/pay"])
    assert (await start(client, "paid"))["blocked"] is None
    assert (await start(client, "sent"))["blocked"]["waiting_for"] == "send"


async def test_a_service_that_decides_for_it_does_not_tell_it_as_nobodys(make_site: MakeSite, store: Store) -> None:
    client = await (await make_site(DOUBLE, worker=False)).client()
    await live(store, OWN)
    at = f"/v1/executions/{(await start(client))['execution_id']}"
    assert (await client.post(f"{at}:pause")).json()["blocked"]["reason"] == "paused"
    assert (await client.post(f"{at}:resume")).json()["blocked"] is None
    assert (await client.get(at)).json()["blocked"] is None


async def test_who_comes_and_goes_is_known_soon(make_site: MakeSite, store: Store) -> None:
    client = await (await make_site(DOUBLE, worker=False)).client()
    document = await start(client)
    at = f"/v1/executions/{document['execution_id']}"

    async def blocked() -> Any:
        return (await client.get(at)).json()["blocked"]

    assert document["blocked"]["reason"] == "no_worker"
    await live(store, OWN)
    await until(blocked, lambda found: found is None or found["reason"] == "slot")
    await store.sessions.end("w1")
    await until(blocked, lambda found: found is not None and found["reason"] == "no_worker")


async def test_a_worker_that_serves_no_queue_says_what_it_can_run(make_site: MakeSite, store: Store) -> None:
    await make_site(DOUBLE, queues=())
    found = await until(store.tasks.serving, lambda found: any(each.handlers for each in found))
    assert OWN[0] in found[0].handlers

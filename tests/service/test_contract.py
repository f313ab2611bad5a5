"""The six contracts that the service must keep, each from a client's side of HTTP, on SQLite and on PostgreSQL."""

import asyncio
import os
from collections import Counter
from typing import Any

import httpx2
import pytest

from tenuto import Engine, Retry, SagaBuilder, SagaContext, errors
from tests.durable.sessions import expire
from tests.service.conftest import MakeSite, until
from tests.service.documents import simple


async def start(client: httpx2.AsyncClient, definition: str, input: Any = None, key: str | None = None) -> str:
    headers = {} if key is None else {"Idempotency-Key": key}
    answer = await client.post("/v1/executions", json={"definition": definition, "input": input}, headers=headers)
    assert answer.status_code in (200, 201), answer.text
    id: str = answer.json()["execution_id"]
    return id


async def ends(client: httpx2.AsyncClient, id: str, *statuses: str) -> dict[str, Any]:
    found = await until(lambda: client.get(f"/v1/executions/{id}"), lambda answer: answer.json()["status"] in statuses)
    document: dict[str, Any] = found.json()
    return document


async def attempts(client: httpx2.AsyncClient, id: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (await client.get(f"/v1/executions/{id}/history")).json()["items"]
    return rows


# 1 --------------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("B4", "K4")
async def test_idempotent_creation_of_executions(make_site: MakeSite) -> None:
    site = await make_site(SagaBuilder("asks").approval("ok"))
    client, other = await site.client("acme"), await site.client("other")
    body = {"definition": "asks", "input": {"amount": 1}}
    key = {"Idempotency-Key": "k-1"}
    many = await asyncio.gather(*(client.post("/v1/executions", json=body, headers=key) for _ in range(20)))
    counts = Counter(answer.status_code for answer in many)
    assert counts[201] == 1
    assert counts[200] + counts[409] == 19, "409 while the first is under way (`test_in_flight.py`), then a replay"
    many = await asyncio.gather(*(client.post("/v1/executions", json=body, headers=key) for _ in range(20)))
    replayed = [answer for answer in many if answer.status_code == 200]
    assert replayed, "whoever comes first is not in anybody's way"
    assert {answer.headers.get("idempotency-replayed") for answer in replayed} == {"true"}
    assert len({answer.json()["execution_id"] for answer in replayed}) == 1

    changed = await client.post("/v1/executions", json={**body, "input": {"amount": 2}}, headers=key)
    assert (changed.status_code, changed.json()["code"]) == (422, "idempotency_conflict")
    theirs = await other.post("/v1/executions", json=body, headers=key)
    assert theirs.status_code == 201, "keys are each tenant's own"
    without = [await client.post("/v1/executions", json=body) for _ in range(2)]
    assert [answer.status_code for answer in without] == [201, 201]
    assert len((await client.get("/v1/executions")).json()["items"]) == 3


# 2 --------------------------------------------------------------------------------------------------------------------


class Receiver:
    """Somebody else's service, which honours the key: the same one twice is one effect."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.keys: list[str] = []
        self.effects: set[str] = set()

    async def call(self, ctx: SagaContext) -> str:
        self.keys.append(ctx.idempotency_key)
        self.effects.add(ctx.idempotency_key)
        if len(self.keys) <= self.failures:
            raise errors.TransientError("the answer was lost")
        return ctx.idempotency_key


@pytest.mark.requirement("D1", "K4")
async def test_step_idempotency_across_duplicate_jobs_and_retries(make_site: MakeSite) -> None:
    receiver = Receiver(failures=2)
    retry = Retry(max_attempts=3, initial="1ms")
    builder = SagaBuilder("s").step("send", receiver.call, retry=retry)
    site = await make_site(builder.step("then", receiver.call, depends_on=["send"]))
    client = await site.client()
    first = await start(client, "s", key="job-1")
    assert await start(client, "s", key="job-1") == first, "a duplicate job is the same execution"
    await ends(client, first, "succeeded")
    rows = await attempts(client, first)
    assert [row["attempt_number"] for row in rows if row["step_id"] == "send"] == [1, 2, 3]
    assert len({row["idempotency_key"] for row in rows if row["step_id"] == "send"}) == 1
    assert len(receiver.effects) == 2, "one for each step, however often it was tried"

    second = await start(client, "s")
    await ends(client, second, "succeeded")
    assert len(receiver.effects) == 4, "another execution has keys of its own"


@pytest.mark.requirement("D1", "K4")
async def test_a_job_that_is_handed_out_twice_has_one_effect(make_site: MakeSite, url: str) -> None:
    """The first worker is taken for dead, and is not: what it began is begun by another, under the same key."""
    receiver = Receiver(failures=0)
    begun, released = asyncio.Event(), asyncio.Event()

    async def hang(ctx: SagaContext) -> str:
        made = await receiver.call(ctx)
        begun.set()
        await released.wait()
        return made

    site = await make_site(SagaBuilder("s").step("send", receiver.call), worker=False)
    client = await site.client()
    id = await start(client, "s")
    async with Engine(url, shutdown_grace="1s", lease="1h") as first:
        first.register(SagaBuilder("s").step("send", hang))
        await begun.wait()
        await expire(url, os.getpid())
        async with Engine(url, shutdown_grace="1s") as second:
            second.register(SagaBuilder("s").step("send", receiver.call))
            await ends(client, id, "succeeded")
        released.set()
    rows = await attempts(client, id)
    assert [(row["attempt_number"], row["status"]) for row in rows] == [(1, "retrying"), (2, "succeeded")]
    assert {row["idempotency_key"] for row in rows} == set(receiver.keys)
    assert (len(receiver.keys), len(receiver.effects)) == (2, 1)


# 3 --------------------------------------------------------------------------------------------------------------------

MATRIX: dict[str, tuple[type[errors.StepError], int, str]] = {
    "TRANSIENT": (errors.TransientError, 3, "failed"),
    "RETRYABLE": (errors.RetryableError, 3, "failed"),
    "RATE_LIMITED": (errors.RateLimitedError, 3, "failed"),
    "DEPENDENCY_FAILED": (errors.DependencyFailedError, 3, "failed"),
    "NON_RETRYABLE": (errors.NonRetryableError, 1, "failed"),
    "COMPENSATION_REQUIRED": (errors.CompensationRequiredError, 1, "waiting_approval"),
}


@pytest.mark.requirement("C2", "K4")
@pytest.mark.parametrize("error_class", MATRIX)
async def test_retry_matrix_correctness(make_site: MakeSite, error_class: str) -> None:
    error, tries, status = MATRIX[error_class]

    async def fail() -> None:
        raise error("as asked", retry_after=0.001)

    retry = Retry(max_attempts=3, initial="1ms", maximum="2ms")
    site = await make_site(SagaBuilder("s").step("a", fail, retry=retry, compensate=fine))
    client = await site.client()
    id = await start(client, "s")
    await ends(client, id, status)
    rows = await attempts(client, id)
    assert [(row["error_class"], row["attempt_number"]) for row in rows if row["kind"] == "forward"] == [
        (error_class, number + 1) for number in range(tries)
    ]


async def fine() -> int:
    return 1


# 4 --------------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("I3", "K4")
@pytest.mark.parametrize(("error", "tries"), [(errors.NonRetryableError, 1), (errors.TransientError, 2)])
async def test_dlq_routing_for_non_retryable_and_exhausted_retries(
    make_site: MakeSite, error: type[errors.StepError], tries: int
) -> None:
    async def fail() -> None:
        raise error("it is broken")

    retry = Retry(max_attempts=2, initial="1ms")
    site = await make_site(SagaBuilder("s").step("a", fail, retry=retry))
    client = await site.client()
    id = await start(client, "s")
    failed = await ends(client, id, "failed")
    (letter,) = (await client.get("/v1/dlq")).json()["items"]
    assert (letter["execution_id"], letter["step_id"], letter["attempts"]) == (id, "a", tries)
    assert (letter["error_class"], letter["error_summary"]) == (error.error_class, "it is broken")
    assert failed["error"]["error_class"] == error.error_class
    (review,) = (await client.get("/v1/reviews", params={"kind": "dead_letter"})).json()["items"]
    assert review["id"] == letter["id"], "one queue shows all that waits for a person"


@pytest.mark.requirement("I3", "K4")
async def test_a_failure_that_is_answered_makes_no_dead_letter(make_site: MakeSite) -> None:
    async def fail(given: Any) -> None:
        raise errors.NonRetryableError("no")

    async def tell(given: Any) -> str:
        return "told"

    site = await make_site()
    site.engine.handler("fail", fail, tenants=["*"])
    site.engine.handler("tell", tell, tenants=["*"])
    client = await site.client()
    document = simple("answered", handler="fail", on_failure="tell")
    document["steps"].append({**document["steps"][0], "step_id": "tell", "handler": "tell"})
    document["steps"][1].pop("on_failure")
    at = (await client.post("/v1/definitions", json=document)).headers["location"]
    await client.post(f"{at}:publish")
    id = await start(client, "answered")
    await ends(client, id, "succeeded")
    assert (await client.get("/v1/dlq")).json()["items"] == []


# 5 --------------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("G1", "K4")
async def test_two_workers_cannot_run_the_same_step_concurrently(make_site: MakeSite, url: str) -> None:
    running: Counter[str] = Counter()
    most: Counter[str] = Counter()
    calls: Counter[str] = Counter()

    async def work(ctx: SagaContext) -> None:
        step = f"{ctx.execution_id}/{ctx.step_id}"
        running[step] += 1
        calls[step] += 1
        most[step] = max(most[step], running[step])
        for _ in range(10):
            await asyncio.to_thread(int)  # others get their turn, and their chance
        running[step] -= 1

    saga = SagaBuilder("s").step("a", work).step("b", work, depends_on=["a"])
    site = await make_site(saga, worker=False)
    client = await site.client()
    async with Engine(url, shutdown_grace="1s") as one, Engine(url, shutdown_grace="1s") as two:
        one.register(saga)
        two.register(saga)
        ids = [await start(client, "s") for _ in range(20)]
        for id in ids:
            await ends(client, id, "succeeded")
    assert set(most.values()) == {1}
    assert calls == {f"{id}/{step}": 1 for id in ids for step in "ab"}


# 6 --------------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("I3", "K4")
async def test_the_compensation_required_path_halts_and_surfaces_manual_action(make_site: MakeSite) -> None:
    undone: list[str] = []

    async def pay() -> None:
        raise errors.CompensationRequiredError("half of it was booked")

    async def refund() -> None:
        undone.append("pay")

    async def release() -> None:
        undone.append("reserve")

    builder = SagaBuilder("order").step("reserve", fine, compensate=release)
    site = await make_site(builder.step("pay", pay, compensate=refund, depends_on=["reserve"]))
    client = await site.client()
    id = await start(client, "order")
    halted = await ends(client, id, "waiting_approval")
    assert (halted["blocked"]["reason"], undone) == ("compensation_required", [])
    (review,) = (await client.get("/v1/reviews")).json()["items"]
    assert (review["kind"], review["id"]) == ("compensation", halted["blocked"]["review_id"])

    operator = await site.client("acme", "operator")
    refused = await operator.post(
        f"/v1/reviews/{review['id']}:resolve", json={"resolution": "compensate", "reason": "x"}
    )
    assert refused.status_code == 403, "the manual action is for those who may"
    body = {"resolution": "compensate", "reason": "looked at the account"}
    assert (await client.post(f"/v1/reviews/{review['id']}:resolve", json=body)).status_code == 200
    await ends(client, id, "failed")
    assert undone == ["pay", "reserve"]
    (row,) = (await client.get("/v1/audit", params={"object_id": review["id"]})).json()["items"]
    assert (row["action"], row["reason"]) == ("review.compensate", "looked at the account")

"""Whatever people do, in whatever order: the service says what it documents, and never that it broke.

Walks are made by a seed: executions of a few kinds are started, and then anything is asked of any of them, what fits
and what does not. Each answer must be one that the OpenAPI document has for its operation; what is over stays over.
"""

import random
from typing import Any

import httpx2
import pytest

from tenuto import SagaBuilder
from tenuto.errors import IndeterminateError, NonRetryableError
from tests.service.conftest import MakeSite, Site

STEPS = 150
SEEDS = (1, 2, 3)
FINAL = {"succeeded", "canceled"}


async def refuse() -> None:
    raise NonRetryableError("no")


async def unsure() -> None:
    raise IndeterminateError("who knows")


async def fine() -> int:
    return 1


SAGAS = (
    SagaBuilder("asks").step("book", fine, compensate=fine).approval("ok", depends_on=["book"]),
    SagaBuilder("fails").step("pay", refuse),
    SagaBuilder("unsure").step("pay", unsure, safety="not_safe_to_retry", compensate=fine),
    SagaBuilder("hears").signal("paid", "paid"),
    SagaBuilder("works").step("pay", fine),
)
COMMANDS: dict[str, dict[str, Any]] = {
    "POST /v1/executions/{id}:pause": {"reason": "x"},
    "POST /v1/executions/{id}:resume": {},
    "POST /v1/executions/{id}:cancel": {"mode": "compensate"},
    "POST /v1/executions/{id}:retry": {"reason": "x"},
    "POST /v1/executions/{id}/steps/{step_id}:approve": {"comment": "x"},
    "POST /v1/executions/{id}/steps/{step_id}:reject": {"comment": "x"},
    "POST /v1/executions/{id}/steps/{step_id}:retry": {"reason": "x", "again": True},
    "POST /v1/executions/{id}/signals/{name}": {"payload": 1},
    "POST /v1/dlq/{letter}:reprocess": {"reason": "x"},
    "POST /v1/dlq/{letter}:discard": {"reason": "x"},
    "POST /v1/reviews/{review}:resolve": {"resolution": "completed", "result": 2, "reason": "x"},
    "POST /v1/dlq:reprocess": {"limit": 2, "reason": "x"},
    "POST /v1/executions:cancel": {"definition": "hears", "limit": 2, "reason": "x"},
    "POST /v1/executions:retry": {"definition": "fails", "limit": 2, "reason": "x"},
}
READS = (
    "GET /v1/executions/{id}",
    "GET /v1/executions/{id}/history",
    "GET /v1/executions/{id}/steps",
    "GET /v1/executions/{id}/graph",
    "GET /v1/executions",
    "GET /v1/reviews",
    "GET /v1/dlq",
    "GET /v1/audit",
)


class Walk:
    def __init__(self, seed: int, client: httpx2.AsyncClient, document: dict[str, Any]) -> None:
        self.chance = random.Random(seed)
        self.client = client
        self.document = document
        self.ids: list[str] = ["0" * 22]
        self.reviews: list[str] = [f"{'0' * 22}.1"]
        self.over: dict[str, str] = {}
        self.seen: set[tuple[str, int]] = set()

    async def step(self) -> None:
        kind = self.chance.random()
        if kind < 0.15 or len(self.ids) < 3:
            await self.start()
        elif kind < 0.7:
            operation = self.chance.choice(list(COMMANDS))
            await self.ask(operation, COMMANDS[operation])
        else:
            await self.look(self.chance.choice(READS))

    async def start(self) -> None:
        definition = self.chance.choice(["asks", "fails", "unsure", "hears", "works", "nothing"])
        key = {"Idempotency-Key": f"key-{self.chance.randrange(30)}"}
        answer = await self.ask("POST /v1/executions", {"definition": definition, "input": None}, key)
        if answer.status_code == 201:
            self.ids.append(answer.json()["execution_id"])

    async def look(self, operation: str) -> None:
        answer = await self.ask(operation, None)
        if operation == "GET /v1/executions/{id}" and answer.status_code == 200:
            found = answer.json()
            id, status = found["execution_id"], found["status"]
            assert self.over.get(id, status) == status, "what is over stays over"
            if status in FINAL:
                self.over[id] = status
        if operation in ("GET /v1/reviews", "GET /v1/dlq"):
            self.reviews += [row["id"] for row in answer.json()["items"]]

    async def ask(self, operation: str, body: Any, headers: dict[str, str] | None = None) -> httpx2.Response:
        method, template = operation.split(" ")
        names = {
            "id": self.chance.choice(self.ids),
            "step_id": self.chance.choice(["book", "ok", "pay", "nothing"]),
            "name": self.chance.choice(["paid", "other"]),
            "letter": self.chance.choice(self.reviews),
            "review": self.chance.choice(self.reviews),
        }
        answer = await self.client.request(method, template.format(**names), json=body, headers=headers)
        path = template.replace("{letter}", "{id}").replace("{review}", "{id}")
        documented = self.document["paths"][path][method.lower()]["responses"]
        assert str(answer.status_code) in documented, (operation, answer.status_code, answer.text)
        assert answer.status_code < 500, (operation, answer.text)
        self.seen.add((operation, answer.status_code))
        return answer


@pytest.fixture
async def site(make_site: MakeSite) -> Site:
    return await make_site(*SAGAS)


@pytest.mark.requirement("K1")
@pytest.mark.parametrize("seed", SEEDS)
async def test_whatever_is_asked_in_whatever_order_is_answered_as_documented(site: Site, seed: int) -> None:
    client = await site.client()
    walk = Walk(seed, client, (await client.get("/openapi.json")).json())
    for _ in range(STEPS):
        await walk.step()
    assert {status for _, status in walk.seen} >= {200, 201, 404, 409}
    assert len({operation for operation, _ in walk.seen}) > 15

"""Attempts of an execution, selected by step, kind and status."""

from tenuto import Retry, SagaBuilder
from tenuto.errors import NonRetryableError, TransientError
from tests.service.conftest import MakeSite

TRIES: list[int] = []


async def reserve() -> str:
    return "r-1"


async def release() -> str:
    return "released"


async def each(n: int) -> int:
    return n


async def charge() -> str:
    TRIES.append(1)
    if len(TRIES) % 2:
        raise TransientError("busy")
    raise NonRetryableError("declined")


SAGA = (
    SagaBuilder("trip")
    .step("flight", reserve, compensate=release)
    .step("each", each, foreach="input", depends_on=["flight"])
    .step("charge", charge, depends_on=["each"], retry=Retry(2, initial="1ms"))
)


async def test_attempts_are_selected_by_step_kind_and_status(make_site: MakeSite) -> None:
    TRIES.clear()
    site = await make_site(SAGA)
    client = await site.client("acme")
    id = (await client.post("/v1/executions", json={"definition": "trip", "input": [1, 2, 3]})).json()["execution_id"]
    await client.get(f"/v1/executions/{id}", params={"wait": "terminal", "seconds": 60})

    async def found(**chosen: object) -> list[tuple[str, str, str]]:
        answer = await client.get(f"/v1/executions/{id}/history", params=chosen)  # type: ignore[arg-type]  # texts
        assert answer.status_code == 200, answer.text
        return [(row["step_id"], row["kind"], row["status"]) for row in answer.json()["items"]]

    assert await found(step_id="charge") == [("charge", "forward", "retrying"), ("charge", "forward", "failed")]
    assert await found(status="failed") == [("charge", "forward", "failed")]
    assert await found(kind="compensation") == [("flight", "compensation", "succeeded")]
    assert len(await found(step_id="each")) == 3
    assert len(await found(step_id="each#1")) == 1
    assert await found(step_id="nothing") == []

    first = (await client.get(f"/v1/executions/{id}/history", params={"step_id": "each", "limit": 2})).json()
    rest = {"step_id": "each", "limit": 2, "cursor": first["next_cursor"]}
    second = (await client.get(f"/v1/executions/{id}/history", params=rest)).json()
    assert ([len(page["items"]) for page in (first, second)], second["next_cursor"]) == ([2, 1], None)
    other = {"step_id": "charge", "cursor": first["next_cursor"]}
    assert (await client.get(f"/v1/executions/{id}/history", params=other)).status_code == 400
    for wrong in ({"kind": "wrong"}, {"status": "wrong"}, {"view": "events", "step_id": "each"}):
        assert (await client.get(f"/v1/executions/{id}/history", params=wrong)).status_code == 422

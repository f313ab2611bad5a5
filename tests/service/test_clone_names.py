"""The id of a clone in an address: whatever suffix its author gave it."""

from urllib.parse import quote

from tenuto import ExpandEach, SagaBuilder, StepInputs
from tenuto.errors import CompensationRequiredError
from tenuto.settings import Settings

from .conftest import MakeSite

LABELS = ["1", "0", "ann@x.org/home:2#b", "a:approve", "two\nlines"]


async def test_every_id_that_is_shown_can_be_decided(make_site: MakeSite) -> None:
    async def notify(name: str) -> None:
        raise CompensationRequiredError(name)

    async def undo() -> None: ...

    builder = SagaBuilder("s").step("notify", notify, compensate=undo, retry=0, failure_mode="continue")
    site = await make_site(builder.build(), settings=Settings(rate_per_second=0, verdict_seconds=60))
    http = await site.client()
    inputs = StepInputs({"notify": ExpandEach(LABELS, suffix=str)})
    handle = await site.engine.scoped(tenant="acme", actor="ann").start("s", inputs)
    await handle.result()

    open = (await http.get("/v1/reviews", params={"execution_id": handle.id})).json()["items"]
    assert {row["step_id"] for row in open} == {f"notify#{label}" for label in LABELS}
    for row in open:
        step = quote(row["step_id"], safe="")
        answer = await http.post(f"/v1/executions/{handle.id}/steps/{step}:reject", json={"comment": "it is not there"})
        assert answer.status_code == 200
        assert (await http.get(f"/v1/reviews/{row['id']}")).json()["state"] == "resolved"
    assert (await handle.result()).status == "succeeded"

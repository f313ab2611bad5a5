"""The overview: how many executions there are, and what needs attention."""

import asyncio

from tenuto import SagaBuilder
from tenuto.errors import NonRetryableError

from .conftest import MakeEngine


async def refuse() -> str:
    raise NonRetryableError("no")


async def test_an_overview_counts_what_there_is(make_engine: MakeEngine) -> None:
    waits, fails = (
        SagaBuilder("waits").approval("ok", deadline="1h").build(),
        SagaBuilder("fails").step("a", refuse).build(),
    )
    engine = await make_engine(waits, fails)
    empty = await engine.overview()
    assert set(empty["counts"].values()) == {0}
    assert empty["reviews"]["due"] == []
    waiting = await engine.start("waits", tenant="default")
    await waiting.result()
    await engine.execute("fails", tenant="default")
    paused = await engine.start("waits", tenant="default")
    await paused.result()
    await paused.pause()
    found = await engine.overview()
    counts = {status: count for status, count in found["counts"].items() if count}
    assert counts == {"waiting_approval": 1, "paused": 1, "failed": 1}
    assert found["reviews"]["open"]["approval"] == 2
    assert "dead_letter" not in found["reviews"]["open"]
    assert found["dlq"] == {"open": 1}
    assert [row["execution_id"] for row in found["reviews"]["due"]] == [waiting.id, paused.id]
    assert found["workers"] == 1
    assert found["queues"] == []


async def test_the_reviews_due_soonest_come_first(make_engine: MakeEngine) -> None:
    sagas = [
        SagaBuilder("someday").approval("ok").build(),
        SagaBuilder("later").approval("ok", deadline="2h").build(),
        SagaBuilder("sooner").approval("ok", deadline="1h").build(),
    ]
    engine = await make_engine(*sagas)
    ids = {}
    for name in ("someday", "later", "sooner"):
        ids[name] = (await engine.execute(name, tenant="default")).execution_id
    due = (await engine.overview())["reviews"]["due"]
    assert [row["execution_id"] for row in due] == [ids["sooner"], ids["later"], ids["someday"]]


async def test_an_overview_is_of_one_tenant(make_engine: MakeEngine) -> None:
    engine = await make_engine(SagaBuilder("s").approval("ok").build())
    await engine.execute("s", tenant="theirs")
    ours = await engine.scoped(tenant="ours", actor="a").overview()
    assert set(ours["counts"].values()) == {0}
    assert ours["reviews"]["open"]["approval"] == 0
    assert ours["workers"] is None
    assert (await engine.overview())["counts"]["waiting_approval"] == 1


async def test_all_who_ask_at_once_get_an_overview(make_engine: MakeEngine) -> None:
    engine = await make_engine(SagaBuilder("s").approval("ok").build())
    await engine.execute("s", tenant="default")
    found = await asyncio.gather(*(engine.overview() for _ in range(10)))
    assert {each["counts"]["waiting_approval"] for each in found} == {1}

"""What lists show: executions in a line each, the newest or the oldest first, and why some of them do not go on."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tenuto import Engine, Saga, approval, saga, step
from tenuto.errors import InvalidInput, NonRetryableError

from .conftest import MakeEngine

LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
LONG_HENCE = datetime(2200, 1, 1, tzinfo=UTC)


@saga("echo", output="say")
class Echo(Saga[str, str]):
    @step
    async def say(self, word: str) -> str:
        if word == "no":
            raise NonRetryableError("no is no word")
        return word


@saga("asks", output="consent")
class Asks(Saga[str, Any]):
    consent = approval()


async def listed(engine: Engine, **wanted: Any) -> list[str]:
    return [each["execution_id"] async for each in engine.summaries(**wanted)]


async def test_newest_first_and_oldest_first_are_each_others_mirror(make_engine: MakeEngine) -> None:
    engine = await make_engine(Echo())
    started = [(await engine.execute(Echo, "yes")).execution_id for _ in range(3)]
    assert await listed(engine) == started
    assert await listed(engine, newest_first=True) == started[::-1]
    assert await listed(engine, newest_first=True, definition="asks") == []


async def test_newest_first_goes_on_where_a_page_ends(make_engine: MakeEngine) -> None:
    engine = await make_engine(Echo())
    batch = await engine.start_many(Echo, ["yes"] * 130)
    async for _ in batch.results():
        pass
    assert await listed(engine, newest_first=True) == list(batch.execution_ids)[::-1]


async def test_a_line_says_what_it_is_and_how_it_ended(make_engine: MakeEngine) -> None:
    engine = await make_engine(Echo())
    result = await engine.execute(Echo, "no", target=("invoice", "i-7"), correlation_id="root-1")
    (line,) = [each async for each in engine.summaries()]
    completed_at = line["completed_at"]
    assert completed_at is not None
    assert datetime.fromisoformat(line["started_at"]) <= datetime.fromisoformat(completed_at)
    assert line == {
        "execution_id": result.execution_id,
        "definition_id": "echo",
        "definition_version": 1,
        "status": "failed",
        "tenant_id": "default",
        "target_object_type": "invoice",
        "target_object_id": "i-7",
        "correlation_id": "root-1",
        "started_at": line["started_at"],
        "completed_at": completed_at,
        "error_class": "NON_RETRYABLE",
    }


@pytest.mark.requirement("I8")
async def test_what_is_blocked_is_found_and_says_why(make_engine: MakeEngine) -> None:
    engine = await make_engine(Echo(), Asks())
    await engine.execute(Echo, "yes")
    waiting = (await engine.execute(Asks, "?")).execution_id
    (line,) = [each async for each in engine.summaries(blocked=True)]
    assert line["execution_id"] == waiting
    assert line["completed_at"] is None
    assert line["blocked"] is not None
    assert (line["blocked"]["reason"], line["blocked"]["waiting_for"]) == ("approval", "consent")
    assert await listed(engine, blocked=True, before=LONG_HENCE) == [waiting]
    assert await listed(engine, blocked=True, before=LONG_AGO) == []
    await engine.get(waiting).approve("consent")
    await engine.get(waiting).result()
    assert await listed(engine, blocked=True) == []


async def test_before_and_since_bound_the_start(make_engine: MakeEngine) -> None:
    engine = await make_engine(Echo())
    one = (await engine.execute(Echo, "yes")).execution_id
    assert await listed(engine, before=LONG_AGO) == []
    assert await listed(engine, before=LONG_HENCE, since=LONG_AGO) == [one]


async def test_lines_of_another_tenant_are_not_shown(make_engine: MakeEngine) -> None:
    engine = await make_engine(Echo(), Asks())
    await engine.execute(Asks, "?", tenant="theirs")
    ours = engine.scoped(tenant="ours", actor="ada")
    assert await listed(ours) == await listed(ours, blocked=True) == []


async def test_workers_are_those_that_run_steps(make_engine: MakeEngine) -> None:
    engine = await make_engine(Asks(), queues=("default", "mail"), build="b7")
    await make_engine(worker=False)
    (worker,) = await engine.workers()
    assert (worker["queues"], worker["build"]) == (["default", "mail"], "b7")
    assert worker["worker"]


async def test_a_filter_that_makes_no_sense_is_told_with_what_does(make_engine: MakeEngine) -> None:
    """Nothing would fit it, and whoever misspelt it would think that there is nothing."""
    engine = await make_engine(Echo())
    odd: Any = "odd"
    asked = (
        ("/status: 'odd' is not one of running,", engine.summaries(status=odd).__anext__()),
        ("/status: 'odd' is not one of running,", engine.executions(status=odd).__anext__()),
        ("/kind: 'odd' is not one of approval,", engine.reviews(kind=odd).__anext__()),
        ("/error_class: 'odd' is not one of TRANSIENT,", engine.dlq(error_class=odd).__anext__()),
        ("/group_by: 'odd' is not one of status, definition", engine.count(group_by=odd)),
        ("/kind: 'odd' is not one of approval,", engine.listing.reviews(kind=odd)),
        ("/error_class: 'odd' is not one of TRANSIENT,", engine.listing.dlq(error_class=odd)),
        ("/limit: 1 or more", engine.listing.executions(limit=0)),
        ("/limit: 1 or more", engine.listing.reviews(limit=odd)),
        ("/limit: at most", engine.listing.dlq(limit=10**20)),
        ("/limit: 1 or more", engine.listing.attempts("1a", limit=0)),
        ("/limit: 1 or more", engine.listing.events("1a", limit=0)),
        ("/after: 0 or more", engine.listing.events("1a", after=-1)),
        ("/limit: 1 or more", engine.listing.clones("1a", "each", limit=0)),
        ("/limit: 1 or more", engine.audit.page(limit=0)),
        ("/limit: at most", engine.audit.page(limit=10**20)),
        ("/limit: 1 or more", engine.audit.chain(0, 0)),
        ("/after: 0 or more", engine.audit.chain(-1, 1)),
        ("/limit: 1 or more", engine.catalog.list(limit=-1)),
        ("/status: 'odd' is not one of draft,", engine.catalog.list(status=odd)),
        ("/version: must be a whole number from 1", engine.start(Echo, "yes", version=0)),
        ("/version: must be a whole number from 1", engine.start(Echo, "yes", version=10**20)),
        ("/concurrency: must be at most", engine.limit("bank", concurrency=10**20)),
    )
    for told, question in asked:
        with pytest.raises(InvalidInput, match=told):
            await question


@pytest.mark.parametrize("wrong", ["\0", "\ud800", 5, b"text"])
async def test_a_filter_that_no_text_can_be_compared_with_is_refused(make_engine: MakeEngine, wrong: Any) -> None:
    """A database would refuse it as data, which sounds as if the database were at fault."""
    engine = await make_engine(Echo())
    asked = {
        "definition": (
            engine.listing.executions(definition=wrong),
            engine.listing.reviews(definition=wrong),
            engine.listing.dlq(definition=wrong),
            engine.count(definition=wrong),
            engine.executions(definition=wrong).__anext__(),
            engine.reviews(definition=wrong).__anext__(),
            engine.dlq(definition=wrong).__anext__(),
            engine.cancel_many(definition=wrong, reason="r"),
        ),
        "correlation_id": (engine.listing.executions(correlation_id=wrong), engine.count(correlation_id=wrong)),
        "target_id": (engine.listing.executions(target_id=wrong), engine.retry_many(target_id=wrong, reason="r")),
        "execution_id": (engine.listing.reviews(execution_id=wrong),),
        "action": (engine.audit.page(action=wrong), engine.audit.rows(action=wrong).__anext__()),
        "actor": (engine.audit.page(actor=wrong),),
        "object_id": (engine.audit.page(object_id=wrong),),
        "name": (engine.catalog.list(name=wrong),),
    }
    for field, questions in asked.items():
        for question in questions:
            with pytest.raises(InvalidInput, match=f"/{field}: "):
                await question


async def test_a_moment_is_a_moment(make_engine: MakeEngine) -> None:
    engine = await make_engine(Echo())
    wrong: Any = "2026-01-01T00:00:00Z"
    for question in (
        engine.listing.executions(since=wrong),
        engine.executions(since=wrong).__anext__(),
        engine.retry_many(since=wrong, reason="r"),
    ):
        with pytest.raises(InvalidInput, match="/since: it is a moment"):
            await question
    with pytest.raises(InvalidInput, match="/before: it is a moment"):
        await engine.listing.dlq(before=wrong)

"""The feed: status changes of executions, and the events of those that are watched."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
import pytest

from tenuto import Engine, SagaBuilder
from tenuto.errors import InvalidInput, NotFound

from .conftest import MakeEngine


class Following:
    """A feed, and the events that have come."""

    def __init__(self, engine: Engine, **options: Any) -> None:
        self.events: list[Any] = []
        self._chunks = engine.feed_chunks(**options)
        self.reached = ""

    async def until_open(self) -> None:
        """Waits for the first chunk: from here on, nothing is missed."""
        await self._take()

    async def until(self, *wanted: tuple[str, str]) -> list[Any]:
        """Waits until these executions had these statuses, and returns all events so far."""
        async with asyncio.timeout(20):
            while not set(wanted) <= {(each["execution_id"], each["status"]) for each in self.of("status")}:
                await self._take()
        return self.events

    async def until_event(self, seq: int) -> list[int]:
        """Waits for this event of the execution that is watched, and returns the numbers of all."""
        async with asyncio.timeout(20):
            while seq not in [each["seq"] for each in self.of("event")]:
                await self._take()
        return [each["seq"] for each in self.of("event")]

    async def until_reset(self) -> None:
        async with asyncio.timeout(20):
            while not self.of("reset"):
                await self._take()

    def of(self, kind: str) -> list[Any]:
        return [document for event, document in self.events if event == kind]

    async def _take(self) -> None:
        chunk = await anext(self._chunks)
        self.reached = chunk.id
        self.events += [(event.kind, event.document) for event in chunk.events]

    async def close(self) -> None:
        assert isinstance(self._chunks, AsyncGenerator)
        await self._chunks.aclose()


async def follow(engine: Engine, **options: Any) -> Following:
    following = Following(engine, **options)
    await following.until_open()
    return following


async def test_status_changes_are_in_the_feed(make_engine: MakeEngine) -> None:
    engine = await make_engine(SagaBuilder("s").approval("ok").build())
    feed = await follow(engine)
    handle = await engine.start("s", tenant="default")
    await feed.until((handle.id, "waiting_approval"))
    await handle.approve("ok")
    await feed.until((handle.id, "succeeded"))
    last = feed.of("status")[-1]
    document = await handle.status()
    assert last == {
        "execution_id": handle.id,
        "definition_id": "s",
        "definition_version": 1,
        "status": "succeeded",
        "seq": len([event async for event in handle.events()]),
        "at": last["at"],
        "started_at": document["started_at"],
        "completed_at": document["completed_at"],
        "error_class": None,
    }
    await feed.close()


async def test_a_feed_continues_where_it_stopped(make_engine: MakeEngine) -> None:
    engine = await make_engine(SagaBuilder("s").approval("ok").build())
    feed = await follow(engine)
    first = await engine.start("s", tenant="default")
    await feed.until((first.id, "waiting_approval"))
    await feed.close()
    second = await engine.start("s", tenant="default")
    await second.result()
    again = await follow(engine, after=feed.reached)
    await again.until((second.id, "waiting_approval"))
    assert {each["execution_id"] for each in again.of("status")} == {second.id}
    assert again.of("reset") == []
    await again.close()


@pytest.mark.parametrize("lost", ["999999999", "not an id", "-1", "1-2-x"])
async def test_a_feed_that_cannot_continue_begins_with_a_reset(make_engine: MakeEngine, lost: str) -> None:
    engine = await make_engine(SagaBuilder("s").approval("ok").build())
    feed = Following(engine, after=lost)
    await feed.until_reset()
    handle = await engine.start("s", tenant="default")
    await feed.until((handle.id, "waiting_approval"))
    await feed.close()


async def test_events_of_watched_executions_are_in_the_feed(make_engine: MakeEngine) -> None:
    engine = await make_engine(SagaBuilder("s").approval("first").approval("second").build())
    handle, other = await engine.start("s", tenant="default"), await engine.start("s", tenant="default")
    await handle.result()
    known = [event["seq"] for event in await _events(engine, handle.id)]
    feed = await follow(engine, watch=[handle.id])
    await handle.approve("first")
    await other.approve("first")
    new = [event for event in await _events(engine, handle.id) if event["seq"] not in known]
    await feed.until_event(new[-1]["seq"])
    assert feed.of("event") == [{"execution_id": handle.id, **_as_json(event)} for event in new]
    await feed.close()


async def test_watched_executions_continue_after_a_known_event(make_engine: MakeEngine) -> None:
    engine = await make_engine(SagaBuilder("s").approval("ok").build())
    handle = await engine.start("s", tenant="default")
    await handle.result()
    all_of_it = [event["seq"] for event in await _events(engine, handle.id)]
    feed = await follow(engine, watch=[f"{handle.id}:1"])
    assert await feed.until_event(all_of_it[-1]) == all_of_it[1:]
    await feed.close()
    late = await follow(engine, watch=[f"{handle.id}:0"], after=feed.reached)
    await handle.approve("ok")
    new = [event["seq"] for event in await _events(engine, handle.id)][len(all_of_it) :]
    assert await late.until_event(new[-1]) == new  # `after` is later than what `watch` says
    await late.close()


async def test_a_feed_that_continues_with_another_execution_begins_that_one_now(make_engine: MakeEngine) -> None:
    engine = await make_engine(SagaBuilder("s").approval("first").approval("second").build())
    long, short = await engine.start("s", tenant="default"), await engine.start("s", tenant="default")
    await long.approve("first")
    await short.result()
    feed = await follow(engine, watch=[long.id])
    await feed.close()
    other = await follow(engine, watch=[short.id], after=feed.reached)
    known = len(await _events(engine, short.id))
    await short.approve("first")
    new = [event["seq"] for event in await _events(engine, short.id)][known:]
    assert await other.until_event(new[-1]) == new
    await other.close()


async def test_two_viewers_of_one_execution_see_the_same(make_engine: MakeEngine) -> None:
    engine = await make_engine(SagaBuilder("s").approval("ok").build())
    handle = await engine.start("s", tenant="default")
    await handle.result()
    first = await follow(engine, watch=[handle.id])
    second = await follow(engine, watch=[f"{handle.id}:0"])
    await handle.approve("ok")
    last = len(await _events(engine, handle.id))
    assert (await second.until_event(last))[-1] == (await first.until_event(last))[-1] == last
    assert [each["seq"] for each in second.of("event")] == list(range(1, last + 1))
    await first.close()
    await second.close()


async def test_the_feed_refuses_what_cannot_be_watched(make_engine: MakeEngine) -> None:
    engine = await make_engine(SagaBuilder("s").approval("ok").build())
    handle = await engine.start("s", tenant="default")
    with pytest.raises(NotFound):
        await follow(engine, watch=["1a1e1c763e38d8d06329bb"])
    with pytest.raises(InvalidInput, match="ID:SEQ"):
        await follow(engine, watch=[f"{handle.id}:x"])
    with pytest.raises(InvalidInput, match="at most 20"):
        await follow(engine, watch=[f"{number}" for number in range(21)])


async def test_changes_of_other_tenants_are_not_in_the_feed(make_engine: MakeEngine) -> None:
    engine = await make_engine(SagaBuilder("s").approval("ok").build())
    ours = engine.scoped(tenant="ours", actor="a")
    feed, everything = await follow(ours), await follow(engine)
    theirs = await engine.start("s", tenant="theirs")
    await everything.until((theirs.id, "waiting_approval"))
    own = await ours.start("s")
    await feed.until((own.id, "waiting_approval"))
    assert {each["execution_id"] for each in feed.of("status")} == {own.id}
    with pytest.raises(NotFound):
        await follow(ours, watch=[theirs.id])
    await feed.close()
    await everything.close()


async def test_the_feed_is_read_as_documents(make_engine: MakeEngine) -> None:
    engine = await make_engine(SagaBuilder("s").approval("ok").build())
    handle = await engine.start("s", tenant="default")
    await handle.result()
    found = engine.feed(watch=[f"{handle.id}:0"])
    assert isinstance(found, AsyncGenerator)
    async with aclosing(found) as feed, asyncio.timeout(20):
        first = await anext(feed)
    assert first["event"] == "event"
    assert first["data"] is not None
    assert first["data"]["execution_id"] == handle.id


def _as_json(event: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(event))


async def _events(engine: Engine, id: str) -> list[Any]:
    return list((await engine.listing.events(id)).items)

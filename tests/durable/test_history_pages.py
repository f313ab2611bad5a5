"""Pages of a long history cost in proportion to the page: its events are read alone, and the rest is folded once."""

from typing import Any

import pytest

from tenuto import Engine, ExpandEach, SagaBuilder, StepInputs
from tenuto.errors import NotFound
from tests.seams import store_of

CLONES = 400


async def double(number: int) -> int:
    return 2 * number


SAGA = SagaBuilder("many").step("all", double).build()


@pytest.fixture
async def finished(url: str) -> str:
    async with Engine(url) as engine:
        engine.register(SAGA)
        result = await engine.execute("many", StepInputs({"all": ExpandEach(range(CLONES))}), tenant="ours")
        assert result.status == "succeeded"
        return result.execution_id


class Counted:
    """Counts histories that are loaded, and rows of events that are read."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loads, self.rows = 0, 0
        executions: Any = type(store_of(engine).executions)
        load, bodies = executions.load, executions.bodies

        async def counted_load(reads: Any, *args: Any, **options: Any) -> Any:
            self.loads += 1
            return await load(reads, *args, **options)

        async def counted_bodies(reads: Any, *args: Any) -> Any:
            found = await bodies(reads, *args)
            self.rows += len(found)
            return found

        monkeypatch.setattr(executions, "load", counted_load)
        monkeypatch.setattr(executions, "bodies", counted_bodies)


async def pages(fetch: Any) -> list[Any]:
    found: list[Any] = []
    cursor = None
    while True:
        page = await fetch(cursor)
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            return found


async def test_all_pages_of_a_finished_execution_are_folded_once(
    url: str, finished: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Engine(url, worker=False) as engine:
        listing = engine.scoped(tenant="ours", actor="a").listing
        counted = Counted(engine, monkeypatch)
        attempts = await pages(lambda cursor: listing.attempts(finished, cursor=cursor, limit=50))
        clones = await pages(lambda cursor: listing.clones(finished, "all", cursor=cursor, limit=50))
        assert (len(attempts), len(clones)) == (CLONES, CLONES)
        assert counted.loads == 1
        assert await engine.get(finished).history() == attempts


async def test_a_page_of_events_reads_its_own_rows_alone(
    url: str, finished: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Engine(url, worker=False) as engine:
        listing = engine.scoped(tenant="ours", actor="a").listing
        every = await pages(lambda cursor: listing.events(finished, cursor=cursor, limit=100))
        assert [event["seq"] for event in every] == list(range(1, len(every) + 1))
        counted = Counted(engine, monkeypatch)
        last = await listing.events(finished, after=len(every) - 10, limit=5)
        assert [event["seq"] for event in last.items] == [event["seq"] for event in every[-10:-5]]
        assert counted.loads == 0
        assert counted.rows <= 6
        assert (await listing.events(finished, after=len(every))).items == []


async def test_a_reading_that_is_kept_is_of_its_tenant_and_of_what_is_stored(url: str, finished: str) -> None:
    async with Engine(url, worker=False) as engine:
        ours, theirs = (engine.scoped(tenant=name, actor="a").listing for name in ("ours", "theirs"))
        assert len((await ours.attempts(finished, limit=10)).items) == 10
        with pytest.raises(NotFound):
            await theirs.attempts(finished, limit=10)
        with pytest.raises(NotFound):
            await theirs.events(finished, limit=10)
        await engine.prune(older_than="1ms")
        with pytest.raises(NotFound):
            await ours.attempts(finished, limit=10)
        with pytest.raises(NotFound):
            await ours.events(finished, limit=10)

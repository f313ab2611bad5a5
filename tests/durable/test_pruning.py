"""What is over is removed, as a whole and in small pieces; what somebody still needs is not."""

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import Any

import msgspec
import pytest

from tenuto import Engine, SagaBuilder, SagaContext
from tenuto.errors import NonRetryableError, NotFound, StorageError
from tenuto.storage import Store
from tenuto.storage.port import Batch, SnapshotRow
from tenuto.storage.pruning import AT_ONCE, ENTRIES_AT_ONCE, Cursor, Pruning
from tenuto.storage.statements import Statement
from tenuto.views.projections import OutboxRow, ReviewRow
from tests.contract.doubles import transaction
from tests.durable.rows import append, standing, start
from tests.seams import keep_watcher_idle, store_of, watcher_of

TABLES = ("events", "snapshots", "reviews", "mailbox", "outbox")
MINUTE = 60_000
PATIENCE = 120


async def _session(store: Store, id: str = "s1") -> None:
    await store.sessions.open(id, "worker", "build", MINUTE, ())


async def _ended(store: Store, id: str, at: int, *, entries: int = 1, **parts: Any) -> None:
    """An execution that ended at this time, with rows of every kind."""
    where = standing(id, "succeeded", release=True, ended=True)
    await store.commit(
        Batch(
            session="s1",
            starts=[start(id)],
            standings={id: msgspec.structs.replace(where, ended_at=at, seq=entries)},
            appends=[append(id, seq) for seq in range(1, entries + 1)],
            snapshots=[SnapshotRow(id, 1, b"{}")],
            **parts,
        )
    )


def _review(execution: str) -> ReviewRow:
    return ReviewRow(
        id=f"{execution}.1",
        execution=execution,
        tenant="t",
        definition="d",
        kind="dead_letter",
        path="",
        step="",
        reason="",
        permission="",
        error_class="",
        error_summary="",
        attempts=1,
        opened_at=1,
        due_at=None,
    )


async def _left(store: Any, execution: str) -> set[str]:
    queries = [(table, f"SELECT 1 FROM {table} WHERE execution = $1 LIMIT 1") for table in TABLES]  # noqa: S608  (our own names)
    left = {table for table, query in queries if await store.database.fetch(query, (execution,))}
    rows = await store.database.fetch("SELECT 1 FROM executions WHERE id = $1", (execution,))
    return left | ({"row"} if rows else set())


async def _sweep(store: Store, before: int) -> int:
    removed, cursor = 0, Cursor()
    while True:
        some, after = await store.pruning.executions(before, cursor)
        removed += some
        if after is None:
            return removed
        cursor = after


@pytest.mark.requirement("J7")
async def test_what_ended_before_goes_as_a_whole_and_the_rest_stays(store: Store) -> None:
    await _session(store)
    await _ended(store, "old", 100)
    await _ended(store, "new", 200)
    await store.commit(Batch(session="s1", starts=[start("open")], standings={"open": standing("open")}))
    assert await _sweep(store, 200) == 1
    assert await _left(store, "old") == set()
    assert await _left(store, "new") == {"row", "events", "snapshots"}
    assert await store.executions.find("open") is not None


async def test_an_open_dead_letter_keeps_its_execution_until_it_is_closed(store: Store) -> None:
    await _session(store)
    await _ended(store, "x1", 100, reviews=[_review("x1")])
    assert await _sweep(store, 200) == 0
    assert await _left(store, "x1") == {"row", "events", "snapshots", "reviews"}
    await store.database.run("UPDATE reviews SET resolution = 'dismiss'", ())  # type: ignore[attr-defined]  # of both stores
    assert await _sweep(store, 200) == 1
    assert await _left(store, "x1") == set()


async def test_a_message_that_has_not_left_keeps_its_execution(store: Store) -> None:
    await _session(store)
    await _ended(store, "x1", 100, outbox=[OutboxRow("x1", 1, "t", "kind", b"{}", 1)])
    assert await _sweep(store, 200) == 0
    await store.outbox.take("s1", 10, 1)
    await store.outbox.published("s1", 10, [("x1", 1)])
    assert await _sweep(store, 200) == 1
    assert await _left(store, "x1") == set()


async def test_mail_keeps_its_execution_until_somebody_has_read_it(store: Store) -> None:
    await _session(store)
    await _ended(store, "x1", 100)
    await store.mailbox.post("m1", "x1", b"{}")
    assert await _sweep(store, 1 << 60) == 0
    await store.claims.claim_one("s1", "x1")
    assert await _sweep(store, 1 << 60) == 0, "somebody has it in hand"


async def test_a_sweep_passes_over_what_is_kept_and_comes_to_its_end(store: Store) -> None:
    await _session(store)
    for number in range(AT_ONCE + 50):
        kept = number < AT_ONCE
        await _ended(store, f"x{number:04}", 100 + number, reviews=[_review(f"x{number:04}")] if kept else [])
    assert await _sweep(store, 10_000) == 50


async def test_a_long_history_goes_in_pieces_and_is_finished_by_others(store: Store) -> None:
    await _session(store)
    await _ended(store, "long", 100, entries=ENTRIES_AT_ONCE + 10)
    dying = Pruning(Dying(store, after=1))
    with pytest.raises(StorageError):
        await dying.executions(200, Cursor())
    assert await store.executions.find("long") is None
    assert "events" in await _left(store, "long")
    await store.pruning.leftovers()
    assert await _left(store, "long") == set()
    assert await store.database.fetch("SELECT 1 FROM leftovers", ()) == []  # type: ignore[attr-defined]  # of both stores


class Dying:
    """A store whose process is gone after so many writes."""

    def __init__(self, store: Any, after: int) -> None:
        self._store = store
        self._left = after

    async def fetch(self, query: str, values: Sequence[object]) -> list[Any]:
        found: list[Any] = await self._store.database.fetch(query, values)
        return found

    async def run(self, query: str, values: Sequence[object]) -> list[Any]:
        self._count()
        found: list[Any] = await self._store.database.run(query, values)
        return found

    async def run_all(self, statements: Sequence[Statement]) -> bool:
        self._count()
        done: bool = await self._store.database.run_all(statements)
        return done

    def _count(self) -> None:
        if not self._left:
            raise StorageError("gone")
        self._left -= 1


async def test_what_is_remembered_of_messages_goes_by_age_and_step_marks_with_their_execution(url: str) -> None:
    async def work(ctx: SagaContext) -> None:
        async with transaction(url) as connection, ctx.once(connection) as first:
            assert first

    async with Engine(url) as engine:
        engine.register(SagaBuilder("s").step("work", work))
        handle = await engine.start("s")
        await handle.result()
        async with transaction(url) as connection, engine.inbox("billing", "m1", connection) as first:
            assert first
        pruned = await engine.prune(older_than="1h")
        assert pruned.notes == 0, "seven days at least"
        store: Any = store_of(engine)  # to look at the rows
        assert await store.pruning.notes(1 << 60) == 1
        assert [row[0] for row in await store.database.fetch("SELECT consumer FROM inbox", ())] == [
            f"tenuto.once/{handle.id}"
        ]
        while await engine.count():
            await engine.prune(older_than=0)
        assert await store.database.fetch("SELECT consumer FROM inbox", ()) == []


async def test_pruning_while_others_work(url: str) -> None:
    """A sweep that removes everything at once, again and again, under executions that come and go."""
    pruned = 0

    async def work(number: int) -> int:
        return number

    async def sweep(engine: Engine, until: asyncio.Event) -> None:
        nonlocal pruned
        while not until.is_set():
            pruned += (await engine.prune(older_than=0)).executions

    builder = SagaBuilder("s", output="a").step("a", work).step("b", work, depends_on=["a"])
    async with Engine(url) as worker, Engine(url) as other:
        for engine in (worker, other):
            engine.register(builder)
        done = asyncio.Event()
        sweeps = [asyncio.create_task(sweep(engine, done)) for engine in (worker, other)]
        while not pruned:  # once may be too little: if all of them end in one commit, there is nothing before
            results = await asyncio.gather(*(engine.execute("s", n) for n in range(100) for engine in (worker, other)))
            assert sorted(result.output for result in results) == sorted([*range(100)] * 2)
        done.set()
        await asyncio.gather(*sweeps)
        while await worker.count():
            await worker.prune(older_than=0)


@pytest.mark.requirement("J7")
async def test_an_engine_prunes_by_itself_where_that_is_asked_for(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tenuto.runtime.shared import retention

    monkeypatch.setattr(retention, "SHORTEST_SECONDS", 0.01)
    async with Engine(url, retention="1ms") as engine:
        engine.register(SagaBuilder("s").step("work", lambda: None))
        await engine.execute("s")
        while await engine.count():
            pass


async def test_a_failure_that_nobody_looked_at_is_not_pruned_by_an_engine(url: str) -> None:
    async def fail() -> None:
        raise NonRetryableError("no")

    async with Engine(url) as engine:
        engine.register(SagaBuilder("s").step("fail", fail))
        result = await engine.execute("s")
        assert (await engine.prune(older_than=0)).executions == 0
        (letter,) = [letter async for letter in engine.dlq()]
        await engine.resolve(letter["id"], "dismiss", reason="seen")
        while await engine.count():
            await engine.prune(older_than=0)
        assert result.status == "failed"


async def test_an_execution_that_is_gone_has_moved(store: Store) -> None:
    await _session(store)
    await _ended(store, "x1", 100)
    assert await store.executions.changed([("x1", "succeeded"), ("gone", "running")]) == ["gone"]


async def test_who_waits_for_an_execution_that_is_pruned_is_told(url: str) -> None:
    """He has not looked since it was running."""
    go_on = asyncio.Event()

    async def work() -> None:
        await go_on.wait()

    async with Engine(url) as engine, Engine(url, worker=False) as other:
        engine.register(SagaBuilder("s").step("work", work))
        handle = await engine.start("s")
        watched = watcher_of(other)
        keep_watcher_idle(watched, monotonic() + 3_600)
        waiting = asyncio.create_task(other.get(handle.id).result())
        while not watched:
            await asyncio.to_thread(lambda: None)
        go_on.set()
        await handle.result()
        while await engine.count():
            await engine.prune(older_than=0)
        keep_watcher_idle(watched, 0.0)
        with pytest.raises(NotFound):
            await asyncio.wait_for(waiting, PATIENCE)

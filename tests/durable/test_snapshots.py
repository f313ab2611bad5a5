"""Snapshots cut long histories short, and change nothing: not the state, not what handlers read, not what is shown."""

from dataclasses import dataclass
from typing import Annotated

import asyncpg
import pytest

from tenuto import Engine, FromStep, Saga, SagaContext, approval, saga, step
from tenuto.authoring.program import Program
from tenuto.authoring.programs import compile_document
from tenuto.kernel.codec import encode_entries, encode_snapshot
from tenuto.kernel.events import Entry
from tenuto.kernel.evolve import fold
from tenuto.kernel.state import Execution
from tenuto.runtime.durable import snapshots
from tenuto.runtime.executor import Performer
from tenuto.runtime.executor.held_execution import Record
from tenuto.storage import Store, make_store
from tenuto.storage.port import ExecutionRow, Loaded, SnapshotRow
from tests.kernel import history
from tests.seams import controller_in_memory
from tests.servers import sqlite

CLONES = 40


@pytest.fixture
def at_every_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots as often as the rule allows, however short the history."""
    monkeypatch.setattr(snapshots, "SMALLEST_TAIL", 0)


# What is restored is what would have been folded ----------------------------------------------------------------------


@pytest.mark.parametrize("name", history.names())
def test_a_snapshot_and_what_followed_are_the_state_that_the_history_folds_to(name: str) -> None:
    kept = history.load(name)
    plan = history.plan_of(kept)
    decisions = history.decisions_of(kept)
    whole = encode_snapshot(fold(Execution(plan), [entry for decision in decisions for entry in decision]))
    program = compile_document(plan.definition, {})
    for cut in range(1, len(decisions)):
        loaded = _cut(_record(program, decisions[:cut]), decisions, cut)
        restored = _record(program, [])
        assert snapshots.restore(restored, loaded)
        assert encode_snapshot(restored.state) == whole
        assert len(restored.history) == restored.state.seq
        alone = snapshots.state_of(plan, loaded)
        assert alone is not None
        assert encode_snapshot(alone) == whole
        snapshots.fill(restored, [encode_entries(decision) for decision in decisions[:cut]])
        assert restored.history == [entry for decision in decisions for entry in decision]


def _record(program: Program, decisions: list[list[Entry]]) -> Record:
    record = Record(controller_in_memory(), Performer(program, {}), None)
    for decision in decisions:
        fold(record.state, decision)
        record.note(decision)
    return record


def _cut(record: Record, decisions: list[list[Entry]], cut: int) -> Loaded:
    bodies = [encode_entries(decisions[0]), *(encode_entries(decision) for decision in decisions[cut:])]
    return Loaded(_row(record.state.id), snapshots.take(record), bodies)


def _row(id: str) -> ExecutionRow:
    values: dict[str, object] = dict.fromkeys(ExecutionRow.__struct_fields__, "")
    return ExecutionRow(**{**values, "id": id})  # type: ignore[arg-type]  # nothing else of the row is read


# What handlers read, and what people are shown ------------------------------------------------------------------------


@dataclass
class Order:
    numbers: list[int]
    text: str


@saga("long", output="total")
class Long(Saga[Order, str]):
    """Results from before a pause, and the items of a fan-out, are read by steps after it."""

    @step
    async def prices(self, order: Order) -> list[int]:
        return [number * 10 for number in order.numbers]

    @step(foreach="steps.prices.result")
    async def charged(self, price: int) -> int:
        return price + 1

    agreed = approval(depends_on=[charged])

    @step(foreach="steps.prices.result", depends_on=["agreed"])
    async def sent(self, price: int) -> str:
        return f"sent {price}"

    @step
    async def total(
        self,
        charged: Annotated[list[int], FromStep(charged)],
        sent: Annotated[list[str], FromStep(sent)],
        order: Order,
        ctx: SagaContext,
    ) -> str:
        first = ctx.result_of("prices")
        return f"{order.text}: {sum(charged)} for {len(sent)}, {first[-1]}, {sent[-1]}"


@pytest.mark.usefixtures("at_every_chance")
async def test_what_was_recorded_before_a_snapshot_is_read_after_it(url: str) -> None:
    async with Engine(url) as engine:
        engine.register(Long())
        handle = await engine.start(Long, Order(list(range(CLONES)), "order"))
        result = await handle.result()
        assert result.status == "waiting_approval"
    taken = await _snapshot(url, handle.id)
    assert taken is not None
    async with Engine(url) as engine:
        engine.register(Long())
        assert [row["kind"] async for row in engine.reviews()] == ["approval"]
        await engine.get(handle.id).approve("agreed")
        result = await engine.get(handle.id).result()
        attempts = await engine.get(handle.id).history()
    assert result.output == f"order: {sum(10 * n + 1 for n in range(CLONES))} for {CLONES}, 390, sent 390"
    assert len(attempts) == 2 * CLONES + 3
    assert result.results_of("charged")[1] == 11


@pytest.mark.usefixtures("at_every_chance")
@pytest.mark.parametrize("body", [b"", b"not json", b"{}", b'[{"format":0},[]]', b'[{"format":1},[]]'])
async def test_a_snapshot_that_this_release_cannot_read_is_ignored(url: str, body: bytes) -> None:
    async with Engine(url) as engine:
        engine.register(Long())
        handle = await engine.start(Long, Order([1, 2], "order"))
        await handle.result()
    await _spoil(url, body)
    async with Engine(url) as engine:
        engine.register(Long())
        assert [row["kind"] async for row in engine.reviews()] == ["approval"]
        await engine.get(handle.id).approve("agreed")
        assert (await engine.get(handle.id).result()).output == "order: 32 for 2, 20, sent 20"


async def test_a_short_history_has_no_snapshot(url: str) -> None:
    async with Engine(url) as engine:
        engine.register(Long())
        handle = await engine.start(Long, Order([1, 2], "order"))
        await handle.result()
    assert await _snapshot(url, handle.id) is None


async def _open(url: str) -> Store:
    store = make_store(url)
    await store.open(migrate=False)
    return store


async def _snapshot(url: str, id: str) -> SnapshotRow | None:
    store = await _open(url)
    (loaded,) = await store.executions.load([id], short=True)
    await store.close()
    return loaded.snapshot


async def _spoil(url: str, body: bytes) -> None:
    if url.startswith("sqlite"):
        sqlite.connect(url).execute("UPDATE snapshots SET body = ?", (body,))
        return
    connection = await asyncpg.connect(url)
    await connection.execute("UPDATE snapshots SET body = $1", body)
    await connection.close()

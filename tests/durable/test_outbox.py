"""The outbox on real databases: several relays, relays that die, and what they may and may not do."""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from tenuto import Engine, Message, SagaBuilder
from tenuto.runtime.shared import outbox_relay as relaying
from tenuto.runtime.shared.outbox_relay import Relay
from tenuto.storage import Store, make_store
from tenuto.storage.outbox import AT_ONCE, Waiting
from tenuto.storage.postgres.store import PostgresStore
from tenuto.views.projections import OutboxRow
from tests.durable.rows import started
from tests.durable.sessions import expire
from tests.seams import outbox_take_query, relay_round

LEASE = 60_000
VM_STEP = "SQLITE_STMTSTATUS_VM_STEP"
EXECUTIONS = 40


async def _sessions(store: Store, *ids: str) -> None:
    for id in ids:
        await store.sessions.open(id, "worker", "build", LEASE, ())


async def _write(store: Store, execution: str, *seqs: int) -> None:
    batch = started(execution)
    batch.outbox = [OutboxRow(execution, seq, "t", "kind", b"{}", 1) for seq in seqs]
    committed = await store.commit(batch)
    assert not committed.refused


def _named(taken: Sequence[Waiting]) -> list[tuple[str, int]]:
    return [(message.execution, message.seq) for message in taken]


@pytest.mark.requirement("D5")
async def test_a_relay_takes_the_messages_of_an_execution_in_order_and_no_other_takes_them(store: Store) -> None:
    await _sessions(store, "s1", "s2")
    await _write(store, "x1", 3, 1, 2)
    await _write(store, "x2", 1)
    assert _named(await store.outbox.take("s1", 10, 1)) == [("x1", 1), ("x1", 2), ("x1", 3)]
    assert _named(await store.outbox.take("s2", 10, 9)) == [("x2", 1)]
    assert await store.outbox.take("s1", 10, 9) == []


@pytest.mark.requirement("D5")
async def test_those_behind_a_message_that_failed_wait_for_it(store: Store) -> None:
    await _sessions(store, "s1", "s2")
    await _write(store, "x1", 1, 2, 3)
    await store.outbox.take("s1", 10, 1)
    await store.outbox.published("s1", 10, [("x1", 1)])
    await store.outbox.put_off("s1", "x1", 2, 500, "away")
    assert await store.outbox.take("s2", 499, 9) == []
    standing = await store.outbox.standing()
    assert (standing.waiting, standing.failing, standing.last_error) == (2, 1, "away")
    again = await store.outbox.take("s2", 500, 9)
    assert [(message.seq, message.tries) for message in again] == [(2, 1), (3, 0)]


@pytest.mark.requirement("D5")
async def test_what_a_dead_relay_had_taken_is_taken_again(store: Store) -> None:
    await _sessions(store, "s1", "s2")
    await _write(store, "x1", 1, 2)
    await store.outbox.take("s1", 10, 9)
    await store.outbox.published("s1", 10, [("x1", 1)])
    assert await store.outbox.take("s2", 10, 9) == []
    await store.sessions.end("s1")
    assert _named(await store.outbox.take("s2", 10, 9)) == [("x1", 2)]
    await store.outbox.published("s1", 11, [("x1", 2)])  # too late: it is not his any more
    assert (await store.outbox.standing()).waiting == 1


@pytest.mark.requirement("D5")
async def test_messages_that_are_committed_later_with_lower_numbers_are_not_passed_over(store: Store) -> None:
    await _sessions(store, "s1")
    await _write(store, "x9", 5)
    await store.outbox.take("s1", 10, 9)
    await store.outbox.published("s1", 10, [("x9", 5)])
    await _write(store, "x1", 1)
    assert _named(await store.outbox.take("s1", 10, 9)) == [("x1", 1)]


async def test_what_is_given_back_is_free(store: Store) -> None:
    await _sessions(store, "s1", "s2")
    await _write(store, "x1", 1)
    await store.outbox.take("s1", 10, 9)
    await store.outbox.give_back("s1")
    assert _named(await store.outbox.take("s2", 10, 9)) == [("x1", 1)]


@pytest.mark.requirement("D5")
async def test_a_start_that_is_refused_leaves_no_message(store: Store) -> None:
    await _sessions(store, "s1")
    await store.commit(started("x1", key="k"))
    batch = started("x2", key="k")
    batch.outbox = [OutboxRow("x2", 1, "t", "kind", b"{}", 1)]
    assert (await store.commit(batch)).refused == {"x2": "duplicate_key"}
    assert (await store.outbox.standing()).waiting == 0


async def test_relays_that_take_at_once_do_not_take_the_same(store: Store, url: str) -> None:
    """PostgreSQL looks again at a row that changed under a statement, but not at what it was joined with."""
    others = [make_store(url) for _ in range(3)]
    for other in others:
        await other.open(migrate=False)
    await _sessions(store, *(f"s{number}" for number in range(4)))
    for number in range(200):
        await _write(store, f"x{number}", 1, 2)

    async def take_all(relay: str, its: Store) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        while taken := await its.outbox.take(relay, 10, 3):
            found += _named(taken)
        return found

    found = await asyncio.gather(*(take_all(f"s{n}", its) for n, its in enumerate([store, *others])))
    taken = Counter(name for names in found for name in names)
    for other in others:
        await other.close()
    assert len(taken) == 400
    assert set(taken.values()) == {1}


@pytest.mark.requirement("D5")
async def test_a_relay_without_its_session_publishes_no_more_of_a_line(store: Store) -> None:
    """Others have the line by then, and may be ahead: an old message after a new one would be out of order."""
    await _sessions(store, "s1", "s2")
    batch = started("x1")
    batch.outbox = [OutboxRow("x1", seq, "t", "kind", _message("x1", seq), 1) for seq in (1, 2, 3)]
    await store.commit(batch)
    session: list[str | None] = ["s1"]
    published: list[int] = []

    async def publish(message: Message) -> None:
        session[0] = None
        published.append(message.seq)

    relay = Relay(store.outbox, publish, lambda: 10, lambda: session[0])
    await relay_round(relay)
    assert published == [1]


class _Abrupt(BaseException):
    pass


async def test_a_publisher_that_does_not_end_holds_up_nobody_else(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relaying, "END_SECONDS", 0.01)
    await _sessions(store, "s1")
    for execution in ("stays", "breaks", "goes"):
        batch = started(execution)
        batch.outbox = [OutboxRow(execution, 1, "t", "kind", _message(execution, 1), 1)]
        await store.commit(batch)
    published: list[str] = []
    over = asyncio.Event()

    async def publish(message: Message) -> None:
        if message.execution_id == "breaks":
            raise _Abrupt
        while message.execution_id == "stays" and not over.is_set():
            with suppress(asyncio.CancelledError):
                await over.wait()
        published.append(message.execution_id)

    relay = Relay(store.outbox, publish, lambda: 10, lambda: "s1", patience_s=0.01)
    assert await relay_round(relay)
    standing = await store.outbox.standing()
    assert (published, standing.waiting, standing.failing) == (["goes"], 2, 2)
    relay.start()
    await relay.stop(0)
    over.set()


def _message(execution: str, seq: int) -> bytes:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    return msgspec.json.encode(
        Message(
            id=f"{execution}/{seq}",
            kind="kind",
            execution_id=execution,
            seq=seq,
            at=at,
            tenant="t",
            definition="d",
            version=1,
            correlation_id="",
        )
    )


async def test_two_relays_share_the_work_and_keep_the_order(url: str) -> None:
    """Each execution's messages are published in order, whoever publishes them; without failures, once."""
    published: list[Message] = []
    done = asyncio.Event()

    async def publish(message: Message) -> None:
        await asyncio.to_thread(published.append, message)  # others get their turn meanwhile
        if sum(one.kind == "execution.finished" for one in published) == EXECUTIONS:
            done.set()

    async def work() -> None: ...

    options = {"messages": ["*"], "publish": publish}
    builder = SagaBuilder("s").step("a", work).step("b", work, depends_on=["a"]).step("c", work, depends_on=["b"])
    async with Engine(url, **options) as one, Engine(url, **options, worker=False) as two:  # type: ignore[arg-type]  # a mapping of options
        for engine in (one, two):
            engine.register(builder)
        batch = await one.start_many("s", range(EXECUTIONS))
        await done.wait()
        assert len([result async for result in batch.results()]) == EXECUTIONS
        while (await one.outbox()).waiting:
            pass  # published, and about to be marked so
    numbers: dict[str, list[int]] = {}
    for message in published:
        numbers.setdefault(message.execution_id, []).append(message.seq)
    assert len(numbers) == EXECUTIONS
    assert all(seqs == sorted(set(seqs)) and len(seqs) == 5 for seqs in numbers.values())


async def test_a_relay_that_is_killed_in_the_middle_loses_nothing(url: str, tmp_path: Path) -> None:
    log = tmp_path / "published"
    async with Engine(url, messages=["*"]) as engine:

        async def work() -> None: ...

        engine.register(SagaBuilder("s").step("a", work))
        batch = await engine.start_many("s", range(EXECUTIONS))
        assert all([result.succeeded async for result in batch.results()])
        for kills in (5, 25):
            await _relay_until_killed(url, log, kills)
        await _relay_until_empty(url, log, engine)
    numbers: dict[str, list[int]] = {}
    for line in log.read_text().splitlines():
        execution, seq = json.loads(line)
        numbers.setdefault(execution, []).append(seq)
    assert len(numbers) == EXECUTIONS
    for seqs in numbers.values():
        assert list(dict.fromkeys(seqs)) == sorted(set(seqs)), "first publications are in order"
        assert len(set(seqs)) == 3
    assert max(Counter(seq for seqs in numbers.values() for seq in seqs).values()) <= 3 * EXECUTIONS


async def _relay(url: str, log: Path) -> asyncio.subprocess.Process:
    command = [sys.executable, "-m", "tests.durable.relay_process", url, str(log)]
    return await asyncio.create_subprocess_exec(*command)


def _published(log: Path) -> int:
    return len(log.read_text().splitlines()) if log.exists() else 0


async def _relay_until_killed(url: str, log: Path, count: int) -> None:
    child = await _relay(url, log)
    while await asyncio.to_thread(_published, log) < count:
        assert child.returncode is None
    child.kill()
    await child.wait()
    await expire(url, child.pid)


async def _relay_until_empty(url: str, log: Path, engine: Engine) -> None:
    child = await _relay(url, log)
    while (await engine.outbox()).waiting:
        assert child.returncode is None
    child.kill()
    await child.wait()


async def _put_off_all(store: Store, executions: Sequence[str]) -> None:
    for execution in executions:
        await _write(store, execution, *range(1, 4))
    await _write(store, f"{executions[0]}-long", *range(1, 3 * AT_ONCE))
    taken = await store.outbox.take("s1", 10, 1_000)
    for message in taken:
        if message.seq == 1:
            await store.outbox.put_off("s1", message.execution, 1, 500, "away")


async def _cost_of_a_look(store: Any) -> int:
    """What a look in vain costs: steps of SQLite's machine, or rows that PostgreSQL's plan met."""
    look = outbox_take_query(store)
    if isinstance(store, PostgresStore):
        await store.database.run("ANALYZE outbox", ())
        ((plan,),) = await store.database.run(f"EXPLAIN (ANALYZE, FORMAT JSON) {look}", ("s1", 499, 9))
        return _rows_met(json.loads(plan)[0]["Plan"])
    steps: list[int] = []
    store.database.write_connection.trace_v2(
        apsw.SQLITE_TRACE_PROFILE, lambda told: steps.append(told["stmt_status"][VM_STEP])
    )
    await store.database.run(look, ("s1", 499, 9))
    store.database.write_connection.trace_v2(0)
    return steps[-1]


def _rows_met(plan: dict[str, Any]) -> int:
    met = (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"]
    return int(met) + sum(_rows_met(below) for below in plan.get("Plans", ()))


async def test_what_waits_behind_messages_that_were_put_off_costs_a_look_nothing(store: Store) -> None:
    await _sessions(store, "s1")
    await _put_off_all(store, [f"a{number}" for number in range(5)])
    few = await _cost_of_a_look(store)
    await _put_off_all(store, [f"b{number}" for number in range(100)])
    assert await _cost_of_a_look(store) == few
    again = await store.outbox.take("s1", 500, 1)
    assert len(again) in (3, AT_ONCE)


async def test_who_lost_a_line_puts_none_of_it_off(store: Store) -> None:
    await _sessions(store, "s1", "s2")
    await _write(store, "x1", 1, 2)
    await store.outbox.take("s1", 10, 1)
    await store.sessions.end("s1")
    assert _named(await store.outbox.take("s2", 10, 1)) == [("x1", 1), ("x1", 2)]
    await store.outbox.put_off("s1", "x1", 1, 500, "away")
    await store.outbox.give_back("s2")
    assert _named(await store.outbox.take("s2", 10, 1)) == [("x1", 1), ("x1", 2)]

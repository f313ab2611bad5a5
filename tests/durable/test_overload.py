"""More is asked for than can be done. What is too much is refused with a stable error; what was accepted ends."""

import asyncio
import time
from collections import Counter
from contextlib import suppress

import pytest

from tenuto import Engine, SagaBuilder, SagaContext
from tenuto.errors import IdempotencyConflict, TenantLimit
from tenuto.runtime.durable import tenant_admission as crowds
from tenuto.runtime.durable.tenant_admission import OverLimitTenants, StartQueue
from tests.checking.soundness import assert_sound
from tests.seams import admission_of, begin_reading, durable_runtime, postgres_store_of, start_queues

ROOM = 50
OFFERED = 1_000


class Work:
    """Two steps, which are held up as long as the gate is closed."""

    def __init__(self, *, held: bool = False) -> None:
        self.made: Counter[str] = Counter()
        self.gate = asyncio.Event()
        if not held:
            self.gate.set()

    def saga(self) -> SagaBuilder:
        async def work(ctx: SagaContext) -> None:
            self.made[ctx.execution_id] += 1
            await self.gate.wait()
            await asyncio.to_thread(lambda: None)

        return SagaBuilder("work").step("a", work).step("b", work, depends_on=["a"])


async def offer(engine: Engine, number: int, *, keys: bool = False) -> tuple[list[str], int]:
    """All at once. Gives those that were accepted, and how many were refused."""
    key = iter(range(number))
    starts = [
        engine.start("work", idempotency_key=f"k{next(key)}" if keys else None, tenant="busy") for _ in range(number)
    ]
    answers = await asyncio.gather(*starts, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, TenantLimit)]
    accepted = [answer.id for answer in answers if not isinstance(answer, BaseException)]
    assert len(refused) + len(accepted) == number, [answer for answer in answers if isinstance(answer, Exception)]
    assert all(refusal.code == "tenant_limit" and refusal.retry_after > 0 for refusal in refused)
    return accepted, len(refused)


@pytest.mark.parametrize("keys", [False, True])
async def test_what_is_too_much_is_refused_and_what_is_accepted_ends(url: str, keys: bool) -> None:
    work = Work(held=True)
    async with Engine(url) as engine:
        engine.register(work.saga())
        await engine.tenant_limit("busy", max_in_flight=ROOM)
        accepted, refused = await offer(engine, OFFERED, keys=keys)
        assert (len(accepted), refused) == (ROOM, OFFERED - ROOM)
        work.gate.set()
        accepted += (await offer(engine, OFFERED, keys=keys))[0]  # while they end, others are let in
        accepted = sorted(set(accepted))
        results = [await engine.get(id).result() for id in accepted]
        assert {result.status for result in results} == {"succeeded"}
        assert work.made == dict.fromkeys(accepted, 2)
        assert await engine.tenant_limits() == [{"tenant": "busy", "max_in_flight": ROOM, "in_flight": 0}]
        # And it is as before: there is room, and nobody remembers otherwise for longer than a moment.
        while True:
            some, _ = await offer(engine, ROOM)
            if len(some) == ROOM:
                break
        assert {(await engine.get(id).result()).status for id in some} == {"succeeded"}
    await assert_sound(url)


async def test_one_tenant_that_asks_for_too_much_leaves_the_others_alone(url: str) -> None:
    work = Work()
    async with Engine(url) as engine:
        engine.register(work.saga())
        await engine.tenant_limit("busy", max_in_flight=ROOM)
        storm = asyncio.ensure_future(offer(engine, OFFERED))
        quiet = [await engine.start("work", tenant="quiet") for _ in range(ROOM)]
        assert {(await handle.result()).status for handle in quiet} == {"succeeded"}
        accepted, _ = await storm
        assert {(await engine.get(id).result()).status for id in accepted} == {"succeeded"}
    await assert_sound(url)


async def test_without_a_limit_what_is_too_much_waits_in_the_database(url: str) -> None:
    """Nothing refuses, and nothing breaks: no more than so many are held in memory, and all end."""
    work = Work()
    async with Engine(url) as engine:
        engine.register(work.saga())
        accepted, refused = await offer(engine, OFFERED)
        assert (len(accepted), refused) == (OFFERED, 0)
        for id in accepted:
            await engine.get(id).result()
        assert work.made == dict.fromkeys(accepted, 2)
    await assert_sound(url)


async def test_whoever_only_submits_hears_of_room_from_those_who_work(url: str) -> None:
    """Executions end in another process, as far as this one knows. So does most of what is let through here."""
    work = Work()
    async with Engine(url) as worker, Engine(url, worker=False) as client:
        worker.register(work.saga())
        client.register(work.saga())
        await client.tenant_limit("busy", max_in_flight=ROOM)
        accepted: list[str] = []
        while len(accepted) < 4 * ROOM:
            accepted += (await offer(client, OFFERED))[0]
        results = [await client.get(id).result() for id in accepted]
        assert {result.status for result in results} == {"succeeded"}
        assert work.made == dict.fromkeys(accepted, 2)
    await assert_sound(url)


@pytest.mark.parametrize("most", [ROOM + 1, None])
async def test_room_that_another_process_made_is_seen(
    url: str, monkeypatch: pytest.MonkeyPatch, most: int | None
) -> None:
    monkeypatch.setattr(crowds, "MOMENT_S", -1.0)  # which is over at once
    work = Work(held=True)
    async with Engine(url, worker=False) as client, Engine(url, worker=False) as another:
        client.register(work.saga())
        await client.tenant_limit("busy", max_in_flight=ROOM)
        accepted, _ = await offer(client, ROOM + 2 * crowds.MANY)
        assert len(accepted) == ROOM
        assert client.is_crowded("busy", under_way=ROOM + crowds.AT_ONCE)
        with pytest.raises(TenantLimit):
            await client.start("work", tenant="busy")
        await another.tenant_limit("busy", max_in_flight=most)
        assert (await client.start("work", tenant="busy")).created
    await assert_sound(url)


async def test_those_who_wait_at_the_door_are_let_in_or_told(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowds, "ON_THE_WAY", 3)
    work = Work(held=True)
    async with Engine(url) as engine:
        engine.register(work.saga())
        unlimited = await asyncio.gather(*(engine.start("work", tenant="free") for _ in range(20)))
        await engine.tenant_limit("busy", max_in_flight=ROOM)
        accepted, refused = await offer(engine, OFFERED)
        assert (len(accepted), refused) == (ROOM, OFFERED - ROOM)
        work.gate.set()
        for id in [*accepted, *(handle.id for handle in unlimited)]:
            assert (await engine.get(id).result()).status == "succeeded"
    await assert_sound(url)


async def test_a_known_key_is_answered_in_the_densest_crowd(url: str) -> None:
    work = Work(held=True)
    async with Engine(url) as engine:
        engine.register(work.saga())
        await engine.tenant_limit("busy", max_in_flight=ROOM)
        await engine.start("work", idempotency_key="k0", tenant="busy")
        first, refused = await offer(engine, OFFERED, keys=True)
        assert (len(first), refused) == (ROOM, OFFERED - ROOM)
        again, refused = await offer(engine, OFFERED, keys=True)
        assert (sorted(again), refused) == (sorted(first), OFFERED - ROOM)
        with pytest.raises(IdempotencyConflict):
            await engine.start("work", variables={"of": "another"}, idempotency_key="k0", tenant="busy")
        work.gate.set()
        for id in first:
            assert (await engine.get(id).result()).status == "succeeded"
    await assert_sound(url)


# -- The memory of refusals --------------------------------------------------------------------------------------------


def _full(known: OverLimitTenants) -> None:
    for _ in range(crowds.MANY):
        assert not known.refuse("t")
        known.refused("t")


@pytest.fixture
def long_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowds, "MOMENT_S", 3_600.0)
    monkeypatch.setattr(crowds, "FORGOTTEN_S", 3_600.0)


def test_a_few_refusals_are_each_asked_about() -> None:
    known = OverLimitTenants()
    for _ in range(crowds.MANY - 1):
        assert not known.refused("t")
        assert not known.is_full("t")
        assert not known.refuse("t")
    assert known.refused("t")


@pytest.mark.usefixtures("long_moments")
def test_after_many_as_many_are_let_through_as_a_commit_left_room_for() -> None:
    known = OverLimitTenants()
    _full(known)
    assert known.refuse("t")
    assert not known.refuse("another")
    known.set_capacity("t", 2)
    assert [known.refuse("t") for _ in range(4)] == [False, False, True, True]
    assert known.is_full("t")
    known.set_capacity("t", -1)
    assert known.refuse("t")


@pytest.mark.usefixtures("long_moments")
def test_and_as_many_as_ended_here_since_then() -> None:
    known = OverLimitTenants()
    _full(known)
    known.set_capacity("t", 1)
    known.ended("t")
    assert not known.is_full("t")
    assert [known.refuse("t") for _ in range(3)] == [False, False, True]


def test_now_and_then_one_looks_whether_there_is_room_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowds, "MOMENT_S", -1.0)  # which is over at once
    known = OverLimitTenants()
    _full(known)
    monkeypatch.setattr(crowds, "MOMENT_S", 3_600.0)
    assert not known.refuse("t")
    for _ in range(crowds.MANY):
        assert known.is_worth_waiting("t")
        assert not known.is_full("t")
        known.waits("t")
    assert not known.is_worth_waiting("t")  # enough have waited for what he hears
    assert known.refuse("t")
    known.set_capacity("t", 0)
    assert not known.is_worth_waiting("t")
    assert known.refuse("t")
    known.forget("t")
    assert not known.refuse("t")


def test_when_what_was_heard_is_old_one_looks_and_the_others_wait_for_him(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowds, "MOMENT_S", -1.0)
    known = OverLimitTenants()
    assert not known.must_read("t")
    _full(known)
    assert [known.must_read("t") for _ in range(3)] == [True, False, False]
    assert known.is_worth_waiting("t")
    known.set_capacity("t", 2)
    assert not known.must_read("t")  # there is capacity: starts are let through
    assert [known.refuse("t") for _ in range(2)] == [False, False]
    assert known.must_read("t")


def test_of_those_who_come_a_few_at_a_time_are_let_in_however_much_room_there_is(long_moments: None) -> None:
    known = OverLimitTenants()
    assert not known.has_enough("t", 10**6)
    _full(known)
    known.set_capacity("t", 10 * crowds.MANY)
    assert [known.has_enough("t", under_way) for under_way in (crowds.AT_ONCE - 1, crowds.AT_ONCE)] == [False, True]


def test_what_was_long_ago_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowds, "MOMENT_S", 3_600.0)
    known = OverLimitTenants()
    _full(known)
    assert known.refuse("t")
    monkeypatch.setattr(crowds, "FORGOTTEN_S", -1.0)
    known.set_capacity("t", 1)
    assert [known.refuse("t") for _ in range(100)] == [False] * 100


# -- The door ----------------------------------------------------------------------------------------------------------


async def _guest(door: StartQueue, came: list[int], number: int) -> None:
    while door.is_closed("t"):
        await door.wait("t")
    door.enter("t")
    came.append(number)


async def _nothing() -> None:
    pass


async def _settled() -> None:
    """Whoever was called has come as far as he can."""
    for _ in range(5):
        await asyncio.create_task(_nothing())


async def test_so_many_are_on_their_way_and_the_others_follow_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowds, "ON_THE_WAY", 2)
    door, came = StartQueue(), list[int]()
    guests = [asyncio.create_task(_guest(door, came, number)) for number in range(5)]
    await _settled()
    assert came == [0, 1]
    door.leave("t")
    door.leave("t")
    await _settled()
    assert came == [0, 1, 2, 3]
    assert not door.is_closed("another")
    guests[4].cancel()
    await asyncio.wait(guests)
    door.leave("t")
    door.leave("t")
    assert not door.is_closed("t")


def outside(door: StartQueue) -> int:
    return len(start_queues(door)["t"].waiting)


async def test_whoever_has_waited_long_enough_goes_and_is_not_called() -> None:
    door = StartQueue()
    door.enter("t")
    assert not await door.wait("t", patience_s=0)
    assert outside(door) == 0
    patient = asyncio.create_task(door.wait("t", patience_s=3_600))
    await _settled()
    assert outside(door) == 1
    door.leave("t")
    assert await patient


async def test_when_the_last_one_leaves_nobody_is_left_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although those who were called did not come in: they were refused, or their engine was closed."""
    monkeypatch.setattr(crowds, "ON_THE_WAY", 1)
    door = StartQueue()
    door.enter("t")

    async def is_refused() -> None:
        await door.wait("t")
        door.pass_on("t")

    waiting = [asyncio.create_task(is_refused()) for _ in range(3)]
    await _settled()
    door.leave("t")
    await asyncio.wait(waiting)
    assert all(task.done() and not task.cancelled() for task in waiting)


async def test_all_may_be_called_to_hear_that_there_is_no_sense_in_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowds, "ON_THE_WAY", 1)
    door = StartQueue()
    door.enter("t")
    waiting = [asyncio.create_task(door.wait("t")) for _ in range(3)]
    await _settled()
    door.call_all("t")
    await asyncio.wait(waiting)
    assert door.is_closed("t")
    door.leave("t")
    assert not door.is_closed("t")


async def test_whoever_was_called_is_before_those_who_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowds, "ON_THE_WAY", 1)
    door, came = StartQueue(), list[int]()
    await _guest(door, came, 0)
    guests = [asyncio.create_task(_guest(door, came, 1))]
    await _settled()
    guests.insert(0, asyncio.create_task(_guest(door, came, 2)))  # is ready before the one who is called now
    door.leave("t")
    await _settled()
    assert came == [0, 1]
    door.leave("t")
    await asyncio.wait(guests)
    assert came == [0, 1, 2]


async def test_nothing_is_left_of_a_door_when_all_have_gone() -> None:
    door = StartQueue()
    door.enter("t")
    waits, gives_up = (asyncio.create_task(door.wait("t")) for _ in range(2))
    await _settled()
    assert outside(door) == 2
    gives_up.cancel()
    await _settled()
    assert outside(door) == 1
    door.leave("t")
    await waits
    assert not start_queues(door)


async def test_a_start_is_one_statement_for_a_tenant_that_has_a_limit_too(postgres_url: str) -> None:
    async with Engine(postgres_url, worker=False) as engine:
        engine.register(Work().saga())
        await engine.tenant_limit("busy", max_in_flight=2)
        await engine.start("work")  # the first asks what the types of its values are
        assert [await _statements(engine) for _ in range(3)] == [1, 1, 1]
        await engine.tenant_limit("busy", max_in_flight=None)
        assert await _statements(engine) == 1


async def _statements(engine: Engine) -> int:
    """So many were sent to start one, or to refuse it."""
    asked: list[str] = []
    with (
        postgres_store_of(engine).database.committer.query_logger(lambda query: asked.append(query.query)),
        suppress(TenantLimit),
    ):
        await engine.start("work", tenant="busy")
    return len(asked)


async def test_no_more_are_on_their_way_than_there_may_be_before_anybody_is_known(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the definition of all of them is being stored."""
    monkeypatch.setattr(crowds, "ON_THE_WAY", ROOM)
    async with Engine(url, worker=False) as engine:
        engine.register(Work().saga())
        most, enter = 0, StartQueue.enter

        def enter_and_count(door: StartQueue, tenant: str) -> None:
            nonlocal most
            enter(door, tenant)
            most = max(most, door.committing(tenant))

        monkeypatch.setattr(StartQueue, "enter", enter_and_count)
        accepted, _ = await offer(engine, OFFERED)
    assert (len(accepted), most <= ROOM) == (OFFERED, True)


async def test_whoever_comes_to_a_closed_door_while_somebody_looks_waits_or_is_refused(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crowds, "ON_THE_WAY", 1)
    async with Engine(url, worker=False) as engine:
        engine.register(Work().saga())
        runtime = durable_runtime(engine)
        known = admission_of(runtime).over_limit
        for _ in range(crowds.MANY):
            known.refused("busy")
        admission_of(runtime).starting.enter("busy")
        begin_reading(known, "busy", time.monotonic())
        assert admission_of(runtime).must_wait("busy")
        for _ in range(crowds.MANY):
            known.waits("busy")
        assert not admission_of(runtime).must_wait("busy")
        assert known.refuse("busy")
        admission_of(runtime).starting.leave("busy")

"""Queues between engines: who runs a step, what the others see of it, and what is left when one goes."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Annotated, Any, Protocol

import pytest

from tenuto import Done, Engine, FromStep, Handle, SagaBuilder, SagaContext
from tenuto.checker import check_database
from tenuto.errors import TransientError
from tenuto.kernel.address import Ref, lease_id
from tenuto.kernel.codec import decode_answer, encode_fact
from tenuto.kernel.events import NULL
from tenuto.kernel.facts import Ignored, Reported, Succeeded
from tenuto.storage import Store
from tenuto.storage.tasks import Answered, MailMessage, Taking, TaskKey
from tests.contract.doubles import Stage, ThreadGate, until, until_blocked
from tests.contract.sagas import FAST, one_step
from tests.seams import session_of, store_of, tasks_of

QUICK: dict[str, Any] = {"shutdown_grace": "10ms"}
DOCUMENT = {
    "name": "doc",
    "steps": [{"step_id": "a", "handler": "render", "queue": "gpu", "idempotency_strategy": "SAFE_TO_RETRY"}],
}


class MakeEngine(Protocol):
    async def __call__(self, *sagas: object, **options: Any) -> Engine: ...


@pytest.fixture
async def owner(url: str) -> AsyncIterator[MakeEngine]:
    """Engines that serve no queue: they start executions and decide what comes of them."""
    async with AsyncExitStack() as stack:

        async def make(*sagas: object, **options: Any) -> Engine:
            engine = Engine(url, **{"shutdown_grace": "1s", "queues": (), **options})
            engine.register(*sagas)
            return await stack.enter_async_context(engine)

        yield make


@pytest.fixture
async def guest(owner: MakeEngine) -> MakeEngine:
    """Engines that serve the queue `gpu`."""

    async def make(*sagas: object, **options: Any) -> Engine:
        return await owner(*sagas, **{"queues": ("gpu",), **options})

    return make


def session_id(engine: Engine) -> str:
    return session_of(engine).session.id


def attempts(rows: list[Any]) -> list[tuple[int, str]]:
    return [(row["attempt_number"], row["status"]) for row in rows]


async def until_true(found: Callable[[], Any]) -> None:
    while not await found():
        await asyncio.to_thread(lambda: None)


def split(stage: Stage, where: str) -> object:
    """A step for everybody, one for the queue, and one that reads what that came to; each notes where it ran."""

    async def first(number: int) -> int:
        stage.log.append(f"first on {where}")
        return number

    def work(first: Annotated[int, FromStep("first")]) -> str:
        stage.log.append(f"work on {where}")
        return f"{first}"

    async def last(made: Annotated[str, FromStep("work")]) -> str:
        stage.log.append(f"last on {where}")
        return made

    builder = SagaBuilder("s", output="last").step("first", first)
    builder.step("work", work, queue="gpu", depends_on=["first"])
    return builder.step("last", last, depends_on=["work"]).build()


# -- Who runs what -----------------------------------------------------------------------------------------------------


async def test_a_worker_of_the_queue_runs_the_step_and_the_owner_goes_on(owner: MakeEngine, guest: MakeEngine) -> None:
    stage = Stage()
    home = await owner(split(stage, "owner"))
    await guest(split(stage, "guest"))
    result = await home.execute("s", 7)
    assert (result.output, stage.log) == ("7", ["first on owner", "work on guest", "last on owner"])


async def test_a_worker_needs_nothing_but_the_handler(owner: MakeEngine, guest: MakeEngine) -> None:
    home = await owner()
    away = await guest()
    away.handler("render", Stage().does("rendered"))
    await home.apply(DOCUMENT)
    assert (await home.execute("doc")).output == "rendered"


async def test_what_nobody_serves_goes_on_when_somebody_does(owner: MakeEngine, guest: MakeEngine) -> None:
    home = await owner()
    await home.apply(DOCUMENT)
    handle = await home.start("doc")
    assert (await until_blocked(handle, "no_worker"))["waiting_for"] == "queue gpu"
    away = await guest()
    assert (await until_blocked(handle, "no_worker"))["waiting_for"] in ("queue gpu", "render in queue gpu")
    await until(handle, lambda found: found["blocked"]["waiting_for"] == "render in queue gpu")
    away.handler("render", Stage().does("rendered"))
    result = await handle.result()
    assert (result.output, attempts(await handle.history())) == ("rendered", [(1, "succeeded")])


async def test_a_worker_that_cannot_read_a_value_leaves_it_to_one_that_can(
    owner: MakeEngine, guest: MakeEngine
) -> None:
    async def reads_number(found: Annotated[int, FromStep("find")]) -> str:
        return str(found)

    async def reads_text(found: Annotated[str, FromStep("find")]) -> str:
        return found.upper()

    def saga(find: Any, use: Any) -> object:
        builder = SagaBuilder("s", output="use").step("find", find)
        return builder.step("use", use, depends_on=["find"], queue="gpu").build()

    async def text() -> str:
        return "oslo"

    async def number() -> int:
        return 1

    home = await owner(saga(text, reads_text))
    await guest(saga(number, reads_number))
    handle = await home.start("s")
    assert "'use', parameter 'found'" in (await until_blocked(handle, "incompatible"))["waiting_for"]
    await guest(saga(text, reads_text))
    assert ((await handle.result()).output, attempts(await handle.history())[-1]) == ("OSLO", (1, "succeeded"))


async def test_a_worker_with_another_definition_of_that_name_runs_none_of_it(
    owner: MakeEngine, guest: MakeEngine
) -> None:
    stage = Stage()
    home = await owner(one_step("s", stage.does("right"), queue="gpu").build())
    await guest(one_step("s", stage.does("wrong"), queue="gpu", retry=7).build())
    handle = await home.start("s")
    await until_blocked(handle, "no_worker")
    await guest(one_step("s", stage.does("right"), queue="gpu").build())
    assert ((await handle.result()).output, stage.log) == ("right", ["right"])


async def test_an_owner_that_only_decides_leaves_local_steps_to_those_who_have_them(
    owner: MakeEngine, guest: MakeEngine
) -> None:
    """One that took an execution to hand in a signal, and cannot run what follows, lets go of it."""
    stage = Stage()
    saga = SagaBuilder("s", output="work").signal("go", "go").step("work", stage.does("a"), depends_on=["go"]).build()
    first = await owner(saga)
    handle = await first.start("s")
    await until_blocked(handle, "signal")
    await first.close()
    reception = await owner(worker=False)
    await reception.get(handle.id).signal("go")
    assert stage.log == []
    await owner(saga)
    assert (await reception.get(handle.id).result()).output == "a"


async def test_a_fan_out_is_shared_by_the_workers_of_its_queue(owner: MakeEngine, guest: MakeEngine) -> None:
    both = asyncio.Barrier(2)  # nobody goes on alone: with one slot each, both have to be at work

    async def numbers() -> list[int]:
        return list(range(10))

    async def work(number: int) -> int:
        await both.wait()
        return number

    builder = SagaBuilder("s", output="work").step("numbers", numbers)
    saga = builder.step("work", work, depends_on=["numbers"], foreach="steps.numbers.result", queue="gpu").build()
    home = await owner(saga)
    for _ in range(2):
        await guest(saga, slots=1)
    assert (await home.execute("s")).output == list(range(10))


async def test_a_guest_of_many_attempts_remembers_those_that_are_not_over(owner: MakeEngine, guest: MakeEngine) -> None:
    last = asyncio.Event()

    async def numbers() -> list[int]:
        return list(range(30))

    async def work(number: int) -> int:
        if number == 29:
            await last.wait()
        return number

    builder = SagaBuilder("s", output="work").step("numbers", numbers)
    saga = builder.step("work", work, depends_on=["numbers"], foreach="steps.numbers.result", queue="gpu").build()
    home, away = await owner(saga), await guest(saga)
    handle = await home.start("s")

    async def only_the_last_is_known() -> bool:
        return tasks_of(away, handle.id) == ["work#29"]

    await until_true(only_the_last_is_known)
    last.set()
    assert (await handle.result()).output == list(range(30))


@pytest.mark.requirement("G1")
async def test_many_workers_never_run_the_same_attempt(owner: MakeEngine, guest: MakeEngine) -> None:
    calls: Counter[tuple[str, str]] = Counter()

    async def safe(ctx: SagaContext) -> None:
        calls[ctx.execution_id, "safe"] += 1

    def unsafe(ctx: SagaContext) -> None:
        calls[ctx.execution_id, "unsafe"] += 1

    builder = SagaBuilder("s").step("safe", safe, queue="gpu")
    options: Any = {"queue": "gpu", "depends_on": ["safe"], "safety": "not_safe_to_retry"}
    saga = builder.step("unsafe", unsafe, compensation_policy="manual", **options).build()
    homes = [await owner(saga) for _ in range(2)]
    for _ in range(3):
        await guest(saga, slots=5, threads=5)
    batches = [await home.start_many("s", range(50)) for home in homes]
    results = [result for batch in batches async for result in batch.results()]
    assert ({result.status for result in results}, len(calls)) == ({"succeeded"}, 2 * len(results))
    assert set(calls.values()) == {1}


# -- What others see ---------------------------------------------------------------------------------------------------


async def test_others_see_what_a_guest_runs(owner: MakeEngine, guest: MakeEngine) -> None:
    gate = Stage().gate("a")

    async def work(ctx: SagaContext) -> None:
        await ctx.heartbeat(progress={"page": 3})
        await gate.pass_through()

    saga = one_step("s", work, queue="gpu").build()
    home = await owner(saga)
    await guest(saga, slots=1)
    first = await home.start("s")
    await gate.reached.wait()
    await until(first, lambda found: found["steps"][0]["progress"] == {"page": 3})
    assert (await first.status())["blocked"] is None
    second = await home.start("s")
    assert (await until_blocked(second, "slot"))["waiting_for"] == "queue gpu"
    gate.open()
    assert all([(await handle.result()).succeeded for handle in (first, second)])


async def test_a_cancel_and_its_drain_reach_a_guest(owner: MakeEngine, guest: MakeEngine) -> None:
    stage = Stage()
    gate = ThreadGate()

    def work(ctx: SagaContext) -> str:
        gate.pass_through()
        while not ctx.heartbeat_sync().cancelled:
            pass
        return "told"

    saga = one_step("s", work, queue="gpu", compensate=stage.does("undo")).build()
    home = await owner(saga)
    await guest(saga)
    handle = await home.start("s")
    await gate.reached.wait()
    await handle.cancel("drain")
    gate.open()
    result = await handle.result()
    assert (result.status, attempts(await handle.history())[0]) == ("canceled", (1, "succeeded"))


@pytest.mark.requirement("B14")
@pytest.mark.parametrize("works", [True, False])
async def test_a_cancel_does_not_wait_for_a_queue_that_nobody_serves(
    owner: MakeEngine, guest: MakeEngine, url: str, works: bool
) -> None:
    """What others began is awaited; what nobody began is begun by nobody, whoever comes."""
    stage = Stage()
    gate = stage.gate("served")
    builder = SagaBuilder("s").step("a", gate.pass_through, queue="gpu")
    saga = builder.step("b", stage.does("unserved"), queue="nobodys").build()
    client = await owner(saga, worker=works)
    await guest(saga)
    handle = await client.start("s")
    await gate.reached.wait()
    await handle.cancel("drain")
    document = await until(handle, lambda found: found["steps"][1]["status"] == "canceled")
    assert (document["status"], document["steps"][0]["status"]) == ("running", "running")
    await owner(saga, queues=("nobodys",))
    gate.open()
    result = await handle.result(timeout="30s")
    assert (result.status, stage.log) == ("canceled", ["served"])
    assert await check_database(url) == []


@pytest.mark.requirement("B14")
async def test_who_cancels_may_die_before_he_hears_what_was_taken_out(
    owner: MakeEngine, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mail that says so is committed with the cancel: whoever comes next reads it."""
    saga = one_step("s", Stage().does("work"), queue="nobodys").build()
    home = await owner(saga, **QUICK)
    handle = await home.start("s")
    await until_blocked(handle, "no_worker")
    commit, committed = store_of(home).commit, asyncio.Event()

    async def commit_and_say_nothing(batch: Any) -> Any:
        found = await commit(batch)
        if batch.withdrawn:
            committed.set()
            await asyncio.Event().wait()
        return found

    monkeypatch.setattr(store_of(home), "commit", commit_and_say_nothing)
    canceling = asyncio.ensure_future(handle.cancel("drain"))
    await committed.wait()
    await store.sessions.end(session_id(home))
    canceling.cancel()
    other = await owner(saga)
    assert (await other.get(handle.id).result(timeout="30s")).status == "canceled"


async def test_what_was_settled_without_its_guest_is_stopped_there(owner: MakeEngine, guest: MakeEngine) -> None:
    reached, stopped = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    saga = one_step("s", work, queue="gpu", deadline="1s").build()
    home = await owner(saga)
    await guest(saga)
    while not reached.is_set():  # on a busy machine a guest may come too late
        handle = await home.start("s")
        assert (await handle.result()).status == "failed"
    await stopped.wait()


async def test_an_owner_that_let_go_is_woken_by_the_answer(owner: MakeEngine, guest: MakeEngine, store: Store) -> None:
    gate = Stage().gate("a")
    saga = one_step("s", gate.pass_through, queue="gpu").build()
    home = await owner(saga)
    await guest(saga)
    handle = await home.start("s")
    await gate.reached.wait()

    async def is_nobodys() -> bool:
        row = await store.executions.find(handle.id)
        return row is not None and row.owner is None

    await until_true(is_nobodys)
    gate.open()
    assert (await handle.result()).output == "a"


# -- Answers that come late --------------------------------------------------------------------------------------------


async def answer(store: Store, execution: str, number: int, value: bytes = b'"late"') -> Ignored | object:
    """As a worker would that was slow to say so."""
    ref = Ref("work", "forward", number)
    fact = Reported(at=0, ref=ref, outcome=Succeeded(result=type(NULL)(value)), lease=lease_id(execution, ref))
    message = MailMessage(f"late:{execution}:{number}", execution, encode_fact(fact))
    await store.tasks.answer("a worker of old", [Answered(Taking(TaskKey(execution, *ref.parts), 1), message)])
    verdicts: dict[str, bytes] = {}

    async def is_read() -> bool:
        verdicts.update(await store.mailbox.verdicts([message.id]))
        return bool(verdicts)

    await until_true(is_read)
    return decode_answer(verdicts[message.id])


@pytest.mark.requirement("F10")
async def test_an_answer_of_an_earlier_attempt_changes_nothing(
    owner: MakeEngine, guest: MakeEngine, store: Store
) -> None:
    stage = Stage()
    gate = stage.gate("second")

    async def work(ctx: SagaContext) -> Any:
        if ctx.attempt == 1:
            raise TransientError
        return await gate.pass_through()

    saga = one_step("s", work, queue="gpu", retry=FAST).build()
    home = await owner(saga)
    await guest(saga)
    handle = await home.start("s")
    await gate.reached.wait()
    assert await answer(store, handle.id, 1) == Ignored("stale_attempt")
    assert await answer(store, handle.id, 7) == Ignored("unknown")
    gate.open()
    assert (await handle.result()).output == "second"
    history = await handle.history()
    assert await answer(store, handle.id, 2) == Ignored("terminal")
    assert await handle.history() == history


async def test_a_lost_attempt_may_still_say_how_it_ended(owner: MakeEngine, guest: MakeEngine, store: Store) -> None:
    """As long as nobody has found out otherwise: the look-up is not due before its time and a lease are over."""
    stage = Stage()
    gate = stage.gate("never ends")
    options: Any = {"safety": "not_safe_to_retry", "reconcile": stage.does("find", Done("found")), "timeout": "10m"}
    saga = one_step("s", gate.pass_through, queue="gpu", **options).build()
    home = await owner(saga)
    away = await guest(saga, **QUICK)
    handle = await home.start("s")
    await gate.reached.wait()
    await away.close()
    assert (await until_blocked(handle, "reconcile"))["waiting_for"] == "work"
    await answer(store, handle.id, 1)
    result = await handle.result()
    assert (result.output, stage.log) == ("late", [])


# -- Guests that go ----------------------------------------------------------------------------------------------------


async def taken(store: Store, handles: list[Handle[Any]], session: str) -> int:
    held = {row.taking.key.execution for row in await store.tasks.held(session)}
    return len(held & {handle.id for handle in handles})


@pytest.mark.requirement("G8")
async def test_a_guest_that_leaves_reports_what_ended_and_returns_the_rest(
    owner: MakeEngine, guest: MakeEngine, store: Store
) -> None:
    stage = Stage()
    gate = stage.gate("first")
    run = 0

    async def work() -> Any:
        nonlocal run
        run += 1
        return await gate.pass_through() if run == 1 else "later"

    saga = one_step("s", work, queue="gpu", limits=["one"]).build()
    home = await owner(saga)
    await home.limit("one", concurrency=1)
    away = await guest(saga, shutdown_grace="1m")
    handles = [await home.start("s") for _ in range(5)]
    await gate.reached.wait()

    async def all_taken() -> bool:
        return await taken(store, handles, session_id(away)) == len(handles)

    await until_true(all_taken)
    leaving = asyncio.ensure_future(away.close())

    async def only_the_running() -> bool:
        return await taken(store, handles, session_id(away)) == 1

    await until_true(only_the_running)
    gate.open()
    await leaving
    assert run == 1
    await guest(saga)
    assert sorted([(await handle.result()).output for handle in handles]) == ["first", *["later"] * 4]
    assert [attempts(await handle.history()) for handle in handles] == [[(1, "succeeded")]] * 5


async def test_what_a_guest_had_to_stop_is_lost_and_tried_again(owner: MakeEngine, guest: MakeEngine) -> None:
    stage = Stage()
    gate = stage.gate("never ends")

    def saga(work: Any) -> object:
        return one_step("s", work, queue="gpu", retry=0).build()

    home = await owner(saga(gate.pass_through))
    away = await guest(saga(gate.pass_through), **QUICK)
    handle = await home.start("s")
    await gate.reached.wait()
    await away.close()
    await guest(saga(stage.does("again")))
    result = await handle.result()
    assert (result.output, result.steps["work"].attempts) == ("again", 2)


async def test_a_guest_that_was_taken_for_dead_stops_what_it_ran(
    owner: MakeEngine, guest: MakeEngine, store: Store
) -> None:
    """Its attempt is another's to make again. When it finds out, it starts afresh, and serves its queue as before."""
    stopped = asyncio.Event()
    calls: list[int] = []

    async def work(ctx: SagaContext) -> int:
        calls.append(ctx.attempt)
        if ctx.attempt == 1:
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()
        return ctx.attempt

    saga = one_step("s", work, queue="gpu").build()
    home = await owner(saga)
    away = await guest(saga, lease="3s", **QUICK)
    handle = await home.start("s")
    await until(handle, lambda _: calls)
    before = session_id(away)
    await store.sessions.end(before)
    await stopped.wait()
    output = (await handle.result()).output
    assert output == calls[-1] > 1  # on a busy machine a short lease may be lost once more
    assert session_id(away) != before


async def test_a_worker_without_queues_is_a_worker_and_a_client_is_none(owner: MakeEngine, url: str) -> None:
    engine = await owner()
    async with Engine(url, worker=False):
        assert [row["queues"] for row in await engine.workers()] == [[]]

"""A process that is taken for dead hears its handlers out, where what they do cannot be done again."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tenuto import Engine, Handle, SagaBuilder
from tenuto.errors import PayloadError
from tenuto.kernel.address import Ref
from tenuto.kernel.codec import decode_entries
from tenuto.kernel.events import AttemptSucceeded, Resolution
from tenuto.runtime.durable import DurableRuntime
from tenuto.runtime.executor import Role
from tenuto.runtime.executor.held_execution import Record
from tenuto.storage.port import Batch, Committed
from tests.contract.doubles import Stage, ThreadGate, until
from tests.durable.test_unknown_outcomes import Altered
from tests.seams import (
    durable_runtime,
    held_by,
    late_reports_of,
    parked_in_memory,
    replace_run_method,
    run_method,
    session_of,
    store_of,
    use_store,
    worker_of,
)

PATIENCE_S = 100


def _pays(pay: Any, **options: Any) -> SagaBuilder:
    options = {"safety": "not_safe_to_retry", "compensation_policy": "manual", "timeout": "10m", **options}
    return SagaBuilder("pays", output="pay").step("pay", pay, **options)


async def _end_session(engine: Engine) -> None:
    """Somebody takes it for dead, and it learns of that."""
    runtime = durable_runtime(engine)
    session = session_of(runtime).session
    await store_of(runtime).sessions.end(session.id)
    session.lose()


def _hold_up_reports(runtime: DurableRuntime, monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.Event, asyncio.Event]:
    """A commit with a success in it says that it is on its way, and waits until it may go on."""
    real, on_its_way, goes_on = store_of(runtime), asyncio.Event(), asyncio.Event()

    async def commit(batch: Batch) -> Committed:
        entries = (entry for append in batch.appends for entry in decode_entries(append.body))
        if any(isinstance(entry.event, AttemptSucceeded) for entry in entries):
            on_its_way.set()
            await goes_on.wait()
        return await real.commit(batch)

    use_store(monkeypatch, session_of(runtime).committer, Altered(real, commit=commit))
    return on_its_way, goes_on


async def _true(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.to_thread(lambda: None)


async def _asks_a_person(engine: Engine, handle: Handle[Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await until(engine.get(handle.id), lambda document: document["status"] == "waiting_approval")


async def _resolve(engine: Engine, resolution: Resolution) -> None:
    [review] = [review async for review in engine.reviews()]
    await engine.resolve(review["id"], resolution, reason="asked the bank")


async def _output(engine: Engine, handle: Handle[Any]) -> Any:
    async with asyncio.timeout(PATIENCE_S):
        return (await engine.get(handle.id).result(return_when="terminal")).output


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_payment_that_is_under_way_is_made_once_and_known(url: str, elsewhere: bool) -> None:
    """Whether another worker has its execution by then, or the same one again."""
    stage = Stage()
    gate = stage.gate("receipt")
    async with Engine(url) as first, Engine(url, worker=elsewhere) as second:
        for engine in (first, second):
            engine.register(_pays(gate.pass_through))
        handle = await first.start("pays")
        await gate.reached.wait()
        await _end_session(first)
        await _asks_a_person(second, handle)
        gate.open()
        assert await _output(second, handle) == "receipt"
        assert [review async for review in second.reviews()] == []
        assert list(late_reports_of(first).jobs()) == []
    assert stage.log == ["receipt"]


async def test_what_a_thread_has_paid_is_known(url: str) -> None:
    gate = ThreadGate()
    async with Engine(url) as engine:
        engine.register(_pays(gate.pass_through))
        handle = await engine.start("pays")
        await gate.reached.wait()
        await _end_session(engine)
        await _asks_a_person(engine, handle)
        gate.open()
        assert await _output(engine, handle) == "through"
    assert gate.calls == 1


async def test_a_late_answer_spares_the_question_what_became_of_it(url: str) -> None:
    stage = Stage()
    gate = stage.gate("receipt")
    async with Engine(url) as engine:
        engine.register(_pays(gate.pass_through, reconcile=stage.does("looked")))
        handle = await engine.start("pays")
        await gate.reached.wait()
        former = session_of(engine).session
        await _end_session(engine)
        await _true(lambda: session_of(engine).session is not former and handle.id in held_by(engine).records)
        gate.open()
        assert await _output(engine, handle) == "receipt"
    assert stage.log == ["receipt"]


async def test_what_a_person_has_decided_stands(url: str) -> None:
    stage = Stage()
    gate = stage.gate("receipt")
    async with Engine(url) as engine:
        engine.register(_pays(gate.pass_through))
        handle = await engine.start("pays")
        await gate.reached.wait()
        await _end_session(engine)
        await _asks_a_person(engine, handle)
        await _resolve(engine, "dismiss")
        async with asyncio.timeout(PATIENCE_S):
            assert (await handle.result(return_when="terminal")).status == "failed"
        gate.open()
    async with Engine(url, worker=False) as reader:
        assert (await reader.get(handle.id).status())["status"] == "failed"
    assert stage.log == ["receipt"]


async def test_a_report_that_could_not_be_recorded_any_more_is_known(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler has ended, and its commit comes after the end of the session."""
    stage = Stage()
    gate = stage.gate("receipt")
    async with Engine(url) as engine:
        engine.register(_pays(gate.pass_through))
        handle = await engine.start("pays")
        await gate.reached.wait()
        runtime = durable_runtime(engine)
        on_its_way, goes_on = _hold_up_reports(runtime, monkeypatch)
        gate.open()
        await on_its_way.wait()
        await store_of(runtime).sessions.end(session_of(runtime).session.id)
        goes_on.set()
        assert await _output(engine, handle) == "receipt"
    assert stage.log == ["receipt"]


async def test_a_guest_that_is_taken_for_dead_answers_all_the_same(url: str) -> None:
    stage = Stage()
    gate = stage.gate("receipt")
    async with Engine(url, queues=()) as home, Engine(url, queues=("till",)) as guest:
        home.register(_pays(gate.pass_through, queue="till"))
        guest.register(_pays(gate.pass_through, queue="till"))
        handle = await home.start("pays")
        await gate.reached.wait()
        await _end_session(guest)
        await _asks_a_person(home, handle)
        gate.open()
        assert await _output(home, handle) == "receipt"
    assert stage.log == ["receipt"]


async def test_nothing_else_of_the_step_begins_here_before_the_straggler_has_ended(url: str) -> None:
    stage = Stage()
    first, again = stage.gate("first"), stage.gate("again")
    gates = iter((first, again))

    async def pay() -> Any:
        return await next(gates).pass_through()

    async with Engine(url) as engine:
        engine.register(_pays(pay))
        handle = await engine.start("pays")
        await first.reached.wait()
        await _end_session(engine)
        await _asks_a_person(engine, handle)
        await _resolve(engine, "not_completed")
        runtime = durable_runtime(engine)
        await _true(lambda: any(record.held for record in held_by(runtime).records.values()))
        assert not again.reached.is_set()
        first.open()
        again.open()
        assert await _output(engine, handle) == "again"


async def test_an_engine_that_is_closed_waits_for_a_straggler_and_passes_on_what_it_says(url: str) -> None:
    stage = Stage()
    gate = stage.gate("receipt")
    async with Engine(url, shutdown_grace="10m") as engine:
        engine.register(_pays(gate.pass_through))
        handle = await engine.start("pays")
        await gate.reached.wait()
        await _end_session(engine)
        closing = asyncio.create_task(engine.close())
        await _true(lambda: worker_of(engine).closing)
        gate.open()
        await closing
    async with Engine(url) as other:
        other.register(_pays(gate.pass_through))
        assert await _output(other, handle) == "receipt"
    assert stage.log == ["receipt"]


async def test_a_guest_whose_tasks_were_swept_up_before_it_knows_that_it_is_taken_for_dead(url: str) -> None:
    stage = Stage()
    gate = stage.gate("receipt")
    async with Engine(url, queues=()) as home, Engine(url, queues=("till",)) as guest:
        for engine in (home, guest):
            engine.register(_pays(gate.pass_through, queue="till"))
        handle = await home.start("pays")
        await gate.reached.wait()
        runtime = durable_runtime(guest)
        former = session_of(runtime).session
        await store_of(runtime).sessions.end(former.id)
        await store_of(runtime).tasks.sweep(15_000)
        await _true(lambda: session_of(runtime).session is not former)
        await _asks_a_person(home, handle)
        gate.open()
        assert await _output(home, handle) == "receipt"
    assert stage.log == ["receipt"]


async def test_an_engine_that_is_taken_for_dead_while_it_closes_passes_on_what_it_could_not_record(url: str) -> None:
    stage = Stage()
    gate = stage.gate("receipt")
    async with Engine(url, shutdown_grace="10m") as engine:
        engine.register(_pays(gate.pass_through))
        handle = await engine.start("pays")
        await gate.reached.wait()
        runtime = durable_runtime(engine)
        closing = asyncio.create_task(engine.close())
        await _true(lambda: worker_of(runtime).closing)
        await store_of(runtime).sessions.end(session_of(runtime).session.id)
        gate.open()
        await closing
    async with Engine(url) as other:
        other.register(_pays(gate.pass_through))
        assert await _output(other, handle) == "receipt"


async def test_an_engine_that_is_closed_waits_for_what_its_former_session_was_about_to_record(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage()
    gate = stage.gate("receipt")
    async with Engine(url) as engine:
        engine.register(_pays(gate.pass_through))
        handle = await engine.start("pays")
        await gate.reached.wait()
        runtime = durable_runtime(engine)
        former = session_of(runtime).session
        on_its_way, goes_on = _hold_up_reports(runtime, monkeypatch)
        gate.open()
        await on_its_way.wait()
        await _end_session(engine)
        await _true(lambda: session_of(runtime).session is not former)
        closing = asyncio.create_task(engine.close())
        await _true(lambda: worker_of(runtime).closing)
        goes_on.set()
        await closing
    async with Engine(url) as other:
        other.register(_pays(gate.pass_through))
        assert await _output(other, handle) == "receipt"


async def test_what_was_not_called_yet_when_the_session_was_lost_is_not_called(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage()
    async with Engine(url) as engine:
        engine.register(_pays(stage.does("receipt")))
        runtime = durable_runtime(engine)
        run = run_method(runtime)

        def run_and_lose(record: Record, ref: Ref, role: Role) -> None:
            run(record, ref, role)
            session_of(runtime).session.lose()

        replace_run_method(monkeypatch, runtime, run_and_lose)
        handle = await engine.start("pays")
        await _asks_a_person(engine, handle)
    assert stage.log == []


async def test_a_thread_whose_execution_has_failed_and_is_retried_runs_alone(url: str) -> None:
    gate = ThreadGate()
    async with Engine(url) as engine:
        engine.register(_pays(gate.pass_through, timeout="100ms"))
        handle = await engine.start("pays")
        await gate.reached.wait()
        await _asks_a_person(engine, handle)
        await _resolve(engine, "dismiss")
        async with asyncio.timeout(PATIENCE_S):
            await handle.result(return_when="terminal")
        await handle.retry(reason="the bank knows nothing of it")
        runtime = durable_runtime(engine)
        await _true(lambda: any(record.held for record in held_by(runtime).records.values()))
        assert gate.calls == 1
        gate.open()
        assert await _output(engine, handle) == "through"
    assert gate.calls == 2


async def test_a_straggler_is_stopped_with_its_execution(url: str) -> None:
    reached, stopped = asyncio.Event(), asyncio.Event()

    async def pay() -> None:
        reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with Engine(url) as engine:
        engine.register(_pays(pay))
        handle = await engine.start("pays")
        await reached.wait()
        await _end_session(engine)
        await _asks_a_person(engine, handle)
        await handle.cancel("terminate", reason="not wanted any more")
        async with asyncio.timeout(PATIENCE_S):
            await stopped.wait()


async def test_a_straggler_that_cannot_be_run_here_is_not_taken_up_again(url: str) -> None:
    gate = ThreadGate()

    def does_not_decode(call: object) -> None:
        gate.pass_through()
        raise PayloadError("what is stored does not decode", code="incompatible")

    async with Engine(url) as engine:
        runtime = durable_runtime(engine)
        runtime.interpose = lambda state, ref, handler: replace(handler, invoke=does_not_decode)
        engine.register(_pays(gate.pass_through))
        handle = await engine.start("pays")
        await gate.reached.wait()
        await _end_session(engine)
        await _asks_a_person(engine, handle)
        gate.open()
        await _true(lambda: worker_of(runtime).running == 0)
        assert not parked_in_memory(runtime)

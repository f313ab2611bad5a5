"""What a worker gives up, it gives up whole: no slot stays taken, nothing of it runs, and nobody else is held up."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from tenuto import Engine, Handle, NotDone, SagaBuilder
from tenuto.errors import InvalidTransition, StorageError
from tenuto.kernel.codec import decode_entries, encode_entries
from tenuto.kernel.events import AttemptBegun, AttemptSucceeded, CancelRequested, Entry
from tenuto.runtime.durable import decision_writer
from tenuto.storage.port import Batch, Committed
from tests.checking.soundness import assert_sound
from tests.contract.doubles import until_blocked
from tests.durable.test_unknown_outcomes import Altered
from tests.seams import held_by, session_of, session_opener_of, store_of, use_store


def _with_commits(engine: Engine, monkeypatch: pytest.MonkeyPatch, commit: Any) -> None:
    use_store(monkeypatch, session_opener_of(engine), Altered(store_of(engine), commit=commit))


async def test_one_that_may_not_begin_leaves_its_slot(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database refuses the word that it begins; the only slot, and the only permit, are for the next one."""
    engine = Engine(url, slots=1)
    real = store_of(engine)
    refused: list[str] = []

    async def commit(batch: Batch) -> Committed:
        begun = [a.execution for a in batch.appends if isinstance(decode_entries(a.body)[0].event, AttemptBegun)]
        if begun and (not refused or refused[0] in begun):
            refused.append(begun[0])
            raise StorageError("not this", code="bad_data")
        return await real.commit(batch)

    async def pay() -> str:
        return "paid"

    async def look_up() -> NotDone:
        return NotDone()

    _with_commits(engine, monkeypatch, commit)
    async with engine:
        saga = SagaBuilder("pays", output="pay")
        engine.register(saga.step("pay", pay, safety="not_safe_to_retry", reconcile=look_up, limits=["till"]))
        await engine.limit("till", concurrency=1)
        first = await engine.start("pays")
        await until_blocked(first, "incompatible")
        assert refused[0] == first.id
        assert (await engine.execute("pays")).output == "paid"


async def test_what_was_granted_to_a_session_that_is_over_is_not_run(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit was made, and its answer came after the word that this process was taken for dead."""
    engine = Engine(url)
    real = store_of(engine)
    runs: list[str] = []

    async def commit(batch: Batch) -> Committed:
        committed = await real.commit(batch)
        if batch.starts and not runs:
            session = session_of(engine).session
            await real.sessions.end(session.id)
            session.lose()
        return committed

    async def note() -> int:
        runs.append("")
        return len(runs)

    _with_commits(engine, monkeypatch, commit)
    async with engine:
        engine.register(SagaBuilder("notes", output="note").step("note", note))
        assert (await engine.execute("notes")).output == 1
    assert len(runs) == 1


async def test_a_letter_that_cannot_be_read_sets_its_execution_aside_and_no_other(url: str) -> None:
    said: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context["message"]))
    async with Engine(url) as engine:
        engine.register(SagaBuilder("waits", output="paid").signal("paid", "paid"))
        bad, good = await engine.start("waits"), await engine.start("waits")
        await store_of(engine).mailbox.post("letter", bad.id, b'{"type": "FromTomorrow"}')
        await good.signal("paid", 1)
        assert (await good.result()).output == 1
        await until_blocked(bad, "incompatible")
        assert engine.alive().ok
    assert said[0] == f"Execution {bad.id} cannot be read by this release; it is set aside."


async def test_what_cannot_be_written_never_came_to_be(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decision that cannot be put into words leaves no gap: the execution goes on from what is recorded."""
    gate = asyncio.Event()

    async def wait() -> str:
        await gate.wait()
        return "through"

    def unable(entries: list[Entry]) -> bytes:
        if isinstance(entries[0].event, CancelRequested):
            raise UnicodeEncodeError("utf-8", "?", 0, 1, "no character")
        return encode_entries(entries)

    async with Engine(url) as engine:
        engine.register(SagaBuilder("waits", output="wait").step("wait", wait))
        handle = await engine.start("waits")
        with monkeypatch.context() as patch:
            patch.setattr(decision_writer, "encode_entries", unable)
            with pytest.raises(UnicodeEncodeError):
                await handle.cancel()
        await until_blocked(handle, "incompatible")
        gate.set()
        with suppress(InvalidTransition):  # any command tries again: it may be over before this one is read
            await handle.resume()
        assert (await handle.result()).output == "through"
    await assert_sound(url)


async def test_a_start_that_cannot_be_written_leaves_nothing_behind(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def unable(entries: list[Entry]) -> bytes:
        raise UnicodeEncodeError("utf-8", "?", 0, 1, "no character")

    async with Engine(url) as engine:
        engine.register(SagaBuilder("quick").approval("ok"))
        with monkeypatch.context() as patch:
            patch.setattr(decision_writer, "encode_entries", unable)
            with pytest.raises(UnicodeEncodeError):
                await engine.start("quick")
        assert not held_by(engine).records
        assert (await engine.execute("quick")).status == "waiting_approval"


async def test_an_ending_that_cannot_be_written_takes_no_slot_with_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many that wait for the only slot, those that can go on do."""
    raised = False

    async def one() -> int:
        return 1

    def unable(entries: list[Entry]) -> bytes:
        nonlocal raised
        if isinstance(entries[0].event, AttemptSucceeded) and not raised:
            raised = True
            raise UnicodeEncodeError("utf-8", "?", 0, 1, "no character")
        return encode_entries(entries)

    heard: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: heard.append(context["message"]))
    async with Engine(url, slots=1) as engine:
        engine.register(SagaBuilder("one", output="a").step("a", one))
        with monkeypatch.context() as patch:
            patch.setattr(decision_writer, "encode_entries", unable)
            handles = await asyncio.gather(*(engine.start("one") for _ in range(10)))
            going_on = [handle for handle in handles if not await _is_aside(handle)]
            ended = [await handle.result() for handle in going_on]
    assert [result.output for result in ended] == [1] * 9
    assert len(heard) == 1


async def _is_aside(handle: Handle[int]) -> bool:
    """Once it is known whether it goes on."""
    while (found := await handle.status())["status"] == "running":
        if found["blocked"] and found["blocked"]["reason"] == "incompatible":
            return True
        await asyncio.to_thread(lambda: None)
    return False

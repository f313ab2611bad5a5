"""Commands on an execution with a long history, and its status, do not read that history."""

from typing import Any

import pytest

from tenuto import Engine, Handle, SagaBuilder
from tenuto.errors import InvalidTransition
from tenuto.kernel.events import Entry
from tenuto.views import execution_document
from tests.contract.doubles import transaction
from tests.seams import make_snapshots_unreadable, runtime_of

REASON = "x" * 2_000
SAGA = SagaBuilder("s", output="then").approval("ok").signal("then", "go", depends_on=["ok"]).build()


async def long_one(engine: Engine) -> Handle[Any]:
    engine.register(SAGA)
    handle = await engine.start("s", "input")
    await handle.result()
    for _ in range(50):
        await handle.pause(reason=REASON)
        await handle.resume()
    return handle


def unread(history: Any) -> int:
    entries: list[Entry | None] = list(history)
    return entries.count(None)


async def test_the_status_of_a_long_execution_is_read_from_its_snapshot(url: str) -> None:
    async with Engine(url) as engine:
        id = (await long_one(engine)).id
    async with Engine(url, worker=False) as other:
        runtime = runtime_of(other)
        brief, whole = await runtime.executions.read_state(None, id), await runtime.executions.read(None, id)
        assert unread(brief.history) > 20
        assert unread(whole.history) == 0
        assert brief.history[0] == whole.history[0]
        assert len(brief.history) == len(whole.history)
        assert await other.get(id).status() == execution_document(whole.state, whole.history, whole.activity)


@pytest.mark.parametrize("worker", [True, False])
async def test_commands_on_a_long_execution_are_decided_as_on_a_short_one(url: str, worker: bool) -> None:
    async with Engine(url) as engine:
        id = (await long_one(engine)).id
    async with Engine(url, worker=worker) as other:
        other.register(SAGA)
        handle = other.get(id)
        with pytest.raises(InvalidTransition) as refused:
            await handle.approve("then")
        assert refused.value.code == "not_waiting"
        await handle.approve("ok", comment="fine")
        await handle.signal("go", "went")
        assert (await handle.result()).output == "went"
        assert (await handle.status())["output"] == "went"
        assert len(await handle.history()) == 2


async def test_a_record_in_hand_that_was_restored_by_its_snapshot_is_shown_without_the_rest(url: str) -> None:
    async with Engine(url) as engine:
        id = (await long_one(engine)).id
    async with Engine(url) as other:
        other.register(SAGA)
        gate = other.get(id)
        await gate.pause()
        brief = await runtime_of(other).executions.read_state(None, id)
        await gate.resume()
        assert (brief.state.status, (await gate.status())["status"]) == ("paused", "waiting_approval")


@pytest.mark.usefixtures("no_snapshot_is_readable")
async def test_a_snapshot_that_cannot_be_read_is_done_without(url: str) -> None:
    async with Engine(url) as engine:
        id = (await long_one(engine)).id
    async with Engine(url, worker=False) as other:
        assert unread((await runtime_of(other).executions.read_state(None, id)).history) == 0


@pytest.fixture
def no_snapshot_is_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    make_snapshots_unreadable(monkeypatch)


async def test_a_signal_that_is_refused_leaves_nothing_in_the_mailbox(url: str) -> None:
    async with Engine(url) as engine, Engine(url, worker=False) as other:
        engine.register(SAGA)
        id = (await engine.start("s")).id
        handle = other.get(id)
        for n in range(4):
            await handle.signal(f"early-{n}", "x" * 250_000)
        before = await mails(url)
        assert before
        with pytest.raises(InvalidTransition) as refused:
            await handle.signal("another", "x" * 250_000)
        assert refused.value.code == "too_many_signals"
        assert await mails(url) == before


async def mails(url: str) -> int:
    async with transaction(url) as connection:
        if url.startswith("sqlite"):
            return int(next(connection.execute("SELECT count(*) FROM mailbox"))[0])
        return int(await connection.fetchval("SELECT count(*) FROM mailbox"))

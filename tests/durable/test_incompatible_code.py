"""Code that cannot read what is stored: everybody sees it, others may try, a cancel ends it, nothing is burnt."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Annotated, Any

import pytest

from tenuto import Engine, FromStep, SagaBuilder
from tenuto.checker import check_database, find_stuck_in
from tenuto.kernel.address import Ref, lease_id
from tenuto.runtime.durable import parked_executions
from tests.contract.doubles import until_blocked
from tests.seams import claimer_of, held_by, reader_of, releaser_of, store_of

PATIENCE_S = 60

Make = Callable[..., Any]


async def text() -> str:
    return "secret"


async def number() -> int:
    return 7


async def takes_text(value: Annotated[str, FromStep("a")]) -> str:
    return value.upper()


def takes_text_in_a_thread(value: Annotated[str, FromStep("a")]) -> str:
    return value.upper()


async def takes_number(value: Annotated[int, FromStep("a")]) -> str:
    return str(value)


def takes_number_in_a_thread(value: Annotated[int, FromStep("a")]) -> str:
    return str(value)


def saga(first: Any, last: Any, **options: Any) -> SagaBuilder:
    steps = SagaBuilder("changed", output="b").step("a", first).signal("go", "go", depends_on=["a"])
    return steps.step("b", last, depends_on=["go"], **options)


UNSAFE: dict[str, Any] = {"safety": "not_safe_to_retry", "compensation_policy": "manual"}
KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "task": (takes_text, takes_number, {}),
    "thread": (takes_text_in_a_thread, takes_number_in_a_thread, {}),
    "unsafe": (takes_text, takes_number, UNSAFE),
    "unsafe thread": (takes_text_in_a_thread, takes_number_in_a_thread, UNSAFE),
}


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> tuple[Any, Any, dict[str, Any]]:
    return KINDS[request.param]


@pytest.fixture
async def make(url: str) -> AsyncIterator[Make]:
    async with AsyncExitStack() as stack:

        async def make(*sagas: object, **options: Any) -> Engine:
            engine = Engine(url, **{"shutdown_grace": "1s", **options})
            engine.register(*sagas)
            return await stack.enter_async_context(engine)

        yield make


async def stored_by_the_code_before(url: str, old: SagaBuilder) -> str:
    async with Engine(url) as engine:
        engine.register(old)
        handle = await engine.start("changed")
        await until_blocked(handle, "signal")
        return handle.id


def told_of(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if getattr(record, "action", "") == "set_aside"]


async def recorded(engine: Engine, id: str) -> list[str]:
    return [type(entry.event).__name__ for entry in await reader_of(engine).entries(None, id, 0)]


async def until_quiet(engine: Engine, id: str) -> None:
    """Nobody has it in hand, and it is set aside."""
    async with asyncio.timeout(PATIENCE_S):
        while (row := await store_of(engine).executions.find(id)) is None or row.owner is not None or not row.parked:
            pass


async def test_every_process_sees_what_cannot_be_read_and_the_log_says_it_once(
    url: str, make: Make, kind: Any, caplog: pytest.LogCaptureFixture
) -> None:
    old, new, options = kind
    id = await stored_by_the_code_before(url, saga(text, old, **options))
    await make(saga(number, new, **options))
    client = await make(worker=False)
    handle = client.get(id)
    await handle.signal("go")
    blocked = await until_blocked(handle, "incompatible")
    assert blocked["waiting_for"] == "step 'b', parameter 'value': Expected `int`, got `str`"
    assert blocked["commands"] == ["pause", "cancel"]
    assert [line["execution_id"] async for line in client.summaries(blocked=True)] == [id]
    assert [found.execution for found in [each async for each in find_stuck_in(url, 0)]] == [id]
    assert await check_database(url) == []
    await handle.pause()  # whoever does something about it wakes it, and it is tried again
    await handle.resume()
    await until_quiet(client, id)
    (said,) = told_of(caplog)
    assert (said.__dict__["execution_id"], "secret" in said.getMessage()) == (id, False)
    assert "AttemptBegun" not in await recorded(client, id)


async def test_it_goes_on_when_a_worker_comes_that_can_read_it(url: str, make: Make, kind: Any) -> None:
    old, new, options = kind
    id = await stored_by_the_code_before(url, saga(text, old, **options))
    newer = await make(saga(number, new, **options))
    await newer.get(id).signal("go")
    await until_blocked(newer.get(id), "incompatible")
    await make(saga(text, old, **options))
    result = await newer.get(id).result(timeout="30s")
    assert (result.output, result.steps["b"].attempts) == ("SECRET", 1)


async def test_a_worker_that_can_read_it_and_was_there_before_gets_it(
    url: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by chance when it is due again: workers that cannot would take it as often."""
    monkeypatch.setattr(parked_executions, "LOOK_SECONDS", 0.05)
    id = await stored_by_the_code_before(url, saga(text, takes_text))
    newer = await make(saga(number, takes_number))
    await newer.get(id).signal("go")
    older = await make(saga(text, takes_text))
    assert (await older.get(id).result(timeout="30s")).output == "SECRET"


async def test_workers_that_cannot_read_it_do_not_hand_it_around(
    url: str, make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(parked_executions, "LOOK_SECONDS", 0.0)
    id = await stored_by_the_code_before(url, saga(text, takes_text))
    engines = [await make(saga(number, takes_number)) for _ in range(3)]
    handle = engines[0].get(id)
    await handle.signal("go")
    async with asyncio.timeout(PATIENCE_S):
        while len(told_of(caplog)) < len(engines):
            await asyncio.to_thread(lambda: None)
    await until_quiet(engines[0], id)
    before = await recorded(engines[0], id)
    for engine in engines:  # each looks at everything, and leaves it alone
        await claimer_of(engine).claim()
        assert id not in held_by(engine).records
    assert await recorded(engines[0], id) == before


@pytest.mark.parametrize("mode", ["drain", "compensate"])
@pytest.mark.parametrize("works", [True, False])
async def test_it_is_canceled_without_anybody_who_can_read_it(
    url: str, make: Make, kind: Any, mode: Any, works: bool
) -> None:
    old, new, options = kind
    id = await stored_by_the_code_before(url, saga(text, old, **options))
    newer = await make(saga(number, new, **options))
    await newer.get(id).signal("go")
    await until_blocked(newer.get(id), "incompatible")
    handle = (await make(worker=works)).get(id)
    await handle.cancel(mode)
    result = await handle.result(timeout="30s")
    assert (result.status, result.steps["b"].status) == ("canceled", "canceled")


# -- Directives and plans ----------------------------------------------------------------------------------------------

SAFE = {"idempotency_strategy": "SAFE_TO_RETRY"}
CALLBACK = {"type": "external_call", "handler": "last", "completion": "callback", "result_timeout_ms": 600_000}
FURTHER: dict[str, dict[str, Any]] = {
    "directive": {**CALLBACK, **SAFE},
    "directive that may not be sent twice": {
        **CALLBACK, "idempotency_strategy": "NOT_SAFE_TO_RETRY", "reconcile_handler": "first",
    },
    "planner": {"type": "scope", "mode": "parallel", "planner": "last", "children": []},
}  # fmt: skip


async def plans_from_text(value: Annotated[str, FromStep("a")]) -> Any:
    return [{"step_id": "c", "type": "task", "handler": "first", **SAFE}]


async def plans_from_number(value: Annotated[int, FromStep("a")]) -> Any:
    return [{"step_id": "c", "type": "task", "handler": "first", **SAFE}]


async def give(engine: Engine, what: str, *, reads: type) -> None:
    """The code of a process: what it takes for the result of the first step."""
    engine.handler("first", text)
    if what == "planner":
        engine.handler("last", plans_from_text if reads is str else plans_from_number)
    else:
        engine.handler("last", takes_text if reads is str else takes_number)
    first = {"step_id": "a", "type": "task", "handler": "first", **SAFE}
    go = {"step_id": "go", "type": "wait", "with": {"signal": "go"}}
    await engine.apply({"name": "changed", "mode": "sequence", "steps": [first, go, {"step_id": "b", **FURTHER[what]}]})


async def blocked_by_new_code(url: str, make: Make, what: str) -> tuple[Engine, str]:
    async with Engine(url) as old:
        await give(old, what, reads=str)
        handle = await old.start("changed")
        await until_blocked(handle, "signal")
    newer = await make()
    await give(newer, what, reads=int)
    await newer.get(handle.id).signal("go")
    blocked = await until_blocked(newer.get(handle.id), "incompatible")
    assert blocked["waiting_for"].endswith("parameter 'value': Expected `int`, got `str`")
    return newer, handle.id


@pytest.mark.parametrize("what", FURTHER)
@pytest.mark.parametrize("mode", ["drain", "compensate"])
async def test_a_cancel_does_not_wait_for_what_cannot_be_sent_or_planned(
    url: str, make: Make, what: str, mode: Any
) -> None:
    newer, id = await blocked_by_new_code(url, make, what)
    await newer.get(id).cancel(mode)
    assert (await newer.get(id).result(timeout="30s")).status == "canceled"
    assert await check_database(url) == []


@pytest.mark.parametrize("what", FURTHER)
async def test_it_is_sent_or_planned_by_a_worker_that_can_read_it(url: str, make: Make, what: str) -> None:
    newer, id = await blocked_by_new_code(url, make, what)
    older = await make()
    await give(older, what, reads=str)
    if what == "planner":
        assert (await newer.get(id).result(timeout="30s")).status == "succeeded"
    else:
        await until_blocked(older.get(id), "callback")
        await older.get(id).cancel("drain")  # it was sent, and is awaited
        assert (await older.get(id).status())["status"] == "running"
        lease = lease_id(id, Ref("b", "forward", 1))
        assert (await older.get(id).answer("b", attempt=1, lease=lease, result="done")) == "applied"
        assert (await older.get(id).result(timeout="30s")).status == "canceled"
    assert await check_database(url) == []


async def test_what_nobody_has_the_code_of_is_canceled(make: Make) -> None:
    client = await make(saga(text, takes_text), worker=False)
    handle = await client.start("changed")
    await until_blocked(handle, "no_worker")
    await handle.cancel("drain")
    assert (await handle.result(timeout="30s")).status == "canceled"


async def test_what_was_learned_meanwhile_is_tried_at_once(url: str, make: Make) -> None:
    id = await stored_by_the_code_before(url, saga(text, takes_text))
    engine = await make(saga(number, takes_number))
    await engine.get(id).signal("go")
    await until_blocked(engine.get(id), "incompatible")
    engine.register(saga(text, takes_text))
    assert (await engine.get(id).result(timeout="30s")).output == "SECRET"


async def test_what_is_learned_while_it_is_handed_back_begins_when_it_is_granted_again(
    url: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then it is nobody's: a cancel would not await it, and whoever takes over would take it for not begun."""
    id = await stored_by_the_code_before(url, saga(text, takes_text))
    engine = await make(saga(number, takes_number))
    releaser = releaser_of(engine)
    hand_back = releaser.return_work

    def learn_meanwhile(record: Any, unknown: Any) -> None:
        monkeypatch.setattr(releaser, "return_work", hand_back)
        hand_back(record, unknown)
        assert record.uncommitted
        engine.register(saga(text, takes_text))

    monkeypatch.setattr(releaser, "return_work", learn_meanwhile)
    await engine.get(id).signal("go")
    assert (await engine.get(id).result(timeout="30s")).output == "SECRET"
    events = await recorded(engine, id)
    assert events[events.index("AttemptsReturned") :][:3] == ["AttemptsReturned", "AttemptsGranted", "AttemptSucceeded"]


async def test_what_runs_beside_it_comes_to_its_end(url: str, make: Make) -> None:
    """It is let go of when nothing of it runs here any more; what was recorded meanwhile stays."""
    reached, release = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        reached.set()
        await release.wait()
        return "done"

    def parallel(first: Any, last: Any) -> SagaBuilder:
        steps = SagaBuilder("beside", output="b").step("a", first).signal("go", "go", depends_on=["a"])
        return steps.step("b", last, depends_on=["go"]).step("c", slow, depends_on=["go"])

    async with Engine(url) as old:
        old.register(parallel(text, takes_text))
        handle = await old.start("beside")
        await until_blocked(handle, "signal")
    newer = await make(parallel(number, takes_number))
    handle = newer.get(handle.id)
    await handle.signal("go")
    await reached.wait()
    assert (await handle.status())["blocked"] is None
    release.set()
    await until_blocked(handle, "incompatible")
    await make(parallel(text, takes_text))
    result = await handle.result(timeout="30s")
    assert (result.output, result.steps["c"].attempts) == ("SECRET", 1)

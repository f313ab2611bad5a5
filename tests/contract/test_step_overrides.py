"""Settings of a deployment change timeouts, retry policies and limits of a published version, without a new one."""

import asyncio
from typing import Any

import pytest

from tenuto import Engine, Retry, SagaBuilder, SagaContext
from tenuto.errors import NotSupported, SettingsError, TransientError

from .conftest import DURABLE, MakeEngine

SAFE = "SAFE_TO_RETRY"


async def fail() -> None:
    raise TransientError("not now")


async def hang() -> None:
    await asyncio.get_running_loop().create_future()


def saga(step: Any = fail, **options: Any) -> object:
    return SagaBuilder("s").step("a", step, retry=Retry(2, initial="1ms"), **options).build()


async def attempts(engine: Engine) -> list[dict[str, Any]]:
    handle = await engine.start("s")
    await handle.result()
    return await rows_of(engine, handle.id)


async def rows_of(engine: Engine, id: str) -> list[dict[str, Any]]:
    return [dict(row) for row in await engine.get(id).history()]


@pytest.mark.parametrize("queue", [None, "gpu"])
async def test_a_retry_policy_is_overridden_and_recorded_on_each_attempt(
    make_engine: MakeEngine, queue: str | None
) -> None:
    retry = {"max_attempts": 4, "initial": "1ms", "jitter": 0}
    overrides = {"s.a": {"retry": retry}}
    engine = await make_engine(saga(queue=queue), queues=("default", "gpu"), step_overrides=overrides)
    rows = await attempts(engine)
    assert [row["attempt_number"] for row in rows] == [1, 2, 3, 4]
    for row in rows:
        policy = row["override"]["retry_policy"]
        assert (policy["max_attempts"], policy["initial_delay_ms"]) == (4, 1)
        assert list(row["override"]) == ["retry_policy"]


async def test_attempts_of_other_steps_and_without_overrides_record_none(make_engine: MakeEngine) -> None:
    two = SagaBuilder("s").step("a", fail, retry=0).step("b", fail, retry=0).build()
    rows = await attempts(await make_engine(two, step_overrides={"s.a": {"retry": 1}}))
    assert {row["step_id"]: row["override"] is None for row in rows} == {"a": False, "b": True}


async def test_a_timeout_is_overridden(make_engine: MakeEngine) -> None:
    engine = await make_engine(saga(hang, timeout="1h"), step_overrides={"s.a": {"timeout": "10ms", "retry": 0}})
    (row,) = await attempts(engine)
    assert (row["status"], row["override"]["timeout_ms"]) == ("timed_out", 10)


async def test_limits_are_overridden(make_engine: MakeEngine) -> None:
    running: list[int] = []
    most: list[int] = []

    async def work() -> None:
        running.append(1)
        most.append(len(running))
        await asyncio.to_thread(lambda: None)
        running.pop()

    engine = await make_engine(saga(work), step_overrides={"s.a": {"limits": ["bank"]}})
    await engine.limit("bank", concurrency=1)
    handles = [await engine.start("s") for _ in range(4)]
    for handle in handles:
        assert (await handle.result()).succeeded
    assert max(most) == 1
    (row,) = await rows_of(engine, handles[0].id)
    assert row["override"] == {"limits": ["bank"]}


async def test_the_stored_definition_and_its_hash_stay_as_they_are(make_engine: MakeEngine) -> None:
    plain = await make_engine(saga())
    before = await plain.catalog.get("s", 1)
    rows = await attempts(await make_engine(saga(), step_overrides={"s.a": {"retry": 2}}))
    assert len(rows) == 3
    assert await plain.catalog.get("s", 1) == before


@pytest.mark.parametrize("runtime", DURABLE, indirect=True)
async def test_an_execution_follows_the_overrides_of_the_process_that_runs_it(make_engine: MakeEngine) -> None:
    """Also where fewer attempts are allowed now than were made."""
    called: list[int] = []
    fourth = asyncio.Event()

    async def work(ctx: SagaContext) -> None:
        called.append(ctx.attempt)
        if len(called) == 4:
            fourth.set()
            await hang()
        raise TransientError("not now")

    retry = {"max_attempts": 6, "initial": "1ms"}
    first = await make_engine(saga(work), step_overrides={"s.a": {"retry": retry}}, shutdown_grace="0s")
    handle = await first.start("s")
    await fourth.wait()
    await first.close()
    second = await make_engine(saga(work))
    await second.get(handle.id).result()
    rows = await rows_of(second, handle.id)
    assert [row["status"] for row in rows][-1] == "failed"
    assert [row["override"] is not None for row in rows if row["error_code"] != "worker_lost"] == [*[True] * 3, False]


@pytest.mark.parametrize("runtime", DURABLE, indirect=True)
async def test_executions_of_stored_definitions_follow_them_without_code(make_engine: MakeEngine) -> None:
    document = {
        "name": "s",
        "version": 1,
        "steps": [{"step_id": "a", "handler": "missing", "idempotency_strategy": SAFE}],
    }
    await (await make_engine()).apply(document)
    overrides = {"s.a": {"retry": 0, "limits": ["bank"]}}
    engine = await make_engine(step_overrides=overrides)
    handle = await engine.start("s")
    engine.handler("missing", fail)
    await handle.result()
    (row,) = await rows_of(engine, handle.id)
    assert (row["override"]["retry_policy"]["max_attempts"], row["override"]["limits"]) == (1, ["bank"])


REFUSED = [
    ({"s.a": {"tmeout": "1s"}}, "did you mean `timeout`"),
    ({"s.a": {"retry": {"max_atempts": 2}}}, "did you mean `max_attempts`"),
    ({"s.a": {"timeout": "soon"}}, "timeout"),
    ({"s.a": {"retry": {"max_attempts": 0}}}, "max_attempts"),
    ({"s.a": {"limits": "bank"}}, "list"),
    ({"s.a": {}}, "Options are: timeout, retry, limits"),
    ({"a": {"timeout": "1s"}}, '"saga.step"'),
    ({"t.a": {"timeout": "1s"}}, "there is no saga or definition 't'"),
    ({"s.aa": {"timeout": "1s"}}, "did you mean `a`"),
    ({"s.ok": {"retry": 1}}, "retry"),
    ({"s.pay": {"timeout": "1s"}}, "not safe to retry"),
]


async def opened(given: object, overrides: Any) -> None:
    engine = Engine("memory://", step_overrides=overrides)
    engine.register(given)
    async with engine:
        return


@pytest.mark.parametrize(("overrides", "text"), REFUSED)
async def test_what_applies_to_nothing_is_refused(overrides: Any, text: str) -> None:
    given = (
        SagaBuilder("s")
        .step("a", fail)
        .approval("ok")
        .step("pay", fail, safety="not_safe_to_retry", compensation_policy="manual")
    )
    with pytest.raises(SettingsError, match="step_overrides") as refused:
        await opened(given.build(), overrides)
    assert text in str(refused.value)


def test_a_client_of_a_service_has_none() -> None:
    with pytest.raises(NotSupported, match="step_overrides"):
        Engine("https://tenuto.example", step_overrides={"s.a": {"timeout": "1s"}})

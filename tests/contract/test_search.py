"""Executions found by version, error, reason of being blocked, and one search text."""

from typing import Any

import pytest

from tenuto import Engine, ExpandEach, SagaBuilder, StepInputs
from tenuto.errors import InvalidInput, NonRetryableError

from .conftest import MakeEngine
from .doubles import until_blocked


async def refuse() -> str:
    raise NonRetryableError("no")


async def decline() -> str:
    raise NonRetryableError("no", code="card_declined")


async def decline_two(item: int) -> int:
    if item == 2:
        raise NonRetryableError("no", code="no_twos")
    return item


async def found(engine: Engine, **wanted: Any) -> list[str]:
    return [row["execution_id"] async for row in engine.summaries(**wanted)]


async def test_one_text_finds_an_execution_by_whatever_names_it(make_engine: MakeEngine) -> None:
    engine = await make_engine(SagaBuilder("s").approval("ok").build())
    handle = await engine.start(
        "s", idempotency_key="order-7", target=("order", "o-7"), correlation_id="c-7", tenant="default"
    )
    other = await engine.start("s", idempotency_key="order-8", target=("order", "o-8"), correlation_id="c-8")
    for text in (handle.id, "order-7", "o-7", "c-7"):
        assert await found(engine, q=text) == [handle.id]
    shared = handle.id[:6]
    assert other.id.startswith(shared)
    assert await found(engine, q=shared) == [handle.id, other.id]
    assert await found(engine, q=shared, newest_first=True) == [other.id, handle.id]
    assert await found(engine, q="nothing of this name") == []
    assert await found(engine, q="%") == []
    assert await found(engine, q="c-7", correlation_id="c-8") == []
    assert await found(engine, q="c-7", status="succeeded") == []
    assert await found(engine.scoped(tenant="default", actor="a"), q="o-7", definition="s") == [handle.id]
    assert await found(engine.scoped(tenant="other", actor="a"), q="o-7") == []


async def test_what_has_the_same_text_in_several_places_is_found_once(make_engine: MakeEngine) -> None:
    engine = await make_engine(SagaBuilder("s").approval("ok").build())
    handle = await engine.start("s", idempotency_key="same", target=("order", "same"), correlation_id="same")
    scoped = engine.scoped(tenant="default", actor="a")
    assert await found(scoped, q="same") == [handle.id]
    page = await scoped.listing.executions(q="same", limit=1)
    assert ([row["execution_id"] for row in page.items], page.next_cursor) == ([handle.id], None)


async def test_a_search_is_paged(make_engine: MakeEngine) -> None:
    engine = await make_engine(SagaBuilder("s").approval("ok").build())
    ids = [(await engine.start("s", correlation_id="batch")).id for _ in range(5)]
    scoped = engine.scoped(tenant="default", actor="a")
    seen: list[str] = []
    cursor = None
    while True:
        page = await scoped.listing.executions(q="batch", limit=2, newest_first=False, cursor=cursor)
        seen += [row["execution_id"] for row in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert seen == ids


async def test_failures_are_found_by_their_class_and_executions_by_their_version(make_engine: MakeEngine) -> None:
    engine = await make_engine(
        SagaBuilder("s", version=1).step("a", refuse).build(), SagaBuilder("t", version=2).step("a", refuse).build()
    )
    first, second = await engine.start("s"), await engine.start("t")
    for handle in (first, second):
        await handle.result()
    assert await found(engine, version=2) == [second.id]
    assert await found(engine, error_class="NON_RETRYABLE") == [first.id, second.id]
    assert await found(engine, error_class="NON_RETRYABLE", version=1, definition="s") == [first.id]
    assert await found(engine, error_class="TRANSIENT") == []
    with pytest.raises(InvalidInput, match="error_class"):
        await found(engine, error_class="WRONG")


async def test_failures_are_found_by_their_code_and_step(make_engine: MakeEngine) -> None:
    engine = await make_engine(
        SagaBuilder("s").step("pay", decline).build(),
        SagaBuilder("t").step("pay", refuse).build(),
        SagaBuilder("fan").step("items", decline_two).build(),
        SagaBuilder("open").approval("ok").build(),
    )
    declined, refused = await engine.start("s"), await engine.start("t")
    fanned = await engine.start("fan", StepInputs({"items": ExpandEach([1, 2])}))
    await engine.start("open")
    for handle in (declined, refused, fanned):
        await handle.result()
    assert await found(engine, error_code="card_declined") == [declined.id]
    assert await found(engine, failed_step="pay") == [declined.id, refused.id]
    assert await found(engine, failed_step="pay", newest_first=True) == [refused.id, declined.id]
    assert await found(engine, failed_step="items") == [fanned.id]
    assert await found(engine, failed_step="items#1") == [fanned.id]
    assert await found(engine, failed_step="items#0") == []
    assert await found(engine, failed_step="pay", error_code="card_declined", definition="t") == []
    assert await found(engine, failed_step="pay", error_class="NON_RETRYABLE", status="failed", definition="t") == [
        refused.id
    ]
    assert await found(engine, failed_step="pay", status="succeeded") == []
    assert await found(engine, failed_step="pay", blocked=True) == []
    assert await found(engine.scoped(tenant="other", actor="a"), error_code="card_declined") == []
    with pytest.raises(InvalidInput, match="error_code"):
        await found(engine, error_code=7)


async def test_a_page_of_failures_goes_on_where_nothing_matched(make_engine: MakeEngine) -> None:
    engine = await make_engine(
        SagaBuilder("s").step("pay", decline).build(), SagaBuilder("t").step("pay", refuse).build()
    )
    handles = [await engine.start(name) for name in ("t", "t", "s")]
    for handle in handles:
        await handle.result()
    scoped = engine.scoped(tenant="default", actor="a")
    first = await scoped.listing.executions(error_code="card_declined", newest_first=False, limit=2)
    assert (first.items, first.next_cursor is None) == ([], False)
    last = await scoped.listing.executions(
        error_code="card_declined", newest_first=False, limit=2, cursor=first.next_cursor
    )
    assert ([row["execution_id"] for row in last.items], last.next_cursor) == ([handles[2].id], None)


async def test_blocked_executions_are_found_by_the_reason(make_engine: MakeEngine) -> None:
    engine = await make_engine(
        SagaBuilder("asks").approval("ok").build(), SagaBuilder("hears").signal("paid", "payment").build()
    )
    asks, hears = await engine.start("asks"), await engine.start("hears")
    await until_blocked(asks, "approval")
    await until_blocked(hears, "signal")
    assert await found(engine, blocked=True) == [asks.id, hears.id]
    assert await found(engine, blocked_reason="approval") == [asks.id]
    assert await found(engine, blocked_reason="signal", newest_first=True) == [hears.id]
    assert await found(engine, blocked_reason="signal", definition="asks") == []
    assert await found(engine, blocked_reason="paused") == []
    (row,) = [row async for row in engine.summaries(blocked_reason="signal")]
    assert row["blocked"] is not None
    assert row["blocked"]["waiting_for"] == "payment"
    with pytest.raises(InvalidInput, match="approval"):
        await found(engine, blocked_reason="wrong")

"""One command for many executions, chosen by a filter."""

from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest

from tenuto import Engine, SagaBuilder
from tenuto.api.handle import Handle
from tenuto.errors import InvalidInput, NonRetryableError

from .doubles import Stage
from .sagas import one_step

SOON = datetime.now(UTC) + timedelta(days=1)


async def waiting(engine: Engine, number: int, **options: Any) -> list[Handle[Any]]:
    """Executions that wait for a signal."""
    return [await engine.start("waits", **options) for _ in range(number)]


async def statuses(handles: list[Handle[Any]]) -> list[str]:
    return [(await handle.result()).status for handle in handles]


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is."""
    monkeypatch.setattr("tenuto.api.bulk_commands.VERDICT_SECONDS", 60)


@pytest.fixture
def waits(engine: Engine) -> None:
    engine.register(SagaBuilder("waits").signal("paid", "paid").build(), SagaBuilder("asks").approval("ok").build())


async def test_all_that_fit_are_canceled_a_few_at_a_time(engine: Engine, waits: None) -> None:
    handles = await waiting(engine, 5)
    other = await engine.start("asks")
    dry = await engine.cancel_many(definition="waits", limit=2, reason="closed", dry_run=True)
    assert (dry.chosen, dry.done, dry.remaining) == ([h.id for h in handles[:2]], [], 3)

    cursor, done = None, []
    for left in (3, 1, 0):
        acted = await engine.cancel_many(definition="waits", limit=2, reason="closed", cursor=cursor)
        assert (acted.remaining, acted.refused, acted.pending, acted.chosen) == (left, [], [], [])
        done += acted.done
        cursor = acted.next_cursor
    assert cursor is None
    assert done == [handle.id for handle in handles], "oldest first"
    assert await statuses(handles) == ["canceled"] * 5
    assert (await other.status())["status"] == "waiting_approval"
    assert (await engine.cancel_many(definition="waits", reason="closed")).done == [], "what is over is left alone"


async def test_filters_choose_together(engine: Engine, waits: None) -> None:
    first, second = await waiting(engine, 1, correlation_id="a", target=("Order", "o-1")), await waiting(engine, 1)
    asking = await engine.start("asks", correlation_id="a")
    await asking.result()
    for chosen, ids in (
        ({"target_id": "o-1"}, [first[0].id]),
        ({"correlation_id": "a"}, [first[0].id, asking.id]),
        ({"correlation_id": "a", "status": "waiting_approval"}, [asking.id]),
        ({"status": "running"}, [first[0].id, second[0].id]),
        ({"before": SOON, "definition": "asks"}, [asking.id]),
        ({"since": SOON}, []),
    ):
        given: Any = chosen
        assert (await engine.cancel_many(**given, reason="r", dry_run=True)).chosen == ids, chosen


async def test_what_failed_is_tried_again(engine: Engine) -> None:
    stage = Stage()
    engine.register(one_step("pays", stage.does("pay", *[NonRetryableError("no")] * 3)).build())
    failed = [await engine.start("pays") for _ in range(3)]
    assert await statuses(failed) == ["failed"] * 3

    acted = await engine.retry_many(definition="pays", limit=2, reason="the bank is back")
    assert (sorted(acted.done), acted.remaining) == (sorted(h.id for h in failed[:2]), 1)
    assert await statuses(failed) == ["succeeded", "succeeded", "failed"]
    again = await engine.retry_many(definition="pays", reason="the bank is back", cursor=acted.next_cursor)
    assert (again.done, again.next_cursor) == ([failed[2].id], None)
    assert await statuses(failed) == ["succeeded"] * 3


@pytest.mark.parametrize(("page", "counted"), [(500, 3), (1, 1)])
async def test_a_call_that_takes_long_leaves_the_rest_for_another(
    engine: Engine, waits: None, monkeypatch: pytest.MonkeyPatch, page: int, counted: int
) -> None:
    handles = await waiting(engine, 5)
    monkeypatch.setattr("tenuto.api.bulk_commands.monotonic", count(0, 10).__next__)  # ten seconds pass with each round
    monkeypatch.setattr("tenuto.api.bulk_commands.CONCURRENCY", 1)
    monkeypatch.setattr("tenuto.api.bulk_commands.PAGE", page)
    ids = [handle.id for handle in handles]
    first = await engine.cancel_many(definition="waits", reason="closed")
    assert (first.done, first.remaining, first.pending, first.refused) == (ids[:2], counted, [], [])
    dry = await engine.cancel_many(definition="waits", reason="closed", cursor=first.next_cursor, dry_run=True)
    assert (dry.chosen, dry.next_cursor is None) == (ids[2:4], False)

    second = await engine.cancel_many(definition="waits", reason="closed", cursor=first.next_cursor)
    third = await engine.cancel_many(definition="waits", reason="closed", cursor=second.next_cursor)
    assert (second.done, third.done, third.remaining, third.next_cursor) == (ids[2:4], ids[4:], 0, None)
    assert await statuses(handles) == ["canceled"] * 5


async def test_many_are_chosen_by_something_and_told_why(engine: Engine) -> None:
    for wrong in ({"reason": "r"}, {"definition": "d", "reason": " "}, {"definition": "d", "reason": "r", "limit": 0}):
        given: Any = wrong
        for act in (engine.cancel_many, engine.retry_many):
            with pytest.raises(InvalidInput):
                await act(**given)
    odd: Any = {"status": "failed"}
    with pytest.raises(InvalidInput):
        await engine.cancel_many(**odd, reason="r")

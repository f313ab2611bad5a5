"""A cursor goes on with the list that gave it, asked in the same way. Whatever else is given for one is refused."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from tenuto import Engine, SagaBuilder
from tenuto.errors import BadCursor, NonRetryableError
from tenuto.runtime.shared.pages import Paging
from tenuto.views.bulk_results import BulkResult
from tenuto.views.pages import Page
from tenuto.views.projections import AuditRow

from .conftest import MakeEngine

Listed = Page[Any] | BulkResult
Ask = Callable[[str | None], Awaitable[Listed]]


async def items() -> list[int]:
    return [1, 2, 3]


async def double(number: int) -> int:
    return 2 * number


async def fail() -> None:
    raise NonRetryableError("no")


SAGAS = (
    SagaBuilder("each").step("items", items).step("double", double, foreach="steps.items.result"),
    SagaBuilder("fails").step("fail", fail),
    SagaBuilder("asks").approval("ok"),
)


def lists(engine: Engine, one: str, other: str) -> dict[str, Ask]:
    """All that have cursors, some of them asked in more ways than one. Each has more than one row."""
    listing = engine.listing
    many: dict[str, Any] = {"reason": "r", "dry_run": True, "limit": 1}
    return {
        "executions": lambda cursor: listing.executions(cursor=cursor, limit=1),
        "oldest first": lambda cursor: listing.executions(cursor=cursor, limit=1, newest_first=False),
        "of a definition": lambda cursor: listing.executions(cursor=cursor, limit=1, definition="fails"),
        "reviews": lambda cursor: listing.reviews(cursor=cursor, limit=1),
        "approvals": lambda cursor: listing.reviews(cursor=cursor, limit=1, kind="approval"),
        "letters as reviews": lambda cursor: listing.reviews(cursor=cursor, limit=1, kind="dead_letter"),
        "letters": lambda cursor: listing.dlq(cursor=cursor, limit=1),
        "attempts": lambda cursor: listing.attempts(one, cursor=cursor, limit=1),
        "attempts of another": lambda cursor: listing.attempts(other, cursor=cursor, limit=1),
        "events": lambda cursor: listing.events(one, cursor=cursor, limit=1),
        "clones": lambda cursor: listing.clones(one, "double", cursor=cursor, limit=1),
        "definitions": lambda cursor: engine.catalog.list(cursor=cursor, limit=1),
        "published": lambda cursor: engine.catalog.list(cursor=cursor, limit=1, status="published"),
        "audit": lambda cursor: engine.audit.page(cursor=cursor, limit=1),
        "audit of an action": lambda cursor: engine.audit.page(cursor=cursor, limit=1, action="test"),
        "cancel": lambda cursor: engine.cancel_many(cursor=cursor, definition="asks", **many),
        "retry": lambda cursor: engine.retry_many(cursor=cursor, definition="fails", **many),
    }


@pytest.fixture
async def asked(make_engine: MakeEngine) -> dict[str, Ask]:
    engine = await make_engine(*SAGAS)
    for _ in range(2):
        await engine.execute("fails")
        await engine.execute("asks")
        await engine.execute("asks")
    one, other = [(await engine.execute("each")).execution_id for _ in range(2)]
    behind = getattr(engine, "behind", engine)
    for number in range(3):
        await behind.registry.note(_noted(f"{number}"))
    return lists(engine, one, other)


def _noted(object_id: str) -> AuditRow:
    return AuditRow(tenant="default", at=1, actor="a", action="test", object_type="thing", object_id=object_id)


def rows(found: Listed) -> list[Any]:
    return found.chosen if isinstance(found, BulkResult) else found.items


async def cursor_of(ask: Ask) -> str:
    cursor = (await ask(None)).next_cursor
    assert cursor is not None
    return cursor


async def test_a_cursor_goes_on_where_its_page_ends(asked: dict[str, Ask]) -> None:
    for name, ask in asked.items():
        first, second = await ask(None), await ask(await cursor_of(ask))
        assert len(rows(first)) == len(rows(second)) == 1, name
        assert rows(first) != rows(second), name


async def test_a_cursor_of_another_list_is_refused(asked: dict[str, Ask]) -> None:
    cursors = {name: await cursor_of(ask) for name, ask in asked.items()}
    for name, ask in asked.items():
        for other, cursor in cursors.items():
            if other != name:
                await refused(ask, cursor, f"{name} with a cursor of {other}")


@pytest.mark.parametrize(
    "forge",
    [
        lambda cursor: "x",
        lambda cursor: "",
        lambda cursor: "1",
        lambda cursor: "ä" * 8,
        lambda cursor: cursor + "A",
        lambda cursor: cursor[:-1],
        lambda cursor: cursor[:-2] + ("AA" if cursor[-2:] != "AA" else "BB"),
        lambda cursor: ("A" if cursor[0] != "A" else "B") + cursor[1:],
        lambda cursor: cursor + "==",
        lambda cursor: 7,
    ],
)
async def test_what_is_no_cursor_is_refused(asked: dict[str, Ask], forge: Callable[[str], Any]) -> None:
    for name, ask in asked.items():
        await refused(ask, forge(await cursor_of(ask)), name)


FORGED = ["-5", "", "1,5", "²", "x\0y", "-1 name", "one name", "9" * 30 + " name"]
NUMBERED = ("attempts", "attempts of another", "events", "clones", "audit", "audit of an action")


async def forged(ask: Ask, position: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A cursor has no secret: its check can be computed for any position."""
    made: list[Paging] = []
    init = Paging.__init__

    def noted(paging: Paging, of: str, wanted: object, cursor: str | None) -> None:
        made.append(paging)
        init(paging, of, wanted, cursor)

    with monkeypatch.context() as noting:
        noting.setattr(Paging, "__init__", noted)
        await ask(None)
    cursor = made[0].sealed(position)
    assert cursor is not None
    return cursor


async def test_a_forged_position_is_refused_by_every_list(
    asked: dict[str, Ask], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, ask in asked.items():
        for position in [*FORGED, *(["9" * 17, "9" * 500] if name in NUMBERED else [])]:
            await refused(ask, await forged(ask, position, monkeypatch), f"{name} at {position[:20]!r}")


async def test_a_position_beyond_the_end_fails_nowhere(asked: dict[str, Ask], monkeypatch: pytest.MonkeyPatch) -> None:
    for ask in asked.values():
        with suppress(BadCursor):  # over HTTP, the position is a cursor of the service
            await ask(await forged(ask, "99999", monkeypatch))


async def refused(ask: Ask, cursor: Any, why: str) -> None:
    with pytest.raises(BadCursor) as told:
        await ask(cursor)
    assert told.value.code == "bad_cursor"
    (problem,) = told.value.problems
    assert problem.path in ("/cursor", "/query/cursor"), why
    assert problem.code == "bad_cursor", why

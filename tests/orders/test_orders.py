"""Orders move only along their transitions, and only from the version that was read."""

from collections.abc import AsyncIterator
from itertools import product

import pytest

from examples.orders.database import Database, connect
from examples.orders.orders import (
    SCHEMA,
    TRANSITIONS,
    ForbiddenTransition,
    NoSuchOrder,
    Order,
    Orders,
    Status,
    StoredOrder,
    VersionConflict,
)

ORDER = Order("a", "tea", 2, 500)
WAYS: dict[Status, tuple[Status, ...]] = {
    "pending": (),
    "reserved": ("reserved",),
    "paid": ("reserved", "paid"),
    "confirmed": ("reserved", "paid", "confirmed"),
    "canceled": ("canceled",),
    "refunded": ("reserved", "paid", "refunded"),
}


class Contended(Orders):
    """Somebody else writes the order right after it was read, as often as told."""

    def __init__(self, database: Database, times: int) -> None:
        super().__init__(database)
        self.times = times

    async def get(self, id: str) -> StoredOrder:
        order = await super().get(id)
        if self.times > 0:
            self.times -= 1
            await self.next_payment(order)
        return order


@pytest.fixture
async def database() -> AsyncIterator[Database]:
    database = connect("memory://", *SCHEMA)
    yield database
    await database.close()


async def make(database: Database, status: Status) -> Orders:
    orders = Orders(database)
    async with database.transaction() as transaction:
        assert await orders.insert(transaction, ORDER) is not None
    await orders.move("a", *WAYS[status])
    return orders


@pytest.mark.requirement("E15")
@pytest.mark.parametrize(("before", "after"), list(product(WAYS, WAYS)))
async def test_an_order_moves_only_along_its_transitions(before: Status, after: Status, database: Database) -> None:
    orders = await make(database, before)
    version = (await orders.get("a")).version
    if before == after:
        await orders.move("a", after)
        assert (await orders.get("a")).version == version
    elif after in TRANSITIONS[before]:
        await orders.move("a", after)
        assert (await orders.get("a")).status == after
        assert (await orders.get("a")).version == version + 1
    else:
        with pytest.raises(ForbiddenTransition, match=f"is {before}, and cannot become {after}"):
            await orders.move("a", after)
        assert (await orders.get("a")).status == before


async def test_a_path_goes_on_where_the_order_is(database: Database) -> None:
    orders = await make(database, "reserved")
    for _ in range(2):
        await orders.move("a", "paid", "refunded")
    changes = [(event.version, event.status) for event in await orders.unannounced("a")]
    assert changes == [(1, "pending"), (2, "reserved"), (3, "paid"), (4, "refunded")]


@pytest.mark.requirement("C22")
async def test_a_write_after_somebody_elses_is_refused(database: Database) -> None:
    await make(database, "pending")
    orders = Contended(database, times=1)
    with pytest.raises(VersionConflict, match="no longer at version 1"):
        await orders.move("a", "reserved")
    await orders.move("a", "reserved")
    assert (await orders.get("a")).status == "reserved"


@pytest.mark.parametrize("status", ["reserved", "paid"])
async def test_an_order_that_is_closing_cannot_be_confirmed(status: Status, database: Database) -> None:
    orders = await make(database, status)
    assert (await orders.request_cancel("a")).closing
    with pytest.raises(ForbiddenTransition, match="and closing"):
        await orders.move("a", "paid", "confirmed")
    with pytest.raises(ForbiddenTransition, match="is closing"):
        await orders.get_open("a")
    assert (await orders.get("a")).status == status


async def test_an_order_that_nothing_was_done_for_is_canceled_at_once(database: Database) -> None:
    orders = await make(database, "pending")
    assert (await orders.request_cancel("a")).status == "canceled"


@pytest.mark.parametrize("status", ["confirmed", "canceled", "refunded"])
async def test_a_final_order_cannot_be_canceled(status: Status, database: Database) -> None:
    orders = await make(database, status)
    with pytest.raises(ForbiddenTransition, match=f"is {status}"):
        await orders.request_cancel("a")


async def test_an_order_is_inserted_once_and_an_unknown_one_is_not_found(database: Database) -> None:
    orders = await make(database, "reserved")
    async with database.transaction() as transaction:
        assert await orders.insert(transaction, ORDER) is None
    assert (await orders.get("a")).status == "reserved"
    with pytest.raises(NoSuchOrder):
        await orders.get("b")

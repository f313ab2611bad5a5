"""Orders: their states, and the only code that changes them."""

from dataclasses import dataclass, replace
from typing import Literal

from .database import Database, Transaction

Status = Literal["pending", "reserved", "paid", "confirmed", "canceled", "refunded"]

TRANSITIONS: dict[Status, set[Status]] = {
    "pending": {"reserved", "canceled"},
    "reserved": {"paid", "canceled"},
    "paid": {"confirmed", "refunded"},
    "confirmed": set(),
    "canceled": set(),
    "refunded": set(),
}

SCHEMA = (
    """
    CREATE TABLE IF NOT EXISTS orders (
        id TEXT PRIMARY KEY,
        item TEXT NOT NULL,
        quantity INTEGER NOT NULL,
        cents INTEGER NOT NULL,
        status TEXT NOT NULL DEFAULT 'pending',
        version INTEGER NOT NULL DEFAULT 1,
        closing BOOLEAN NOT NULL DEFAULT FALSE, -- it will be canceled or refunded, and cannot be confirmed any more
        payment INTEGER NOT NULL DEFAULT 1, -- the number of its current payment
        execution TEXT NOT NULL DEFAULT '' -- of its saga
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS order_changes (
        order_id TEXT NOT NULL,
        version INTEGER NOT NULL,
        status TEXT NOT NULL,
        announced BOOLEAN NOT NULL DEFAULT FALSE,
        PRIMARY KEY (order_id, version)
    )
    """,
)


@dataclass(frozen=True)
class Order:
    """What was ordered: the input of the saga."""

    id: str
    item: str
    quantity: int
    cents: int


@dataclass(frozen=True)
class StoredOrder:
    """A row of `orders`."""

    id: str
    item: str
    quantity: int
    cents: int
    status: Status
    version: int
    closing: bool
    payment: int
    execution: str

    @property
    def ordered(self) -> Order:
        return Order(self.id, self.item, self.quantity, self.cents)

    @property
    def payment_id(self) -> str:
        return f"{self.id}-{self.payment}"

    @property
    def is_final(self) -> bool:
        return not TRANSITIONS[self.status]


@dataclass(frozen=True)
class OrderStatusChanged:
    """The event that other services receive."""

    order_id: str
    version: int
    status: Status

    @property
    def id(self) -> str:
        return f"{self.order_id}/{self.version}"


class NoSuchOrder(LookupError):
    pass


class OrderConflict(Exception):
    """There is a different order with this id."""


class ForbiddenTransition(Exception):
    """The order cannot move from its status to the one asked for."""


class VersionConflict(Exception):
    """Another process changed the order between reading and writing it."""


class Orders:
    """The orders in a database. Writers check the version that they have read."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # -- Reading -------------------------------------------------------------------------------------------------------

    async def get(self, id: str) -> StoredOrder:
        rows = await self._database.read("SELECT * FROM orders WHERE id = $1", id)
        if not rows:
            raise NoSuchOrder(f"There is no order {id!r}.")
        return StoredOrder(*rows[0])

    async def get_open(self, id: str) -> StoredOrder:
        """The order, if the saga may go on with it."""
        order = await self.get(id)
        if order.closing or order.is_final:
            raise ForbiddenTransition(f"Order {id!r} is {'closing' if order.closing else order.status}.")
        return order

    # -- Writing -------------------------------------------------------------------------------------------------------

    async def insert(self, transaction: Transaction, order: Order) -> StoredOrder | None:
        """Writes a new order. Returns None if there is one with this id."""
        statement = """
            INSERT INTO orders (id, item, quantity, cents) VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING RETURNING *"""
        inserted = await transaction.run(statement, order.id, order.item, order.quantity, order.cents)
        if not inserted:
            return None
        stored = StoredOrder(*inserted[0])
        await _note(transaction, stored)
        return stored

    async def link(self, transaction: Transaction, id: str, execution: str) -> None:
        await transaction.run("UPDATE orders SET execution = $1 WHERE id = $2", execution, id)

    async def move(self, id: str, *path: Status) -> None:
        """Moves an order along a path, such as paid, refunded. What it has passed already is skipped."""
        order = await self.get(id)
        passed = path.index(order.status) + 1 if order.status in path else 0
        if passed == len(path):
            return
        async with self._database.transaction() as transaction:
            for status in path[passed:]:
                if status not in TRANSITIONS[order.status] or (status == "confirmed" and order.closing):
                    closing = " and closing" if order.closing else ""
                    raise ForbiddenTransition(f"Order {id!r} is {order.status}{closing}, and cannot become {status}.")
                order = await _write(transaction, order, replace(order, status=status))
                await _note(transaction, order)

    async def close(self, id: str) -> StoredOrder:
        """Decides that the order will not be confirmed, even if an attempt to confirm it is still running."""
        order = await self.get(id)
        if order.status == "confirmed":
            raise ForbiddenTransition(f"Order {id!r} is confirmed, and cannot be canceled.")
        if not order.closing and not order.is_final:
            async with self._database.transaction() as transaction:
                await _write(transaction, order, replace(order, closing=True))
        return order

    async def request_cancel(self, id: str) -> StoredOrder:
        """Cancels an order that nothing was done for. Any other is closed: its saga cancels or refunds it."""
        order = await self.get(id)
        if order.is_final:
            raise ForbiddenTransition(f"Order {id!r} is {order.status}, and cannot be canceled.")
        if order.status == "pending":
            await self.move(id, "canceled")
        else:
            await self.close(id)
        return await self.get(id)

    async def next_payment(self, order: StoredOrder) -> None:
        """Gives the next payment an id of its own."""
        async with self._database.transaction() as transaction:
            await _write(transaction, order, replace(order, payment=order.payment + 1))

    # -- Events --------------------------------------------------------------------------------------------------------

    async def unannounced(self, id: str) -> list[OrderStatusChanged]:
        """The changes of an order that no other service was told of, in order."""
        query = "SELECT version, status FROM order_changes WHERE order_id = $1 AND NOT announced ORDER BY version"
        return [OrderStatusChanged(id, version, status) for version, status in await self._database.read(query, id)]

    async def announced(self, event: OrderStatusChanged) -> None:
        async with self._database.transaction() as transaction:
            statement = "UPDATE order_changes SET announced = TRUE WHERE order_id = $1 AND version = $2"
            await transaction.run(statement, event.order_id, event.version)


async def _write(transaction: Transaction, read: StoredOrder, changed: StoredOrder) -> StoredOrder:
    """Writes an order if it has not changed since it was read, and returns it with its next version."""
    written = replace(changed, version=read.version + 1)
    statement = """
        UPDATE orders SET status = $1, closing = $2, payment = $3, version = $4 WHERE id = $5 AND version = $6
        RETURNING version"""
    values = (written.status, written.closing, written.payment, written.version, read.id, read.version)
    if not await transaction.run(statement, *values):
        raise VersionConflict(f"Order {read.id!r} is no longer at version {read.version}.")
    return written


async def _note(transaction: Transaction, order: StoredOrder) -> None:
    """The event is written with the change. It is announced later, by the reader of `unannounced`."""
    statement = "INSERT INTO order_changes (order_id, version, status) VALUES ($1, $2, $3)"
    await transaction.run(statement, order.id, order.version, order.status)

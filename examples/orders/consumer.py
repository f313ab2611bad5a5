"""A service that follows orders by their events. It counts each event once, and has a database of its own.

`uvicorn --factory examples.orders.consumer:create_app --port 8103`
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.responses import Response
from pydantic import BaseModel

from tenuto import Engine

from . import config
from .database import Database, connect
from .faults import Faults
from .orders import Status

SCHEMA = (
    # Without a primary key, so that an event that was counted twice would show.
    "CREATE TABLE IF NOT EXISTS order_history (order_id TEXT NOT NULL, version INTEGER NOT NULL, status TEXT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS order_history_orders ON order_history (order_id)",
)


class Event(BaseModel):
    """`OrderStatusChanged`, as the order service sends it."""

    id: str
    order_id: str
    version: int
    status: Status


class OrderHistory:
    """The read model: the statuses that each order went through."""

    def __init__(self, database: Database, engine: Engine) -> None:
        self._database = database
        self._engine = engine

    async def receive(self, event: Event) -> Response:
        """Records the event and, in the same transaction, its id in the inbox. A repetition changes nothing."""
        async with (
            self._database.transaction() as transaction,
            self._engine.inbox("order-history", event.id, transaction.connection) as first,
        ):
            if first:
                statement = "INSERT INTO order_history VALUES ($1, $2, $3)"
                await transaction.run(statement, event.order_id, event.version, event.status)
        return Response(status_code=204)

    async def refuse(self) -> Response:
        return Response(status_code=403)

    async def all(self) -> dict[str, list[str]]:
        rows = await self._database.read("SELECT order_id, status FROM order_history ORDER BY order_id, version")
        history: dict[str, list[str]] = {}
        for order_id, status in rows:
            history.setdefault(order_id, []).append(status)
        return history


def create_app(url: str = config.CONSUMER_DATABASE) -> FastAPI:
    database = connect(url, *SCHEMA)
    engine = Engine(url, worker=False)
    history = OrderHistory(database, engine)
    faults = Faults("receive")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with engine:
            yield
        await database.close()

    app = FastAPI(title="Order history", lifespan=lifespan)
    app.include_router(faults.router)

    @app.post("/events")
    async def receive(event: Event) -> Response:
        return await faults.around("receive", event.order_id, lambda: history.receive(event), history.refuse)

    @app.get("/orders")
    async def orders() -> dict[str, list[str]]:
        """The statuses of every order, oldest first."""
        return await history.all()

    return app

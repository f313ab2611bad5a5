"""The inventory service: stock, and reservations that are idempotent by order id.

`uvicorn --factory examples.orders.inventory:create_app --port 8101`
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from . import config
from .database import Database, connect
from .faults import Faults

SCHEMA = (
    "CREATE TABLE IF NOT EXISTS stock (item TEXT PRIMARY KEY, available INTEGER NOT NULL)",
    """
    CREATE TABLE IF NOT EXISTS reservations (
        order_id TEXT PRIMARY KEY,
        item TEXT NOT NULL,
        quantity INTEGER NOT NULL,
        status TEXT NOT NULL -- held, released
    )
    """,
)


class Reservation(BaseModel):
    item: str
    quantity: int


class Inventory:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def reserve(self, order_id: str, wanted: Reservation) -> Response:
        async with self._database.transaction() as transaction:
            known = await transaction.run("SELECT status FROM reservations WHERE order_id = $1", order_id)
            if known:
                ((status,),) = known
                return JSONResponse({"status": status}, 200 if status == "held" else 410)
            statement = "UPDATE stock SET available = available - $1 WHERE item = $2 AND available >= $1 RETURNING item"
            if not await transaction.run(statement, wanted.quantity, wanted.item):
                return await self.refuse()
            statement = "INSERT INTO reservations VALUES ($1, $2, $3, 'held')"
            await transaction.run(statement, order_id, wanted.item, wanted.quantity)
            return JSONResponse({"status": "held"})

    async def refuse(self) -> Response:
        return JSONResponse({"code": "out_of_stock"}, 409)

    async def release(self, order_id: str) -> Response:
        """Releases the reservation of an order. A request for it that was delayed is refused when it arrives."""
        async with self._database.transaction() as transaction:
            statement = "UPDATE reservations SET status = 'released' WHERE order_id = $1 AND status = 'held'"
            for item, quantity in await transaction.run(f"{statement} RETURNING item, quantity", order_id):
                await transaction.run("UPDATE stock SET available = available + $1 WHERE item = $2", quantity, item)
            statement = "INSERT INTO reservations VALUES ($1, '', 0, 'released') ON CONFLICT DO NOTHING"
            await transaction.run(statement, order_id)
        return JSONResponse({"status": "released"})

    async def refuse_release(self) -> Response:
        return JSONResponse({"code": "not_released"}, 403)

    async def set_stock(self, item: str, available: int) -> None:
        statement = "INSERT INTO stock VALUES ($1, $2) ON CONFLICT (item) DO UPDATE SET available = excluded.available"
        async with self._database.transaction() as transaction:
            await transaction.run(statement, item, available)

    async def stock(self) -> dict[str, dict[str, int]]:
        query = """
            SELECT s.item, s.available, coalesce(sum(r.quantity), 0) FROM stock s
            LEFT JOIN reservations r ON r.item = s.item AND r.status = 'held' GROUP BY s.item, s.available"""
        rows = await self._database.read(query)
        return {item: {"available": available, "held": held} for item, available, held in rows}

    async def reservations(self) -> dict[str, str]:
        rows = await self._database.read("SELECT order_id, status FROM reservations")
        return {row[0]: row[1] for row in rows}


def create_app(database_url: str = config.INVENTORY_DATABASE) -> FastAPI:
    database = connect(database_url, *SCHEMA)
    inventory = Inventory(database)
    faults = Faults("reserve", "release")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await database.close()

    app = FastAPI(title="Inventory", lifespan=lifespan)
    app.include_router(faults.router)

    @app.put("/reservations/{order_id}")
    async def reserve(order_id: str, wanted: Reservation) -> Response:
        return await faults.around("reserve", order_id, lambda: inventory.reserve(order_id, wanted), inventory.refuse)

    @app.delete("/reservations/{order_id}")
    async def release(order_id: str) -> Response:
        return await faults.around("release", order_id, lambda: inventory.release(order_id), inventory.refuse_release)

    @app.get("/reservations")
    async def reservations() -> dict[str, str]:
        """The status of every reservation, by order."""
        return await inventory.reservations()

    @app.put("/stock/{item}", status_code=204)
    async def set_stock(item: str, available: int) -> None:
        await inventory.set_stock(item, available)

    @app.get("/stock")
    async def stock() -> dict[str, dict[str, int]]:
        """What is available and what is held, by item."""
        return await inventory.stock()

    return app

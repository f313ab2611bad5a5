"""The payment service: payments that are idempotent by their id, and a ledger of the money that moved.

`uvicorn --factory examples.orders.payment:create_app --port 8102`
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from . import config
from .database import Database, Transaction, connect
from .faults import Fault, Faults

Status = Literal["pending", "paid", "declined", "refunded", "voided"]

SCHEMA = (
    """
    CREATE TABLE IF NOT EXISTS payments (
        id TEXT PRIMARY KEY,
        order_id TEXT NOT NULL,
        cents INTEGER NOT NULL,
        status TEXT NOT NULL,
        polls INTEGER NOT NULL, -- of a pending one: how often it is looked at before it is final,
        final TEXT NOT NULL -- and what it is then
    )
    """,
    """
    CREATE TABLE IF NOT EXISTS ledger (
        payment_id TEXT NOT NULL,
        order_id TEXT NOT NULL,
        kind TEXT NOT NULL, -- charge, refund
        cents INTEGER NOT NULL
    )
    """,
)
STATUS_CODES: dict[Status, int] = {"pending": 202, "paid": 200, "declined": 402, "refunded": 409, "voided": 409}


class NewPayment(BaseModel):
    order_id: str
    cents: int


class Payments:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def pay(self, id: str, new: NewPayment) -> Response:
        return await self._record(id, new, "paid")

    async def decline(self, id: str, new: NewPayment) -> Response:
        return await self._record(id, new, "declined")

    async def delay(self, id: str, new: NewPayment, fault: Fault) -> Response:
        return await self._record(id, new, "pending", fault.polls, fault.final)

    async def _record(self, id: str, new: NewPayment, status: Status, polls: int = 0, final: str = "") -> Response:
        """Makes the payment, unless it was made, declined or voided before: then its status stands."""
        async with self._database.transaction() as transaction:
            statement = "INSERT INTO payments VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING RETURNING id"
            if not await transaction.run(statement, id, new.order_id, new.cents, status, polls, final):
                ((status,),) = await transaction.run("SELECT status FROM payments WHERE id = $1", id)
            elif status == "paid":
                await _book(transaction, id, "charge")
        return JSONResponse({"status": status}, STATUS_CODES[status])

    async def find(self, id: str) -> Response:
        """The status of a payment. A pending one is final after some looks."""
        async with self._database.transaction() as transaction:
            statement = "UPDATE payments SET polls = polls - 1 WHERE id = $1 AND status = 'pending'"
            await transaction.run(statement, id)
            statement = "UPDATE payments SET status = final WHERE id = $1 AND status = 'pending' AND polls <= 0"
            for (status,) in await transaction.run(f"{statement} RETURNING status", id):
                if status == "paid":
                    await _book(transaction, id, "charge")
            found = await transaction.run("SELECT status FROM payments WHERE id = $1", id)
        return JSONResponse({"status": found[0][0]}) if found else JSONResponse({"code": "not_found"}, 404)

    async def void(self, id: str) -> Response:
        """Prevents a payment that was not made: a request for it that was delayed is refused when it arrives."""
        async with self._database.transaction() as transaction:
            return JSONResponse({"status": await _voided(transaction, id)})

    async def refund(self, id: str) -> Response:
        """Gives the money back. What was not paid is voided."""
        async with self._database.transaction() as transaction:
            statement = "UPDATE payments SET status = 'refunded' WHERE id = $1 AND status = 'paid' RETURNING id"
            if await transaction.run(statement, id):
                await _book(transaction, id, "refund")
            status = await _voided(transaction, id)
        return JSONResponse({"status": status}, 423 if status == "pending" else 200)

    async def refuse(self) -> Response:
        return JSONResponse({"code": "refused"}, 403)

    async def ledger(self) -> list[dict[str, Any]]:
        rows = await self._database.read("SELECT payment_id, order_id, kind, cents FROM ledger")
        return [dict(zip(("payment_id", "order_id", "kind", "cents"), row, strict=True)) for row in rows]


async def _voided(transaction: Transaction, id: str) -> Status:
    """The status of a payment. One that was never made becomes voided."""
    await transaction.run("INSERT INTO payments VALUES ($1, '', 0, 'voided', 0, '') ON CONFLICT DO NOTHING", id)
    ((status,),) = await transaction.run("SELECT status FROM payments WHERE id = $1", id)
    found: Status = status
    return found


async def _book(transaction: Transaction, id: str, kind: Literal["charge", "refund"]) -> None:
    statement = "INSERT INTO ledger SELECT id, order_id, CAST($1 AS TEXT), cents FROM payments WHERE id = $2"
    await transaction.run(statement, kind, id)


def create_app(database_url: str = config.PAYMENT_DATABASE) -> FastAPI:
    database = connect(database_url, *SCHEMA)
    payments = Payments(database)
    faults = Faults("pay", "find", "void", "refund")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await database.close()

    app = FastAPI(title="Payment", lifespan=lifespan)
    app.include_router(faults.router)

    @app.put("/payments/{id}")
    async def pay(id: str, new: NewPayment) -> Response:
        return await faults.around(
            "pay",
            new.order_id,
            lambda: payments.pay(id, new),
            lambda: payments.decline(id, new),
            lambda fault: payments.delay(id, new, fault),
        )

    @app.get("/payments/{id}")
    async def find(id: str, order_id: str) -> Response:
        return await faults.around("find", order_id, lambda: payments.find(id), payments.refuse)

    @app.post("/payments/{id}:void")
    async def void(id: str, order_id: str) -> Response:
        return await faults.around("void", order_id, lambda: payments.void(id), payments.refuse)

    @app.post("/payments/{id}:refund")
    async def refund(id: str, order_id: str) -> Response:
        return await faults.around("refund", order_id, lambda: payments.refund(id), payments.refuse)

    @app.get("/ledger")
    async def ledger() -> list[dict[str, Any]]:
        """Every charge and every refund."""
        return await payments.ledger()

    return app

"""The order service: accepts orders, starts their sagas, runs them, and tells other services what became of them.

`uvicorn --factory examples.orders.service:create_app --port 8100`
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from uuid import uuid4

import httpx2
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.routing import Route

from tenuto import Engine, Message
from tenuto.errors import InvalidTransition
from tenuto.telemetry import Telemetry

from . import config
from .clients import InventoryClient, PaymentClient
from .database import Database, connect
from .orders import (
    SCHEMA,
    ForbiddenTransition,
    NoSuchOrder,
    Order,
    OrderConflict,
    Orders,
    Status,
    StoredOrder,
    VersionConflict,
)
from .saga import OrderSaga

CONFLICT_DELAYS = (0.01, 0.05, 0.25)  # seconds between attempts to write an order that others write, too


class ConsumerError(Exception):
    """An event was not received."""


class NewOrder(BaseModel):
    """`id` is yours to choose: the same order, sent again, is accepted once."""

    id: str = Field(default_factory=lambda: uuid4().hex, pattern=r"^[\w-]{1,64}$")
    item: str
    quantity: int = Field(default=1, ge=1)
    cents: int = Field(ge=1)


class OrderView(BaseModel):
    id: str
    item: str
    quantity: int
    cents: int
    status: Status
    version: int
    closing: bool


class OrderService:
    """What the endpoints do. It owns the orders; the engine stores its executions in the same database."""

    def __init__(
        self,
        url: str,
        *,
        worker: bool,
        lease: str = "15s",
        database: Database | None = None,
        client: httpx2.AsyncClient | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._database = database or connect(url, *SCHEMA)
        self._client = client or httpx2.AsyncClient()
        self.telemetry = telemetry or Telemetry()
        self.orders = Orders(self._database)
        self.engine = Engine(
            url, worker=worker, lease=lease, telemetry=self.telemetry, messages=config.MESSAGES, publish=self.announce
        )
        inventory = InventoryClient(config.INVENTORY_URL, self._client)
        payments = PaymentClient(config.PAYMENT_URL, self._client)
        self.engine.register(OrderSaga(self.orders, inventory, payments))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self.engine:
            yield
        await self._database.close()
        await self._client.aclose()

    async def create(self, order: Order) -> StoredOrder | None:
        """Writes the order and starts its saga, both or neither. Returns None if it was created before."""
        async with self._database.transaction() as transaction:
            created = await self.orders.insert(transaction, order)
            if created is not None:
                handle = await self.engine.start(
                    OrderSaga,
                    order,
                    idempotency_key=f"order-{order.id}",
                    correlation_id=order.id,
                    target=("order", order.id),
                    connection=transaction.connection,
                )
                await self.orders.link(transaction, order.id, handle.id)
        return created

    async def cancel(self, id: str) -> StoredOrder:
        """Decides that the order is canceled, then tells its saga. If that message is lost, the next step notices."""
        for delay in CONFLICT_DELAYS:
            try:
                order = await self.orders.request_cancel(id)
                break
            except VersionConflict:
                await asyncio.sleep(delay)
        else:
            order = await self.orders.request_cancel(id)
        with suppress(InvalidTransition):  # the saga has just ended
            await self.engine.get(order.execution).cancel("compensate", reason="the customer canceled the order")
        return order

    async def announce(self, message: Message) -> None:
        """Called for every message in the outbox, at least once and in order. If it raises, it is called again."""
        try:
            order = await self.orders.get(message.correlation_id)
        except NoSuchOrder:
            return  # of a saga that was started without an order
        if message.kind == "execution.finished":
            await self._finish(order, message)
        for event in await self.orders.unannounced(order.id):
            response = await self._client.post(f"{config.CONSUMER_URL}/events", json={"id": event.id, **asdict(event)})
            if response.status_code != 204:
                raise ConsumerError(f"The consumer answered {response.status_code} to event {event.id}.")
            await self.orders.announced(event)

    async def _finish(self, order: StoredOrder, message: Message) -> None:
        """A saga that was canceled before its first step leaves a pending order; one that failed, a dead letter."""
        if order.status == "pending":
            await self.orders.move(order.id, "canceled")
        elif order.is_final:
            async for letter in self.engine.reviews(kind="dead_letter", execution_id=message.execution_id):
                await self.engine.resolve(letter["id"], "dismiss", reason=f"the order is {order.status}")


def create_app(given: OrderService | None = None) -> FastAPI:
    service = given or OrderService(config.DATABASE, worker=config.WORKER)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = FastAPI(title="Orders", lifespan=lifespan)
    app.router.routes.append(Route("/metrics", service.telemetry.metrics_app()))

    @app.post("/orders", status_code=201)
    async def create(new: NewOrder, response: Response) -> OrderView:
        """Accepts an order. It is pending; its saga goes on from here."""
        order = Order(**new.model_dump())
        if (created := await service.create(order)) is not None:
            return view(created)
        response.status_code = 200
        stored = await service.orders.get(order.id)
        if stored.ordered != order:
            raise OrderConflict(f"There is another order {order.id!r}. Send a different order under an id of its own.")
        return view(stored)

    @app.get("/orders/{id}")
    async def get(id: str) -> OrderView:
        return view(await service.orders.get(id))

    @app.post("/orders/{id}:cancel", status_code=202)
    async def cancel(id: str) -> OrderView:
        """Cancels an order that is not confirmed. What was paid is refunded, and what was reserved is released."""
        return view(await service.cancel(id))

    @app.exception_handler(NoSuchOrder)
    async def no_such_order(_: Request, error: NoSuchOrder) -> Response:
        return JSONResponse({"detail": str(error)}, 404)

    @app.exception_handler(ForbiddenTransition)
    @app.exception_handler(OrderConflict)
    async def conflict(_: Request, error: ForbiddenTransition | OrderConflict) -> Response:
        return JSONResponse({"detail": str(error)}, 409)

    @app.exception_handler(VersionConflict)
    async def version_conflict(_: Request, error: VersionConflict) -> Response:
        return JSONResponse({"detail": f"{error} Try again."}, 503, {"Retry-After": "1"})

    return app


def view(order: StoredOrder) -> OrderView:
    return OrderView(**asdict(order))

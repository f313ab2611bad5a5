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

from tenuto import Engine, Message
from tenuto.errors import InvalidTransition
from tenuto.telemetry import Telemetry

from . import config
from .clients import InventoryClient, PaymentClient
from .database import Database, connect
from .orders import SCHEMA, ForbiddenTransition, NoSuchOrder, Order, Orders, Status, StoredOrder, VersionConflict
from .saga import OrderSaga

MESSAGES = ("execution.started", "execution.finished", "step.completed", "step.compensated")
CONFLICT_DELAYS = (0.01, 0.05, 0.25)  # seconds between attempts to write an order that others write, too


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
            url, worker=worker, lease=lease, telemetry=self.telemetry, messages=MESSAGES, publish=self.announce
        )
        inventory = InventoryClient(config.INVENTORY_URL, client)
        payments = PaymentClient(config.PAYMENT_URL, client)
        self.engine.register(OrderSaga(self.orders, inventory, payments))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self.engine:
            yield
        await self._database.close()
        await self._client.aclose()

    async def create(self, order: Order) -> bool:
        """Writes the order and starts its saga, both or neither. Returns False if there is an order with this id."""
        async with self._database.transaction() as transaction:
            if not await self.orders.insert(transaction, order):
                return False
            handle = await self.engine.start(
                OrderSaga,
                order,
                idempotency_key=f"order-{order.id}",
                correlation_id=order.id,
                target=("order", order.id),
                connection=transaction.connection,
            )
            await self.orders.link(transaction, order.id, handle.id)
        return True

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
        order = await self.orders.get(message.correlation_id)
        if message.kind == "execution.finished":
            await self._finish(order, message)
        for event in await self.orders.unannounced(order.id):
            response = await self._client.post(f"{config.CONSUMER_URL}/events", json={"id": event.id, **asdict(event)})
            response.raise_for_status()
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
    app.mount("/metrics", service.telemetry.metrics_app())

    @app.post("/orders", status_code=201)
    async def create(new: NewOrder, response: Response) -> OrderView:
        """Accepts an order. It is pending; its saga goes on from here."""
        if not await service.create(Order(**new.model_dump())):
            response.status_code = 200
        return view(await service.orders.get(new.id))

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
    async def forbidden_transition(_: Request, error: ForbiddenTransition) -> Response:
        return JSONResponse({"detail": str(error)}, 409)

    @app.exception_handler(VersionConflict)
    async def version_conflict(_: Request, error: VersionConflict) -> Response:
        return JSONResponse({"detail": f"{error} Try again."}, 503, {"Retry-After": "1"})

    return app


def view(order: StoredOrder) -> OrderView:
    return OrderView(**asdict(order))

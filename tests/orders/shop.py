"""The whole example in one process: the order service, the two services it calls, and the consumer of its events."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Self

import httpx2
from fastapi import FastAPI

from examples.orders import config, consumer, inventory, payment, service
from examples.orders.service import OrderService
from tenuto import Message
from tenuto.telemetry import Telemetry

ITEM = "tea"
STOCK = 10_000
INVENTORY, PAYMENT, CONSUMER = config.INVENTORY_URL, config.PAYMENT_URL, config.CONSUMER_URL
SERVICE_OF = {
    "reserve": INVENTORY, "release": INVENTORY,
    "pay": PAYMENT, "find": PAYMENT, "void": PAYMENT, "refund": PAYMENT,
    "receive": CONSUMER,
}  # fmt: skip

Watch = Callable[[httpx2.Request, str], Awaitable[None]]


class Network(httpx2.AsyncBaseTransport):
    """Carries requests to applications in this process. A caller that gives up does not stop the one it has called."""

    def __init__(self, apps: dict[str, FastAPI]) -> None:
        self._apps = {httpx2.URL(url).port: httpx2.ASGITransport(app=app) for url, app in apps.items()}
        self._served: set[asyncio.Task[httpx2.Response]] = set()
        self.watch: Watch | None = None  # called with each request, `before` and `after` it is served

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        task = asyncio.ensure_future(self._serve(request))
        self._served.add(task)
        task.add_done_callback(self._served.discard)
        return await asyncio.shield(task)

    async def _serve(self, request: httpx2.Request) -> httpx2.Response:
        if self.watch is not None:
            await self.watch(request, "before")
        try:
            return await self._apps[request.url.port].handle_async_request(request)
        except ConnectionResetError as error:
            raise httpx2.ReadError("reset", request=request) from error
        finally:
            if self.watch is not None:
                await self.watch(request, "after")

    async def quiet(self) -> None:
        """Until nothing is served any more."""
        while self._served:
            await asyncio.wait(self._served)


class WatchedService(OrderService):
    """The order service, and which of its sagas are over as far as other services are concerned."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.over: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def announce(self, message: Message) -> None:
        await super().announce(message)
        if message.kind == "execution.finished":
            self.over[message.correlation_id].set()


class Shop:
    def __init__(
        self,
        url: str = "memory://",
        *,
        databases: Callable[[str], str] = lambda name: "memory://",
        telemetry: Telemetry | None = None,
        lease: str = "15s",
    ) -> None:
        others = {
            INVENTORY: inventory.create_app(databases("inventory")),
            PAYMENT: payment.create_app(databases("payment")),
            CONSUMER: consumer.create_app(databases("consumer")),
        }
        self.url = url
        self.network = Network(others)
        self.client = httpx2.AsyncClient(transport=self.network, timeout=None)
        self.service = WatchedService(url, worker=True, lease=lease, client=self.client, telemetry=telemetry)
        app = service.create_app(self.service)
        self._apps = [*others.values(), app]
        self.api = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://orders", timeout=None)
        self._stack = AsyncExitStack()

    @classmethod
    def on_files(cls, folder: Path, **options: Any) -> Self:
        """With a SQLite file for each service."""
        return cls(f"sqlite:///{folder}/orders.db", databases=lambda name: f"sqlite:///{folder}/{name}.db", **options)

    async def __aenter__(self) -> Self:
        for app in self._apps:
            await self._stack.enter_async_context(app.router.lifespan_context(app))
        await self.client.put(f"{INVENTORY}/stock/{ITEM}", params={"available": STOCK})
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.network.quiet()
        await self._stack.aclose()

    # -- What people and tests do --------------------------------------------------------------------------------------

    async def fault(self, operation: str, kind: str, order_id: str, **options: Any) -> None:
        given = {"operation": operation, "kind": kind, "order_id": order_id, **options}
        response = await self.client.post(f"{SERVICE_OF[operation]}/faults", json=given)
        assert response.status_code == 201, response.text

    async def order(self, id: str, cents: int = 500) -> Any:
        response = await self.api.post("/orders", json={"id": id, "item": ITEM, "quantity": 2, "cents": cents})
        assert response.status_code in (200, 201), response.text
        return response.json()

    async def cancel(self, id: str) -> int:
        return (await self.api.post(f"/orders/{id}:cancel")).status_code

    async def status(self, id: str) -> str:
        found: str = (await self.service.orders.get(id)).status
        return found

    async def settled(self, id: str) -> Any:
        """The result of an order's saga, when it has ended or waits for a person."""
        order = await self.service.orders.get(id)
        return await self.service.engine.get(order.execution).result()

    async def finished(self, id: str) -> str:
        """The status of an order whose saga has ended, and whose events have reached the consumer."""
        await self.settled(id)
        await self.service.over[id].wait()
        return await self.status(id)
